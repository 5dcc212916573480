/* kernels/x86/quantise_s8_avx2.c - quantisation of activations, 8 at a time. */
#include "kernels/gemm_s8.h"

#include <immintrin.h>
#include <string.h>

/* Writes 8 u8 values; returns the lanes that were clipped. */
static inline uint32_t quantise8(__m256 x, __m256 inv_scale, uint8_t *out) {
    __m256 lo = _mm256_set1_ps(-127), hi = _mm256_set1_ps(127);
    __m256 v = _mm256_mul_ps(x, inv_scale), abs = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
    __m256 ordered = _mm256_cmp_ps(v, v, _CMP_ORD_Q);
    uint32_t clipped = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(abs, hi, _CMP_GT_OQ));
    v = _mm256_and_ps(ordered, _mm256_min_ps(_mm256_max_ps(v, lo), hi));
    __m256i q = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(128));
    __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(w, w));
    return clipped;
}

/* The last n < 8 values, through the stack. */
static inline uint32_t quantise_tail(const float *x, __m256 inv_scale, uint8_t *out, size_t n) {
    float in[8] = {0};
    uint8_t q[8];
    memcpy(in, x, n * sizeof *x);
    uint32_t clipped = quantise8(_mm256_loadu_ps(in), inv_scale, q);
    memcpy(out, q, n);
    return clipped & ((1u << n) -
                      1); /* 0 * inv_scale may be NaN, which is never clipped; the mask makes that explicit */
}

size_t tn_quantise_s8_avx2(const float *x, float inv_scale, uint8_t *out, size_t n) {
    __m256 inv = _mm256_set1_ps(inv_scale);
    size_t n_clipped = 0, i = 0;
    for (; i + 8 <= n; i += 8)
        n_clipped += (size_t)__builtin_popcount(quantise8(_mm256_loadu_ps(x + i), inv, out + i));
    if (i < n) n_clipped += (size_t)__builtin_popcount(quantise_tail(x + i, inv, out + i, n - i));
    return n_clipped;
}

size_t tn_quantise_outliers_avx2(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                 uint32_t i0, uint32_t *idx, float *resid, size_t cap) {
    __m256 inv = _mm256_set1_ps(inv_scale);
    size_t n_clipped = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint32_t clipped = i + 8 <= n ? quantise8(_mm256_loadu_ps(x + i), inv, out + i)
                                      : quantise_tail(x + i, inv, out + i, n - i);
        for (; clipped; clipped &= clipped - 1) { /* rare: 0.1..0.3 % of the channels */
            size_t at = i + (size_t)__builtin_ctz(clipped);
            if (n_clipped < cap) {
                idx[n_clipped] = i0 + (uint32_t)at;
                resid[n_clipped] = __builtin_fmaf(-scale, x[at] * inv_scale > 0 ? 127.0f : -127.0f, x[at]);
            }
            n_clipped++;
        }
    }
    return n_clipped;
}
