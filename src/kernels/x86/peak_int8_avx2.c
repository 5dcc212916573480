/* Peak of four vpmaddubsw to one vpmaddwd: 128 byte products a step, the most that weights of up to 5 bits
 * need (gemm_packed_avx2.c). The empty instructions keep the compiler from reusing the products of one step
 * in the next. */
#include <immintrin.h>

#define PEAK_NAME tn_peak_int8_avx2
typedef __m256i vec;
static inline __attribute__((always_inline)) vec pairs(vec a, vec b) {
    __asm__ volatile("" : "+x"(a));
    return _mm256_maddubs_epi16(a, b);
}
static inline __attribute__((always_inline)) vec four(vec a, vec b) {
    vec x = _mm256_add_epi16(pairs(a, b), pairs(a, b)), y = _mm256_add_epi16(pairs(a, b), pairs(a, b));
    return _mm256_madd_epi16(_mm256_add_epi16(x, y), b);
}
#define PEAK_STEP(c, a, b) c = _mm256_add_epi32(c, four(a, b))
#define PEAK_ZERO _mm256_setzero_si256()
#define PEAK_ONE _mm256_set1_epi8(1)
#define PEAK_OPS 256
#define PEAK_REG(x) "+x"(x)

#include "kernels/peak_template.h"
