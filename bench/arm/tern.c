/* One product of tern's Arm kernels, so often as the third argument says, for bench/arm-counts.sh: 256
 * outputs, as many inputs as the fourth says. */
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/blocks_s8.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, MOST_ROWS = 256 };

static void *room(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 4095) / 64 * 64);
    if (!p) exit(1);
    return memset(p, 0, (bytes + 4095) / 64 * 64);
}

/* Widths as a package of about 4 bits has them: every other tile has one, the others any of 2 to 6. */
static unsigned mixed_width(tn_rng *r, size_t n) {
    return n / TN_TILE_N % 2 ? 2 + (unsigned)tn_rng_below(r, 5) : 2 + n / TN_TILE_N / 2 % 5;
}

static void codes(int8_t *w, const uint8_t *widths, size_t k) {
    tn_rng r = {1};
    for (size_t i = 0; i < N * k; i++) {
        const unsigned bits = tn_channel_bits_get(widths, i / k);
        w[i] = bits == 8 ? (int8_t)((int)tn_rng_below(&r, 255) - 127)
                         : (int8_t)(2 * (int)tn_rng_below(&r, 1u << bits) - ((1 << bits) - 1));
    }
}

static void blocks(const tn_kernels *kern, size_t m, int times, size_t k) {
    const size_t row = k / 32 * 18; /* Q4_0 */
    uint8_t *rows = room(N * row), *tiles = room(tn_blocks_bytes(TN_BLOCKS_Q4_0, N, k));
    for (size_t n = 0; n < N; n += TN_BLOCKS_N) {
        const uint8_t *at[TN_BLOCKS_N];
        for (size_t i = 0; i < TN_BLOCKS_N; i++) at[i] = rows + (n + i) * row;
        tn_blocks_repack(TN_BLOCKS_Q4_0, at, TN_BLOCKS_N, k, tiles + n * row);
    }
    tn_blocks_act *act = room(m * tn_blocks_n_chunks(k) * sizeof *act);
    float *x = room(m * k * sizeof *x), *y = room(m * N * sizeof *y);
    for (size_t i = 0; i < m; i++) kern->blocks_quantise(TN_BLOCKS_Q4_0, x + i * k, k, act + i, m);
    tn_blocks_args g = {.type = TN_BLOCKS_Q4_0,
                        .tiles = tiles,
                        .a = act,
                        .m = m,
                        .n = N,
                        .k = k,
                        .n1 = N,
                        .out = y,
                        .ldo = N};
    for (int i = 0; i < times; i++) kern->blocks_gemm(&g);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    size_t m = (size_t)atoi(argv[2]), k = (size_t)atoi(argv[4]);
    int times = atoi(argv[3]);
    unsigned bits = !strcmp(argv[1], "packed4")   ? 4
                    : !strcmp(argv[1], "packed5") ? 5
                    : !strcmp(argv[1], "mixed")   ? 0
                                                  : 8;
    if (!m || m > MOST_ROWS || times < 0 || !k || k % 32) return 2;
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    if (!strcmp(argv[1], "blocks")) {
        blocks(&kern, m, times, k);
        return 0;
    }
    int8_t *w = room(N * k);
    uint8_t *widths = room(tn_channel_bits_bytes(N));
    tn_rng r = {2};
    for (size_t i = 0; i < N; i++) tn_channel_bits_put(widths, i, bits ? bits : mixed_width(&r, i));
    codes(w, widths, k);
    int8_t *tiles = room(tn_tiles_s8_bytes(N, k));
    int32_t *sums = room(N * sizeof *sums);
    uint8_t *packed = room(tn_weightlets_bytes(widths, 0, N, k));
    tn_tiles_s8_pack(tiles, sums, w, 0, N, k);
    tn_weightlets_pack(packed, widths, w, 0, N, k);
    float *scale = room(N * sizeof *scale), *y = room(m * N * sizeof *y);
    tn_gemm_s8_args g = {.a = room(m * k),
                         .lda = k,
                         .tiles = tiles,
                         .col_sum = sums,
                         .m = m,
                         .n = N,
                         .k = k,
                         .n1 = N,
                         .out_f32 = y,
                         .ldo = N,
                         .scale = scale};
    int8_t *scratch = room(tn_gemm_packed_scratch_bytes(k));
    for (int i = 0; i < times; i++) {
        if (bits == 8) kern.gemm_s8(&g);
        else tn_gemm_packed(&kern, &g, MOST_ROWS, packed, widths, scratch);
    }
    return 0;
}
