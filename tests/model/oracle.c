/* Do the float path's logits agree with the independent float64 reference (tests/oracle), for every
 * architecture and file format, and are they the same bits however the tokens were fed: at once, in parts,
 * one by one, from a saved state, by any number of threads and sessions, with any instruction set? */
#include "base/cpu.h"
#include "base/rng.h"
#include "session/session.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FIXTURES TN_SOURCE_DIR "/tests/oracle/fixtures"

/* The issue asks for 1e-4. A tenth of it leaves room for float32 and still tells the two forms of GELU apart.
 */
static const double tolerance = 1e-5;

enum { MAX_TOK = 1024, MAX_POS = 32, MAX_VOCAB = 256, MAX_CASES = 160 };

typedef struct oracle_case {
    char name[300], model[512], vectors[512];
} oracle_case;

typedef struct vectors {
    int32_t n_ctx, ids[MAX_TOK];
    size_t n_tok, n_vocab;
    double perplexity;
    size_t n_pos, pos[MAX_POS];
    double logits[MAX_POS][MAX_VOCAB]; /* of pos[i] */
} vectors;

static json_t *load_json(const char *path) {
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j) fail_msg("%s:%d: %s", path, e.line, e.text);
    return j;
}

static void load_vectors(const char *path, vectors *v) {
    json_t *j = load_json(path), *x;
    size_t i, k;
    v->n_ctx = (int32_t)json_integer_value(json_object_get(j, "n_ctx"));
    v->perplexity = json_number_value(json_object_get(j, "perplexity"));
    json_t *ids = json_object_get(j, "tokens"), *pos = json_object_get(j, "positions"),
           *logits = json_object_get(j, "logits");
    v->n_tok = json_array_size(ids);
    v->n_pos = json_array_size(pos);
    assert_in_range(v->n_tok, 2, MAX_TOK);
    assert_in_range(v->n_pos, 1, MAX_POS);
    assert_int_equal(json_array_size(logits), v->n_pos);
    json_array_foreach(ids, i, x) v->ids[i] = (int32_t)json_integer_value(x);
    json_array_foreach(pos, i, x) v->pos[i] = (size_t)json_integer_value(x);
    v->n_vocab = json_array_size(json_array_get(logits, 0));
    assert_in_range(v->n_vocab, 1, MAX_VOCAB);
    for (i = 0; i < v->n_pos; i++) {
        assert_true(v->pos[i] < v->n_tok);
        json_array_foreach(json_array_get(logits, i), k, x) v->logits[i][k] = json_number_value(x);
    }
    json_decref(j);
}

static tern_engine *open_engine(const char *path, int n_threads) {
    tern_options o;
    tern_error err = {0};
    tn_options_defaults(&o);
    o.n_threads = n_threads;
    o.scheme = "float"; /* blocks quantise their inputs: tests/model/blocks.c */
    tern_engine *e = NULL;
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    return e;
}

static tern_session *open_session(tern_engine *e, const vectors *v) {
    tern_session_options o;
    tern_error err = {0};
    tern_session_options_defaults(&o);
    o.n_ctx = v->n_ctx;
    tern_session *s = NULL;
    if (tern_session_open(e, &o, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    return s;
}

static void prefill(tern_session *s, const int32_t *ids, size_t n) {
    tern_error err = {0};
    if (tern_session_prefill(s, ids, n, &err) != TERN_OK) fail_msg("prefill of %zu: %s", n, err.message);
    assert_int_equal(tern_session_length(s), n);
    assert_non_null(tern_session_logits(s));
}

static void step(tern_session *s, int32_t id) {
    tern_error err = {0};
    if (tern_session_step(s, id, &err) != TERN_OK)
        fail_msg("step at %zu: %s", tern_session_length(s), err.message);
    assert_non_null(tern_session_logits(s));
}

static void same_bits(const float *a, const float *b, size_t n, const char *what, size_t pos) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: logit %zu after position %zu is %a, not %a", what, i, pos, (double)a[i],
                     (double)b[i]);
    }
}

typedef struct sink {
    float *all;
    size_t n_vocab, next;
} sink;

static bool keep(void *user, size_t i, const float *logits) {
    sink *k = user;
    assert_int_equal(i, k->next++);
    memcpy(k->all + i * k->n_vocab, logits, k->n_vocab * sizeof *logits);
    return true;
}

