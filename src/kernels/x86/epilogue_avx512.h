/* kernels/x86/epilogue_avx512.h - from a tile's sums to the output forms of gemm_s8.h. */
#ifndef TN_KERNELS_X86_EPILOGUE_AVX512_H
#define TN_KERNELS_X86_EPILOGUE_AVX512_H

#include "kernels/gemm_s8.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* Columns of one tile that may be read from scale and bias and written. */
static inline __mmask16 tile_mask(const tn_gemm_s8_args *g, size_t n) {
    return (__mmask16)(g->n1 - n >= TN_TILE_N ? 0xffffu : (1u << (g->n1 - n)) - 1);
}

/* What all rows of one tile share in the epilogue. */
typedef struct column_consts {
    __m512i offset; /* -128 * col_sum: the accumulators start here */
    __m512 scale, bias;
    __mmask16 mask;
} column_consts;

INLINE column_consts load_consts(const tn_gemm_s8_args *g, size_t n) {
    column_consts c;
    c.mask = tile_mask(g, n);
    c.scale = c.bias = _mm512_setzero_ps();
    if (!g->out_s32) c.scale = _mm512_maskz_loadu_ps(c.mask, g->scale + n);
    if (!g->out_s32 && g->bias) c.bias = _mm512_maskz_loadu_ps(c.mask, g->bias + n);
    c.offset =
        _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_loadu_si512(g->col_sum + n), 7));
    return c;
}

INLINE void store(const tn_gemm_s8_args *g, size_t m, size_t n, __m512i acc, const column_consts *c) {
    size_t at = m * g->ldo + n;
    if (g->out_s32) {
        _mm512_mask_storeu_epi32(g->out_s32 + at, c->mask, acc);
        return;
    }
    __m512 y = _mm512_cvtepi32_ps(acc);
    y = g->bias ? _mm512_fmadd_ps(y, c->scale, c->bias) : _mm512_mul_ps(y, c->scale);
    if (g->out_f32) {
        _mm512_mask_storeu_ps(g->out_f32 + at, c->mask, y);
        return;
    }
    __mmask16 ordered = _mm512_cmp_ps_mask(y, y, _CMP_ORD_Q);
    y = _mm512_maskz_min_ps(ordered, _mm512_max_ps(y, _mm512_set1_ps(-127)), _mm512_set1_ps(127));
    __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(y), _mm512_set1_epi32(128));
    _mm_mask_storeu_epi8(g->out_u8 + at, c->mask, _mm512_cvtepi32_epi8(q));
}

#endif
