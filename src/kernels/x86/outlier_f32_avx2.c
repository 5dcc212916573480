/* kernels/x86/outlier_f32_avx2.c - the outlier product: 32 output columns in registers while the row's
 * outliers pass. */
#include "kernels/outlier_f32.h"

#include <assert.h>
#include <immintrin.h>

void tn_outlier_f32_avx2(const tn_outlier_f32_args *a) {
    assert(a->n0 <= a->n1);
    for (size_t m = 0; m < a->m; m++) {
        uint32_t begin = a->first[m], end = a->first[m + 1];
        float *out = a->out + m * a->ldo;
        size_t n = begin == end ? a->n1 : a->n0;
        for (; n + 32 <= a->n1; n += 32) {
            __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                           _mm256_setzero_ps()};
            for (uint32_t j = begin; j < end; j++) {
                const int8_t *w = a->w_rows[a->channel[j]] + n;
                __m256 x = _mm256_set1_ps(a->resid[j]);
#pragma GCC unroll 4
                for (int t = 0; t < 4; t++) {
                    __m256i wi = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(w + 8 * t)));
                    s[t] = _mm256_fmadd_ps(x, _mm256_cvtepi32_ps(wi), s[t]);
                }
            }
#pragma GCC unroll 4
            for (int t = 0; t < 4; t++) {
                float *o = out + n + 8 * t;
                _mm256_storeu_ps(
                    o, _mm256_fmadd_ps(s[t], _mm256_loadu_ps(a->scale + n + 8 * t), _mm256_loadu_ps(o)));
            }
        }
        for (; n < a->n1; n++) {
            float s = 0;
            for (uint32_t j = begin; j < end; j++)
                s = __builtin_fmaf(a->resid[j], (float)a->w_rows[a->channel[j]][n], s);
            out[n] = __builtin_fmaf(s, a->scale[n], out[n]);
        }
    }
}