/* All logits of the sequence, [n_tok][n_vocab], as scoring gives them. The caller frees. */
static float *score(tern_engine *e, const vectors *v) {
    sink k = {.all = malloc(v->n_tok * v->n_vocab * sizeof(float)), .n_vocab = v->n_vocab};
    assert_non_null(k.all);
    tern_error err = {0};
    tern_session *s = open_session(e, v);
    if (tern_session_score(s, v->ids, v->n_tok, 0, keep, &k, &err) != TERN_OK)
        fail_msg("score: %s", err.message);
    assert_int_equal(k.next, v->n_tok);
    tern_session_close(&s);
    return k.all;
}

/* A fresh session's prefill up to each stored position. */
static void at_once(tern_engine *e, const vectors *v, const float *all) {
    for (size_t i = 0; i < v->n_pos; i++) {
        tern_session *s = open_session(e, v);
        prefill(s, v->ids, v->pos[i] + 1);
        same_bits(tern_session_logits(s), all + v->pos[i] * v->n_vocab, v->n_vocab, "at once", v->pos[i]);
        tern_session_close(&s);
    }
}

static void compare_with_oracle(const oracle_case *c, const vectors *v, const float *all) {
    double worst = 0;
    for (size_t i = 0; i < v->n_pos; i++) {
        double diff = 0, size = 0;
        for (size_t k = 0; k < v->n_vocab; k++) {
            double got = (double)all[v->pos[i] * v->n_vocab + k], want = v->logits[i][k];
            if (!isfinite(got))
                fail_msg("%s: logit %zu after position %zu is %g", c->name, k, v->pos[i], got);
            diff = fmax(diff, fabs(got - want));
            size = fmax(size, fabs(want));
        }
        if (diff / size > tolerance)
            fail_msg("%s: logits after position %zu are off by %.2e of the largest", c->name, v->pos[i],
                     diff / size);
        worst = fmax(worst, diff / size);
    }
    double nll = 0;
    for (size_t t = 0; t + 1 < v->n_tok; t++) {
        const float *l = all + t * v->n_vocab;
        double sum = 0;
        for (size_t k = 0; k < v->n_vocab; k++) sum += exp((double)l[k]);
        nll += log(sum) - (double)l[v->ids[t + 1]];
    }
    double ppl = exp(nll / (double)(v->n_tok - 1));
    if (fabs(ppl - v->perplexity) > 1e-4 * v->perplexity)
        fail_msg("%s: perplexity %.6f, the oracle's is %.6f", c->name, ppl, v->perplexity);
    print_message("%s: largest relative error %.1e\n", c->name, worst);
}

static void one_by_one(tern_engine *e, const vectors *v, const float *all, size_t n_tok, const char *what) {
    tern_session *s = open_session(e, v);
    for (size_t t = 0; t < n_tok && t < v->n_tok; t++) {
        step(s, v->ids[t]);
        same_bits(tern_session_logits(s), all + t * v->n_vocab, v->n_vocab, what, t);
    }
    tern_session_close(&s);
}

/* Growing prefixes with steps in between, and back to a shorter one. */
static void in_random_parts(tern_engine *e, const vectors *v, const float *all, uint64_t seed) {
    char what[64];
    snprintf(what, sizeof what, "parts, seed %llu", (unsigned long long)seed);
    tn_rng rng = {seed};
    tern_session *s = open_session(e, v);
    for (int i = 0; i < (v->n_tok > 100 ? 4 : 12); i++) {
        size_t have = tern_session_length(s);
        if (have < v->n_tok && tn_rng_below(&rng, 3) == 0) step(s, v->ids[have]);
        else prefill(s, v->ids, 1 + tn_rng_below(&rng, v->n_tok));
        size_t t = tern_session_length(s) - 1;
        same_bits(tern_session_logits(s), all + t * v->n_vocab, v->n_vocab, what, t);
    }
    tern_session_close(&s);
}

/* Half the tokens, saved, loaded into another session that held something else, then the rest. */
static void saved_and_loaded(tern_engine *e, const vectors *v, const float *all) {
    tern_error err = {0};
    char path[] = "/tmp/tern-oracle-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    tern_session *s = open_session(e, v), *t = open_session(e, v);
    size_t half = v->n_tok / 2;
    prefill(s, v->ids, half);
    if (tern_session_save(s, path, &err) != TERN_OK) fail_msg("save: %s", err.message);
    prefill(t, v->ids + half, v->n_tok - half);
    if (tern_session_load(t, path, &err) != TERN_OK) fail_msg("load: %s", err.message);
    unlink(path);
    assert_int_equal(tern_session_length(t), half);
    for (size_t i = half; i < v->n_tok; i++) {
        step(t, v->ids[i]);
        same_bits(tern_session_logits(t), all + i * v->n_vocab, v->n_vocab, "after loading", i);
    }
    tern_session_close(&s);
    tern_session_close(&t);
}

