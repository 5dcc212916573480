/* kernels/x86/blocks_s8_ymm.h - what the 256-bit products over blocks share. Their files define SIGNED,
 * struct act and dot before. */
typedef __m256 vf;
typedef __m256i vi;
#define LANES 8
#define MAX_ROWS 3
#define TILES 1
#define f_load _mm256_loadu_ps
#define f_store _mm256_storeu_ps
#define f_set1 _mm256_set1_ps
#define f_fma _mm256_fmadd_ps
#define f_add _mm256_add_ps
#define f_cvt _mm256_cvtepi32_ps
#define f_zero _mm256_setzero_ps
#define i_set1 _mm256_set1_epi32
#define i_zero _mm256_setzero_si256
static inline struct act act_load(const int8_t *p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return (struct act){_mm256_set1_epi32(v)};
}
static inline __m256i w_load(const uint8_t *p, int wide) {
    __m256i w = _mm256_loadu_si256((const __m256i *)p);
    return SIGNED && wide ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w;
}
#define TWO(type, a, b)                                                                                      \
    ((union {                                                                                                \
         type v;                                                                                             \
         __m256i h[2];                                                                                       \
     }){.h = {a, b}}                                                                                         \
         .v)
#define table16(table) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table)))
#define lookup(i, table)                                                                                     \
    TWO(line, _mm256_shuffle_epi8(table16(table), halves_of(i).h[0]),                                        \
        _mm256_shuffle_epi8(table16(table), halves_of(i).h[1]))
#define halves_of(i)                                                                                         \
    ((union {                                                                                                \
        line v;                                                                                              \
        __m256i h[2];                                                                                        \
    }){.v = (i)})
#define half8(p) _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p))))
#define halves(src) TWO(floats16, half8(src), half8((src) + 16))
#define float8(i, sign)                                                                                      \
    _mm256_castps_si256(                                                                                     \
        _mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32((__m128i)(i)) : _mm256_cvtepu8_epi32((__m128i)(i))))
#define floats(i, sign) TWO(floats16, float8(i, sign), float8(_mm_srli_si128((__m128i)(i), 8), sign))

#include "kernels/blocks_template.h"
