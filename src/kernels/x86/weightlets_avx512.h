/* kernels/x86/weightlets_avx512.h - a group of 128 weightlets to two registers of int8, shared by the kernels
 * that unpack. */
#ifndef TN_KERNELS_X86_WEIGHTLETS_AVX512_H
#define TN_KERNELS_X86_WEIGHTLETS_AVX512_H

#include "kernels/unpack.h"

#include <immintrin.h>
#include <stdbool.h>

#define SELECT(mask, x, y) _mm512_ternarylogic_epi32(mask, x, y, 0xca)

/* Codes of 1 to 3 bits: those of the first register in the low halves of bytes, those of the second in the
 * high ones. A stripe of the second lies four bits above one of the first, so one shift brings both to their
 * places; the other bits are arbitrary. Shifts, because rotations compete with the products for their unit
 * (Zen 4). */
static inline __attribute__((always_inline)) __m512i weightlet_halves_avx512(const uint8_t *src, int bits) {
    const __m512i by_half = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0),
                  by_quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    __m512i two, one;
    if (bits & 2) {
        two = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)src));
        two = _mm512_srlv_epi32(two, by_half);
        if (bits == 2) return two;
        src += 32;
    }
    one = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)src));
    one = _mm512_srlv_epi32(one, by_quarter);
    return bits == 1 ? one : SELECT(_mm512_set1_epi8(0x33), two, _mm512_slli_epi32(one, 2));
}

/* The same group as unsigned codes: plain if they have fewer than 8 bits, int8 plus 128 otherwise. With
 * `raised`, codes of up to 4 bits are 16 times as large in the second register, which saves a shift. */
static inline __attribute__((always_inline)) void weightlet_codes_avx512(const uint8_t *src, int bits,
                                                                         bool raised, __m512i w[static 2]) {
    const __m512i low = _mm512_set1_epi8(0x0f);
    if (bits == 8) {
        w[0] = _mm512_xor_si512(_mm512_loadu_si512(src), _mm512_set1_epi8((char)0x80));
        w[1] = _mm512_xor_si512(_mm512_loadu_si512(src + 64), _mm512_set1_epi8((char)0x80));
    } else if (bits <= 4) {
        const int mask = (1 << bits) - 1;
        __m512i x = bits == 4 ? _mm512_loadu_si512(src) : weightlet_halves_avx512(src, bits);
        __asm__("" : "+v"(x)); /* one load for both uses: most of them cross a line */
        w[0] = _mm512_and_si512(x, _mm512_set1_epi8((char)mask));
        w[1] = raised ? _mm512_and_si512(x, _mm512_set1_epi8((char)(mask << 4)))
                      : _mm512_and_si512(_mm512_srli_epi32(x, 4), _mm512_set1_epi8((char)mask));
    } else {
        const int mask = (1 << (bits - 4)) - 1;
        __m512i x = _mm512_loadu_si512(src), y = weightlet_halves_avx512(src + 64, bits - 4);
        __asm__("" : "+v"(x));
        y = _mm512_and_si512(y, _mm512_set1_epi8((char)(mask << 4 | mask)));
        w[0] = SELECT(low, x, _mm512_slli_epi32(y, 4));
        w[1] = SELECT(low, _mm512_srli_epi32(x, 4), y);
    }
}

/* Reads the group's 16 * bits bytes at src and no more, as int8; bits is a constant after inlining. Returns
 * the end of the group. */
static inline __attribute__((always_inline)) const uint8_t *weightlets_avx512(const uint8_t *src, int bits,
                                                                              __m512i w[static 2]) {
    const __m512i zero = _mm512_set1_epi8((char)((1 << bits) - 1));
    if (bits == 8) {
        w[0] = _mm512_loadu_si512(src);
        w[1] = _mm512_loadu_si512(src + 64);
    } else {
        weightlet_codes_avx512(src, bits, false, w);
        for (int i = 0; i < 2; i++) w[i] = _mm512_sub_epi8(_mm512_add_epi8(w[i], w[i]), zero);
    }
    return src + TN_WEIGHTLET_GROUP / 8 * bits;
}

#endif
