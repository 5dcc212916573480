/* tern ask - answer a question from the documents of the store, and say from which. */
#include "cli/answer.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/stats.h"
#include "cli/store_args.h"

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "store/rag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes the question with the first n passages as the model wants it: in its chat template, or as plain text
 * where it has none. */
static int32_t *ask_ids(const tern_engine *e, tn_ctx *ctx, const char *source, const char *system,
                        const char *question, const tn_rag_hit *hits, int32_t n, size_t *n_ids) {
    char *user = tn_rag_prompt(ctx, question, hits, n);
    if (!user) {
        failed_text("no memory for the prompt");
        return NULL;
    }
    tern_message msgs[2];
    size_t n_msgs = 0;
    if (system) msgs[n_msgs++] = (tern_message){"system", system};
    msgs[n_msgs++] = (tern_message){"user", user};
    int32_t *ids = NULL;
    if (source || tern_has_chat_template(e)) {
        ids = prompt_chat(e, msgs, n_msgs, source, n_ids);
    } else {
        size_t cap = strlen(user) + (system ? strlen(system) : 0) + 32;
        char *text = malloc(cap);
        if (text) {
            int n_bytes =
                snprintf(text, cap, "%s%s%s\n\nAnswer:", system ? system : "", system ? "\n\n" : "", user);
            ids = prompt_ids(e, text, (size_t)n_bytes, false, n_ids);
        } else {
            failed_text("no memory for the prompt");
        }
        free(text);
    }
    tn_free(ctx, user);
    return ids;
}

static int by_support(const void *a, const void *b) {
    const tn_rag_hit *x = a, *y = b;
    if (x->support != y->support) return x->support > y->support ? -1 : 1;
    return (x->score < y->score) - (x->score > y->score);
}

static json_t *sources_json(const tn_rag_hit *hits, int32_t n) {
    json_t *all = json_array();
    for (int32_t i = 0; i < n; i++) {
        tn_json_append(&all, tn_json_pack("{s:s, s:i, s:f, s:f, s:s}", "path", hits[i].path, "passage",
                                          (int)hits[i].number, "score", (double)hits[i].score, "support",
                                          (double)hits[i].support, "text", hits[i].text));
    }
    return all;
}

