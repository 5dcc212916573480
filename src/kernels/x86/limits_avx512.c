/* Peak of 512-bit fp32 fma. */
#include "kernels/limits_loop.h"

#include <immintrin.h>

#define FP32(a) _mm512_fmadd_ps(a, a, a)
TN_LIMIT_LOOP(tn_limit_fp32_avx512, 24, __m512, _mm512_setzero_ps(), FP32, "+v", 32)
