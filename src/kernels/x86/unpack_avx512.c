/* kernels/x86/unpack_avx512.c - weightlets to tiles. A group of 128 weights is two registers per channel;
 * sixteen channels are transposed as 32-bit units, four consecutive k, which is the tile's own order. */
#include "kernels/x86/transpose_avx512.h"
#include "kernels/x86/weightlets_avx512.h"

#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP };

/* Line i of out = 16 units, i of every channel. */
static inline __attribute__((always_inline)) void transpose(const __m512i *in, size_t step, int8_t *out,
                                                            size_t n_lines) {
    __m512i line[16];
    transpose_avx512(in, step, line);
    if (n_lines >= 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) _mm512_store_si512(out + 64 * i, line[i]);
    } else {
        for (size_t i = 0; i < n_lines; i++) _mm512_store_si512(out + 64 * i, line[i]);
    }
}

size_t tn_unpack_tile_avx512(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile) {
    const uint8_t *begin = src;
    size_t n_lines = (k + TN_TILE_K - 1) / TN_TILE_K;
    __m512i w[TN_TILE_N][2];
    memset(w, 0, sizeof w); /* channels that do not exist */
    for (size_t line = 0; line < n_lines; line += GROUP / TN_TILE_K) {
        for (size_t c = 0; c < n_cols; c++) {
            switch (bits[c]) {
            case 1: src = weightlets_avx512(src, 1, w[c]); break;
            case 2: src = weightlets_avx512(src, 2, w[c]); break;
            case 3: src = weightlets_avx512(src, 3, w[c]); break;
            case 4: src = weightlets_avx512(src, 4, w[c]); break;
            case 5: src = weightlets_avx512(src, 5, w[c]); break;
            case 6: src = weightlets_avx512(src, 6, w[c]); break;
            case 7: src = weightlets_avx512(src, 7, w[c]); break;
            default: src = weightlets_avx512(src, 8, w[c]); break;
            }
        }
        size_t left = n_lines - line;
        transpose(&w[0][0], 2, tile + line * 64, left);
        if (left > 16) transpose(&w[0][1], 2, tile + (line + 16) * 64, left - 16);
    }
    if (k % TN_TILE_K) { /* k that do not exist are zero, whatever their codes stood for */
        __m512i *last = (__m512i *)(tile + (n_lines - 1) * 64);
        *last = _mm512_and_si512(*last, _mm512_set1_epi32((int)((1u << k % TN_TILE_K * 8) - 1)));
    }
    return (size_t)(src - begin);
}
