/* tern ask - answer a question from the documents of the store, and say from which. */
#include "cli/ask.h"

#include "cli/answer.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/embedding.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/stats.h"
#include "cli/store_args.h"

#include "base/clock.h"
#include "base/process.h"
#include "base/status.h"
#include "server/mcp_store.h"
#include "session/session.h"
#include "documents/rag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int32_t *cli_ask_ids(const tern_engine *e, tn_ctx *ctx, const char *source, const char *system,
                     const char *question, const tn_rag_hit *hits, int32_t n, size_t *n_ids) {
    char *user = tn_rag_prompt(ctx, question, hits, n);
    if (!user) {
        cli_failed_text("no memory for the prompt");
        return NULL;
    }
    tern_message msgs[2];
    size_t n_msgs = 0;
    if (system) msgs[n_msgs++] = (tern_message){"system", system};
    msgs[n_msgs++] = (tern_message){"user", user};
    int32_t *ids = NULL;
    if (source || tern_has_chat_template(e)) {
        ids = cli_prompt_chat(e, msgs, n_msgs, source, n_ids);
    } else {
        size_t cap = strlen(user) + (system ? strlen(system) : 0) + 32;
        char *text = malloc(cap);
        if (text) {
            int n_bytes =
                snprintf(text, cap, "%s%s%s\n\nAnswer:", system ? system : "", system ? "\n\n" : "", user);
            ids = cli_prompt_ids(e, text, (size_t)n_bytes, false, n_ids);
        } else {
            cli_failed_text("no memory for the prompt");
        }
        free(text);
    }
    tn_free(ctx, user);
    return ids;
}

/* Prints the sources on standard output, after the answer, because they are part of it: those alone that
 * it came from, else that there are none. */
static void print_sources(const tn_rag_hit *hits, int32_t n, bool fits) {
    bool any = false;
    for (int32_t i = 0; i < n; i++) any = any || hits[i].cited;
    if (!fits) puts("\nNothing in the documents fits the question: the model answered without them.");
    else if (any) puts("\nSources:");
    else if (n) puts("\nThe answer does not come from these passages, which the model was given:");
    for (int32_t i = 0, number = 1; i < n; i++) {
        if (any && !hits[i].cited) continue;
        printf("[%d] %s, passage %d", number++, cli_shown(hits[i].path), hits[i].number);
        if (hits[i].line) printf(", line %d", hits[i].line);
        if (hits[i].page) printf(", page %d", hits[i].page);
        if (any) printf(" (%.0f %% of the answer's words)", (double)hits[i].support * 100);
        putchar('\n');
    }
    if (n) puts("tern rag show PATH NUMBER prints a passage.");
}

/* Keeps the documents that were answered from. Later sessions draft from all of them, not only from these
 * passages. */
static void keep_documents(tern_session *s, tn_store *index, const tn_rag_hit *hits, int32_t n) {
    enum { MAX_BYTES = 32 << 10 };
    for (int32_t i = 0; i < n; i++) {
        bool seen = false;
        for (int32_t h = 0; h < i; h++) seen = seen || !strcmp(hits[h].path, hits[i].path);
        char *text;
        size_t n_bytes;
        int64_t id;
        if (seen || tn_rag_id(index, hits[i].path, &id, NULL) != TERN_OK ||
            tn_storing_quoting(s, &id, 1, NULL) != TERN_OK ||
            tn_rag_text(index, hits[i].path, MAX_BYTES, &text, &n_bytes, NULL) != TERN_OK)
            continue;
        tn_storing_corpus(s, text, n_bytes);
        tn_free(tn_store_ctx(index), text);
    }
}

/* Notes the documents that the conversation was answered from, because it goes when one of them goes. */
static tern_status quote_documents(tern_session *s, tn_store *index, const tn_rag_hit *hits, int32_t n,
                                   tern_error *err) {
    int64_t ids[TN_RAG_MAX_K];
    for (int32_t i = 0; i < n; i++) TN_TRY(tn_rag_id(index, hits[i].path, &ids[i], err));
    return tn_storing_quoting(s, ids, (size_t)n, err);
}

