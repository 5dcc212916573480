/* kernels/x86/epilogue_ymm.h - from eight columns' sums to the output forms of gemm_s8.h. */
#ifndef TN_KERNELS_X86_EPILOGUE_YMM_H
#define TN_KERNELS_X86_EPILOGUE_YMM_H

#include "kernels/gemm_s8.h"

#include <immintrin.h>

static inline __m256i lane_mask(size_t n_lanes) { /* the first n_lanes of 8 */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n_lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Scale and bias of n_lanes (1..8) columns at p. Masked moves are slow on some processors, so whole registers
 * avoid them. */
static inline __m256 load8(const float *p, size_t n_lanes) {
    return n_lanes == 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lane_mask(n_lanes));
}

/* Eight columns from n of row m; n_lanes of them (1..8) exist. */
static inline void store8(const tn_gemm_s8_args *g, size_t m, size_t n, size_t n_lanes, __m256i acc) {
    size_t at = m * g->ldo + n;
    if (g->out_s32) {
        if (n_lanes == 8) _mm256_storeu_si256((__m256i *)(g->out_s32 + at), acc);
        else _mm256_maskstore_epi32(g->out_s32 + at, lane_mask(n_lanes), acc);
        return;
    }
    __m256 y = _mm256_cvtepi32_ps(acc), scale = load8(g->scale + n, n_lanes);
    y = g->bias ? _mm256_fmadd_ps(y, scale, load8(g->bias + n, n_lanes)) : _mm256_mul_ps(y, scale);
    if (g->out_f32) {
        if (n_lanes == 8) _mm256_storeu_ps(g->out_f32 + at, y);
        else _mm256_maskstore_ps(g->out_f32 + at, lane_mask(n_lanes), y);
        return;
    }
    __m256 ordered = _mm256_cmp_ps(y, y, _CMP_ORD_Q);
    y = _mm256_and_ps(ordered, _mm256_min_ps(_mm256_max_ps(y, _mm256_set1_ps(-127)), _mm256_set1_ps(127)));
    __m256i q = _mm256_add_epi32(_mm256_cvtps_epi32(y), _mm256_set1_epi32(128)); /* 1..255 */
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)),
            bytes = _mm_packus_epi16(words, words);
    if (n_lanes == 8) {
        _mm_storel_epi64((__m128i *)(g->out_u8 + at), bytes);
        return;
    }
    uint8_t last[16];
    _mm_storeu_si128((__m128i *)last, bytes);
    for (size_t i = 0; i < n_lanes; i++) g->out_u8[at + i] = last[i];
}

#endif
