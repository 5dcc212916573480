/* tern mcp - the documents of tern rag as tools of an agent: the Model Context Protocol on standard input and output, a
 * message a line (server/mcp.h).
 *
 * One thread reads lines, so that a request can be cancelled while another is answered; this one answers, in the order
 * of coming. Everything that people read goes to standard error. */
#include "cli/answer.h"
#include "cli/args.h"
#include "cli/ask.h"
#include "cli/commands.h"
#include "cli/embedding.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/store_args.h"
#include "base/status.h"
#include "server/mcp.h"
#include "server/mcp_store.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LINE = 8 << 20, MAX_WAITING = 64, PROGRESS_EVERY = 8 };

typedef struct waiting { /* a message that came; the first is being answered */
    struct waiting *next;
    json_t *message; /* NULL: the line was no JSON, and why says what was wrong */
    char id[128], why[160];
    bool cancelled;
} waiting;

typedef struct mcp {
    model_args ma;
    const char *store_file, *template, *rerank;
    char *file, *source;
    tn_ctx ctx;
    tn_store *store; /* NULL: there is none yet */
    embedding words_to_vectors;
    bool has_vectors;
    reranking scores;
    bool has_scores; /* it was opened, or is none */
    tern_engine *e;  /* opened by the first question */
    const command *cmd;
    answer out;
    /* between the reader and who answers */
    pthread_mutex_t mu;
    pthread_cond_t changed;
    waiting *first, *last;
    int n_waiting;
    bool ended;      /* nothing more comes */
    bool unread;     /* ... because reading failed */
    tern_session *s; /* what a cancel reaches, or NULL */
} mcp;

/* ---- the reader --------------------------------------------------------------------------------------- */

/* A request that is told to be cancelled: one that is being answered stops, one that waits is never begun. */
static void cancel(mcp *m, const char *id) {
    pthread_mutex_lock(&m->mu);
    for (waiting *w = m->first; w; w = w->next) {
        if (!w->id[0] || strcmp(w->id, id)) continue;
        w->cancelled = true;
        if (w == m->first && m->s) tern_session_cancel(m->s);
    }
    pthread_mutex_unlock(&m->mu);
}

static bool put(mcp *m, const char *line, size_t n) {
    waiting *w = calloc(1, sizeof *w);
    json_error_t je;
    char cancels[128] = "";
    if (!w) return false;
    if (n > MAX_LINE) snprintf(w->why, sizeof w->why, "a message is longer than %d bytes", MAX_LINE);
    else if (!(w->message = tn_json_parse(line, n, JSON_REJECT_DUPLICATES, &je))) {
        if (json_error_code(&je) == json_error_out_of_memory) { /* whose request it is, is not known */
            free(w);
            return false;
        }
        snprintf(w->why, sizeof w->why, "%.150s", je.text);
    }
    if (w->message) tn_mcp_id(w->message, w->id);
    if (w->message) tn_mcp_cancels(w->message, cancels);
    if (cancels[0]) {
        cancel(m, cancels);
        json_decref(w->message);
        free(w);
        return true;
    }
    pthread_mutex_lock(&m->mu);
    while (m->n_waiting >= MAX_WAITING) pthread_cond_wait(&m->changed, &m->mu);
    if (m->last) m->last->next = w;
    else m->first = w;
    m->last = w;
    m->n_waiting++;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mu);
    return true;
}

/* Lines until the end of the input. Of one that is too long the rest is read and dropped. */
static void *read_lines(void *user) {
    mcp *m = user;
    size_t n = 0, cap = 4096;
    char *line = malloc(cap);
    bool ok = line != NULL;
    for (int c; ok && (c = getchar_unlocked()) != EOF;) {
        if (c == '\n') {
            size_t blank = 0;
            while (blank < n && n <= MAX_LINE && strchr(" \t\r", line[blank])) blank++;
            if (blank < n) ok = put(m, line, n);
            n = 0;
            continue;
        }
        if (n > MAX_LINE) continue;
        if (n == cap) {
            char *more = realloc(line, cap *= 2);
            if (!(ok = more != NULL)) break;
            line = more;
        }
        line[n++] = (char)c;
    }
    if (ok && n) ok = put(m, line, n);
    free(line);
    pthread_mutex_lock(&m->mu);
    m->unread = !ok || ferror(stdin);
    m->ended = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mu);
    return NULL;
}