typedef struct asking {
    model_args ma;
    const char *system, *store, *trace, *template, *question, *rerank;
    int32_t k;
    int32_t stats;
    bool json, explain, no_store, no_sources, words;
    /* what the request is made of */
    tn_ctx ctx;
    char *file, *source;
    tn_store *index;
    tn_rag_hit *hits;
    int32_t n_hits, n_found, *ids;
    size_t n_ids;
    int64_t n_documents, n_passages;
    bool fits; /* some passage does */
    tern_engine *e;
    tern_session *s;
    answer out;
    tern_generate_result res;
    double search_s, prefill_s;
    char reranker[TN_VECTOR_PATH_MAX]; /* "": none took part */
    int32_t n_reranked;
    double rerank_s;
} asking;

/* The passages, as many as are wanted, in the order of words and meaning, or of a reranker where there is one. */
static tern_status search(asking *q, const embedding *x, const reranking *y, tern_error *err) {
    const tn_reranker *r = y->v ? &y->as : NULL;
    double t0 = tn_now_s();
    TN_TRY(tn_rag_search(q->index, q->question, tn_rag_reach(r, q->k), x->v ? &x->as : NULL, &q->hits,
                         &q->n_hits, err));
    double t1 = tn_now_s();
    q->search_s = t1 - t0;
    q->n_found = q->n_reranked = q->n_hits;
    tern_status st = tn_rag_rerank(&q->ctx, r, q->question, q->k, q->hits, &q->n_hits, err);
    q->n_found = q->n_hits;
    q->rerank_s = tn_now_s() - t1;
    snprintf(q->reranker, sizeof q->reranker, "%s", y->path);
    return st;
}

static void tell_reranked(const asking *q) {
    if (*q->reranker)
        fprintf(stderr, "%d passages reranked in %.0f ms by %s\n", q->n_reranked, q->rerank_s * 1e3,
                cli_shown(q->reranker));
}

/* The steps return -1 to go on or an exit status. The passages come first: without any, no model need be
 * loaded. */
static int find_passages(asking *q) {
    tern_error err;
    q->file = cli_store_path(q->store);
    if (!q->file || !cli_prompt_template(q->template, &q->source)) return EXIT_FAILED;
    if (tn_store_open(&q->ctx, q->file, NULL, &q->index, &err) != TERN_OK) return cli_failed(&err);
    if (tn_rag_counts(q->index, &q->n_documents, &q->n_passages, &err) != TERN_OK) return cli_failed(&err);
    if (!q->n_documents)
        return cli_failed_text("%s has no documents: add some with tern rag add PATH", q->file);
    embedding x = {0};
    reranking y = {0};
    tn_vectors_info info = {0};
    tern_status st = q->words ? TERN_OK : tn_vectors_info_get(q->index, &info, &err);
    if (st == TERN_OK && info.any) st = cli_embedding_open_noted(&info, &x, &err);
    if (st == TERN_OK) st = cli_reranking_open(q->rerank, &y, &err);
    if (st == TERN_OK) st = search(q, &x, &y, &err);
    cli_embedding_close(&x); /* its memory is the answering model's now */
    cli_reranking_close(&y);
    if (st != TERN_OK) return cli_failed(&err);
    if (info.n_missing)
        fprintf(stderr, "tern: %lld passages have no vector yet: tern rag add PATH makes them\n",
                (long long)info.n_missing);
    for (int32_t i = 0; i < q->n_hits; i++) q->fits = q->fits || q->hits[i].fits;
    if (!q->fits) q->n_hits = 0;
    return -1;
}

/* The model, and a prompt with as many passages as fit. */
static int make_prompt(const command *c, asking *q) {
    tern_error err;
    q->ma.o.trace = q->trace != NULL;
    int rc = cli_open_engine(c, &q->ma, &q->e);
    if (rc >= 0) return rc;
    cli_use_context(&q->ma, q->e);
    tern_session_options so = q->ma.o.session;
    so.store = q->no_store ? NULL : q->file;
    if (tern_session_open(q->e, &so, &q->s, &err) != TERN_OK) return cli_failed(&err);
    int32_t max_tokens = q->ma.o.generate.max_tokens;
    size_t room = (size_t)tern_session_capacity(q->s), wanted = max_tokens < 0 ? room : (size_t)max_tokens;
    size_t reserve = wanted < room / 4 ? wanted : room / 4;
    for (;; q->n_hits--) { /* the worst passages go until the rest fits with an answer */
        free(q->ids);
        q->ids = cli_ask_ids(q->e, &q->ctx, q->source, q->system, q->question, q->hits, q->n_hits, &q->n_ids);
        if (!q->ids) return EXIT_FAILED;
        if (q->n_ids + reserve <= room || !q->n_hits) break;
    }
    if (!cli_prompt_fits(q->e, q->s, q->n_ids)) return EXIT_FAILED;
    if (q->fits && q->n_hits < q->n_found)
        fprintf(stderr, "tern: %d of %d passages fit a context of %zu tokens (-c)\n", q->n_hits, q->n_found,
                room);
    if (quote_documents(q->s, q->index, q->hits, q->n_hits, &err) != TERN_OK) return cli_failed(&err);
    return -1;
}

