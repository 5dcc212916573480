/* Rounding to grids on 512-bit vectors. */
#include <immintrin.h>

#define ISA avx512
#define W 16
typedef __m512 vf;
#define f_load _mm512_loadu_ps
#define f_store _mm512_storeu_ps
#define f_set1 _mm512_set1_ps
#define f_fma _mm512_fmadd_ps
#define f_sub _mm512_sub_ps
#define f_mul _mm512_mul_ps
#define f_max _mm512_max_ps
#define f_min _mm512_min_ps
#define f_round(a) _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

#include "kernels/round_template.h"