/* ---- tools -------------------------------------------------------------------------------------------- */

/* The store, once there is one: an agent may be there before the first document. */
static tern_status open_store(mcp *m, tern_error *err) {
    tn_vectors_info info = {0};
    if (m->store) return TERN_OK;
    TN_FAIL_IF(access(m->file, F_OK), err, TERN_E_IO,
               "there are no documents yet: add some with tern rag add PATH");
    TN_TRY(tn_store_open(&m->ctx, m->file, NULL, &m->store, err));
    if (tn_vectors_info_get(m->store, &info, NULL) == TERN_OK && info.any) {
        tern_error why;
        m->has_vectors = cli_embedding_open_noted(&info, &m->words_to_vectors, &why) == TERN_OK;
        if (!m->has_vectors)
            fprintf(stderr, "tern: documents are searched by words alone: %s\n", cli_shown(why.message));
    }
    return TERN_OK;
}

/* The reranker's score, unless the request was cancelled. */
static tern_status score(void *user, const char *question, const char *text, float *out, tern_error *err) {
    mcp *m = user;
    pthread_mutex_lock(&m->mu);
    const bool cancelled = m->first->cancelled;
    pthread_mutex_unlock(&m->mu);
    TN_FAIL_IF(cancelled, err, TERN_E_CANCELLED, "the request was cancelled");
    return m->scores.as.score(m->scores.as.user, question, text, out, err);
}

static tern_status find(mcp *m, const char *query, int32_t k, tn_rag_hit **hits, int32_t *n,
                        tern_error *err) {
    TN_TRY(open_store(m, err));
    if (!m->has_scores) TN_TRY(cli_reranking_open(m->rerank, &m->scores, err));
    m->has_scores = true;
    const tn_reranker mine = {.score = score, .user = m, .yes = m->scores.as.yes},
                      *r = m->scores.v ? &mine : NULL;
    TN_TRY(tn_rag_search(m->store, query, tn_rag_reach(r, k), m->has_vectors ? &m->words_to_vectors.as : NULL,
                         hits, n, err));
    const tern_status st = tn_rag_rerank(&m->ctx, r, query, k, *hits, n, err);
    if (st != TERN_OK) tn_rag_hits_free(&m->ctx, hits, *n);
    return st;
}

static tern_status search(void *user, const char *query, int32_t k, json_t **out, tern_error *err) {
    mcp *m = user;
    tn_rag_hit *hits;
    int32_t n;
    TN_TRY(find(m, query, k, &hits, &n, err));
    *out = tn_mcp_sources(hits, n);
    tn_rag_hits_free(&m->ctx, &hits, n);
    return TERN_OK;
}

static tern_status read_document(void *user, const char *path, int32_t passage, json_t **out,
                                 tern_error *err) {
    mcp *m = user;
    TN_TRY(open_store(m, err));
    return tn_mcp_store_read(&m->ctx, m->store, path, passage, out, err);
}

static tern_status list(void *user, json_t **out, tern_error *err) {
    mcp *m = user;
    *out = NULL;
    if (!m->store && access(m->file, F_OK)) return *out = json_array(), TERN_OK;
    TN_TRY(open_store(m, err));
    return tn_mcp_store_list(m->store, out, err);
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static bool emit(json_t *v) {
    char *text = NULL;
    tern_error err;
    bool ok = tn_json_text(v, JSON_COMPACT, &text, &err) == TERN_OK;
    json_decref(v);
    if (!ok) {
        (void)cli_failed(&err);
        return false;
    }
    ok = puts(text) >= 0 && !fflush(stdout);
    free(text);
    return ok;
}

typedef struct writing {
    mcp *m;
    const json_t *token; /* who asked wants to hear of it; or NULL */
    int64_t n;
} writing;

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    writing *w = user;
    if (w->token && ++w->n % PROGRESS_EVERY == 0)
        (void)emit(tn_mcp_progress(w->token, w->n, "tokens of the answer"));
    return cli_answer_on_token(&w->m->out, token, text, n, logprob);
}

