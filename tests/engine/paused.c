/* A prompt that is paused between its parts, with its logits: others are read and written meanwhile, and every text has
 * the bits that it has alone. For a file's floats, a file's blocks and a package, with attention full and sparse, on one thread and three. */
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

enum { N_LONG = 700, N_SHORT = 40, N_STEPS = 5, N_CTX = 1024 };

static int32_t prompt[N_LONG];

typedef struct urgent {
    tern_session *s;
    int every, n_asked, n_run; /* a pause is wanted each time it was asked so often */
    float *want;
    size_t n_vocab;
} urgent;

/* Reads a short prompt and goes on with it; the logits at the end. */
static const float *speak(tern_session *s, const int32_t *ids) {
    tern_error err;
    must(tern_session_prefill(s, ids, N_SHORT, &err), &err);
    for (int i = 0; i < N_STEPS; i++) must(tern_session_step(s, ids[i], &err), &err);
    return tern_session_logits(s);
}

static bool wanted(void *user) {
    urgent *u = user;
    return ++u->n_asked % u->every == 0;
}

static void run(void *user) {
    urgent *u = user;
    assert_memory_equal(speak(u->s, prompt + 100 + u->n_run % 3),
                        u->want + (size_t)(u->n_run % 3) * u->n_vocab, u->n_vocab * sizeof(float));
    u->n_run++;
}

/* Logits of every position of the long prompt. */
typedef struct rows {
    float *at;
    size_t n_vocab, n;
} rows;

static bool keep(void *user, size_t i, const float *logits) {
    rows *r = user;
    assert_int_equal(i, r->n++);
    memcpy(r->at + i * r->n_vocab, logits, r->n_vocab * sizeof *logits);
    return true;
}

/* A chunk at a time, as a server reads it. */
static void read_scored(tern_session *s, rows *out) {
    const tn_scorer scorer = {.on_logits = keep, .user = out};
    tn_prefill p;
    tern_error err;
    must(tn_prefill_begin(s, prompt, N_LONG, &p, &err), &err);
    must(tn_prefill_score(&p, &scorer, &err), &err);
    while (p.done < p.n) must(tn_prefill_chunk(&p, &err), &err);
    assert_int_equal(out->n, N_LONG);
}

static void check(const char *path, bool sparse, int32_t n_threads, int every) {
    tern_options *o;
    tern_error err;
    tern_model_info info;
    must(tern_options_new(&o, &err), &err);
    o->n_threads = n_threads;
    if (sparse) must(tern_options_set(o, "attention", "shadow", &err), &err);
    tern_engine *e = fixture_engine(path, o);
    tern_engine_info(e, &info);
    const size_t n = (size_t)info.n_vocab, bytes = n * sizeof(float);
    tern_session *a = fixture_session(e, N_CTX, "none"), *b = fixture_session(e, N_CTX, "none");
    float *alone = malloc(bytes), *want = malloc(3 * bytes);
    rows scored = {malloc(N_LONG * bytes), n, 0}, paused = {malloc(N_LONG * bytes), n, 0};
    must(tern_session_prefill(a, prompt, N_LONG, &err), &err);
    memcpy(alone, tern_session_logits(a), bytes);
    must(tern_session_score(a, prompt, N_LONG, 0, keep, &scored, &err), &err);
    for (int i = 0; i < 3; i++) memcpy(want + (size_t)i * n, speak(b, prompt + 100 + i), bytes);
    tern_session_close(&a);
    a = fixture_session(e, N_CTX, "none");
    urgent u = {.s = b, .every = every, .want = want, .n_vocab = n};
    const tn_pause pause = {.wanted = wanted, .run = run, .user = &u};
    tn_session_pauses(a, &pause);
    read_scored(a, &paused);
    assert_memory_equal(tern_session_logits(a), alone, bytes);
    assert_memory_equal(paused.at, scored.at, N_LONG * bytes);
    print_message("%d threads%s: %d pauses of %d times asked\n", n_threads, sparse ? ", sparse" : "", u.n_run,
                  u.n_asked);
    assert_true(u.n_run > 1);
    tn_session_pauses(a, NULL);
    const int n_run = u.n_run;
    must(tern_session_step(a, 1, &err), &err);
    assert_int_equal(u.n_run, n_run);
    free(alone);
    free(want);
    free(scored.at);
    free(paused.at);
    tern_session_close(&a);
    tern_session_close(&b);
    tern_engine_close(&e);
    tern_options_free(&o);
}

/* A prompt of a package has hundreds of parts. */
static void all(const char *path, int every) {
    for (int32_t n = 1; n <= 3; n += 2) {
        check(path, false, n, every);
        check(path, true, n, 2 * every);
    }
}

static const struct {
    const char *name;
    tn_dtype dtype;
} models[] = {{"tiny-llama", TN_F32},  {"tiny-llama", TN_Q4_0}, {"tiny-gemma3", TN_F16},
              {"tiny-qwen35", TN_F16}, {"tiny-lfm2", TN_Q8_0},  {"tiny-qwen3moe", TN_F16}};
enum { N_MODELS = sizeof models / sizeof models[0] };

static int n_models(void) { return getenv("TERN_TEST_QUICK") ? 2 : N_MODELS; }

static void files(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    for (int i = 0; i < n_models(); i++) {
        fixture_model(path, "m.gguf", models[i].name, 5, models[i].dtype);
        print_message("%s\n", models[i].name);
        all(path, 1);
    }
}

static void packages(void **state) {
    (void)state;
    char gguf[FIXTURE_PATH], path[FIXTURE_PATH];
    for (int i = 0; i < n_models(); i++) {
        if (models[i].dtype == TN_Q4_0) continue;
        fixture_both(gguf, path, i, models[i].name, 6, TN_F16, NULL);
        print_message("%s\n", models[i].name);
        all(path, 23);
    }
}

/* A cancel in a pause ends the prompt, and its session goes on afterwards. */
static void cancel_in_it(void *user) { tern_session_cancel(user); }
static bool at_once(void *user) { return (void)user, true; }

static void cancelled(void **state) {
    (void)state;
    char gguf[FIXTURE_PATH], path[FIXTURE_PATH];
    tern_error err;
    fixture_both(gguf, path, 9, "tiny-llama", 4, TN_F16, NULL);
    for (int i = 0; i < 2; i++) {
        tern_engine *e = fixture_engine(i ? path : gguf, NULL);
        tern_session *s = fixture_session(e, N_CTX, "none");
        const tn_pause pause = {.wanted = at_once, .run = cancel_in_it, .user = s};
        must(tern_session_prefill(s, prompt, 10, &err), &err); /* weights are loaded: nothing pauses before */
        tn_session_pauses(s, &pause);
        assert_int_equal(tern_session_prefill(s, prompt, N_LONG, &err), TERN_E_CANCELLED);
        tn_session_pauses(s, NULL);
        must(tern_session_prefill(s, prompt, N_LONG, &err), &err);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

int main(void) {
    fixture_prompt(prompt, N_LONG);
    const struct CMUnitTest tests[] = {cmocka_unit_test(files), cmocka_unit_test(packages),
                                       cmocka_unit_test(cancelled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
