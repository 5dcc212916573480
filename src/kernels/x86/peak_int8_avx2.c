/* Peak of vpmaddubsw + vpmaddwd + vpaddd: 32 byte products a step. */
#include <immintrin.h>

#define PEAK_NAME tn_peak_int8_avx2
typedef __m256i vec;
#define PEAK_STEP(c, a, b) c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), b))
#define PEAK_ZERO _mm256_setzero_si256()
#define PEAK_ONE _mm256_set1_epi8(1)
#define PEAK_OPS 64
#define PEAK_REG(x) "+x"(x)

#include "kernels/peak_template.h"