/* Prints the sources on standard output, after the answer, because they are part of it. */
static void print_sources(const tn_rag_hit *hits, int32_t n) {
    bool any = false;
    for (int32_t i = 0; i < n; i++) any = any || hits[i].support > 0;
    if (n) printf("\n%s\n", any ? "Sources:" : "Passages given (none has the answer's words):");
    for (int32_t i = 0; i < n; i++) {
        if (any && hits[i].support <= 0) continue;
        printf("[%d] %s, passage %d", i + 1, shown(hits[i].path), hits[i].number);
        if (any) printf(" (%.0f %% of the answer's words)", (double)hits[i].support * 100);
        putchar('\n');
    }
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

int cmd_ask(int argc, char **argv) {
    model_args ma;
    model_args_defaults(&ma, TN_IN_ASK);
    const char *system = NULL, *store = NULL, *trace = NULL, *template = NULL;
    char *source = NULL;
    int32_t k = TN_RAG_K;
    bool json = false, stats = false, no_store = false, no_sources = false;
    ma.o.generate.max_tokens = 256;
    ma.o.generate.sampling.temperature = 0;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        PACK_ARG(ma),
        {"passages", 'k', "N", ARG_INT, &k, 1, TN_RAG_MAX_K,
         "passages given to the model at most (default 4)"},
        {"system", 0, "TEXT", ARG_STR, &system, 0, 0, "system message"},
        TEMPLATE_ARG(template),
        {"store", 0, "FILE", ARG_STR, &store, 0, 0,
         "documents and conversations (default: $XDG_DATA_HOME/tern/store.db)"},
        {"no-keep", 0, NULL, ARG_FLAG, &no_store, 0, 0,
         "do not keep this answer, nor draft from earlier ones"},
        {"no-sources", 0, NULL, ARG_FLAG | ARG_ANSWER, &no_sources, 0, 0, "print the answer alone"},
        {"trace", 0, "FILE", ARG_STR | ARG_ANSWER, &trace, 0, 0,
         "packages: write the request's tasks as Chrome trace JSON (Perfetto)"},
        {"json", 0, NULL, ARG_FLAG | ARG_ANSWER, &json, 0, 0, "print one JSON object"},
        {"stats", 0, NULL, ARG_FLAG | ARG_ANSWER, &stats, 0, 0, "print times and memory on standard error"},
        {0},
    };
    const command c = {"ask", "-m MODEL TEXT [OPTIONS]",
                       "Answer a question from the documents that tern rag add brought in, greedily unless "
                       "--temp says otherwise.",
                       specs, 1};
    const char *words[2];
    int rc = args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    const char *question = words[0];
    if (!question || !question[strspn(question, " \t\r\n")]) return usage_error(&c, "a question is required");

    tn_ctx ctx;
    store_ctx(&ctx);
    tn_store *index = NULL;
    tn_rag_hit *hits = NULL;
    int32_t n_hits = 0, n_found = 0, *ids = NULL;
    tern_engine *e = NULL;
    tern_session *s = NULL;
    answer out = {.quiet = json};
    tern_error err;
    char *file = store_path(store);
    if (!file) return EXIT_FAILED;
    /* the passages first: without any, no model need be loaded */
    rc = EXIT_FAILED;
    if (!prompt_template(template, &source)) goto out;
    if (tn_store_open(&ctx, file, NULL, &index, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    double t0 = tn_now_s();
    if (tn_rag_search(index, question, k, &hits, &n_hits, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    double search_s = tn_now_s() - t0;
    n_found = n_hits;
    int64_t n_documents, n_passages;
    if (tn_rag_counts(index, &n_documents, &n_passages, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    if (!n_documents) {
        rc = failed_text("%s has no documents: tern rag add PATH brings them in", file);
        goto out;
    }
    if (!n_hits) fputs("tern: no passage has any of these words: the model answers without\n", stderr);
    ma.o.trace = trace != NULL;
    tern_generate_options g = ma.o.generate;
    int opened = open_engine(&c, &ma, &e);
    if (opened >= 0) {
        rc = opened;
        goto out;
    }
    tern_session_options so = ma.o.session;
    so.store = no_store ? NULL : file;
    if (tern_session_open(e, &so, &s, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    size_t n_ids = 0, room = (size_t)tern_session_capacity(s);
    size_t wanted = g.max_tokens < 0 ? room : (size_t)g.max_tokens;
    size_t reserve = wanted < room / 4 ? wanted : room / 4;
    for (;; n_hits--) { /* the worst passages go until the rest fits with an answer */
        free(ids);
        if (!(ids = ask_ids(e, &ctx, source, system, question, hits, n_hits, &n_ids))) goto out;
        if (n_ids + reserve <= room || !n_hits) break;
    }
    if (n_hits < n_found)
        fprintf(stderr, "tern: %d of %d passages fit a context of %zu tokens (-c)\n", n_hits, n_found, room);
    if (quote_documents(s, index, hits, n_hits, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    interrupts_cancel(s);
    t0 = tn_now_s();
    if (prefill_shown(s, ids, n_ids, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    double prefill_s = tn_now_s() - t0;
    g.on_token = answer_on_token;
    g.user = &out;
    tern_generate_result res;
    tern_status st = tern_session_generate(s, &g, &res, &err);
    interrupts_cancel(NULL);
    if (st == TERN_OK && out.no_memory) st = tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
    if (st != TERN_OK && !(st == TERN_E_CANCELLED && out.n)) {
        rc = failed(&err);
        goto out;
    }
    if (trace && tern_session_write_trace(s, trace, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    tern_stats ts;
    tern_session_stats(s, &ts);
    tn_rag_support(hits, n_hits, out.text ? out.text : "");
    qsort(hits, (size_t)n_hits, sizeof *hits, by_support);
    double pp = prefill_s > 0 ? (double)n_ids / prefill_s : 0,
           tg = res.n_tokens > 1 && res.decode_s > 0 ? (res.n_tokens - 1) / res.decode_s : 0;
    if (json) {
        json_t *j = tn_json_pack(
            "{s:s%, s:o, s:i, s:i, s:f, s:f, s:f, s:f, s:I, s:o}", "text", out.text ? out.text : "", out.n,
            "sources", sources_json(hits, n_hits), "tokens", (int)res.n_tokens, "prompt_tokens", (int)n_ids,
            "search_ms", search_s * 1e3, "ttft_ms", out.first_s * 1e3, "prefill_tokens_per_second", pp,
            "decode_tokens_per_second", tg, "peak_rss_bytes", (json_int_t)peak_rss_bytes(), "draft",
            draft_json(s, prefill_s, res.decode_s, res.n_tokens));
        if (ts.wall_s > 0) tn_json_set(&j, "prefill", prefill_json(&ts));
        if (ts.attn_rows) tn_json_set(&j, "attention", attention_json(&ts));
        if (ts.n_switched) tn_json_set(&j, "switching", switching_json(&ts));
        if ((rc = emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6))) != EXIT_OK) goto out;
    } else {
        putchar('\n');
        if (!no_sources) print_sources(hits, n_hits);
    }
    if (stats && ts.wall_s > 0) prefill_print(&ts);
    if (stats) {
        draft_print(s, prefill_s, res.decode_s, res.n_tokens);
        fprintf(stderr,
                "%d passages of %lld found in %.2f ms; prompt %zu tokens at %.1f/s, answer %d tokens at "
                "%.1f/s, first token %.0f ms after start, peak memory %.1f MiB\n",
                n_found, (long long)n_passages, search_s * 1e3, n_ids, pp, res.n_tokens, tg,
                out.first_s * 1e3, (double)peak_rss_bytes() / 1048576);
    }
    fflush(stdout);
    if (!no_store) keep_documents(s, index, hits, n_hits); /* the answer is out: this costs nobody time */
    rc = EXIT_OK;
out:
    interrupts_cancel(NULL);
    free(ids);
    answer_free(&out);
    tn_rag_hits_free(&ctx, &hits, n_found);
    tern_session_close(&s);
    tern_engine_close(&e);
    tn_store_close(&index);
    free(file);
    free(source);
    return rc;
}
