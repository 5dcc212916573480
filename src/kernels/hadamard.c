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