/* A longrope model's keys are rotated for a short or a long context: a state must not move between the two.
 */
static void no_state_across_contexts(void **state) {
    (void)state;
    tern_engine *e = open_engine(FIXTURES "/phi3-long", 1);
    char path[] = "/tmp/tern-oracle-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const int32_t ids[3] = {5, 6, 7};
    vectors v = {.n_ctx = 16};
    tern_session *s = open_session(e, &v);
    prefill(s, ids, 3);
    assert_int_equal(tern_session_save(s, path, NULL), TERN_OK);
    tern_session_close(&s);
    for (v.n_ctx = 15; v.n_ctx <= 17; v.n_ctx++) {
        s = open_session(e, &v);
        assert_int_equal(tern_session_load(s, path, NULL), v.n_ctx <= 16 ? TERN_OK : TERN_E_INVALID);
        assert_int_equal(tern_session_length(s), v.n_ctx <= 16 ? 3 : 0);
        tern_session_close(&s);
    }
    unlink(path);
    tern_engine_close(&e);
}

typedef struct guest {
    tern_engine *e;
    const vectors *v;
    float *logits; /* after the last token */
    bool ok;
} guest;

static void *prefill_and_step(void *arg) {
    guest *g = arg;
    tern_session_options o;
    tern_session_options_defaults(&o);
    o.n_ctx = g->v->n_ctx;
    tern_session *s = NULL;
    g->ok = tern_session_open(g->e, &o, &s, NULL) == TERN_OK &&
            tern_session_prefill(s, g->v->ids, g->v->n_tok / 2, NULL) == TERN_OK;
    for (size_t i = g->v->n_tok / 2; g->ok && i < g->v->n_tok; i++)
        g->ok = tern_session_step(s, g->v->ids[i], NULL) == TERN_OK;
    if (g->ok) memcpy(g->logits, tern_session_logits(s), g->v->n_vocab * sizeof *g->logits);
    tern_session_close(&s);
    return NULL;
}

/* Two threads, each with a session on the one engine. */
static void two_sessions(tern_engine *e, const vectors *v, const float *all) {
    static float logits[2][MAX_VOCAB];
    guest g[2] = {{e, v, logits[0], false}, {e, v, logits[1], false}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, prefill_and_step, &g[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_true(g[i].ok);
        same_bits(logits[i], all + (v->n_tok - 1) * v->n_vocab, v->n_vocab, "two sessions", v->n_tok - 1);
    }
}

static void run_case(void **state) {
    const oracle_case *c = *state;
    const bool quick = getenv("TERN_TEST_QUICK") != NULL; /* the same ways, each for fewer tokens */
    vectors *v = calloc(1, sizeof *v);
    assert_non_null(v);
    load_vectors(c->vectors, v);

    tern_engine *e = open_engine(c->model, 1);
    tern_model_info info;
    tern_engine_info(e, &info);
    assert_int_equal(info.n_vocab, v->n_vocab);
    float *all = score(e, v);
    compare_with_oracle(c, v, all);
    at_once(e, v, all);
    one_by_one(e, v, all, quick ? 60 : MAX_TOK, "one by one");
    for (uint64_t seed = 1; seed <= (quick ? 1 : 4); seed++) in_random_parts(e, v, all, seed);
    saved_and_loaded(e, v, all);
    tern_engine_close(&e);

    e = open_engine(c->model, 3);
    one_by_one(e, v, all, 40, "three threads, one by one");
    in_random_parts(e, v, all, 5);
    two_sessions(e, v, all);
    tern_engine_close(&e);

#if defined(__x86_64__)
    const char *words[] = {"scalar", "avx2", "avx512"};
#else
    const char *words[] = {"scalar", "neon"};
#endif
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        setenv("TERN_CPU", words[i], 1);
        e = open_engine(c->model, 1);
        unsetenv("TERN_CPU");
        assert_int_equal(e->kern.cpu, tn_cpu_limit(words[i], tn_cpu_detect()));
        one_by_one(e, v, all, quick ? 10 : 100, words[i]);
        if (!quick) in_random_parts(e, v, all, 6);
        tern_engine_close(&e);
    }
    free(all);
    free(v);
}

