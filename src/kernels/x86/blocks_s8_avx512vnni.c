/* kernels/x86/blocks_s8_avx512vnni.c - products over ggml's blocks on VPDPBUSD: 6 rows x 2 tiles. */
#include <immintrin.h>
#include <stdint.h>

typedef __m512 vf;
typedef __m512i vi;
#define LANES 16
#define MAX_ROWS 6
#define TILES 2
#ifndef TERN_MINIMAL
#define FEW_MOST 8 /* with more, unpacking is shared by many */
#endif
#define SIGNED 0
#define PAIRS 0
#define f_load _mm512_loadu_ps
#define f_store _mm512_storeu_ps
#define f_set1 _mm512_set1_ps
#define f_fma _mm512_fmadd_ps
#define f_add _mm512_add_ps
#define f_cvt _mm512_cvtepi32_ps
#define f_zero _mm512_setzero_ps
#define i_set1 _mm512_set1_epi32
#define i_zero _mm512_setzero_si512
struct act {
    __m512i v;
};
static inline struct act act_load(const int8_t *p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return (struct act){_mm512_set1_epi32(v)};
}
#define dot(acc, w, x, wide) _mm512_dpbusd_epi32(acc, w, (x).v)
#define lookup(i, table)                                                                                     \
    ((slice)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(table))),           \
                                (__m512i)(i)))
/* Indices below 32: bit 4 chooses a half of the table. */
static inline __m512i lookup_32(__m512i i, const uint8_t *table) {
    const __m512i low = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)),
                  high = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(table + 16)));
    return _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(low, i),
                                    _mm512_test_epi8_mask(i, _mm512_set1_epi8(16)), high, i);
}
#define lookup32(i, table) ((slice)lookup_32((__m512i)(i), table))
#define lookup64(i, table)                                                                                   \
    ((slice)_mm512_mask_blend_epi8(_mm512_test_epi8_mask((__m512i)(i), _mm512_set1_epi8(32)),                \
                                   lookup_32((__m512i)(i), table), lookup_32((__m512i)(i), (table) + 32)))
#define halves(src) ((slice_floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(src))))
#define floats(v, at, sign)                                                                                  \
    ((slice_floats)_mm512_cvtepi32_ps(sign ? _mm512_cvtepi8_epi32((__m128i)(v))                              \
                                           : _mm512_cvtepu8_epi32((__m128i)(v))))

#include "kernels/blocks_template.h"

void tn_blocks_gemm_avx512vnni(const tn_blocks_args *g) { gemm(g); }
