/* kernels/x86/blocks_quantise_avx2.c - activations for products over blocks, 8 at a time. */
#include "kernels/blocks_s8.h"

#include <immintrin.h>

static inline float largest(const float *x, size_t n) {
    __m256 max = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    for (size_t i = 0; i < n; i += 8) /* returns the second operand if the first is NaN */
        max = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), max);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline void quantise32(const float *x, float inverse, int8_t *q) {
    __m256i v[4];
    for (int i = 0; i < 4; i++) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i * 8), _mm256_set1_ps(inverse));
        __m256 ordered = _mm256_cmp_ps(y, y, _CMP_ORD_Q);
        y = _mm256_min_ps(_mm256_max_ps(y, _mm256_set1_ps(-127)), _mm256_set1_ps(127));
        v[i] = _mm256_cvtps_epi32(_mm256_and_ps(ordered, y));
    }
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)q, b);
}

static inline int32_t sum16(const int8_t *q) {
    __m128i s = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const __m128i *)q));
    s = _mm_madd_epi16(s, _mm_set1_epi16(1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

#include "kernels/blocks_quantise.h"

void tn_blocks_quantise_avx2(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                             size_t stride) {
    quantise(type, x, k, out, stride);
}
