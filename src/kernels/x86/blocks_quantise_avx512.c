/* kernels/x86/blocks_quantise_avx512.c - activations for products over blocks: those that share a scale stay in
 * registers. */
#include "kernels/blocks_s8.h"

#include <immintrin.h>

enum { LANES = 16, VECTORS = TN_BLOCKS_ACT / LANES };

/* The largest |x| of v, ignoring NaN. */
static inline float largest(const __m512 *v) {
    __m512 most[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) /* returns the second operand if the first is NaN */
        most[i] =
            _mm512_max_ps(_mm512_abs_ps(v[i + 4]), _mm512_max_ps(_mm512_abs_ps(v[i]), _mm512_setzero_ps()));
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])));
}

/* The sums of four vectors, one after another. */
static inline __m128i sums(__m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)),
                  cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)),
                  all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* What the product wants of n_groups groups' sums, at most four. */
static inline void put_sums(const tn_blocks_traits *t, __m128i sum, size_t g, size_t n_groups,
                            tn_blocks_act *out) {
    const __mmask8 those = (__mmask8)((1u << n_groups) - 1);
    if (t->has_min) _mm_mask_storeu_ps(out->of.sum + g, those, _mm_cvtepi32_ps(sum));
    else
        _mm_mask_storeu_epi32(out->of.start + g, those,
                              _mm_mullo_epi32(sum, _mm_set1_epi32(-(int)t->offset)));
}

/* n values that share a scale, a multiple of 32: those from the i0-th of the chunk on. */
static inline void share(const tn_blocks_traits *t, const float *x, size_t i0, size_t n, tn_blocks_act *out) {
    __m512 v[VECTORS];
    __m512i q[VECTORS];
#pragma GCC unroll 8
    for (size_t i = 0; i < VECTORS; i++)
        v[i] = _mm512_maskz_loadu_ps(i * LANES < n ? 0xffff : 0, x + i * LANES);
    const float max = largest(v);
    const __m512 inverse = _mm512_set1_ps(127 / max), most = _mm512_set1_ps(127),
                 least = _mm512_set1_ps(-127);
    out->scale[i0 / TN_BLOCKS_ACT] = max / 127;
#pragma GCC unroll 8
    for (size_t i = 0; i < VECTORS; i++) {
        const __m512 y = _mm512_mul_ps(v[i], inverse);
        const __mmask16 ordered = _mm512_cmp_ps_mask(y, y, _CMP_ORD_Q);
        q[i] = _mm512_maskz_cvtps_epi32(ordered, _mm512_min_ps(_mm512_max_ps(y, least), most));
        if (i * LANES < n) _mm_storeu_si128((__m128i *)(out->q + i0 + i * LANES), _mm512_cvtepi32_epi8(q[i]));
    }
    const size_t g = i0 / t->group, n_groups = n / t->group;
    if (t->group == 16) {
        put_sums(t, sums(q[0], q[1], q[2], q[3]), g, n_groups < 4 ? n_groups : 4, out);
        put_sums(t, sums(q[4], q[5], q[6], q[7]), g + 4, n_groups < 4 ? 0 : n_groups - 4, out);
    } else {
        put_sums(t,
                 sums(_mm512_add_epi32(q[0], q[1]), _mm512_add_epi32(q[2], q[3]),
                      _mm512_add_epi32(q[4], q[5]), _mm512_add_epi32(q[6], q[7])),
                 g, n_groups, out);
    }
}

void tn_blocks_quantise_avx512(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                               size_t stride) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    for (size_t i0 = 0, n; k; x += n, k -= n) {
        n = k < TN_BLOCKS_ACT ? k : TN_BLOCKS_ACT;
        share(t, x, i0, n, out);
        i0 = TN_BLOCKS_ACT - i0; /* a chunk has two such shares */
        if (!i0) out += stride;
    }
}
