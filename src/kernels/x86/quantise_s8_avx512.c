/* kernels/x86/quantise_s8_avx512.c - quantisation of activations, 16 at a time. */
#include "kernels/gemm_s8.h"

#include <immintrin.h>

/* Writes the u8 values of the lanes in `lanes`; returns the lanes that were clipped. */
static inline __mmask16 quantise16(__m512 x, __m512 inv_scale, uint8_t *out, __mmask16 lanes) {
    __m512 lo = _mm512_set1_ps(-127), hi = _mm512_set1_ps(127);
    __m512 v = _mm512_mul_ps(x, inv_scale);
    __mmask16 ordered = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
    __mmask16 clipped = _mm512_mask_cmp_ps_mask(lanes, _mm512_abs_ps(v), hi, _CMP_GT_OQ);
    v = _mm512_maskz_min_ps(ordered, _mm512_max_ps(v, lo), hi);
    __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(128));
    _mm_mask_storeu_epi8(out, lanes, _mm512_cvtepi32_epi8(q));
    return clipped;
}

static inline __mmask16 lanes_of(size_t n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1); }

size_t tn_quantise_s8_avx512(const float *x, float inv_scale, uint8_t *out, size_t n) {
    size_t n_clipped = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_of(n - i);
        __mmask16 clipped =
            quantise16(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(inv_scale), out + i, lanes);
        n_clipped += (size_t)__builtin_popcount(clipped);
    }
    return n_clipped;
}

size_t tn_quantise_outliers_avx512(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                   uint32_t i0, uint32_t *idx, float *resid, size_t cap) {
    size_t n_clipped = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_of(n - i);
        uint32_t clipped =
            quantise16(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(inv_scale), out + i, lanes);
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
