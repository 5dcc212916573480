/* Peak of 512-bit vdpbf16ps. */
#include "kernels/limits_loop.h"

#include <immintrin.h>

#define BF16(a) _mm512_dpbf16_ps(a, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(a))
TN_LIMIT_LOOP(tn_limit_bf16_avx512bf16, 24, __m512, _mm512_setzero_ps(), BF16, "+v", 64)
