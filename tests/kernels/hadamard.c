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

/* Blocks of 64, 256 and 1024: H x / sqrt(block), the same bits of all instruction sets, its own inverse. */
static void wide_blocks(void **state) {
    (void)state;
    enum { MOST = 2 * TN_HADAMARD_WIDEST };
    static float in[MOST], ref[MOST], x[MOST];
    uint32_t cpu = tn_cpu_flags(NULL);
    tn_rng rng = {5};
    for (size_t block = 64, root = 8; block <= TN_HADAMARD_WIDEST; block *= 4, root *= 2) {
        const size_t n = 2 * block;
        check_fill_f32(&rng, CHECK_RANDOM, in, n);
        memcpy(ref, in, sizeof in);
        tn_hadamard_wide(tn_hadamard_f32_ref, ref, n, block);
        for (size_t i = 0; i < n; i++) {
            double sum = 0, size = 0;
            for (size_t j = 0; j < block; j++) {
                double v = (double)in[i / block * block + j];
                sum += __builtin_popcountll((i % block) & j) % 2 ? -v : v;
                size += v < 0 ? -v : v;
            }
            double off = (double)ref[i] - sum / (double)root;
            if (!((off < 0 ? -off : off) <= 10 * size / (double)root * 0x1p-24))
                fail_msg("block %zu, value %zu: %g, not %g", block, i, (double)ref[i], sum / (double)root);
        }
        for (int v = 0; v < N_VARIANTS; v++) {
            if ((cpu & variants[v].cpu) != variants[v].cpu) continue;
            memcpy(x, in, sizeof in);
            tn_hadamard_wide(variants[v].fn, x, n, block);
            assert_memory_equal(x, ref, n * sizeof *x);
            tn_hadamard_wide(variants[v].fn, x, n, block);
            for (size_t i = 0; i < n; i++) {
                float off = x[i] - in[i];
                assert_true((off < 0 ? -off : off) <= 1e-3f);
            }
        }
    }
    const struct {
        long long k;
        int block;
    } widest[] = {{1024, 1024}, {8192, 1024}, {4864, 256}, {8960, 256}, {896, 64}, {32, 0}, {100, 0}};
    for (size_t i = 0; i < sizeof widest / sizeof *widest; i++)
        assert_int_equal(tn_hadamard_block(widest[i].k), widest[i].block);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_the_matrix), cmocka_unit_test(wide_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
