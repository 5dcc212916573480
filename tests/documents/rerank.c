/* tests/documents/rerank.c - does a reranker's view of the passages decide which of them are kept, and in which order? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "documents/embed.h"
#include "documents/rerank.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_DOCS = 40, WANTED = 3 };

static tn_ctx ctx;
static char folder[64];
static tn_store *store;
static int n_scored, fails_at;

/* Documents of one passage, "ferry" in all, that grow: BM25 likes the short ones, whose numbers are low. */
static int fresh(void **state) {
    (void)state;
    char path[160];
    tern_error err;
    tn_rag_added a = {0};
    tn_ctx_init(&ctx, NULL);
    strcpy(folder, "/tmp/tern-rerank-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/store.db", folder);
    if (tn_store_open(&ctx, path, NULL, &store, &err) != TERN_OK) return -1;
    snprintf(path, sizeof path, "%s/docs", folder);
    mkdir(path, 0700);
    for (int i = 0; i < N_DOCS; i++) {
        snprintf(path, sizeof path, "%s/docs/%02d.txt", folder, i);
        FILE *f = fopen(path, "w");
        if (!f) return -1;
        fprintf(f, "ferry %d", i);
        for (int k = 0; k < i; k++) fputs(" filler", f);
        fclose(f);
    }
    snprintf(path, sizeof path, "%s/docs", folder);
    n_scored = 0;
    fails_at = -1;
    return tn_rag_add(store, path, NULL, NULL, &a, &err) == TERN_OK && a.n_passages == N_DOCS ? 0 : -1;
}

static int clean(void **state) {
    (void)state;
    char cmd[128];
    tn_store_close(&store);
    snprintf(cmd, sizeof cmd, "/bin/rm -r %s", folder);
    return system(cmd);
}

/* Likes the long ones, two at a time alike. */
static tern_status score(void *user, const char *question, const char *text, float *out, tern_error *err) {
    assert_ptr_equal(user, &n_scored);
    assert_string_equal(question, "ferry");
    if (n_scored == fails_at) {
        snprintf(err->message, sizeof err->message, "no memory");
        return err->code = TERN_E_MEMORY;
    }
    n_scored++;
    *out = (float)(atoi(text + 6) / 2) - 10;
    return TERN_OK;
}

static const tn_reranker longest = {.score = score, .user = &n_scored, .yes = 0};

static int number_of(const tn_rag_hit *h) { return atoi(h->text + 6); }

static int32_t find(int32_t k, tn_rag_hit **hits) {
    tern_error err = {0};
    int32_t n;
    if (tn_rag_search(store, "ferry", k, NULL, hits, &n, &err) != TERN_OK) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n; i++) assert_false((*hits)[i].reranked);
    return n;
}

static void reach(void **state) {
    (void)state;
    assert_int_equal(tn_rag_reach(NULL, WANTED), WANTED);
    assert_int_equal(tn_rag_reach(&longest, WANTED), TN_RAG_RERANKED);
    assert_int_equal(tn_rag_reach(&longest, TN_RAG_MAX_K), TN_RAG_MAX_K);
}

/* Of 24 by words the first are the shortest; the reranker's are the longest of those 24. */
static void in_its_order(void **state) {
    (void)state;
    tern_error err = {0};
    tn_rag_hit *hits;
    int32_t n = find(WANTED, &hits);
    assert_int_equal(n, WANTED);
    for (int32_t i = 0; i < n; i++) assert_int_equal(number_of(&hits[i]), i);
    tn_rag_hits_free(&ctx, &hits, n);
    n = find(tn_rag_reach(&longest, WANTED), &hits);
    assert_int_equal(n, TN_RAG_RERANKED);
    assert_int_equal(tn_rag_rerank(&ctx, &longest, "ferry", WANTED, hits, &n, &err), TERN_OK);
    assert_int_equal(n, WANTED);
    assert_int_equal(n_scored, TN_RAG_RERANKED);
    /* 22 and 23 are alike, and stay as words had them */
    assert_int_equal(number_of(&hits[0]), 22);
    assert_int_equal(number_of(&hits[1]), 23);
    assert_int_equal(number_of(&hits[2]), 20);
    for (int32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "/%02d.txt", number_of(&hits[i]));
        assert_non_null(strstr(hits[i].path, name)); /* what belongs to a passage moves with it */
        assert_true(hits[i].reranked && hits[i].relevance == (float)(number_of(&hits[i]) / 2) - 10);
        assert_int_equal(hits[i].number, 1);
    }
    tn_rag_hits_free(&ctx, &hits, n);
}

/* What the reranker says yes to fits, whatever words say; what it says no to fits if words say so. */
static void fits(void **state) {
    (void)state;
    tern_error err = {0};
    tn_rag_hit *hits;
    int32_t n = find(TN_RAG_RERANKED, &hits);
    for (int32_t i = 0; i < n; i++) hits[i].fits = number_of(&hits[i]) == 1;
    assert_int_equal(tn_rag_rerank(&ctx, &longest, "ferry", n, hits, &n, &err), TERN_OK);
    for (int32_t i = 0; i < n; i++) {
        bool yes = number_of(&hits[i]) / 2 > 10 || number_of(&hits[i]) == 1;
        assert_int_equal(hits[i].fits, yes);
    }
    tn_rag_hits_free(&ctx, &hits, n);
}

