/* Float kernels on 512-bit vectors (AVX-512 F, BW, DQ, VL). */
#include <immintrin.h>

#define ISA avx512
#define W 16
#define WIDE 8
#define MANY 4
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
#define f_load _mm512_loadu_ps
#define f_store _mm512_storeu_ps
#define f_set1 _mm512_set1_ps
#define f_fma _mm512_fmadd_ps
#define f_add _mm512_add_ps
#define f_sub _mm512_sub_ps
#define f_mul _mm512_mul_ps
#define f_div _mm512_div_ps
#define f_max _mm512_max_ps
#define f_round(a) _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define f_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define f_load_bf16(p) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define every_other(first)                                                                                                    \
    _mm512_setr_epi32(first, first + 2, first + 4, first + 6, first + 8, first + 10, first + 12, first + 14, first + 16,        \
                      first + 18, first + 20, first + 22, first + 24, first + 26, first + 28, first + 30)
#define f_load_pairs(p, even, odd)                                                                                            \
    even = _mm512_permutex2var_ps(_mm512_loadu_ps(p), every_other(0), _mm512_loadu_ps((p) + 16)),                              \
    odd = _mm512_permutex2var_ps(_mm512_loadu_ps(p), every_other(1), _mm512_loadu_ps((p) + 16))
#define f_lt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define f_gt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define f_unord(a) _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)
#define f_sel(m, a, b) _mm512_mask_blend_ps(m, b, a)
#define f_and _mm512_and_ps
#define f_or _mm512_or_ps
#define f_andnot(m, a) _mm512_andnot_ps(m, a)
#define i_cvt _mm512_cvtps_epi32
#define i_add _mm512_add_epi32
#define i_sub _mm512_sub_epi32
#define i_sra1(a) _mm512_srai_epi32(a, 1)
#define i_srl31(a) _mm512_srli_epi32(a, 31)
#define i_sll23(a) _mm512_slli_epi32(a, 23)
#define i_set1 _mm512_set1_epi32
#define f_cast _mm512_castsi512_ps

#include "kernels/f32_template.h"
