/* kernels/arm/dot_f16_neon.c - sixteen lanes in four registers a row. */
#include "kernels/dot_f16.h"

#include "base/half.h"

#include <arm_neon.h>
#include <math.h>

static inline void add(float32x4_t acc[4], const float *q, const uint16_t *v) {
    for (int k = 0; k < 4; k++) {
        float32x4_t w = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(v + 4 * k)));
        acc[k] = vfmaq_f32(acc[k], vld1q_f32(q + 4 * k), w);
    }
}

/* The rest of the row and the sum of the lanes, as the reference has them. */
static inline float finish(const float32x4_t a[4], const float *q, const uint16_t *v, size_t i, size_t n) {
    float lane[16];
    for (int k = 0; k < 4; k++) vst1q_f32(lane + 4 * k, a[k]);
    for (; i < n; i++) lane[i % 16] = fmaf(q[i], tn_f16_f32(v[i]), lane[i % 16]);
    for (size_t stride = 8; stride; stride /= 2) {
        for (size_t k = 0; k < stride; k++) lane[k] += lane[k + stride];
    }
    return lane[0];
}

void tn_dot_f16_neon(const float *q, const uint16_t *v, size_t n, float out[2]) {
    float32x4_t a[4], b[4];
    for (int k = 0; k < 4; k++) a[k] = b[k] = vdupq_n_f32(0);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        add(a, q + i, v + i);
        add(b, q + n + i, v + i);
    }
    out[0] = finish(a, q, v, i, n);
    out[1] = finish(b, q + n, v, i, n);
}
