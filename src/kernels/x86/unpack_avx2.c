/* kernels/x86/unpack_avx2.c - weightlets to tiles on 256-bit vectors: four registers hold a channel's group
 * of 128 weights, sixteen channels are transposed as 32-bit units, four channels by four units in each half
 * of a register. Codes are assembled doubled, as in unpack_avx512.c, so that the weight is one subtraction
 * away. */
#include "kernels/x86/weightlets_avx2.h"

#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, REGS = GROUP / 32 };

static inline __attribute__((always_inline)) const uint8_t *channel(const uint8_t *src, int bits,
                                                                    int8_t *out) {
    __m256i w[REGS];
    if (bits == 8) {
        memcpy(out, src, GROUP);
        return src + GROUP;
    }
    src = weightlets_placed_avx2(src, bits, 1, w);
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
