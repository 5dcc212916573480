/* kernels/arm/hadamard_neon.c - a block in sixteen registers: four stages between them, two inside. */
#include "kernels/hadamard.h"

#include <arm_neon.h>

/* Lanes whose sign bit is set in `minus` become other - own, the others other + own. */
static inline float32x4_t stage(float32x4_t own, float32x4_t other, uint32x4_t minus) {
    return vaddq_f32(other, vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(own), minus)));
}

void tn_hadamard_f32_neon(float *x, size_t n) {
    static const uint32_t high[4] = {0, 0, 1u << 31, 1u << 31}, odd[4] = {0, 1u << 31, 0, 1u << 31};
    for (float *end = x + n; x < end; x += TN_HADAMARD_BLOCK) {
        float32x4_t v[16];
        for (int i = 0; i < 16; i++) v[i] = vld1q_f32(x + 4 * i);
        for (int h = 8; h; h /= 2) {
            for (int i = 0; i < 16; i++) {
                if (i & h) continue;
                float32x4_t a = v[i], b = v[i + h];
                v[i] = vaddq_f32(a, b);
                v[i + h] = vsubq_f32(a, b);
            }
        }
        for (int i = 0; i < 16; i++) {
            float32x4_t y = stage(v[i], vextq_f32(v[i], v[i], 2), vld1q_u32(high));
            y = stage(y, vrev64q_f32(y), vld1q_u32(odd));
            vst1q_f32(x + 4 * i, vmulq_n_f32(y, 0.125f));
        }
    }
}
