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

void tn_hadamard_wide(tn_hadamard_f32_fn fn, float *x, size_t n, size_t block) {
    assert(n % block == 0);
    fn(x, n);
    for (size_t h = TN_HADAMARD_BLOCK; h < block; h *= 4) {
        for (float *b = x; b < x + n; b += 4 * h) {
            for (size_t i = 0; i < h; i++) {
                const float p = b[i] + b[i + h], q = b[i] - b[i + h], r = b[i + 2 * h] + b[i + 3 * h],
                            s = b[i + 2 * h] - b[i + 3 * h];
                b[i] = 0.5f * (p + r);
                b[i + h] = 0.5f * (q + s);
                b[i + 2 * h] = 0.5f * (p - r);
                b[i + 3 * h] = 0.5f * (q - s);
            }
        }
    }
}
