/* Is the factor one of the inputs' Gram matrix, is the error that rounding reports the error of the
 * outputs, and is it less than that of rounding each weight for itself? Is an embedding rounded as it will be? */
#include "base/cpu.h"
#include "base/rng.h"
#include "quant/round.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tn_ctx ctx;
static tn_pool *pool;
static tn_kernels kern;

/* Inputs that know each other: a few hidden causes, channels of very different size. */
static float *inputs(tn_rng *rng, int32_t n, int32_t k) {
    enum { CAUSES = 24 };
    float *x = malloc((size_t)n * (size_t)k * sizeof *x), *mix = malloc((size_t)k * CAUSES * sizeof *mix);
    for (int32_t i = 0; i < k * CAUSES; i++) mix[i] = (float)(tn_rng_f64(rng) - 0.5);
    for (int32_t t = 0; t < n; t++) {
        float cause[CAUSES];
        for (int c = 0; c < CAUSES; c++) cause[c] = (float)(tn_rng_f64(rng) - 0.5);
        for (int32_t j = 0; j < k; j++) {
            float v = 0.2f * (float)(tn_rng_f64(rng) - 0.5);
            for (int c = 0; c < CAUSES; c++) v += mix[j * CAUSES + c] * cause[c];
            x[(size_t)t * (size_t)k + (size_t)j] = v * (j % 37 == 5 ? 9 : 1);
        }
    }
    free(mix);
    return x;
}

/* Mean square of the difference of outputs over the tokens, plus what damping adds, within a block alone. */
static double output_error(const tn_factor *f, const float *x, int32_t n, const float *w, const int8_t *q,
                           float scale, float damping) {
    double sum = 0;
    for (int32_t b = 0; b < f->n_blocks; b++) {
        int32_t k0 = f->blocks[b].first, k1 = k0 + f->blocks[b].k;
        double energy = 0, error = 0, squares = 0;
        for (int32_t t = 0; t < n; t++) {
            double y = 0;
            for (int32_t j = k0; j < k1; j++) {
                double v = (double)x[(size_t)t * (size_t)f->k + (size_t)j];
                y += v * ((double)w[j] - (double)q[j] * (double)scale);
                energy += v * v;
            }
            error += y * y;
        }
        for (int32_t j = k0; j < k1; j++) {
            double e = (double)w[j] - (double)q[j] * (double)scale;
            squares += e * e;
        }
        sum += (error + (double)damping * energy / (k1 - k0) * squares) / n;
    }
    return sum;
}

/* Each weight for itself, at the best of 60 scales. */
static double plain_error(const tn_factor *f, const float *x, int32_t n, const float *w, unsigned bits,
                          float damping) {
    float max = 0;
    int8_t *q = malloc((size_t)f->k);
    for (int32_t j = 0; j < f->k; j++) max = fmaxf(max, fabsf(w[j]));
    double best = INFINITY;
    for (int i = 0; i < 60; i++) {
        float top = bits == 8 ? 127 : (float)((1 << bits) - 1),
              scale = max / top * (1.05f - 0.012f * (float)i);
        for (int32_t j = 0; j < f->k; j++) {
            float v = bits == 8 ? rintf(w[j] / scale) : 2 * rintf((w[j] / scale + top) / 2) - top;
            q[j] = (int8_t)fmaxf(-top, fminf(top, v));
        }
        best = fmin(best, output_error(f, x, n, w, q, scale, damping));
    }
    free(q);
    return best;
}

static void one(tn_rng *rng, int32_t n, int32_t k, const uint8_t *bits, int32_t n_rows) {
    const float damping = 0.01f;
    float *x = inputs(rng, n, k), *w = malloc((size_t)n_rows * (size_t)k * sizeof *w);
    for (int32_t i = 0; i < n_rows * k; i++)
        w[i] = (float)(tn_rng_f64(rng) + tn_rng_f64(rng) + tn_rng_f64(rng) - 1.5);
    memset(w, 0, (size_t)k * sizeof *w); /* row 0: all zero */
    tn_factor f;
    tern_error err;
    assert_int_equal(tn_factor_make(&ctx, pool, &kern, x, n, k, damping, TN_GRAM_BLOCK_MAX, &f, &err),
                     TERN_OK);
    int8_t *q = malloc((size_t)n_rows * (size_t)k);
    float *scale = malloc((size_t)n_rows * sizeof *scale), *error = malloc((size_t)n_rows * sizeof *error),
          *scratch = aligned_alloc(64, (tn_round_scratch(&f, n_rows) * sizeof *scratch + 63) / 64 * 64);
    tn_round_rows(&f, &kern, w, n_rows, bits, 0, q, scale, error, scratch);
    assert_true(scale[0] == 0 && error[0] == 0);
    double ours = 0, plain = 0;
    for (int32_t r = 0; r < n_rows; r++) {
        const float *row = w + (size_t)r * (size_t)k;
        const int8_t *codes = q + (size_t)r * (size_t)k;
        for (int32_t j = 0; j < k; j++) {
            int top = bits[r] == 8 ? 127 : (1 << bits[r]) - 1;
            if (abs(codes[j]) > top || (bits[r] < 8 && !(codes[j] & 1)))
                fail_msg("code %d is none of %d bits", codes[j], bits[r]);
        }
        double want = output_error(&f, x, n, row, codes, scale[r], damping);
        if (!(fabs((double)error[r] - want) <= 2e-3 * want + 1e-9))
            fail_msg("k %d, row %d, %d bits: error %g, the outputs' is %g", k, r, bits[r], (double)error[r],
                     want);
        if (!r) continue;
        for (int by = -3; by <= 3; by++) { /* no other scale is better for these codes */
            double other = output_error(&f, x, n, row, codes, scale[r] * (1 + 0.01f * (float)by), damping);
            if (other < want * (1 - 1e-4))
                fail_msg("k %d, row %d, %d bits: a scale %d %% larger has error %g, not %g", k, r, bits[r],
                         by, other, want);
        }
        ours += want;
        plain += plain_error(&f, x, n, row, bits[r], damping);
    }
    if (!(ours < 0.8 * plain)) fail_msg("k %d: error %g, plain rounding has %g", k, ours, plain);
    tn_factor_close(&f);
    free(x);
    free(w);
    free(q);
    free(scale);
    free(error);
    free(scratch);
}

