/* Float kernels on 256-bit vectors (AVX2, FMA, F16C). */
#include <immintrin.h>

#define ISA avx2
#define W 8
#define WIDE 4
#define MANY 2
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;
#define f_load _mm256_loadu_ps
#define f_store _mm256_storeu_ps
#define f_stream _mm256_stream_ps
#define f_fence _mm_sfence
#define f_set1 _mm256_set1_ps
#define f_fma _mm256_fmadd_ps
#define f_add _mm256_add_ps
#define f_sub _mm256_sub_ps
#define f_mul _mm256_mul_ps
#define f_div _mm256_div_ps
#define f_max _mm256_max_ps
#define f_round(a) _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define f_load_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define f_load_bf16(p)                                                                                       \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define bytes_u8(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define f_load_s8(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define f_load_low4(p)                                                                                       \
    _mm256_cvtepi32_ps(                                                                                      \
        _mm256_sub_epi32(_mm256_and_si256(bytes_u8(p), _mm256_set1_epi32(15)), _mm256_set1_epi32(8)))
#define f_load_high4(p)                                                                                      \
    _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bytes_u8(p), 4), _mm256_set1_epi32(8)))
#define in_order(v) _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8))
#define f_load_pairs(p, even, odd)                                                                           \
    even = in_order(_mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps((p) + 8), 0x88)),                  \
    odd = in_order(_mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps((p) + 8), 0xdd))
#define f_lt(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define f_gt(a, b) _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define f_unord(a) _mm256_cmp_ps(a, a, _CMP_UNORD_Q)
#define f_sel(m, a, b) _mm256_blendv_ps(b, a, m)
#define f_and _mm256_and_ps
#define f_or _mm256_or_ps
#define f_andnot _mm256_andnot_ps
#define halves_of(v) _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1))
#define u8_store(p, v) _mm_storel_epi64((__m128i *)(p), _mm_packus_epi16(halves_of(v), halves_of(v)))
#define i_cvt _mm256_cvtps_epi32
#define i_add _mm256_add_epi32
#define i_sub _mm256_sub_epi32
#define i_sra1(a) _mm256_srai_epi32(a, 1)
#define i_srl31(a) _mm256_srli_epi32(a, 31)
#define i_sll23(a) _mm256_slli_epi32(a, 23)
#define i_set1 _mm256_set1_epi32
#define f_cast _mm256_castsi256_ps

#include "kernels/f32_template.h"
