/* Peak of float multiply-adds on 512-bit vectors. */
#include <immintrin.h>

#define PEAK_NAME tn_peak_fp32_avx512
typedef __m512 vec;
#define PEAK_STEP(c, a, b) c = _mm512_fmadd_ps(a, b, c)
#define PEAK_ZERO _mm512_setzero_ps()
#define PEAK_ONE _mm512_set1_ps(1e-3f)
#define PEAK_OPS 32
#define PEAK_REG(x) "+v"(x)

#include "kernels/peak_template.h"
