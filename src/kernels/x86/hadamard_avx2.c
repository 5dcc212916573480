/* kernels/x86/hadamard_avx2.c - a block in eight registers: three stages between them, three inside. */
#include "kernels/hadamard.h"

#include <immintrin.h>

/* Lanes whose sign bit is set in `minus` become other - own, the others other + own. */
static inline __m256 stage(__m256 own, __m256 other, __m256 minus) {
    return _mm256_add_ps(other, _mm256_xor_ps(own, minus));
}

static inline __m256 inside(__m256 x) {
    const float m = -0.0f;
    x = stage(x, _mm256_permute2f128_ps(x, x, 1), _mm256_setr_ps(0, 0, 0, 0, m, m, m, m));
    x = stage(x, _mm256_permute_ps(x, _MM_SHUFFLE(1, 0, 3, 2)), _mm256_setr_ps(0, 0, m, m, 0, 0, m, m));
    x = stage(x, _mm256_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1)), _mm256_setr_ps(0, m, 0, m, 0, m, 0, m));
    return _mm256_mul_ps(x, _mm256_set1_ps(0.125f));
}

void tn_hadamard_f32_avx2(float *x, size_t n) {
    for (float *end = x + n; x < end; x += TN_HADAMARD_BLOCK) {
        __m256 v[8];
        for (int i = 0; i < 8; i++) v[i] = _mm256_loadu_ps(x + 8 * i);
        for (int h = 4; h; h /= 2) {
            for (int i = 0; i < 8; i++) {
                if (i & h) continue;
                __m256 a = v[i], b = v[i + h];
                v[i] = _mm256_add_ps(a, b);
                v[i + h] = _mm256_sub_ps(a, b);
            }
        }
        for (int i = 0; i < 8; i++) _mm256_storeu_ps(x + 8 * i, inside(v[i]));
    }
}
