/* kernels/arm/epilogue_neon.h - from sums to the output forms of gemm_s8.h. */
#ifndef TN_KERNELS_ARM_EPILOGUE_NEON_H
#define TN_KERNELS_ARM_EPILOGUE_NEON_H

#include "kernels/gemm_s8.h"

#include <arm_neon.h>
#include <string.h>

/* Four columns from n of row m; n_lanes of them (1..4) exist. */
static inline void store4(const tn_gemm_s8_args *g, size_t m, size_t n, size_t n_lanes, int32x4_t acc) {
    size_t at = m * g->ldo + n;
    if (g->out_s32) {
        int32_t v[4];
        vst1q_s32(v, acc);
        memcpy(g->out_s32 + at, v, n_lanes * sizeof *v);
        return;
    }
    float s[4] = {0}, b[4] = {0}, v[4];
    memcpy(s, g->scale + n, n_lanes * sizeof *s);
    float32x4_t y = vcvtq_f32_s32(acc);
    if (g->bias) {
        memcpy(b, g->bias + n, n_lanes * sizeof *b);
        y = vfmaq_f32(vld1q_f32(b), y, vld1q_f32(s));
    } else {
        y = vmulq_f32(y, vld1q_f32(s));
    }
    if (g->out_f32) {
        vst1q_f32(v, y);
        memcpy(g->out_f32 + at, v, n_lanes * sizeof *v);
        return;
    }
    y = vminq_f32(vmaxq_f32(y, vdupq_n_f32(-127)), vdupq_n_f32(127)); /* NaN stays and converts to 0 */
    int32_t q[4];
    vst1q_s32(q, vaddq_s32(vcvtnq_s32_f32(y), vdupq_n_s32(128)));
    for (size_t i = 0; i < n_lanes; i++) g->out_u8[at + i] = (uint8_t)q[i];
}

#endif
