/* Is the rotation H x / 8, its own inverse, and are all instruction sets' bits the reference's? */
#include "base/cpu.h"
#include "check.h"
#include "kernels/hadamard.h"

static const struct {
    const char *name;
    uint32_t cpu;
    tn_hadamard_f32_fn fn;
} variants[] = {
    {"ref", 0, tn_hadamard_f32_ref},
#if defined(__x86_64__)
    {"avx2", TN_CPU_AVX2, tn_hadamard_f32_avx2},
    {"avx512", TN_CPU_AVX512, tn_hadamard_f32_avx512},
#elif defined(__aarch64__)
    {"neon", TN_CPU_NEON, tn_hadamard_f32_neon},
#endif
};

enum { N_VARIANTS = sizeof variants / sizeof *variants, MAX_BLOCKS = 9 };

static void against_the_matrix(void **state) {
    (void)state;
    uint32_t cpu = tn_cpu_flags(NULL);
    tn_rng rng = {3};
    for (int round = 0; round < 400; round++) {
        size_t n = 64 * (1 + tn_rng_below(&rng, MAX_BLOCKS));
        float in[64 * MAX_BLOCKS], ref[64 * MAX_BLOCKS];
        check_fill_f32(&rng, round % 2 ? CHECK_RANDOM : CHECK_ALTERNATING, in, n);
        if (round % 4 == 3) in[tn_rng_below(&rng, (uint32_t)n)] = 3e4f; /* an outlier */
        memcpy(ref, in, sizeof in);
        tn_hadamard_f32_ref(ref, n);
        for (size_t i = 0; i < n; i++) {
            double sum = 0, size = 0;
            for (size_t j = 0; j < 64; j++) {
                double v = (double)in[i / 64 * 64 + j];
                sum += __builtin_popcountll((i % 64) & j) % 2 ? -v : v;
                size += v < 0 ? -v : v;
            }
            /* six roundings of sums no larger than all magnitudes together */
            double off = (double)ref[i] - sum / 8;
            if (!((off < 0 ? -off : off) <= 6 * size / 8 * 0x1p-24))
                fail_msg("value %zu: %g, not %g", i, (double)ref[i], sum / 8);
        }
        for (int v = 0; v < N_VARIANTS; v++) {
            if ((cpu & variants[v].cpu) != variants[v].cpu) continue;
            check_buf b = check_new(n * sizeof(float));
            memcpy(b.p, in, n * sizeof(float));
            variants[v].fn(b.p, n);
            if (memcmp(b.p, ref, n * sizeof(float)))
                fail_msg("%s: other bits than ref, n %zu", variants[v].name, n);
            variants[v].fn(b.p, n); /* twice is once too many: the same values again, but for rounding */
            for (size_t i = 0; i < n; i++) {
                float off = ((float *)b.p)[i] - in[i];
                if (!((off < 0 ? -off : off) <= 1e-5f * (round % 4 == 3 ? 3e4f : 64)))
                    fail_msg("%s: not its own inverse", variants[v].name);
            }
            check_free(&b);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_the_matrix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
