/* Peak of VEX-coded vpdpbusd. */
#include "kernels/limits_loop.h"

#include <immintrin.h>

#define INT8(a) _mm256_dpbusd_avx_epi32(a, a, a)
TN_LIMIT_LOOP(tn_limit_int8_avxvnni, 12, __m256i, _mm256_setzero_si256(), INT8, "+x", 64)
