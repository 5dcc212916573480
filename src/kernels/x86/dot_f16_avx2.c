/* kernels/x86/dot_f16_avx2.c - sixteen lanes in two registers a row. */
#include "kernels/dot_f16.h"

#include <immintrin.h>
#include <math.h>

typedef struct lanes {
    __m256 lo, hi;
} lanes;

static inline lanes widen(const uint16_t *v) {
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)v)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(v + 8)))};
}

static inline void add(lanes *acc, const float *q, lanes v) {
    acc->lo = _mm256_fmadd_ps(_mm256_loadu_ps(q), v.lo, acc->lo);
    acc->hi = _mm256_fmadd_ps(_mm256_loadu_ps(q + 8), v.hi, acc->hi);
}

/* The rest of the row and the sum of the lanes, as the reference has them. */
static inline float finish(lanes a, const float *q, const uint16_t *v, size_t i, size_t n) {
    float lane[16];
    _mm256_storeu_ps(lane, a.lo);
    _mm256_storeu_ps(lane + 8, a.hi);
    for (; i < n; i++) lane[i % 16] = fmaf(q[i], _cvtsh_ss(v[i]), lane[i % 16]);
    for (size_t stride = 8; stride; stride /= 2) {
        for (size_t k = 0; k < stride; k++) lane[k] += lane[k + stride];
    }
    return lane[0];
}

void tn_dot_f16_avx2(const float *q, const uint16_t *v, size_t n, float out[2]) {
    lanes a = {_mm256_setzero_ps(), _mm256_setzero_ps()}, b = a;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        lanes w = widen(v + i);
        add(&a, q + i, w);
        add(&b, q + n + i, w);
    }
    out[0] = finish(a, q, v, i, n);
    out[1] = finish(b, q + n, v, i, n);
}