static void without_one(void **state) {
    (void)state;
    tern_error err = {0};
    tn_rag_hit *hits;
    int32_t n = find(8, &hits);
    assert_int_equal(tn_rag_rerank(&ctx, NULL, "ferry", WANTED, hits, &n, &err), TERN_OK);
    assert_int_equal(n, 8);
    for (int32_t i = 0; i < n; i++) assert_true(number_of(&hits[i]) == i && !hits[i].reranked);
    tn_rag_hits_free(&ctx, &hits, n);
}

/* One that fails at any passage: its error, and the passages as they were. */
static void failing(void **state) {
    (void)state;
    for (int at = 0; at < 8; at++) {
        tern_error err = {0};
        tn_rag_hit *hits;
        int32_t n = find(8, &hits);
        n_scored = 0;
        fails_at = at;
        assert_int_equal(tn_rag_rerank(&ctx, &longest, "ferry", WANTED, hits, &n, &err), TERN_E_MEMORY);
        assert_string_equal(err.message, "no memory");
        assert_int_equal(n, 8);
        for (int32_t i = 0; i < n; i++) assert_true(number_of(&hits[i]) == i && !hits[i].reranked);
        tn_rag_hits_free(&ctx, &hits, n);
    }
}

static tern_engine *open_engine(const char *path) {
    tern_engine *e;
    tern_error err = {0};
    if (tern_engine_open(path, NULL, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    return e;
}

static float scored(const tn_reranker *r, const char *question, const char *text) {
    float out = 0;
    tern_error err = {0};
    if (r->score(r->user, question, text, &out, &err) != TERN_OK) fail_msg("%s", err.message);
    return out;
}

/* By a model: tests/oracle/embedding.py wrote it and this score. Texts that do not fit are cut. */
static void by_a_session(void **state) {
    (void)state;
    tern_engine *e = open_engine("tests/oracle/embedding/bert-rank/model.gguf");
    tn_reranking *v;
    tn_reranker r;
    tern_error err = {0};
    if (tn_reranking_open(e, &v, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    const char *fox = "The quick brown fox jumps over the lazy dog.";
    const float told = scored(&r, "which fox jumps?", fox);
    assert_true(told > 0.13177f && told < 0.13180f);
    static char long_text[1 << 15], longer[1 << 15];
    for (size_t i = 0; i < sizeof long_text - 1; i++) long_text[i] = "fox dog \xc3\xa9"[i % 10];
    memcpy(longer, long_text, sizeof longer);
    memset(longer + sizeof longer / 2, 'x', sizeof longer / 2 - 1);
    assert_true(scored(&r, "which fox jumps?", long_text) == scored(&r, "which fox jumps?", longer));
    (void)scored(&r, long_text, fox);
    (void)scored(&r, long_text, long_text);
    (void)scored(&r, "", "");
    assert_true(scored(&r, "which fox jumps?", fox) == told); /* it keeps nothing of what was before */
    tn_reranking_close(&v);
    tern_engine_close(&e);
}

static void no_reranker(void **state) {
    (void)state;
    static const char *const others[] = {"tests/oracle/embedding/bert/model.gguf", "models/tern-tiny"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        tern_engine *e = open_engine(others[i]);
        tn_reranking *v;
        tn_reranker r;
        tern_error err = {0};
        assert_int_equal(tn_reranking_open(e, &v, &r, &err), TERN_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "that takes a reranker"));
        assert_null(v);
        tern_engine_close(&e);
    }
}

/* Passages and questions have adapters of their own where the model has them: the vectors are those of the tasks. */
static void for_its_tasks(void **state) {
    (void)state;
    enum { WIDTH = 32 };
    tern_engine *e = open_engine("tests/oracle/embedding/jina-bert-v3/hf");
    json_error_t je;
    json_t *all = json_load_file("tests/oracle/embedding/jina-bert-v3/tasks.json", 0, &je), *told;
    tn_embedding *v;
    tn_embedder as;
    tern_error err = {0};
    int n = 0;
    size_t i;
    assert_non_null(all);
    assert_int_equal(tn_embedding_open(e, "m", false, &v, &as, &err), TERN_OK);
    json_array_foreach(all, i, told) {
        const char *task = json_string_value(json_object_get(told, "task")),
                   *text = json_string_value(json_object_get(told, "bare"));
        const bool asks = !strcmp(task, "retrieval.query");
        float got[WIDTH];
        if (!asks && strcmp(task, "retrieval.passage")) continue;
        assert_int_equal((asks ? as.embed_query : as.embed)(as.user, text, strlen(text), got, &err), TERN_OK);
        for (size_t k = 0; k < WIDTH; k++) {
            const double d =
                (double)got[k] - json_number_value(json_array_get(json_object_get(told, "vector"), k));
            if (d > 1e-4 || d < -1e-4) fail_msg("%s: off by %g", task, d);
        }
        n++;
    }
    assert_int_equal(n, 4);
    json_decref(all);
    tn_embedding_close(&v);
    tern_engine_close(&e);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, clean)
    const struct CMUnitTest tests[] = {T(in_its_order),
                                       T(fits),
                                       T(without_one),
                                       T(failing),
                                       cmocka_unit_test(reach),
                                       cmocka_unit_test(by_a_session),
                                       cmocka_unit_test(no_reranker),
                                       cmocka_unit_test(for_its_tasks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