/* ---- a trained model: greedy text against llama.cpp's ------------------------------------------------ */

typedef struct said {
    int32_t ids[512];
    size_t n, n_bytes;
    char text[8192];
} said;

static bool hear(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    said *s = user;
    assert_true(s->n < sizeof s->ids / sizeof *s->ids && n_bytes < sizeof s->text - s->n_bytes);
    assert_true(logprob <= 0);
    s->ids[s->n++] = token;
    memcpy(s->text + s->n_bytes, text, n_bytes);
    s->n_bytes += n_bytes;
    return true;
}

static void greedy_text(void **state) {
    (void)state;
    const char *data = getenv("TERN_DATA");
    char path[1024];
    snprintf(path, sizeof path, "%s/models/stories260K.gguf", data ? data : TN_SOURCE_DIR "/../shared/data");
    struct stat st;
    if (stat(path, &st)) {
        print_message("no %s; skipped\n", path);
        skip();
    }
    json_t *j = load_json(TN_SOURCE_DIR "/tests/oracle/greedy.json"), *x;
    const char *prompt = json_string_value(json_object_get(j, "prompt"));
    json_t *want_prompt = json_object_get(j, "prompt_tokens"), *want = json_object_get(j, "tokens");
    tern_error err = {0};
    tern_engine *e = open_engine(path, 2);

    int32_t ids[64];
    size_t n_ids, i;
    assert_int_equal(tern_tokenize(e, prompt, strlen(prompt), true, true, ids, 64, &n_ids, &err), TERN_OK);
    assert_int_equal(n_ids, json_array_size(want_prompt));
    json_array_foreach(want_prompt, i, x) assert_int_equal(ids[i], json_integer_value(x));

    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 512; /* more than the 128 the model was trained for, as the vector's maker had */
    tern_session *s = NULL;
    assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_OK);
    prefill(s, ids, n_ids);
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    said *got = calloc(1, sizeof *got);
    assert_non_null(got);
    o.max_tokens = (int32_t)json_array_size(want);
    o.sampling.temperature = 0;
    o.on_token = hear;
    o.user = got;
    tern_generate_result r;
    assert_int_equal(tern_session_generate(s, &o, &r, &err), TERN_OK);
    json_array_foreach(want, i, x) {
        if (i < got->n && got->ids[i] != json_integer_value(x))
            fail_msg("generated token %zu is %d, llama.cpp's is %d", i, got->ids[i],
                     (int)json_integer_value(x));
    }
    assert_int_equal(got->n, json_array_size(want));
    assert_string_equal(got->text, json_string_value(json_object_get(j, "text")));
    free(got);
    tern_session_close(&s);
    tern_engine_close(&e);
    json_decref(j);
}

static int is_case(const struct dirent *d) { return d->d_name[0] != '.' && !strchr(d->d_name, '.'); }

/* NAME, or NAME.gguf: one case. */
int main(int argc, char **argv) {
    static oracle_case cases[MAX_CASES];
    struct CMUnitTest tests[MAX_CASES + 2];
    size_t n = 0;
    struct dirent **found;
    int n_found = scandir(FIXTURES, &found, is_case, alphasort);
    for (int i = 0; i < n_found; i++) {
        for (int gguf = 0; gguf < 2 && n < MAX_CASES; gguf++) {
            oracle_case *c = &cases[n];
            struct stat st;
            snprintf(c->name, sizeof c->name, "%s%s", found[i]->d_name, gguf ? ".gguf" : "");
            snprintf(c->model, sizeof c->model, FIXTURES "/%s%s", found[i]->d_name, gguf ? ".gguf" : "");
            snprintf(c->vectors, sizeof c->vectors, FIXTURES "/%s/vectors.json", found[i]->d_name);
            char file[600];
            snprintf(file, sizeof file, "%s%s", c->model, gguf ? "" : "/config.json");
            if (argc > 1 && strcmp(argv[1], c->name)) continue;
            if (stat(file, &st)) continue; /* not every case comes in both formats */
            tests[n++] = (struct CMUnitTest){.name = c->name, .test_func = run_case, .initial_state = c};
        }
        free(found[i]);
    }
    if (n_found > 0) free(found);
    if (n < (argc > 1 ? 1 : 80)) {
        fprintf(stderr, "%zu models under %s: want more than 50 folders and 30 GGUF files\n", n, FIXTURES);
        return 1;
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(no_state_across_contexts);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(greedy_text);
    return _cmocka_run_group_tests("oracle", tests, n, NULL, NULL);
}