/* A session from now on cancelled with the request, unless that was cancelled already. */
static bool reach(mcp *m, tern_session *s) {
    pthread_mutex_lock(&m->mu);
    m->s = s;
    bool ok = !s || !m->first->cancelled;
    pthread_mutex_unlock(&m->mu);
    return ok;
}

/* The prompt with as many passages as leave room for an answer. */
static tern_status prompt(mcp *m, tern_session *s, const char *question, const tn_rag_hit *hits,
                          int32_t *n_hits, int32_t **ids, size_t *n_ids, tern_error *err) {
    const size_t room = (size_t)tern_session_capacity(s);
    for (;; (*n_hits)--) {
        *ids = cli_ask_ids(m->e, &m->ctx, m->source, NULL, question, hits, *n_hits, n_ids);
        TN_FAIL_IF(!*ids, err, TERN_E_MEMORY, "the prompt could not be made");
        if (*n_ids + room / 4 <= room) return TERN_OK;
        free(*ids);
        *ids = NULL;
        TN_FAIL_IF(!*n_hits, err, TERN_E_LIMIT, "the question is longer than the model's context");
    }
}

static tern_status answer_with(mcp *m, tern_session *s, const char *question, tn_rag_hit *hits, int32_t n,
                               json_t **out, tern_error *err) {
    tern_generate_options g = m->ma.o.generate;
    tern_generate_result r;
    writing w = {.m = m, .token = tn_mcp_progress_token(m->first->message)};
    int32_t *ids = NULL, n_fit = 0;
    size_t n_ids = 0;
    bool fits = false;
    for (int32_t i = 0; i < n; i++) fits = fits || hits[i].fits;
    n_fit = fits ? n : 0;
    TN_TRY(prompt(m, s, question, hits, &n_fit, &ids, &n_ids, err));
    cli_answer_clear(&m->out);
    g.on_token = on_token;
    g.user = &w;
    tern_status st = reach(m, s) ? tern_session_prefill(s, ids, n_ids, err)
                                 : tn_fail(err, TERN_E_CANCELLED, "the request was cancelled");
    if (st == TERN_OK) st = tern_session_generate(s, &g, &r, err);
    (void)reach(m, NULL);
    free(ids);
    TN_FAIL_IF(st == TERN_OK && m->out.no_memory, err, TERN_E_MEMORY, "no memory for the answer");
    if (st != TERN_OK) return st;
    const char *text = m->out.text ? m->out.text : "";
    tn_rag_support(hits, n_fit, question, text);
    qsort(hits, (size_t)n_fit, sizeof *hits, tn_rag_by_support);
    *out =
        tn_json_pack("{s:s%, s:s, s:b, s:o}", "text", text, m->out.n, "stop", cli_stop_reason_text(r.reason),
                     "fits", (int)fits, "sources", tn_mcp_sources(hits, n_fit));
    return TERN_OK;
}

static tern_status ask(void *user, const char *question, int32_t k, json_t **out, tern_error *err) {
    mcp *m = user;
    tn_rag_hit *hits = NULL;
    tern_session *s = NULL;
    int32_t n = 0;
    TN_TRY(find(m, question, k, &hits, &n, err));
    tern_status st = TERN_OK;
    if (!m->e && cli_open_engine(m->cmd, &m->ma, &m->e) >= 0)
        st = tn_fail(err, TERN_E_IO, "the model could not be opened: see the standard error of tern mcp");
    if (st == TERN_OK) cli_use_context(&m->ma, m->e);
    if (st == TERN_OK) st = tern_session_open(m->e, &m->ma.o.session, &s, err);
    if (st == TERN_OK) st = answer_with(m, s, question, hits, n, out, err);
    tern_session_close(&s);
    if (st == TERN_E_IO || st == TERN_E_FORMAT || st == TERN_E_MEMORY)
        tern_engine_close(&m->e); /* the next question tries the file again */
    tn_rag_hits_free(&m->ctx, &hits, n);
    return st;
}

