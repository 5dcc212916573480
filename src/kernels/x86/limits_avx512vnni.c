/* Peak of 512-bit vpdpbusd. */
#include "kernels/limits_loop.h"

#include <immintrin.h>

#define INT8(a) _mm512_dpbusd_epi32(a, a, a)
TN_LIMIT_LOOP(tn_limit_int8_avx512vnni, 24, __m512i, _mm512_setzero_si512(), INT8, "+v", 128)
