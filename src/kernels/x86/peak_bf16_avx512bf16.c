/* Peak of vdpbf16ps: 32 bf16 products a step. */
#include <immintrin.h>

#define PEAK_NAME tn_peak_bf16_avx512bf16
typedef __m512 vec;
#define PEAK_STEP(c, a, b) c = _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b)
#define PEAK_ZERO _mm512_setzero_ps()
#define PEAK_ONE _mm512_set1_ps(1e-3f)
#define PEAK_OPS 64
#define PEAK_REG(x) "+v"(x)

#include "kernels/peak_template.h"
