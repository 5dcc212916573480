/* Float kernels on 512-bit vectors (AVX-512 F, BW, DQ, VL). */
#include <immintrin.h>
#include <stdint.h>

#define ISA avx512
#define W 16
#define WIDE 8
#define MANY 4
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
#define f_load _mm512_loadu_ps
#define f_store _mm512_storeu_ps
#define f_stream _mm512_stream_ps
#define f_fence _mm_sfence
#define f_set1 _mm512_set1_ps
#define f_fma _mm512_fmadd_ps
#define f_add _mm512_add_ps
#define f_sub _mm512_sub_ps
#define f_mul _mm512_mul_ps
#define f_div _mm512_div_ps
#define f_max _mm512_max_ps
#define f_round(a) _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define f_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define f_load_bf16(p)                                                                                       \
    _mm512_castsi512_ps(                                                                                     \
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define bytes_u8(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define f_load_s8(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define f_load_low4(p)                                                                                       \
    _mm512_cvtepi32_ps(                                                                                      \
        _mm512_sub_epi32(_mm512_and_si512(bytes_u8(p), _mm512_set1_epi32(15)), _mm512_set1_epi32(8)))
#define f_load_high4(p)                                                                                      \
    _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(bytes_u8(p), 4), _mm512_set1_epi32(8)))
#define every_other(first)                                                                                   \
    _mm512_setr_epi32(first, first + 2, first + 4, first + 6, first + 8, first + 10, first + 12, first + 14, \
                      first + 16, first + 18, first + 20, first + 22, first + 24, first + 26, first + 28,    \
                      first + 30)
#define f_load_pairs(p, even, odd)                                                                           \
    even = _mm512_permutex2var_ps(_mm512_loadu_ps(p), every_other(0), _mm512_loadu_ps((p) + 16)),            \
    odd = _mm512_permutex2var_ps(_mm512_loadu_ps(p), every_other(1), _mm512_loadu_ps((p) + 16))
#define f_lt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define f_gt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define f_unord(a) _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)
#define f_sel(m, a, b) _mm512_mask_blend_ps(m, b, a)
#define f_and _mm512_and_ps
#define f_or _mm512_or_ps
#define f_andnot(m, a) _mm512_andnot_ps(m, a)
#define u8_store(p, v) _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(v))
#define i_cvt _mm512_cvtps_epi32
#define i_add _mm512_add_epi32
#define i_sub _mm512_sub_epi32
#define i_sra1(a) _mm512_srai_epi32(a, 1)
#define i_srl31(a) _mm512_srli_epi32(a, 31)
#define i_sll23(a) _mm512_slli_epi32(a, 23)
#define i_set1 _mm512_set1_epi32
#define f_cast _mm512_castsi512_ps

/* Sums of 16 vectors at once. Four rounds of pairs: halves, quarters, pairs of lanes, single lanes; the
 * vectors are taken in the order that leaves sum i in lane i. */
static inline __attribute__((always_inline)) __m512 f_fold16(const __m512 *v) {
    __m512 a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* vector of letter l is v[l % 4 * 4 + l / 4] */
        __m512 x = v[(2 * i) % 4 * 4 + (2 * i) / 4], y = v[(2 * i + 1) % 4 * 4 + (2 * i + 1) / 4];
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
}
#define f_fold16 f_fold16

static inline __attribute__((always_inline)) void transpose16(__m512 *a, float *dst, size_t ld_dst) {
    __m512 b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* a[i + j]: columns j, j + 4, j + 8, j + 12 of rows i..i+3 */
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512 lo0 = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88),
               lo1 =
                   _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd); /* columns j, j+8 and j+4, j+12 of rows 0..7 */
        __m512 hi0 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88),
               hi1 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
        _mm512_storeu_ps(dst + (size_t)j * ld_dst, _mm512_shuffle_f32x4(lo0, hi0, 0x88));
        _mm512_storeu_ps(dst + (size_t)(j + 4) * ld_dst, _mm512_shuffle_f32x4(lo1, hi1, 0x88));
        _mm512_storeu_ps(dst + (size_t)(j + 8) * ld_dst, _mm512_shuffle_f32x4(lo0, hi0, 0xdd));
        _mm512_storeu_ps(dst + (size_t)(j + 12) * ld_dst, _mm512_shuffle_f32x4(lo1, hi1, 0xdd));
    }
}

static inline void f_transpose16(const float *src, size_t ld_src, float *dst, size_t ld_dst) {
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(src + (size_t)i * ld_src);
    transpose16(a, dst, ld_dst);
}
#define f_transpose16 f_transpose16

static inline void f_transpose_rows16(const float *const *row, size_t d, float *dst, size_t ld_dst) {
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(row[i] + d);
    transpose16(a, dst, ld_dst);
}
#define f_transpose_rows16 f_transpose_rows16

#include "kernels/f32_template.h"
