/* kernels/x86/unpack_avx2.c - weightlets to tiles on 256-bit vectors: four registers hold a channel's group
 * of 128 weights, sixteen channels are transposed as 32-bit units, four channels by four units in each half
 * of a register. Codes are assembled doubled, as in unpack_avx512.c, so that the weight is one subtraction
 * away. */
#include "kernels/unpack.h"

#include <immintrin.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, REGS = GROUP / 32 };

/* Bits of x from position `from` of every byte to position `to`. Both are constants where this is inlined. */
static inline __attribute__((always_inline)) __m256i moved(__m256i x, int from, int to, int width) {
    __m256i mask = _mm256_set1_epi8((char)(((1 << width) - 1) << to));
    x = to >= from ? _mm256_slli_epi32(x, to - from) : _mm256_srli_epi32(x, from - to);
    return _mm256_and_si256(x, mask);
}

static inline __attribute__((always_inline)) const uint8_t *channel(const uint8_t *src, int bits,
                                                                    int8_t *out) {
    __m256i w[REGS];
    if (bits == 8) {
        memcpy(out, src, GROUP);
        return src + GROUP;
    }
    for (int i = 0; i < REGS; i++) w[i] = _mm256_setzero_si256();
    int place = 1;
    if (bits & 4) {
        __m256i x0 = _mm256_loadu_si256((const __m256i *)src),
                x1 = _mm256_loadu_si256((const __m256i *)(src + 32));
        w[0] = moved(x0, 0, 1, 4);
        w[1] = moved(x1, 0, 1, 4);
        w[2] = moved(x0, 4, 1, 4);
        w[3] = moved(x1, 4, 1, 4);
        src += 64;
        place = 5;
    }
    if (bits & 2) {
        __m256i x = _mm256_loadu_si256((const __m256i *)src);
#pragma GCC unroll 4
        for (int i = 0; i < REGS; i++) w[i] = _mm256_or_si256(w[i], moved(x, 2 * i, place, 2));
        src += 32;
        place += 2;
    }
    if (bits & 1) {
        /* stripes 2i and 2i + 1 in the two halves: bit 2i + 1 of every byte of the upper half is moved to bit
         * 2i first */
        __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)src)),
                half = _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi32(1), 1);
        x = _mm256_srlv_epi32(x,
                              half); /* what crosses a byte is masked below: only bits 0, 2, 4, 6 are taken */
#pragma GCC unroll 4
        for (int i = 0; i < REGS; i++) w[i] = _mm256_or_si256(w[i], moved(x, 2 * i, place, 1));
        src += 16;
    }
    __m256i zero = _mm256_set1_epi8((char)((1 << bits) - 1));
    for (int i = 0; i < REGS; i++) _mm256_store_si256((__m256i *)(out + 32 * i), _mm256_sub_epi8(w[i], zero));
    return src;
}

/* Four channels, eight units each: lines 0..7 get 16 bytes. */
static inline __attribute__((always_inline)) void transpose(const int8_t *in, int8_t *out, size_t n_lines) {
    __m256i a = _mm256_load_si256((const __m256i *)in), b = _mm256_load_si256((const __m256i *)(in + GROUP));
    __m256i c = _mm256_load_si256((const __m256i *)(in + 2 * GROUP)),
            d = _mm256_load_si256((const __m256i *)(in + 3 * GROUP));
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b),
            cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    __m256i line[4] = {_mm256_unpacklo_epi64(ab0, cd0), _mm256_unpackhi_epi64(ab0, cd0),
                       _mm256_unpacklo_epi64(ab1, cd1), _mm256_unpackhi_epi64(ab1, cd1)};
    for (size_t i = 0; i < 4; i++) {
        if (i < n_lines) _mm_store_si128((__m128i *)(out + 64 * i), _mm256_castsi256_si128(line[i]));
        if (i + 4 < n_lines)
            _mm_store_si128((__m128i *)(out + 64 * (i + 4)), _mm256_extracti128_si256(line[i], 1));
    }
}

#define UNPACK_NAME tn_unpack_tile_avx2
#define UNPACK_UNITS 8
#define UNPACK_ALIGN 32
#include "kernels/unpack_template.h"
