/* Is the product with a stored vector what float64 says, with the reference's bits on every instruction
 * set? */
#include "base/cpu.h"
#include "base/half.h"
#include "check.h"
#include "kernels/dot_f16.h"

static const struct {
    const char *name;
    uint32_t cpu;
    tn_dot_f16_fn fn;
} variants[] = {
    {"ref", 0, tn_dot_f16_ref},
#if defined(__x86_64__)
    {"avx2", TN_CPU_AVX2, tn_dot_f16_avx2},
#elif defined(__aarch64__)
    {"neon", TN_CPU_NEON, tn_dot_f16_neon},
#endif
};

static void against_float64(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 384, 896, 1000, 4096};
    uint32_t cpu = tn_cpu_flags(NULL);
    tn_rng rng = {check_seed()};
    for (int round = 0; round < 300; round++) {
        size_t n = lengths[(size_t)round % (sizeof lengths / sizeof *lengths)];
        check_buf q = check_new(2 * n * sizeof(float)), v = check_new(n * sizeof(uint16_t));
        float *row = q.p, ref[2], got[2];
        uint16_t *h = v.p;
        check_fill_f32(&rng, round % 3 ? CHECK_RANDOM : CHECK_ZEROS, row, 2 * n);
        for (size_t i = 0; i < n; i++)
            h[i] = tn_f32_f16(check_rand_f32(&rng, -1, 1) * (round % 5 ? 1 : 0x1p-20f)); /* subnormal too */
        tn_dot_f16_ref(row, h, n, ref);
        for (int j = 0; j < 2; j++) {
            double sum = 0, size = 0;
            for (size_t i = 0; i < n; i++) {
                double p = (double)row[(size_t)j * n + i] * (double)tn_f16_f32(h[i]);
                sum += p;
                size += p < 0 ? -p : p;
            }
            double off = (double)ref[j] - sum, bound = size * 0x1p-24 * (double)(n / 16 + 6) + 1e-45;
            if (!((off < 0 ? -off : off) <= bound)) fail_msg("n %zu: %g, not %g", n, (double)ref[j], sum);
        }
        for (size_t k = 0; k < sizeof variants / sizeof *variants; k++) {
            if ((cpu & variants[k].cpu) != variants[k].cpu) continue;
            variants[k].fn(row, h, n, got);
            if (memcmp(got, ref, sizeof ref)) fail_msg("%s: other bits than ref, n %zu", variants[k].name, n);
        }
        check_free(&q);
        check_free(&v);
    }
    assert_true(tn_dot_f16_for(0) == tn_dot_f16_ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_float64)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
