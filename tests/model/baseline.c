/* Do the accuracy baselines round as published, and does the forward put outliers and the rest together
 * again? */
#include "base/ctx.h"
#include "params/options.h"
#include "base/rng.h"
#include "model/baseline.h"
#include "tern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { K = 70, N_VOCAB_MAX = 512 };

static float uniform(tn_rng *r) { return (float)tn_rng_below(r, 2000001) / 1e6f - 1; }

/* Every value is within half a step of its scale, and scales belong to the row or to groups of 32. */
static void rounding(void **state) {
    (void)state;
    tn_rng r = {7};
    float x[K], y[K], out[K];
    for (int i = 0; i < K; i++) x[i] = uniform(&r) * (i < 32 ? 100 : 1);
    memcpy(y, x, sizeof y);
    tn_baseline_row(TN_FLOAT_GROUP_W8A8, y, NULL, K);
    for (int g = 0; g < K; g += 32) {
        float max = 0;
        for (int i = g; i < g + 32 && i < K; i++) max = fmaxf(max, fabsf(x[i]));
        for (int i = g; i < g + 32 && i < K; i++) assert_true(fabsf(x[i] - y[i]) <= max / 127 * 0.5001f);
    }
    memcpy(y, x, sizeof y);
    tn_baseline_weights(TN_FLOAT_LLM_INT8, y, 1, K);
    float row_max = 0;
    for (int i = 0; i < K; i++) row_max = fmaxf(row_max, fabsf(x[i]));
    for (int i = 0; i < K; i++) {
        float steps = y[i] / (row_max / 127);
        assert_true(fabsf(steps - nearbyintf(steps)) < 1e-3f &&
                    fabsf(x[i] - y[i]) <= row_max / 127 * 0.5001f);
    }
    memcpy(y, x, sizeof y);
    assert_true(tn_baseline_row(TN_FLOAT_LLM_INT8, y, out, K));
    for (int i = 0; i < K; i++) {
        if (fabsf(x[i]) > TN_LLM_INT8_THRESHOLD) assert_true(out[i] == x[i] && y[i] == 0);
        else assert_true(out[i] == 0 && fabsf(x[i] - y[i]) <= TN_LLM_INT8_THRESHOLD / 127 * 0.5001f);
    }
    for (int i = 0; i < K; i++) y[i] = x[i] / 100;
    assert_false(tn_baseline_row(TN_FLOAT_LLM_INT8, y, out, K));
    memset(y, 0, sizeof y);
    tn_baseline_row(TN_FLOAT_GROUP_W8A8, y, NULL, K);
    for (int i = 0; i < K; i++) assert_true(y[i] == 0);
}

static float *logits_of(const char *scheme, const char *model, size_t *n) {
    static const int32_t ids[] = {1, 9, 4, 33, 17, 8, 21, 2, 40, 5};
    tern_options o;
    tn_options_defaults(&o);
    o.scheme = scheme;
    tern_engine *e;
    tern_session *s;
    tern_error err;
    if (tern_engine_open(model, &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_model_info info;
    tern_engine_info(e, &info);
    assert_string_equal(info.scheme, scheme);
    assert_int_equal(tern_session_open(e, NULL, &s, &err), TERN_OK);
    assert_int_equal(tern_session_prefill(s, ids, sizeof ids / sizeof ids[0], &err), TERN_OK);
    *n = (size_t)info.n_vocab;
    float *copy = malloc(*n * sizeof *copy);
    memcpy(copy, tern_session_logits(s), *n * sizeof *copy);
    tern_session_close(&s);
    tern_engine_close(&e);
    return copy;
}

/* Near the float model's logits but not equal to them: 8 bits are lost, no more. */
static void close_to_float(void **state) {
    (void)state;
    static const char *const models[] = {
        TN_SOURCE_DIR "/tests/oracle/fixtures/qwen2", TN_SOURCE_DIR "/tests/oracle/fixtures/gemma2",
        TN_SOURCE_DIR "/models/tern-tiny"}; /* the last has values beyond 6 that matter */
    for (int m = 0; m < 3; m++) {
        size_t n;
        float *want = logits_of("float", models[m], &n);
        static const char *const schemes[] = {"llm-int8", "group-w8a8"};
        for (int s = 0; s < 2; s++) {
            float *got = logits_of(schemes[s], models[m], &n);
            double diff = 0, norm = 0;
            for (size_t i = 0; i < n; i++) {
                diff += (double)(got[i] - want[i]) * (got[i] - want[i]);
                norm += (double)want[i] * want[i];
            }
            assert_true(diff > 0);
            if (!(diff < norm * 0.06 * 0.06))
                fail_msg("%s of %s: relative error %g", schemes[s], models[m], sqrt(diff / norm));
            free(got);
        }
        free(want);
    }
}

static void refusals(void **state) {
    (void)state;
    tern_options o;
    tn_options_defaults(&o);
    o.scheme = "llm-npu";
    tern_engine *e;
    tern_error err;
    assert_int_equal(tern_engine_open(TN_SOURCE_DIR "/tests/oracle/fixtures/qwen2", &o, &e, &err),
                     TERN_E_INVALID);
    o.scheme = "llm-int8";
    assert_int_equal(tern_engine_open(TN_SOURCE_DIR "/tests/oracle/fixtures/phi2.gguf", &o, &e, &err),
                     TERN_E_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounding), cmocka_unit_test(close_to_float),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
