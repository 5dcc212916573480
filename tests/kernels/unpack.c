/* Weightlets: packed weights come back, in the device's tiles, from every variant; no byte beside them is
 * touched. */
#include "base/cpu.h"
#include "kernels/kernels.h"
#include "kernels/unpack.h"

#include "check.h"

static void one(tn_rng *r, tn_unpack_tile_fn fn, size_t n, size_t k, unsigned fixed_bits) {
    size_t tiles_bytes = tn_tiles_s8_bytes(n, k), n_up = (n + 15) / 16 * 16;
    uint8_t *bits = calloc(tn_channel_bits_bytes(n), 1);
    int8_t *w = malloc(n * k);
    for (size_t i = 0; i < n; i++) {
        unsigned b = fixed_bits ? fixed_bits : 1 + (unsigned)tn_rng_below(r, 8);
        tn_channel_bits_put(bits, i, b);
        assert_int_equal(tn_channel_bits_get(bits, i), b);
        for (size_t j = 0; j < k; j++)
            w[i * k + j] = b == 8 ? (int8_t)((int)tn_rng_below(r, 255) - 127)
                                  : (int8_t)(2 * (int)tn_rng_below(r, 1u << b) - ((1 << b) - 1));
    }
    check_buf want = check_new(tiles_bytes), got = check_new(tiles_bytes), sums = check_new(n_up * 4),
              src = check_new(tn_weightlets_bytes(bits, 0, n, k));
    tn_tiles_s8_pack(want.p, sums.p, w, 0, n, k);
    tn_weightlets_pack(src.p, bits, w, 0, n, k);
    size_t half = n / 32 * 16; /* in two parts, the second first: parts are independent */
    tn_weightlets_unpack(fn, (uint8_t *)src.p + tn_weightlets_bytes(bits, 0, half, k), bits, half, n, k,
                         got.p);
    tn_weightlets_unpack(fn, src.p, bits, 0, half, k, got.p);
    assert_memory_equal(want.p, got.p, tiles_bytes);
    check_free(&want), check_free(&got), check_free(&sums), check_free(&src);
    free(bits), free(w);
}

static void all(tn_unpack_tile_fn fn) {
    static const size_t ns[] = {1, 15, 16, 17, 48, 50},
                        ks[] = {1, 3, 4, 64, 65, 127, 128, 129, 192, 200, 256, 513, 1024};
    tn_rng r = {check_seed()};
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
            for (unsigned b = 0; b <= 8; b++) one(&r, fn, ns[i], ks[j], b);
        }
    }
}

static void reference(void **state) {
    (void)state;
    all(tn_unpack_tile_ref);
}

static void chosen(void **state) {
    (void)state;
    uint32_t cpu = tn_cpu_flags(NULL);
    tn_kernels k;
    tn_kernels_init(&k, cpu);
    all(k.unpack_tile);
#if defined(__x86_64__)
    tn_kernels_init(&k, cpu & TN_CPU_AVX2);
    all(k.unpack_tile);
#endif
}

/* The byte layout itself, so that reader and writer cannot drift together. */
static void bytes(void **state) {
    (void)state;
    int8_t w[128];
    uint8_t bits[3] = {0}, dst[112];
    for (int j = 0; j < 128; j++) w[j] = (int8_t)(2 * j - 127); /* code j */
    tn_channel_bits_put(bits, 0, 7);
    tn_weightlets_pack(dst, bits, w, 0, 1, 128);
    for (int j = 0; j < 64; j++) assert_int_equal(dst[j], j % 16 * 17);
    for (int j = 0; j < 32; j++)
        assert_int_equal(dst[64 + j],
                         j < 16 ? 0x88 : 0xdd); /* bits 4 and 5 of the codes j, 32+j, 64+j, 96+j */
    for (int j = 0; j < 16; j++) assert_int_equal(dst[96 + j], 0xf0);
}

/* Sums of widths from anywhere to anywhere. */
static void sums(void **state) {
    (void)state;
    enum { N = 75 };
    tn_rng r = {check_seed()};
    uint8_t bits[(N * 3 + 7) / 8] = {0};
    unsigned width[N];
    assert_int_equal(sizeof bits, tn_channel_bits_bytes(N));
    for (size_t n = 0; n < N; n++) tn_channel_bits_put(bits, n, width[n] = 1 + (unsigned)tn_rng_below(&r, 8));
    for (size_t a = 0; a <= N; a++) {
        size_t sum = 0;
        for (size_t b = a; b <= N; sum += b < N ? width[b] : 0, b++)
            assert_int_equal(tn_weightlets_bytes(bits, a, b, 130), sum * 2 * 16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reference), cmocka_unit_test(chosen),
                                       cmocka_unit_test(bytes), cmocka_unit_test(sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