static int answer_question(asking *q) {
    tern_error err;
    tern_generate_options g = q->ma.o.generate;
    cli_interrupts_cancel(q->s);
    double t0 = tn_now_s();
    if (cli_prefill_shown(q->s, q->ids, q->n_ids, &err) != TERN_OK) return cli_failed(&err);
    q->prefill_s = tn_now_s() - t0;
    g.on_token = cli_answer_on_token;
    g.user = &q->out;
    tern_status st = tern_session_generate(q->s, &g, &q->res, &err);
    cli_interrupts_cancel(NULL);
    if (st == TERN_OK && q->out.no_memory) st = tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
    if (st != TERN_OK && !(st == TERN_E_CANCELLED && q->out.n)) return cli_failed(&err);
    if (q->trace && tern_session_write_trace(q->s, q->trace, &err) != TERN_OK) return cli_failed(&err);
    return -1;
}

static int print_answer(asking *q) {
    const tern_generate_result *res = &q->res;
    const char *text = q->out.text ? q->out.text : "";
    tn_stats ts;
    tn_session_stats(q->s, &ts);
    tn_rag_support(q->hits, q->n_hits, q->question, text);
    qsort(q->hits, (size_t)q->n_hits, sizeof *q->hits, tn_rag_by_support);
    double pp = q->prefill_s > 0 ? (double)q->n_ids / q->prefill_s : 0,
           tg = res->n_tokens > 1 && res->decode_s > 0 ? (res->n_tokens - 1) / res->decode_s : 0;
    if (q->json) {
        json_t *j = tn_json_pack(
            "{s:s%, s:s, s:o, s:b, s:i, s:i, s:f, s:f, s:f, s:f, s:I, s:o}", "text", text, q->out.n, "stop",
            cli_stop_reason_text(res->reason), "sources", tn_mcp_sources(q->hits, q->n_hits), "fits",
            (int)q->fits, "tokens", (int)res->n_tokens, "prompt_tokens", (int)q->n_ids, "search_ms",
            q->search_s * 1e3, "ttft_ms", q->out.first_s * 1e3, "prefill_tokens_per_second", pp,
            "decode_tokens_per_second", tg, "peak_rss_bytes", (json_int_t)tn_process_peak_bytes(), "draft",
            cli_draft_json(q->s, q->prefill_s, res->decode_s, res->n_tokens));
        if (ts.wall_s > 0) tn_json_set(&j, "prefill", cli_prefill_json(&ts));
        if (ts.attn_rows) tn_json_set(&j, "attention", cli_attention_json(&ts));
        if (ts.experts_bytes) tn_json_set(&j, "experts", cli_experts_json(&ts));
        if (ts.n_switched) tn_json_set(&j, "switching", cli_switching_json(&ts));
        if (*q->reranker)
            tn_json_set(&j, "rerank",
                        tn_json_pack("{s:s, s:i, s:f}", "model", q->reranker, "passages", (int)q->n_reranked,
                                     "ms", q->rerank_s * 1e3));
        if (q->explain) tn_json_set(&j, "explain", cli_explain_json(q->s, NULL));
        int rc = cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        if (rc != EXIT_OK) return rc;
    } else {
        putchar('\n');
        if (!q->no_sources) print_sources(q->hits, q->n_hits, q->fits);
    }
    if (q->stats || (q->explain && !q->json)) tell_reranked(q);
    if (q->stats == 1) cli_stats_line(res->n_tokens, tg, q->out.first_s);
    if (q->stats > 1 && ts.wall_s > 0) cli_prefill_print(&ts);
    if (q->stats > 1) {
        cli_draft_print(q->s, q->prefill_s, res->decode_s, res->n_tokens);
        fprintf(stderr,
                "%d passages of %lld found in %.2f ms; prompt %zu tokens at %.1f/s, answer %d tokens at "
                "%.1f/s, first token %.0f ms after start, peak memory %.1f MiB\n",
                q->n_found, (long long)q->n_passages, q->search_s * 1e3, q->n_ids, pp, res->n_tokens, tg,
                q->out.first_s * 1e3, (double)tn_process_peak_bytes() / 1048576);
    }
    if (q->explain && !q->json) cli_explain_print(q->s, NULL);
    fflush(stdout);
    cli_answer_tell_cut(q->e, q->s, res->reason, res->n_tokens, NULL, NULL);
    return -1;
}

