/* Bits per channel: the greedy allocation against every possible one, and its budget. */
#include "base/rng.h"
#include "model/source.h"
#include "quant/allocate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

static double error_of(const float *peak, const uint8_t *bits, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ldexp((double)peak[i], -2 * bits[i]);
    return sum;
}

static double best(const float *peak, size_t n, int left) {
    if (!n) return left ? INFINITY : 0;
    double min = INFINITY;
    for (int b = 1; b <= 8 && b <= left; b++)
        min = fmin(min, ldexp((double)peak[0], -2 * b) + best(peak + 1, n - 1, left - b));
    return min;
}

static void optimal(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng r = {7};
    for (int round = 0; round < 200; round++) {
        size_t n = 1 + (size_t)tn_rng_below(&r, 5);
        float peak[5];
        uint8_t bits[5];
        for (size_t i = 0; i < n; i++) peak[i] = (float)exp(12 * tn_rng_f64(&r));
        int budget = (int)n + (int)tn_rng_below(&r, 7 * (uint32_t)n + 1), sum = 0;
        assert_int_equal(tn_allocate_bits(&ctx, peak, NULL, n, (double)budget / (double)n, bits, NULL),
                         TERN_OK);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(bits[i], 1, 8);
            sum += bits[i];
        }
        assert_int_equal(sum, budget);
        double want = best(peak, n, budget);
        assert_true(error_of(peak, bits, n) <= want * (1 + 1e-9));
    }
}

/* Channels of several matrices under one budget: never more than it, nothing left that would pay for the next
 * bit, and no exchange of one channel's bit for another's gains anything, but for what a longer channel
 * cannot have. */
static void one_budget(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng r = {8};
    for (int round = 0; round < 300; round++) {
        enum { MAX = 40 };
        size_t n = 2 + (size_t)tn_rng_below(&r, MAX - 2);
        float peak[MAX];
        uint32_t cost[MAX];
        uint8_t bits[MAX];
        double total = 0, spent = 0, average = 1 + 7 * tn_rng_f64(&r);
        for (size_t i = 0; i < n; i++) {
            peak[i] = (float)exp(12 * tn_rng_f64(&r));
            cost[i] = 64u << tn_rng_below(&r, 3);
            total += cost[i];
        }
        assert_int_equal(tn_allocate_bits(&ctx, peak, cost, n, average, bits, NULL), TERN_OK);
        for (size_t i = 0; i < n; i++) spent += (double)cost[i] * bits[i];
        assert_true(spent <= average * total + 1e-3);
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < n; j++) {
                if (bits[i] == 8 || bits[j] == 1 || cost[i] > cost[j]) continue;
                double gains = ldexp((double)peak[i], -2 * bits[i]) * 0.75 / cost[i],
                       lost = ldexp((double)peak[j], -2 * (bits[j] - 1)) * 0.75 / cost[j];
                assert_true(gains <= lost * (1 + 1e-9));
            }
        }
    }
}

/* The table of errors against the quantiser itself: the best even step for a normal value, by sums over a fine
 * grid. */
static void errors_of_normal_values(void **state) {
    (void)state;
    assert_true(tn_normal_error(0) == 1);
    for (unsigned bits = 1; bits <= 8; bits++) {
        const double levels = ldexp(1, (int)bits);
        double least = INFINITY;
        for (double step = 8 / levels * 0.2; step < 8 / levels * 1.6; step *= 1.01) {
            double sum = 0, weight = 0;
            for (double x = -6; x <= 6; x += 1.0 / 512) {
                double p = exp(-x * x / 2), q = floor(x / step) + 0.5;
                q = step * fmin(fmax(q, 0.5 - levels / 2), levels / 2 - 0.5);
                sum += p * (x - q) * (x - q);
                weight += p;
            }
            least = fmin(least, sum / weight);
        }
        if (!(fabs(least / tn_normal_error(bits) - 1) < 0.01))
            fail_msg("%u bits: %g, the table has %g", bits, least, tn_normal_error(bits));
    }
}

static double least_loss(const float *cost, size_t n, int left) {
    if (!n) return left < 0 ? INFINITY : 0;
    double min = INFINITY;
    for (int b = 2; b <= 8 && b <= left; b++)
        min =
            fmin(min, (double)cost[0] * tn_normal_error((unsigned)b) + least_loss(cost + 1, n - 1, left - b));
    return min;
}