/* Answers what comes until nothing more does. false: the agent reads no more. */
static bool serve(mcp *m) {
    const tn_mcp_tools tools = {
        .search = search, .read = read_document, .list = list, .ask = m->ma.model ? ask : NULL, .user = m};
    for (bool ok = true;;) {
        pthread_mutex_lock(&m->mu);
        while (!m->first && !m->ended) pthread_cond_wait(&m->changed, &m->mu);
        waiting *w = m->first;
        bool skip = w && w->cancelled;
        pthread_mutex_unlock(&m->mu);
        if (!w)
            return ok && (!m->unread || (cli_failed_text("the agent's message could not be read"), false));
        bool no_memory = false;
        json_t *v = skip || !ok  ? NULL
                    : w->message ? tn_mcp_answer(&tools, w->message, &no_memory)
                                 : tn_mcp_no_json(w->why);
        pthread_mutex_lock(&m->mu);
        bool cancelled = w->cancelled;
        m->first = w->next;
        if (!m->first) m->last = NULL;
        m->n_waiting--;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->mu);
        if (no_memory) ok = false, (void)cli_failed_text("no memory for a reply");
        if (v && !cancelled) ok = emit(v) && ok;
        else json_decref(v); /* of a request that was cancelled nobody wants a reply */
        json_decref(w->message);
        free(w);
        if (!ok) return false;
    }
}

int cmd_mcp(int argc, char **argv) {
    mcp m = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    cli_model_args_defaults(&m.ma, TN_IN_ASK);
    m.ma.o.generate.sampling.temperature = 0;
    const arg_spec specs[] = {
        MODEL_ARGS(m.ma),
        PACK_ARG(m.ma),
        TEMPLATE_ARG(m.template),
        {"store", 0, "FILE", ARG_STR, &m.store_file, 0, 0,
         "file that holds the documents (default: $XDG_DATA_HOME/tern/store.db)"},
        RERANK_ARG(m.rerank, RERANK_AT_HAND),
        {0},
    };
    const command c = {
        "mcp", "[MODEL] [OPTIONS]",
        "Offer the documents of tern rag to an agent: the Model Context Protocol on standard input and "
        "output. Tools: search_documents, read_document, list_documents and, with MODEL, ask_documents.",
        specs, 1};
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (words[0] && m.ma.model) return cli_usage_error(&c, "unexpected argument '%s'", words[0]);
    if (words[0]) m.ma.model = words[0];
    if (m.ma.model) cli_args_model_path(&m.ma);
    if (m.ma.model && access(m.ma.model, F_OK)) return cli_no_model(m.ma.model);
    tern_error err;
    if (m.rerank && cli_reranking_open(m.rerank, &m.scores, &err) != TERN_OK) return cli_failed(&err);
    m.has_scores = m.rerank != NULL;
    m.cmd = &c;
    m.out.quiet = true;
    cli_store_ctx(&m.ctx);
    m.file = cli_store_path(m.store_file);
    if (!m.file || !cli_prompt_template(m.template, &m.source)) {
        free(m.file);
        cli_reranking_close(&m.scores);
        return EXIT_FAILED;
    }
    signal(SIGPIPE, SIG_IGN);
    if (isatty(STDIN_FILENO))
        fputs("tern mcp talks to agents, one line of JSON per message: put \"tern mcp\" into your agent's "
              "settings (docs/guide/documents.md). Ctrl-D ends it.\n",
              stderr);
    pthread_t reader;
    if (pthread_create(&reader, NULL, read_lines, &m)) rc = cli_failed_text("no thread to read with");
    else {
        rc = serve(&m) ? EXIT_OK : EXIT_FAILED;
        if (rc != EXIT_OK) exit(rc); /* the reader waits for lines that nobody answers */
        pthread_join(reader, NULL);
    }
    cli_answer_free(&m.out);
    cli_embedding_close(&m.words_to_vectors);
    cli_reranking_close(&m.scores);
    tern_engine_close(&m.e);
    tn_store_close(&m.store);
    free(m.file);
    free(m.source);
    return rc;
}
