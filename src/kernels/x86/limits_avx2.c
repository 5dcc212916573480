/* Peak of 256-bit vectors: fp32 fma; int8 without VNNI is a multiply-add pair and an addition. */
#include "kernels/limits_loop.h"

#include <immintrin.h>

#define FP32(a) _mm256_fmadd_ps(a, a, a)
#define INT8(a) _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), a))
TN_LIMIT_LOOP(tn_limit_fp32_avx2, 12, __m256, _mm256_setzero_ps(), FP32, "+x", 16)
TN_LIMIT_LOOP(tn_limit_int8_avx2, 12, __m256i, _mm256_setzero_si256(), INT8, "+x", 64)