/* Channels that lose by that table, against every possible way to hand out the bits. */
static void optimal_for_normal_values(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng r = {9};
    for (int round = 0; round < 200; round++) {
        size_t n = 1 + (size_t)tn_rng_below(&r, 5);
        float cost[5];
        uint8_t bits[5];
        double got = 0;
        for (size_t i = 0; i < n; i++) cost[i] = (float)exp(8 * tn_rng_f64(&r));
        int budget = 2 * (int)n + (int)tn_rng_below(&r, 6 * (uint32_t)n + 1);
        assert_int_equal(
            tn_allocate_bits_from(&ctx, cost, NULL, n, (double)budget / (double)n, 2, bits, NULL), TERN_OK);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(bits[i], 2, 8);
            got += (double)cost[i] * tn_normal_error(bits[i]);
        }
        assert_true(got <= least_loss(cost, n, budget) * (1 + 1e-6));
    }
}

/* On a real model the estimate says what it claims to: a sixth of it is the cosine distance between a channel
 * and its uniformly quantised self (summed over a matrix; few steps and heavy tails make it too small by up
 * to a third). */
static void estimate_is_the_cosine(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_source *src;
    tern_error err;
    if (tn_source_open(&ctx, TN_SOURCE_DIR "/models/tern-tiny", &src, &err) != TERN_OK)
        fail_msg("%s", err.message);
    const tn_role roles[] = {TN_W_Q, TN_W_O, TN_W_UP, TN_W_DOWN};
    for (int layer = 0; layer < tn_source_hparams(src)->n_layers; layer += 3) {
        for (size_t role = 0; role < sizeof roles / sizeof *roles; role++) {
            int64_t rows, cols;
            tn_role_shape(tn_source_hparams(src), layer, roles[role], &rows, &cols);
            float *w = malloc((size_t)cols * sizeof *w);
            for (int bits = 3; bits <= 8; bits++) {
                double sum_exact = 0, sum_estimate = 0;
                for (int64_t n = 0; n < rows; n += 7) {
                    double max = 0, square = 0, dot = 0, q_square = 0;
                    assert_int_equal(tn_source_read(src, layer, roles[role], n, n + 1, w, &err), TERN_OK);
                    for (int64_t k = 0; k < cols; k++)
                        max = fmax(max, fabs((double)w[k])), square += (double)w[k] * (double)w[k];
                    double step = 2 * max / (1 << bits);
                    for (int64_t k = 0; k < cols; k++) {
                        double q = step * (fmin(fmax(floor((double)w[k] / step), -(1 << (bits - 1))),
                                                (1 << (bits - 1)) - 1) +
                                           0.5);
                        dot += q * (double)w[k];
                        q_square += q * q;
                    }
                    double estimate = ldexp(max * max * (double)cols / square, -2 * bits) / 6,
                           exact = 1 - dot / sqrt(square * q_square);
                    sum_exact += exact;
                    sum_estimate += estimate;
                }
                if (!(fabs(sum_exact / sum_estimate - 1) < (bits < 6 ? 0.35 : bits < 7 ? 0.12 : 0.03)))
                    fail_msg("layer %d, %s, %d bits: %g estimated, %g", layer, tn_role_name(roles[role]),
                             bits, sum_estimate, sum_exact);
            }
            free(w);
        }
    }
    tn_source_close(&src);
}

static void limits(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    float peak[3] = {0, 0, 0};
    uint8_t bits[3];
    assert_int_equal(tn_allocate_bits(&ctx, peak, NULL, 3, 8, bits, NULL), TERN_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(bits[i], 8);
    assert_int_equal(tn_allocate_bits(&ctx, peak, NULL, 3, 0.5, bits, NULL), TERN_E_INVALID);
    assert_int_equal(tn_allocate_bits(&ctx, peak, NULL, 3, NAN, bits, NULL), TERN_E_INVALID);
}

/* What a wide channel would cost more than there is goes to narrow ones. */
static void nothing_is_left_over(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    const float cost[3] = {1000, 1, 1};
    const uint32_t n_weights[3] = {100, 10, 10};
    uint8_t bits[3];
    assert_int_equal(tn_allocate_bits_from(&ctx, cost, n_weights, 3, 2.5, 2, bits, NULL), TERN_OK);
    assert_int_equal(bits[0], 2); /* 60 of 120 weights' bits are there, and it wants 100 */
    assert_true(bits[1] + bits[2] == 2 + 2 + 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(optimal),
                                       cmocka_unit_test(nothing_is_left_over),
                                       cmocka_unit_test(one_budget),
                                       cmocka_unit_test(errors_of_normal_values),
                                       cmocka_unit_test(optimal_for_normal_values),
                                       cmocka_unit_test(estimate_is_the_cosine),
                                       cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
