/* kernels/arm/blocks_quantise_neon.c - activations for products over blocks, 4 at a time. */
#include "kernels/blocks_s8.h"

#include <arm_neon.h>

static inline float largest(const float *x, size_t n) {
    float32x4_t max = vdupq_n_f32(0);
    for (size_t i = 0; i < n; i += 4)
        max = vmaxnmq_f32(max,
                          vabsq_f32(vld1q_f32(x + i))); /* returns the number if the other operand is NaN */
    return vmaxvq_f32(max);
}

static inline int16x8_t quantise8(const float *x, float inverse) {
    int32x4_t v[2];
    for (int i = 0; i < 2; i++) {
        float32x4_t y = vmulq_n_f32(vld1q_f32(x + i * 4), inverse);
        y = vminq_f32(vmaxq_f32(y, vdupq_n_f32(-127)),
                      vdupq_n_f32(127)); /* NaN passes through and converts to 0 */
        v[i] = vcvtnq_s32_f32(y);
    }
    return vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
}

static inline void quantise32(const float *x, float inverse, int8_t *q) {
    for (int i = 0; i < 32; i += 16)
        vst1q_s8(q + i,
                 vcombine_s8(vmovn_s16(quantise8(x + i, inverse)), vmovn_s16(quantise8(x + i + 8, inverse))));
}

static inline int32_t sum16(const int8_t *q) { return vaddlvq_s8(vld1q_s8(q)); }

#include "kernels/blocks_quantise.h"

void tn_blocks_quantise_neon(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                             size_t stride) {
    quantise(type, x, k, out, stride);
}
