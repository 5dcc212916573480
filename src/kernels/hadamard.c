#include "kernels/hadamard.h"

#include <assert.h>

void tn_hadamard_f32_ref(float *x, size_t n) {
    assert(n % TN_HADAMARD_BLOCK == 0);
    for (float *end = x + n; x < end; x += TN_HADAMARD_BLOCK) {
        for (size_t h = TN_HADAMARD_BLOCK / 2; h; h /= 2) {
            for (size_t i = 0; i < TN_HADAMARD_BLOCK; i++) {
                if (i & h) continue;
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
        }
        for (size_t i = 0; i < TN_HADAMARD_BLOCK; i++) x[i] *= 0.125f;
    }
}

/* Two stages over 16 values of four parts that do not overlap; the constant length lets the compiler
 * vectorise. */
static inline void two_stages(float *restrict x0, float *restrict x1, float *restrict x2,
                              float *restrict x3) {
    for (size_t i = 0; i < 16; i++) {
        const float p = x0[i] + x1[i], q = x0[i] - x1[i], r = x2[i] + x3[i], s = x2[i] - x3[i];
        x0[i] = 0.5f * (p + r);
        x1[i] = 0.5f * (q + s);
        x2[i] = 0.5f * (p - r);
        x3[i] = 0.5f * (q - s);
    }
}

void tn_hadamard_wide(tn_hadamard_f32_fn fn, float *x, size_t n, size_t block) {
    assert(n % block == 0);
    fn(x, n);
    for (size_t h = TN_HADAMARD_BLOCK; h < block; h *= 4) {
        for (float *b = x; b < x + n; b += 4 * h) {
            for (size_t i = 0; i < h; i += 16) two_stages(b + i, b + h + i, b + 2 * h + i, b + 3 * h + i);
        }
    }
}
