/* Rounding to grids on 256-bit vectors. */
#include <immintrin.h>

#define ISA avx2
#define W 8
typedef __m256 vf;
#define f_load _mm256_loadu_ps
#define f_store _mm256_storeu_ps
#define f_set1 _mm256_set1_ps
#define f_fma _mm256_fmadd_ps
#define f_sub _mm256_sub_ps
#define f_mul _mm256_mul_ps
#define f_max _mm256_max_ps
#define f_min _mm256_min_ps
#define f_round(a) _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

#include "kernels/round_template.h"
