/* kernels/x86/unpack_avx512.c - weightlets to tiles. A group of 128 weights is two registers per channel; sixteen channels are
 * transposed as 32-bit units, four consecutive k, which is the tile's own order.
 * Codes are assembled doubled (each weightlet is rotated one bit higher than its place), so that the weight is one subtraction away. */
#include "kernels/unpack.h"

#include <immintrin.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP };

/* acc | (rotate(x) & mask): a weightlet put at its place in every byte */
#define PLACE(acc, x, rot, mask) _mm512_ternarylogic_epi32(acc, _mm512_rolv_epi32(x, rot), mask, 0xf8)

/* Rotations that bring stripe s of `width`-bit weightlets to bit `place` of the byte; a register holds stripes s0.. of `n` lanes each. */
static inline __m512i rotations(int place, int width, int s0) {
    int r[16];
    for (int i = 0; i < 16; i++) r[i] = (place - width * (s0 + i * 4 / (16 * width)) + 32) % 32;
    return _mm512_loadu_si512(r);
}

static inline __attribute__((always_inline)) const uint8_t *channel(const uint8_t *src, int bits, __m512i w[static 2]) {
    if (bits == 8) {
        w[0] = _mm512_loadu_si512(src);
        w[1] = _mm512_loadu_si512(src + 64);
        return src + GROUP;
    }
    __m512i a = _mm512_setzero_si512(), b = a;
    int place = 1;
    if (bits & 4) {
        __m512i x = _mm512_loadu_si512(src), mask = _mm512_set1_epi8(0x1e);
        a = _mm512_and_si512(_mm512_rol_epi32(x, 1), mask);
        b = _mm512_and_si512(_mm512_ror_epi32(x, 3), mask);
        src += 64;
        place = 5;
    }
    if (bits & 2) {
        __m512i x = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)src)), mask = _mm512_set1_epi8((char)(3 << place));
        __m512i r0 = _mm512_inserti64x4(_mm512_set1_epi32(place), _mm256_set1_epi32((place + 30) % 32), 1);
        __m512i r1 = _mm512_inserti64x4(_mm512_set1_epi32((place + 28) % 32), _mm256_set1_epi32((place + 26) % 32), 1);
        a = PLACE(a, x, r0, mask);
        b = PLACE(b, x, r1, mask);
        src += 32;
        place += 2;
    }
    if (bits & 1) {
        __m512i x = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)src)), mask = _mm512_set1_epi8((char)(1 << place));
        a = PLACE(a, x, rotations(place, 1, 0), mask);
        b = PLACE(b, x, rotations(place, 1, 4), mask);
        src += 16;
    }
    __m512i zero = _mm512_set1_epi8((char)((1 << bits) - 1));
    w[0] = _mm512_sub_epi8(a, zero);
    w[1] = _mm512_sub_epi8(b, zero);
    return src;
}

/* r[c] = 16 units of channel c; line i of out = unit i of every channel. */
static inline __attribute__((always_inline)) void transpose(const __m512i *in, size_t step, int8_t *out, size_t n_lines) {
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        __m512i x = in[(size_t)i * step], y = in[(size_t)(i + 1) * step];
        t[i] = _mm512_unpacklo_epi32(x, y);
        t[i + 1] = _mm512_unpackhi_epi32(x, y);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) { /* r[i + j]: unit 4L + j of channels i..i+3, L = 128-bit lane */
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    __m512i line[16];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i p = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), q = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        __m512i s = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd), u = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
        line[j] = _mm512_shuffle_i32x4(p, q, 0x88);
        line[8 + j] = _mm512_shuffle_i32x4(p, q, 0xdd);
        line[4 + j] = _mm512_shuffle_i32x4(s, u, 0x88);
        line[12 + j] = _mm512_shuffle_i32x4(s, u, 0xdd);
    }
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
            case 1: src = channel(src, 1, w[c]); break;
            case 2: src = channel(src, 2, w[c]); break;
            case 3: src = channel(src, 3, w[c]); break;
            case 4: src = channel(src, 4, w[c]); break;
            case 5: src = channel(src, 5, w[c]); break;
            case 6: src = channel(src, 6, w[c]); break;
            case 7: src = channel(src, 7, w[c]); break;
            default: src = channel(src, 8, w[c]); break;
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
