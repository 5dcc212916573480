/* What a model writes to be calibrated on: the same each time, begun as its texts begin, conversations in its template;
 * how surprised it is by a text is what sessions say. And what that is for: a model whose language is not the built-in
 * text's is packed as well as its own words allow, and the loss that is told is the one on its language. */
#include "base/cpu.h"
#include "model/rows.h"
#include "quant/own_words.h"
#include "quant/pack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define MODEL TN_SOURCE_DIR "/models/tern-tiny"

enum { WINDOW = 96, STREAMS = 12 };

typedef struct loaded {
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_source *src;
    tn_model *m;
} loaded;

static void load(loaded *l, int n_threads) {
    tern_error err = {0};
    tn_ctx_init(&l->ctx, NULL);
    tn_kernels_init(&l->kern, tn_cpu_flags(NULL));
    if (tn_pool_open(&l->ctx, n_threads, &l->pool, &err) != TERN_OK ||
        tn_source_open(&l->ctx, MODEL, &l->src, &err) != TERN_OK ||
        tn_model_load(&l->ctx, l->pool, l->src, TN_FLOAT, &l->m, &err) != TERN_OK)
        fail_msg("%s", err.message);
}

static void drop(loaded *l) {
    tn_model_close(&l->m);
    tn_source_close(&l->src);
    tn_pool_close(&l->pool);
}

static tn_own_words_args args_of(loaded *l) {
    return (tn_own_words_args){.ctx = &l->ctx,
                               .pool = l->pool,
                               .kern = &l->kern,
                               .m = l->m,
                               .t = l->m->tokenizer,
                               .n_streams = STREAMS,
                               .window = WINDOW};
}

