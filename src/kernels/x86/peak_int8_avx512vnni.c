/* Peak of vpdpbusd: 64 byte products a step. */
#include <immintrin.h>

#define PEAK_NAME tn_peak_int8_avx512vnni
typedef __m512i vec;
#define PEAK_STEP(c, a, b) c = _mm512_dpbusd_epi32(c, a, b)
#define PEAK_ZERO _mm512_setzero_si512()
#define PEAK_ONE _mm512_set1_epi8(1)
#define PEAK_OPS 128
#define PEAK_REG(x) "+v"(x)

#include "kernels/peak_template.h"
