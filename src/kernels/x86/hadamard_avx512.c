/* kernels/x86/hadamard_avx512.c - a block in four registers: two stages between them, four inside. */
#include "kernels/hadamard.h"

#include <immintrin.h>

/* Lanes in `minus` become other - own, the rest other + own. */
static inline __m512 stage(__m512 own, __m512 other, __mmask16 minus) {
    return _mm512_mask_sub_ps(_mm512_add_ps(other, own), minus, other, own);
}

static inline __m512 inside(__m512 x) {
    x = stage(x, _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(1, 0, 3, 2)), 0xff00);
    x = stage(x, _mm512_shuffle_f32x4(x, x, _MM_SHUFFLE(2, 3, 0, 1)), 0xf0f0);
    x = stage(x, _mm512_permute_ps(x, _MM_SHUFFLE(1, 0, 3, 2)), 0xcccc);
    x = stage(x, _mm512_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1)), 0xaaaa);
    return _mm512_mul_ps(x, _mm512_set1_ps(0.125f));
}

void tn_hadamard_f32_avx512(float *x, size_t n) {
    for (float *end = x + n; x < end; x += TN_HADAMARD_BLOCK) {
        __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16), c = _mm512_loadu_ps(x + 32),
               d = _mm512_loadu_ps(x + 48);
        __m512 ac = _mm512_add_ps(a, c), bd = _mm512_add_ps(b, d), a_c = _mm512_sub_ps(a, c),
               b_d = _mm512_sub_ps(b, d);
        _mm512_storeu_ps(x, inside(_mm512_add_ps(ac, bd)));
        _mm512_storeu_ps(x + 16, inside(_mm512_sub_ps(ac, bd)));
        _mm512_storeu_ps(x + 32, inside(_mm512_add_ps(a_c, b_d)));
        _mm512_storeu_ps(x + 48, inside(_mm512_sub_ps(a_c, b_d)));
    }
}