static void same_words(void **state) {
    (void)state;
    static int32_t ids[2][STREAMS * WINDOW];
    for (int i = 0; i < 2; i++) {
        loaded l;
        load(&l, 1 + 2 * i);
        tn_own_words_args a = args_of(&l);
        tn_own_words w;
        tern_error err = {0};
        if (tn_own_words_write(&a, &w, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_int_equal(w.n_free, STREAMS / 2 * WINDOW);
        assert_int_equal(w.n_chat, STREAMS / 2 * WINDOW);
        memcpy(ids[i], w.ids, sizeof ids[i]);
        tn_own_words_free(&w);
        drop(&l);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    for (int i = 1; i < STREAMS / 2; i++) /* streams differ */
        assert_memory_not_equal(ids[0], ids[0] + (ptrdiff_t)i * WINDOW, WINDOW * sizeof ids[0][0]);
}

static void begin_as_texts_do(void **state) {
    (void)state;
    loaded l;
    load(&l, 1);
    tn_own_words_args a = args_of(&l);
    tn_own_words w;
    tern_error err = {0};
    if (tn_own_words_write(&a, &w, &err) != TERN_OK) fail_msg("%s", err.message);
    const tn_tokenizer *t = l.m->tokenizer;
    int32_t begin[64], between[64];
    size_t n_begin, n_between;
    assert_int_equal(tn_tokenize(t, "<|im_start|>user\n", 17, true, true, begin, 64, &n_begin, NULL),
                     TERN_OK);
    assert_int_equal(
        tn_tokenize(t, "<|im_end|>\n<|im_start|>assistant\n", 33, false, true, between, 64, &n_between, NULL),
        TERN_OK);
    int n_answers = 0, n_written = 0;
    for (int i = 0; i < STREAMS; i++) {
        const int32_t *ids = w.ids + (ptrdiff_t)i * WINDOW;
        if (i < STREAMS / 2) {
            assert_int_equal(ids[0], tn_tokenizer_bos(t));
            continue;
        }
        assert_memory_equal(ids, begin, n_begin * sizeof *ids);
        for (size_t at = 0; at + n_between <= WINDOW; at++)
            n_answers += !memcmp(ids + at, between, n_between * sizeof *ids);
        for (int at = 0; at < WINDOW; at++) n_written += ids[at] != ids[0];
    }
    assert_true(n_answers >= STREAMS / 2); /* every conversation got an answer */
    assert_true(n_written > WINDOW);
    tn_own_words_free(&w);
    drop(&l);
}

/* By sessions, a token at a time. */
static double surprise_of(const int32_t *ids, size_t n) {
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_error err = {0};
    double sum = 0;
    if (tern_engine_open(MODEL, NULL, &e, &err) != TERN_OK || tern_session_open(e, NULL, &s, &err) != TERN_OK)
        fail_msg("%s", err.message);
    tern_model_info info;
    tern_engine_info(e, &info);
    assert_int_equal(tern_session_prefill(s, ids, 1, &err), TERN_OK);
    for (size_t i = 1; i < n; i++) {
        const float *logits = tern_session_logits(s);
        double total = 0;
        for (int32_t v = 0; v < info.n_vocab; v++) total += exp((double)logits[v]);
        sum += log(total) - (double)logits[ids[i]];
        assert_int_equal(tern_session_step(s, ids[i], &err), TERN_OK);
    }
    tern_session_close(&s);
    tern_engine_close(&e);
    return sum;
}

static void surprised_as_sessions_are(void **state) {
    (void)state;
    enum { PART = 20 };
    loaded l;
    load(&l, 2);
    tn_own_words_args a = args_of(&l);
    int32_t ids[512];
    size_t n;
    static const char text[] = "The harbour was quiet when the ferry came in. Nobody had told the old man "
                               "that the bridge was closed, so he "
                               "waited, and counted the gulls. \"Seventeen,\" he said. In 1954 the river was "
                               "12 km long; nothing of it is left "
                               "but a name, a road and three trees, which are older than the town. She wrote "
                               "it down and put the letter away, "
                               "under the books about birds. Lights went on in the houses on the other side. "
                               "The dog slept. What could be "
                               "bought there: bread, nails, paper and, on Fridays, fish. He had been a "
                               "carpenter, like his father, before the "
                               "war, and built boats that nobody could pay for.";
    assert_int_equal(tn_tokenize(l.m->tokenizer, text, sizeof text - 1, false, true, ids, 512, &n, NULL),
                     TERN_OK);
    assert_true(n >= TN_MAX_TEXTS * PART);
    double nats, expected = 0;
    tern_error err = {0};
    assert_int_equal(tn_own_words_surprise(&a, ids, TN_MAX_TEXTS * PART, &nats, &err), TERN_OK);
    for (int i = 0; i < TN_MAX_TEXTS; i++) expected += surprise_of(ids + (ptrdiff_t)i * PART, PART);
    expected /= TN_MAX_TEXTS * (PART - 1);
    print_message("%.6f nats a token, by sessions %.6f\n", nats, expected);
    assert_true(fabs(nats - expected) < 1e-3);
    drop(&l);
}

/* ---- another language ---------------------------------------------------------------------------------- */

/* Ids of a language that the model knows and its tokenizer spells otherwise: all but the first 256 and the special ones,
 * turned round. */
enum { FIRST_TURNED = 256 };
static int32_t turned(int32_t id, int32_t n_vocab) {
    return id < FIRST_TURNED || id >= n_vocab - 64 ? id : n_vocab - 64 - 1 - (id - FIRST_TURNED);
}

static void copy(const char *folder, const char *name) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "cp '" MODEL "/%s' '%s/'", name, folder);
    assert_int_equal(system(cmd), 0);
}

/* tern-tiny with the rows of its only table in another order: the same model of the same texts, whose letters its
 * tokenizer gives to other ids. */
static void make_foreign(const char *folder, int32_t n_vocab) {
    char path[1200];
    assert_int_equal(mkdir(folder, 0700), 0);
    copy(folder, "config.json");
    copy(folder, "generation_config.json");
    copy(folder, "tokenizer.json");
    copy(folder, "tokenizer_config.json");
    size_t n;
    uint8_t *all = fixture_read(MODEL "/model.safetensors", &n), *rows;
    uint64_t header;
    memcpy(&header, all, sizeof header);
    char *text = (char *)all + 8, *at = strstr(text, "\"model.embed_tokens.weight\"");
    assert_true(at && at < text + header);
    char *offsets = strstr(at, "data_offsets");
    unsigned long long begin, end;
    assert_int_equal(sscanf(strchr(offsets, '['), "[%llu,%llu]", &begin, &end), 2);
    size_t row = (size_t)(end - begin) / (size_t)n_vocab;
    rows = malloc((size_t)(end - begin));
    assert_non_null(rows);
    uint8_t *table = all + 8 + header + begin;
    memcpy(rows, table, (size_t)(end - begin));
    for (int32_t i = 0; i < n_vocab; i++)
        memcpy(table + (size_t)turned(i, n_vocab) * row, rows + (size_t)i * row, row);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    fixture_write(path, all, n);
    free(all);
    free(rows);
}

typedef struct scores {
    float *all;
    int32_t n_vocab;
} scores;

static bool take(void *user, size_t i, const float *logits) {
    const scores *s = user;
    memcpy(s->all + i * (size_t)s->n_vocab, logits, (size_t)s->n_vocab * sizeof *logits);
    return true;
}

/* KL of the package's predictions from the model's, on ids. */
static double kl_of(const char *model, const char *package, const int32_t *ids, size_t n, int32_t n_vocab) {
    const char *paths[2] = {model, package};
    float *logits[2];
    tern_error err = {0};
    for (int i = 0; i < 2; i++) {
        tern_engine *e = NULL;
        tern_session *s = NULL;
        logits[i] = malloc(n * (size_t)n_vocab * sizeof(float));
        assert_non_null(logits[i]);
        if (tern_engine_open(paths[i], NULL, &e, &err) != TERN_OK ||
            tern_session_open(e, NULL, &s, &err) != TERN_OK ||
            tern_session_score(s, ids, n, 0, take, &(scores){logits[i], n_vocab}, &err) != TERN_OK)
            fail_msg("%s", err.message);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    double kl = 0;
    for (size_t t = 0; t < n; t++) {
        const float *p = logits[0] + t * (size_t)n_vocab, *q = logits[1] + t * (size_t)n_vocab;
        double sum_p = 0, sum_q = 0, diff = 0;
        for (int32_t v = 0; v < n_vocab; v++) {
            sum_p += exp((double)p[v]);
            sum_q += exp((double)q[v]);
            diff += exp((double)p[v]) * ((double)p[v] - (double)q[v]);
        }
        kl += diff / sum_p - log(sum_p) + log(sum_q);
    }
    free(logits[0]);
    free(logits[1]);
    return kl / (double)n;
}

static void another_language(void **state) {
    (void)state;
    if (getenv("TERN_TEST_QUICK")) skip();
    enum { N = 500 };
    char folder[1024], package[1100], cmd[1200];
    snprintf(folder, sizeof folder, TN_BINARY_DIR "/foreign.%d", (int)getpid());
    snprintf(package, sizeof package, "%s/packed.tern", folder);
    loaded l;
    load(&l, 1);
    const int32_t n_vocab = l.m->h.n_vocab;
    make_foreign(folder, n_vocab);
    static char text[8192];
    static int32_t ids[8192];
    size_t n;
    FILE *f = fopen(MODEL "/eval/english.txt", "rb");
    assert_non_null(f);
    size_t n_bytes = fread(text, 1, sizeof text, f);
    fclose(f);
    assert_int_equal(tn_tokenize(l.m->tokenizer, text, n_bytes, true, true, ids, 8192, &n, NULL), TERN_OK);
    assert_true(n >= N);
    for (int i = 0; i < N; i++) ids[i] = turned(ids[i], n_vocab);
    drop(&l);

    double kl[2], told[2];
    for (int own = 0; own < 2; own++) {
        tn_ctx ctx;
        tn_ctx_init(&ctx, NULL);
        tn_pack_options o;
        tn_pack_report r;
        tern_error err = {0};
        tn_pack_defaults(&o);
        o.bits = 4;
        if (!own) o.own_tokens = 0;
        if (tn_pack(&ctx, folder, package, &o, &r, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_true(r.text_not_read == own); /* nobody asks without the model's words */
        assert_true(!own || r.worst != TN_WORDS_TEXT);
        told[own] = r.kl;
        kl[own] = kl_of(folder, package, ids, N, n_vocab);
        unlink(package);
    }
    print_message(
        "4 bits on its own language: KL %.5f (told %.5f), by the built-in text alone %.5f (told %.5f)\n",
        kl[1], told[1], kl[0], told[0]);
    assert_true(kl[1] < 0.9 * kl[0]);
    assert_true(fabs(told[1] - kl[1]) < 0.5 * fabs(told[0] - kl[0])); /* and what is told is true */
    assert_true(fabs(told[1] - kl[1]) < 0.0025);                      /* within a quarter of a point */
    snprintf(cmd, sizeof cmd, "rm -r '%s'", folder);
    assert_int_equal(system(cmd), 0);
}

int main(void) {
    struct stat st;
    if (stat(MODEL, &st)) {
        printf("no %s; skipped\n", MODEL);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_words),
        cmocka_unit_test(begin_as_texts_do),
        cmocka_unit_test(surprised_as_sessions_are),
        cmocka_unit_test(another_language),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
