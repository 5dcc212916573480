/* bench/rans.c - entropy-coded weightlets decoded on one thread, linears of a 0.5B model, from memory.
 *
 *   bench_rans [BITS]     bell-shaped codes of that width (default: 3, 4, 5 and 8)
 *
 * Prints the quickest of several decodings, in weights and in bytes of weightlets a second, of the scalar decoder and
 * of the processor's. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "quant/encode.h"
#include "kernels/unpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4864, K = 896, PART = 256, ROUNDS = 15 };

static int8_t bell(tn_rng *r, unsigned b) {
    double z = 0;
    for (int i = 0; i < 12; i++) z += tn_rng_f64(r) - .5;
    const int top = (1 << b) - 1;
    int u = (int)(z * (top + 1) / 7 + (top + 1) / 2.0 + 100) - 100;
    u = u < 0 ? 0 : u > top ? top : u;
    return (int8_t)(b == 8 ? u - 128 : 2 * u - top);
}

static void one(unsigned b, const char *name, tn_rans_decode_fn fn) {
    tn_rng r = {1};
    uint8_t *bits = calloc(tn_channel_bits_bytes(N), 1), *which = calloc(N, 1);
    int8_t *w = malloc((size_t)N * K);
    for (size_t i = 0; i < N; i++) tn_channel_bits_put(bits, i, b);
    for (size_t i = 0; i < (size_t)N * K; i++) w[i] = bell(&r, b);
    const size_t n_bytes = tn_weightlets_bytes(bits, 0, N, K);
    uint8_t *packed = malloc(n_bytes), *got = malloc(n_bytes);
    tn_weightlets_pack(packed, bits, w, 0, N, K);
    uint64_t counts[TN_RANS_SYMBOLS] = {0};
    uint16_t f[TN_RANS_SYMBOLS];
    for (size_t i = 0; i < N; i++)
        tn_rans_count(packed + tn_weightlets_bytes(bits, 0, i / 16 * 16, K), bits, i, N, K, counts);
    tn_rans_table t;
    tn_rans_frequencies(counts, tn_rans_n_symbols(b), f);
    if (!tn_rans_table_make(f, tn_rans_n_symbols(b), &t)) abort();
    uint8_t *stream[N / PART];
    size_t size[N / PART], sum = 0;
    for (size_t p = 0; p < N / PART; p++) {
        tn_rans_args a = {bits, which, &t, p * PART, (p + 1) * PART, K};
        stream[p] = malloc(tn_rans_bound(&a));
        sum += size[p] = tn_rans_encode(&a, packed + tn_weightlets_bytes(bits, 0, a.n0, K), stream[p]);
    }
    int64_t best = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t t0 = tn_now_ns();
        for (size_t p = 0; p < N / PART; p++) {
            tn_rans_args a = {bits, which, &t, p * PART, (p + 1) * PART, K};
            if (!fn(&a, stream[p], size[p], got + tn_weightlets_bytes(bits, 0, a.n0, K))) abort();
        }
        const int64_t ns = tn_now_ns() - t0;
        best = ns < best ? ns : best;
    }
    if (memcmp(got, packed, n_bytes)) abort();
    printf("%u bits, %-8s %.3f bits a weight  %6.2f G weights/s  %6.2f GB/s of weightlets\n", b, name,
           8.0 * (double)sum / N / K, (double)N * K / (double)best, (double)n_bytes / (double)best);
    for (size_t p = 0; p < N / PART; p++) free(stream[p]);
    free(bits), free(which), free(w), free(packed), free(got);
}

int main(int argc, char **argv) {
    tn_kernels k, narrow; /* without AVX-512 */
    tn_kernels_init(&k, tn_cpu_flags(NULL));
    tn_kernels_init(&narrow, tn_cpu_flags(NULL) & (TN_CPU_AVX2 | TN_CPU_NEON));
    static const unsigned all[] = {3, 4, 5, 8};
    for (size_t i = 0; i < 4; i++) {
        const unsigned b = argc > 1 ? (unsigned)atoi(argv[1]) : all[i];
        if (b < 1 || b > 8) return 2;
        one(b, "scalar", tn_rans_decode_ref);
        one(b, "narrow", narrow.rans_decode);
        one(b, "chosen", k.rans_decode);
        if (argc > 1) break;
    }
    return 0;
}
