/* Products over weightlets: the same bits as the scalar product over the tiles they unpack to, whatever the
 * rows, the part of the columns and the output form; nothing beside the operands is read or written. */
#include "base/cpu.h"
#include "kernels/kernels.h"

#include "check.h"

/* fixed_bits: of all channels; 0: any, 8 + B: B or B + 1 each, so that a tile has many of both; 16 + B: B in every other
 * tile, any between them. */
static void one(tn_rng *r, const tn_kernels *kern, size_t m, size_t n, size_t k, unsigned fixed_bits,
                int form, bool extreme) {
    size_t n_up = (n + 15) / 16 * 16, lda = (k + 3) / 4 * 4, ldo = n + 3, elem = form == 2 ? 1 : 4;
    uint8_t *bits = calloc(tn_channel_bits_bytes(n), 1);
    int8_t *w = malloc(n * k);
    for (size_t i = 0; i < n; i++) {
        unsigned b = fixed_bits > 16 && i / 16 % 2 == 0 ? fixed_bits - 16
                     : fixed_bits > 16                  ? 1 + (unsigned)tn_rng_below(r, 8)
                     : fixed_bits > 8                   ? fixed_bits - 8 + (unsigned)tn_rng_below(r, 2)
                     : fixed_bits                       ? fixed_bits
                                                        : 1 + (unsigned)tn_rng_below(r, 8);
        tn_channel_bits_put(bits, i, b);
        for (size_t j = 0; j < k; j++)
            w[i * k + j] = extreme  ? (int8_t)((1 << b) - 1 > 127 ? 127 : (1 << b) - 1)
                           : b == 8 ? (int8_t)((int)tn_rng_below(r, 255) - 127)
                                    : (int8_t)(2 * (int)tn_rng_below(r, 1u << b) - ((1 << b) - 1));
    }
    check_buf tiles = check_new(tn_tiles_s8_bytes(n, k)), sums = check_new(n_up * 4),
              packed = check_new(tn_weightlets_bytes(bits, 0, n, k));
    check_buf a = check_new(m * lda), scale = check_new(n * 4), bias = check_new(n * 4),
              scratch = check_new(tn_gemm_packed_scratch_bytes(k));
    check_buf want = check_new(m * ldo * elem), got = check_new(m * ldo * elem);
    tn_tiles_s8_pack(tiles.p, sums.p, w, 0, n, k);
    tn_weightlets_pack(packed.p, bits, w, 0, n, k);
    for (size_t i = 0; i < m * lda; i++)
        ((uint8_t *)a.p)[i] = extreme ? (uint8_t)(255 * tn_rng_below(r, 2)) : (uint8_t)tn_rng_below(r, 256);
    for (size_t i = 0; i < n; i++) {
        ((float *)scale.p)[i] = check_rand_f32(r, 1e-5f, 1e-3f);
        ((float *)bias.p)[i] = check_rand_f32(r, -2, 2);
    }
    tn_gemm_s8_args g = {.a = a.p,
                         .lda = lda,
                         .tiles = tiles.p,
                         .col_sum = sums.p,
                         .m = m,
                         .n = n,
                         .k = k,
                         .ldo = ldo,
                         .scale = scale.p,
                         .bias = tn_rng_below(r, 2) ? bias.p : NULL};
    size_t half = n / 32 * 16, step = 1 + (size_t)tn_rng_below(r, m);
    for (int side = 0; side < 2; side++) {
        check_buf *out = side ? &got : &want;
        g.out_s32 = form == 0 ? out->p : NULL;
        g.out_f32 = form == 1 ? out->p : NULL;
        g.out_u8 = form == 2 ? out->p : NULL;
        for (int p = 1; p >= 0; p--) { /* in two parts, the second first */
            g.n0 = p ? half : 0;
            g.n1 = p ? n : half;
            if (!side) tn_gemm_s8_ref(&g);
            else
                tn_gemm_packed(kern, &g, step, (uint8_t *)packed.p + tn_weightlets_bytes(bits, 0, g.n0, k),
                               bits, scratch.p);
        }
    }
    assert_memory_equal(want.p, got.p, m * ldo * elem);
    check_free(&tiles), check_free(&sums), check_free(&packed), check_free(&a), check_free(&scale),
        check_free(&bias), check_free(&scratch), check_free(&want), check_free(&got);
    free(bits), free(w);
}

