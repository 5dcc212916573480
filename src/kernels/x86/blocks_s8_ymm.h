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
#define lookup(i, table)                                                                                     \
    ((slice)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table))),      \
                                (__m256i)(i)))
/* Indices below 32: the one bit that chooses a half of the table is moved to the bytes' sign. */
static inline __m256i lookup_32(__m256i i, const uint8_t *table) {
    const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)),
                  high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table + 16)));
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(low, i), _mm256_shuffle_epi8(high, i),
                              _mm256_slli_epi16(i, 3));
}
#define lookup32(i, table) ((slice)lookup_32((__m256i)(i), table))
#define lookup64(i, table)                                                                                   \
    ((slice)_mm256_blendv_epi8(lookup_32((__m256i)(i), table), lookup_32((__m256i)(i), (table) + 32),        \
                               _mm256_slli_epi16((__m256i)(i), 2)))
#define halves(src) ((slice_floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src))))
static inline __m256 eight_floats(__m128i v, size_t at, int sign) {
    if (at) v = _mm_unpackhi_epi64(v, v);
    return _mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
}
#define floats(v, at, sign) ((slice_floats)eight_floats((__m128i)(v), at, sign))

#include "kernels/blocks_template.h"
