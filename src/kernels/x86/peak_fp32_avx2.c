/* Peak of float multiply-adds on 256-bit vectors. */
#include <immintrin.h>

#define PEAK_NAME tn_peak_fp32_avx2
typedef __m256 vec;
#define PEAK_STEP(c, a, b) c = _mm256_fmadd_ps(a, b, c)
#define PEAK_ZERO _mm256_setzero_ps()
#define PEAK_ONE _mm256_set1_ps(1e-3f)
#define PEAK_OPS 16
#define PEAK_REG(x) "+x"(x)

#include "kernels/peak_template.h"
