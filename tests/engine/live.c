/* What sessions do, watched while they do it: all of it while somebody watches, nothing otherwise, the
 * same bits always. */
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 200, N_VOCAB = 512, TAKEN = 4096 };

static char gguf[FIXTURE_PATH], package[FIXTURE_PATH];

static int setup(void **state) {
    (void)state;
    fixture_llama(gguf, "m.gguf", 1);
    fixture_package(package, "m.tern", gguf, NULL);
    return 0;
}

/* Events of each track since the last look, and how many of them belong to a chunk. */
static int32_t take_all(tern_engine *e, int32_t *n_of_chunks) {
    static tn_event got[TAKEN];
    int32_t n_all = 0;
    *n_of_chunks = 0;
    for (int32_t k = 0; k <= tn_timeline_n_workers(e->live); k++) {
        int64_t lost;
        for (int32_t n; (n = tn_timeline_take(e->live, k, got, TAKEN, &lost)); n_all += n)
            for (int32_t i = 0; i < n; i++) {
                assert_true(got[i].end_ns >= got[i].start_ns && got[i].name && *got[i].name);
                *n_of_chunks += got[i].chunk >= 0 && got[i].layer >= 0;
            }
        assert_int_equal(lost, 0);
    }
    return n_all;
}

/* Evaluates the prompt anew and steps twice; out gets the logits. */
static void evaluate(tern_session *s, const int32_t *prompt, float *out) {
    tern_error err = {0};
    must(tern_session_truncate(s, 0, &err), &err);
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    must(tern_session_step(s, 7, &err), &err);
    must(tern_session_step(s, 8, &err), &err);
    memcpy(out, tern_session_logits(s), N_VOCAB * sizeof *out);
}

static void watch(const char *path, bool has_chunks) {
    tern_error err = {0};
    tn_timeline *t;
    int32_t prompt[N_PROMPT], n_chunks;
    float alone[N_VOCAB], watched[N_VOCAB], after[N_VOCAB];
    fixture_prompt(prompt, N_PROMPT);
    tern_engine *e = fixture_engine(path, NULL);
    tern_session *s = fixture_session(e, 0, NULL);
    evaluate(s, prompt, alone);
    assert_null(e->live); /* nobody watched, so there is nothing to note on */
    must(tn_engine_watch(e, &t, &err), &err);
    assert_ptr_equal(t, e->live);
    evaluate(s, prompt, watched);
    assert_true(take_all(e, &n_chunks) >= 3); /* the prompt and two steps */
    assert_int_equal(n_chunks > 0, has_chunks);
    tn_engine_unwatch(e);
    evaluate(s, prompt, after);
    assert_int_equal(take_all(e, &n_chunks), 0);
    assert_memory_equal(alone, watched, sizeof alone);
    assert_memory_equal(alone, after, sizeof alone);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void packages(void **state) {
    (void)state;
    watch(package, true);
}

static void float_models(void **state) {
    (void)state;
    watch(gguf, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packages), cmocka_unit_test(float_models)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
