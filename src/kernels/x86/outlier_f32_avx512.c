/* kernels/x86/outlier_f32_avx512.c - the outlier product: 64 output columns in registers while the row's
 * outliers pass. */
#include "kernels/outlier_f32.h"

#include <assert.h>
#include <immintrin.h>

void tn_outlier_f32_avx512(const tn_outlier_f32_args *a) {
    assert(a->n0 <= a->n1);
    for (size_t m = 0; m < a->m; m++) {
        uint32_t begin = a->first[m], end = a->first[m + 1];
        float *out = a->out + m * a->ldo;
        size_t n = begin == end ? a->n1 : a->n0;
        for (; n + 64 <= a->n1; n += 64) {
            __m512 s[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                           _mm512_setzero_ps()};
            for (uint32_t j = begin; j < end; j++) {
                const int8_t *w = a->w_rows[a->channel[j]] + n;
                __m512 x = _mm512_set1_ps(a->resid[j]);
#pragma GCC unroll 4
                for (int t = 0; t < 4; t++) {
                    __m512i wi = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(w + 16 * t)));
                    s[t] = _mm512_fmadd_ps(x, _mm512_cvtepi32_ps(wi), s[t]);
                }
            }
#pragma GCC unroll 4
            for (int t = 0; t < 4; t++) {
                float *o = out + n + 16 * t;
                _mm512_storeu_ps(
                    o, _mm512_fmadd_ps(s[t], _mm512_loadu_ps(a->scale + n + 16 * t), _mm512_loadu_ps(o)));
            }
        }
        for (; n < a->n1; n += 16) {
            __mmask16 lanes = (__mmask16)(a->n1 - n >= 16 ? 0xffffu : (1u << (a->n1 - n)) - 1);
            __m512 s = _mm512_setzero_ps();
            for (uint32_t j = begin; j < end; j++) {
                __m512i wi = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, a->w_rows[a->channel[j]] + n));
                s = _mm512_fmadd_ps(_mm512_set1_ps(a->resid[j]), _mm512_cvtepi32_ps(wi), s);
            }
            s = _mm512_fmadd_ps(s, _mm512_maskz_loadu_ps(lanes, a->scale + n),
                                _mm512_maskz_loadu_ps(lanes, out + n));
            _mm512_mask_storeu_ps(out + n, lanes, s);
        }
    }
}