static void asking_close(asking *q) {
    cli_interrupts_cancel(NULL);
    free(q->ids);
    cli_answer_free(&q->out);
    tn_rag_hits_free(&q->ctx, &q->hits, q->n_found);
    tern_session_close(&q->s);
    tern_engine_close(&q->e);
    tn_store_close(&q->index);
    free(q->file);
    free(q->source);
}

int cmd_ask(int argc, char **argv) {
    asking q = {.k = TN_RAG_K};
    cli_model_args_defaults(&q.ma, TN_IN_ASK);
    q.ma.o.generate.sampling.temperature = 0;
    const arg_spec specs[] = {
        MODEL_ARGS(q.ma),
        PACK_ARG(q.ma),
        {"passages", 'k', "N", ARG_INT, &q.k, 1, TN_RAG_MAX_K,
         "most passages given to the model (default 4)"},
        {"words", 0, NULL, ARG_FLAG | ARG_MORE, &q.words, 0, 0,
         "find passages by words only, even if the index has vectors"},
        RERANK_ARG(q.rerank, RERANK_AT_HAND),
        {"system", 0, "TEXT", ARG_STR, &q.system, 0, 0, "system message"},
        TEMPLATE_ARG(q.template),
        {"store", 0, "FILE", ARG_STR, &q.store, 0, 0, STORE_OF_DOCUMENTS},
        {"no-keep", 0, NULL, ARG_FLAG, &q.no_store, 0, 0,
         "neither keep this answer nor draft from earlier ones"},
        {"no-sources", 0, NULL, ARG_FLAG | ARG_ANSWER, &q.no_sources, 0, 0, "print only the answer"},
        {"trace", 0, "FILE", ARG_STR | ARG_ANSWER | ARG_MORE, &q.trace, 0, 0,
         "packages: write the tasks of the request as Chrome trace JSON (for Perfetto)"},
        {"json", 0, NULL, ARG_FLAG | ARG_ANSWER, &q.json, 0, 0, "print one JSON object"},
        {"stats", 0, NULL, ARG_LEVEL | ARG_ANSWER, &q.stats, 0, 0,
         "print one line on standard error: tokens, speed, time to first token, memory (--stats=all: "
         "everything that was counted)"},
        {"explain", 0, NULL, ARG_FLAG | ARG_MORE, &q.explain, 0, 0,
         "print on standard error what each mechanism did and saved, or why it was off; with --json, as part "
         "of the object"},
        {0},
    };
    const command c = {"ask", "MODEL TEXT [OPTIONS]  or  -m MODEL TEXT [OPTIONS]",
                       "Answer a question from the documents that tern rag add has indexed. Decoding is "
                       "greedy unless --temp is given.",
                       specs, 2};
    const char *words[3];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (q.ma.model && words[0] && words[1]) return cli_usage_error(&c, "unexpected argument '%s'", words[1]);
    if (words[0] && words[1]) q.ma.model = words[0];
    q.question = words[0] && words[1] ? words[1] : words[0];
    if (!q.ma.model) return cli_usage_error(&c, "MODEL is required, then the question");
    cli_args_model_path(&q.ma);
    if (!q.question || !q.question[strspn(q.question, " \t\r\n")])
        return cli_usage_error(&c, "a question is required");
    cli_store_ctx(&q.ctx);
    q.out.quiet = q.json;
    rc = find_passages(&q);
    if (rc < 0) rc = make_prompt(&c, &q);
    if (rc < 0) rc = answer_question(&q);
    if (rc < 0) rc = print_answer(&q);
    if (rc < 0) {
        rc = EXIT_OK;
        if (!q.no_store)
            keep_documents(q.s, q.index, q.hits, q.n_hits); /* the answer is out: this costs nobody time */
    }
    asking_close(&q);
    return rc;
}