static void knows_the_inputs(void **state) {
    (void)state;
    tn_rng rng = {5};
    static const int32_t ks[] = {33, 64, 95, 256, 320};
    for (int i = 0; i < 5; i++) {
        static const uint8_t bits[7] = {4, 2, 3, 4, 5, 6, 8};
        one(&rng, 700, ks[i], bits, 7);
    }
    static const uint8_t bits[3] = {4, 4, 3};
    one(&rng, 300, 2500, bits, 3); /* two blocks; fewer tokens than channels */
}

static void strange_inputs(void **state) {
    (void)state;
    enum { N = 40, K = 64 };
    static float x[N * K];
    tn_factor f;
    tern_error err;
    assert_int_equal(tn_factor_make(&ctx, pool, &kern, x, N, K, 0.01f, TN_GRAM_BLOCK_MAX, &f, &err),
                     TERN_OK); /* all zero */
    tn_factor_close(&f);
    x[77] = INFINITY;
    assert_int_equal(tn_factor_make(&ctx, pool, &kern, x, N, K, 0.01f, TN_GRAM_BLOCK_MAX, &f, &err),
                     TERN_E_FORMAT);
    assert_null(f.blocks);
}

/* Entropy counts: against the scale with the least error, a bell-shaped row gains more bits of entropy than its error is
 * worth at 6 dB a bit (a coder of uniform steps has D = 4^-H pi e / 6: 1.53 dB from the bound, fixed widths 2.6 to 3.5). */
static void coarser_for_a_coder(void **state) {
    (void)state;
    enum { K = 16384 };
    const tn_factor none = {.ctx = &ctx, .k = K};
    tn_rng rng = {3};
    float *w = malloc(K * sizeof *w), scratch[64 + 2 * K];
    int8_t *q = malloc(K);
    for (int32_t i = 0; i < K; i++) {
        w[i] = 0;
        for (int j = 0; j < 12; j++) w[i] += (float)(tn_rng_f64(&rng) - 0.5);
    }
    for (uint8_t bits = 4; bits <= 6; bits++) {
        double gap[2], entropy[2];
        for (int coded = 0; coded < 2; coded++) {
            float scale, error;
            int counts[256] = {0};
            tn_round_rows(&none, &kern, w, 1, &bits, coded ? 1 : 0, q, &scale, &error, scratch);
            for (int i = 0; i < K; i++) counts[q[i] + 128]++;
            entropy[coded] = 0;
            for (int s = 0; s < 256; s++)
                if (counts[s]) entropy[coded] += counts[s] * log2((double)K / counts[s]) / K;
            gap[coded] = 10 * log10((double)error / K) + 20 * log10(2) * entropy[coded];
        }
        if (!(entropy[1] < entropy[0] - .1 && gap[1] < gap[0] - .2 && gap[1] > 1.2 && gap[1] < 1.75))
            fail_msg("%d bits: %.2f bits, %.2f dB from the bound; without %.2f, %.2f dB", bits, entropy[1],
                     gap[1], entropy[0], gap[0]);
    }
    free(w), free(q);
}

static int set_up(void **state) {
    (void)state;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    return tn_pool_open(&ctx, 2, &pool, &err);
}

static int tear_down(void **state) {
    (void)state;
    tn_pool_close(&pool);
    return 0;
}

/* An embedding that is the output layer too is rounded rotated: what is zero in whole blocks comes back as zero but
 * for one value of a block, where rounded as it is all of them are half a step away, on one side. */
static void padded_embeddings(void **state) {
    (void)state;
    enum { K = 512, HALF = K / 2 };
    tn_rng rng = {11};
    static float plain[K], tied[K], ones[K];
    for (int i = 0; i < K; i++) {
        ones[i] = 1;
        plain[i] = tied[i] = i < HALF ? (float)(tn_rng_f64(&rng) - 0.5) : 0;
    }
    tn_round_embedding(&kern, plain, ones, K, 4, false);
    tn_round_embedding(&kern, tied, ones, K, 4, true);
    for (int i = HALF; i < K; i++) {
        assert_true(fabsf(plain[i]) > 0.01f && plain[i] == plain[HALF]);
        if (i > HALF) assert_true(fabsf(tied[i]) < 1e-5f);
    }
    for (int i = 0; i < HALF; i++) assert_true(tied[i] != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(knows_the_inputs),
                                       cmocka_unit_test(coarser_for_a_coder),
                                       cmocka_unit_test(strange_inputs), cmocka_unit_test(padded_embeddings)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