static void all(const tn_kernels *kern) {
    static const size_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 31, 32, 33},
                        ns[] = {1, 15, 16, 17, 64, 100},
                        ks[] = {1, 3, 63, 64, 65, 127, 128, 129, 192, 513, 1537, 2200, 3073, 4097};
    tn_rng r = {check_seed()};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
            for (size_t l = 0; l < sizeof ks / sizeof *ks; l++)
                one(&r, kern, ms[i], ns[j], ks[l], (unsigned)tn_rng_below(&r, 16), (int)tn_rng_below(&r, 3),
                    false);
        }
    }
    for (size_t m = 2; m <= 17; m++)
        for (unsigned bits = 17; bits <= 24; bits++)
            one(&r, kern, m, 112, ks[tn_rng_below(&r, sizeof ks / sizeof *ks)], bits, 1, false);
    /* sums of 16 bits that just fit, for every width */
    for (unsigned bits = 1; bits <= 8; bits++) {
        one(&r, kern, 1, 17, 300, bits, 0, true);
        one(&r, kern, 3, 17, 300, bits, 0, true);
        one(&r, kern, 40, 17, 300, bits, 0, true);
    }
    for (unsigned bits = 4; bits <= 8; bits += 4) one(&r, kern, 1, 16, TN_S8_MAX_K, bits, 0, true);
    one(&r, kern, 300, 80, 2100, 0, 1, false); /* several runs of rows, blocks of columns and of k */
}

/* One row in every form of fetching: tiles of one width, of two and of any, whole and not. */
static void forms(void **state) {
    (void)state;
    static const size_t ns[] = {15, 16, 17, 100}, ks[] = {1, 127, 129, 896, 3073, 6200};
    tn_kernels k;
    tn_kernels_init(&k, tn_cpu_flags(NULL));
    const tn_packed_form *f = tn_packed_forms(k.cpu);
    const tn_gemm_packed_fn usual = k.gemm_packed;
    assert_false(tn_packed_form_use(&k, "no such form"));
    assert_ptr_equal(k.gemm_packed, usual);
    tn_rng r = {check_seed()};
    for (int i = 0; f && f[i].name; i++) {
        assert_true(tn_packed_form_use(&k, f[i].name));
        assert_ptr_equal(k.gemm_packed, f[i].fn);
        if (i == 0) assert_ptr_equal(k.gemm_packed, usual);
        for (unsigned bits = 0; bits <= 15; bits++) {
            for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
                for (size_t l = 0; l < sizeof ks / sizeof *ks; l++)
                    one(&r, &k, 1, ns[j], ks[l], bits, (int)tn_rng_below(&r, 3), false);
            }
            if (bits >= 1 && bits <= 8) one(&r, &k, 1, 16, 300, bits, 0, true);
        }
        for (unsigned bits = 4; bits <= 8; bits += 4) one(&r, &k, 1, 16, TN_S8_MAX_K, bits, 0, true);
        for (size_t m = 2; m <= 40; m += 7) one(&r, &k, m, 33, 1537, 0, 1, false);
    }
}

static void variants(void **state) {
    (void)state;
    const uint32_t cpu = tn_cpu_flags(NULL),
                   masks[] = {cpu, cpu & (TN_CPU_AVX2 | TN_CPU_AVX512), cpu & (TN_CPU_AVX2 | TN_CPU_NEON),
                              cpu & (TN_CPU_NEON | TN_CPU_DOTPROD), 0};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        tn_kernels k;
        bool again = false; /* on this processor the same as one before */
        for (size_t j = 0; j < i; j++) again = again || masks[j] == masks[i];
        if (again) continue;
        tn_kernels_init(&k, masks[i]);
        all(&k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(variants), cmocka_unit_test(forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
