/* kernels/x86/weightlets_avx2.h - a group of 128 weightlets to four registers of codes, shared by the kernels
 * that unpack. */
#ifndef TN_KERNELS_X86_WEIGHTLETS_AVX2_H
#define TN_KERNELS_X86_WEIGHTLETS_AVX2_H

#include "kernels/unpack.h"

#include <immintrin.h>

/* Moves bits of x from position `from` of every byte to position `to`. Both are constants after inlining. */
static inline __attribute__((always_inline)) __m256i weightlets_moved(__m256i x, int from, int to,
                                                                      int width) {
    __m256i mask = _mm256_set1_epi8((char)(((1 << width) - 1) << to));
    x = to > from ? _mm256_slli_epi16(x, to - from) : to < from ? _mm256_srli_epi16(x, from - to) : x;
    return _mm256_and_si256(x, mask);
}

/* Codes of a group with bits < 8, moved up by `place` bits; reads its 16 * bits bytes at src and no more, and
 * returns what follows. bits and place are constants after inlining. */
static inline __attribute__((always_inline)) const uint8_t *
weightlets_placed_avx2(const uint8_t *src, int bits, int place, __m256i w[static 4]) {
    for (int i = 0; i < 4; i++) w[i] = _mm256_setzero_si256();
    if (bits & 4) {
        __m256i x0 = _mm256_loadu_si256((const __m256i *)src),
                x1 = _mm256_loadu_si256((const __m256i *)(src + 32));
        w[0] = weightlets_moved(x0, 0, place, 4);
        w[1] = weightlets_moved(x1, 0, place, 4);
        w[2] = weightlets_moved(x0, 4, place, 4);
        w[3] = weightlets_moved(x1, 4, place, 4);
        src += 64;
        place += 4;
    }
    if (bits & 2) {
        __m256i x = _mm256_loadu_si256((const __m256i *)src);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) w[i] = _mm256_or_si256(w[i], weightlets_moved(x, 2 * i, place, 2));
        src += 32;
        place += 2;
    }
    if (bits & 1) {
        /* The halves of register i hold stripes 2i and 2i + 1, so bit 2i + 1 of every byte of the upper half
         * is moved to bit 2i first. Bits that cross into another byte are masked below: only bits 0, 2, 4, 6
         * are used. */
        __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)src)),
                half = _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi32(1), 1);
        x = _mm256_srlv_epi32(x, half);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) w[i] = _mm256_or_si256(w[i], weightlets_moved(x, 2 * i, place, 1));
        src += 16;
    }
    return src;
}

#endif
