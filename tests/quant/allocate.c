/* Bits per channel: the greedy allocation against every possible one, and its budget. */
#include "base/rng.h"
#include "quant/allocate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

static double error_of(const float *peak, const uint8_t *bits, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ldexp((double)peak[i], -2 * bits[i]);
    return sum;
}

static double best(const float *peak, size_t n, int left) {
    if (!n) return left ? INFINITY : 0;
    double min = INFINITY;
    for (int b = 1; b <= 8 && b <= left; b++) min = fmin(min, ldexp((double)peak[0], -2 * b) + best(peak + 1, n - 1, left - b));
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
        assert_int_equal(tn_allocate_bits(&ctx, peak, n, (double)budget / (double)n, bits, NULL), TERN_OK);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(bits[i], 1, 8);
            sum += bits[i];
        }
        assert_int_equal(sum, budget);
        double want = best(peak, n, budget);
        assert_true(error_of(peak, bits, n) <= want * (1 + 1e-9));
    }
}

static void limits(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    float peak[3] = {0, 0, 0};
    uint8_t bits[3];
    assert_int_equal(tn_allocate_bits(&ctx, peak, 3, 8, bits, NULL), TERN_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(bits[i], 8);
    assert_int_equal(tn_allocate_bits(&ctx, peak, 3, 0.5, bits, NULL), TERN_E_INVALID);
    assert_int_equal(tn_allocate_bits(&ctx, peak, 3, NAN, bits, NULL), TERN_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(optimal), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
