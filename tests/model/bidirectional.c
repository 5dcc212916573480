/* Attention of models that read a text as a whole: does every row see the whole text, or the half of a window on
 * either side, and are costs what counting gives? Compared with sums in double, pair by pair. */
#include "base/cpu.h"
#include "base/rng.h"
#include "model/op.h"
#include "model/rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_HEADS = 4, N_KV = 2, D = 8, MAX_TOK = 300 };

static tn_ctx ctx;
static tn_kernels kern;

static float *random_values(tn_rng *r, size_t n) {
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = (float)tn_rng_f64(r) * 4 - 2;
    return v;
}

static tn_hparams hparams_of(int32_t window) {
    return (tn_hparams){.n_layers = 1,
                        .n_embd = N_HEADS * D,
                        .n_heads = N_HEADS,
                        .n_kv_heads = N_KV,
                        .d_head = D,
                        .n_ff = 8,
                        .n_vocab = 16,
                        .ctx_train = MAX_TOK,
                        .attn_scale = 0.35f,
                        .window = window,
                        .residual_scale = 1,
                        .logit_scale = 1,
                        .experts_scale = 1,
                        .norm_eps = 1e-5f,
                        .bidirectional = true};
}

static bool sees(int32_t window, int32_t from, int32_t to) { return !window || abs(from - to) <= window / 2; }

static double expected(const float *q, const float *k, const float *v, int32_t n, int32_t window, int32_t row,
                       int32_t head, int32_t at) {
    double sum = 0, out = 0;
    int32_t kv = head / (N_HEADS / N_KV);
    for (int32_t p = 0; p < n; p++) {
        double score = 0;
        if (!sees(window, row, p)) continue;
        for (int32_t d = 0; d < D; d++)
            score += (double)q[(row * N_HEADS + head) * D + d] * (double)k[(p * N_KV + kv) * D + d];
        double w = exp(score * (double)0.35f);
        sum += w;
        out += w * (double)v[(p * N_KV + kv) * D + at];
    }
    return out / sum;
}

static void one(int32_t n, int32_t window) {
    tern_error err = {0};
    tn_kv kv;
    tn_rng rng = {(uint64_t)(n * 1000 + window)};
    const tn_hparams h = hparams_of(window);
    float *q = random_values(&rng, (size_t)n * N_HEADS * D), *k = random_values(&rng, (size_t)n * N_KV * D),
          *v = random_values(&rng, (size_t)n * N_KV * D), *out = calloc((size_t)n * N_HEADS * D, sizeof *out),
          *scratch = malloc(tn_rows_scratch(&h, MAX_TOK) * sizeof *scratch);
    int32_t pos[MAX_TOK];
    assert_true(out && scratch);
    assert_int_equal(tn_kv_open(&ctx, &h, MAX_TOK, TN_KV_F32, &kv, &err), TERN_OK);
    for (int32_t i = 0; i < n; i++) {
        pos[i] = i;
        for (int32_t a = 0; a < N_KV; a++)
            tn_kv_put(&kv, 0, a, i, k + (i * N_KV + a) * D, v + (i * N_KV + a) * D);
    }
    const tn_rows r = {
        .h = &h, .kern = &kern, .kv = &kv, .n_rows = n, .pos = pos, .slot = pos, .tree_base = -1};
    for (int together = 0; together < 2; together++) {
        memset(out, 0, (size_t)n * N_HEADS * D * sizeof *out);
        for (int32_t head = 0; !together && head < N_HEADS; head++)
            tn_rows_attention(&r, 0, NULL, head, q, out, 0, n, scratch);
        for (int32_t a = 0; together && a < N_KV; a++)
            tn_rows_attention_group(&r, 0, NULL, a, q, out, 0, n, scratch);
        for (int32_t i = 0; i < n; i++)
            for (int32_t head = 0; head < N_HEADS; head++)
                for (int32_t d = 0; d < D; d++) {
                    double want = expected(q, k, v, n, window, i, head, d),
                           got = (double)out[(i * N_HEADS + head) * D + d];
                    if (fabs(got - want) > 1e-5)
                        fail_msg("%d tokens, window %d: row %d, head %d, value %d is %g, not %g", n, window,
                                 i, head, d, got, want);
                }
    }
    tn_kv_close(&kv);
    free(q), free(k), free(v), free(out), free(scratch);
}

static void rows_see_the_whole_text(void **state) {
    (void)state;
    static const int32_t lengths[] = {1, 2, 31, 33, 70, MAX_TOK}, windows[] = {0, 2, 9, 64};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t k = 0; k < sizeof windows / sizeof *windows; k++) one(lengths[i], windows[k]);
}

static void costs_are_counted(void **state) {
    (void)state;
    static const int32_t windows[] = {0, 2, 9, 64};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        tern_error err = {0};
        tn_program p;
        const tn_hparams h = hparams_of(windows[w]);
        assert_int_equal(tn_program_make(&ctx, &h, &p, &err), TERN_OK);
        int32_t n_ops;
        const tn_op *op = tn_program_layer(&p, 0, &n_ops);
        while (op->kind != TN_OP_ATTEND) op++;
        for (int32_t n = 1; n < 100; n += 7) {
            double macs = 0;
            for (int32_t i = 0; i < n; i++)
                for (int32_t k = 0; k < n; k++) macs += sees(windows[w], i, k) ? 2.0 * N_HEADS * D : 0;
            assert_true(tn_op_cost(op, n, 0).macs == macs);
        }
        tn_program_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_see_the_whole_text),
                                       cmocka_unit_test(costs_are_counted)};
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
