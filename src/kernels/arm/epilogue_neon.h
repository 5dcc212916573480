/* kernels/arm/epilogue_neon.h - from sums to the output forms of gemm_s8.h. */
#ifndef TN_KERNELS_ARM_EPILOGUE_NEON_H
#define TN_KERNELS_ARM_EPILOGUE_NEON_H

#include "kernels/gemm_s8.h"

#include <arm_neon.h>
#include <stdbool.h>
#include <string.h>

/* Four columns, n_lanes of which (1..4) exist. */
typedef struct columns4 {
    size_t n, n_lanes;
    float32x4_t scale, bias;
} columns4;

static inline columns4 columns4_of(const tn_gemm_s8_args *g, size_t n, size_t n_lanes) {
    columns4 c = {.n = n, .n_lanes = n_lanes, .scale = vdupq_n_f32(0), .bias = vdupq_n_f32(0)};
    if (g->out_s32) return c;
    if (n_lanes == 4) {
        c.scale = vld1q_f32(g->scale + n);
        if (g->bias) c.bias = vld1q_f32(g->bias + n);
        return c;
    }
    float v[4] = {0};
    memcpy(v, g->scale + n, n_lanes * sizeof *v);
    c.scale = vld1q_f32(v);
    if (g->bias) {
        memcpy(v, g->bias + n, n_lanes * sizeof *v);
        c.bias = vld1q_f32(v);
    }
    return c;
}

static inline float32x4_t scaled(const columns4 *c, bool biased, int32x4_t acc) {
    float32x4_t y = vcvtq_f32_s32(acc);
    return biased ? vfmaq_f32(c->bias, y, c->scale) : vmulq_f32(y, c->scale);
}

static inline void store4(const tn_gemm_s8_args *g, size_t m, const columns4 *c, int32x4_t acc) {
    const size_t at = m * g->ldo + c->n;
    const bool whole = c->n_lanes == 4;
    if (g->out_s32) {
        if (whole) {
            vst1q_s32(g->out_s32 + at, acc);
            return;
        }
        int32_t v[4];
        vst1q_s32(v, acc);
        memcpy(g->out_s32 + at, v, c->n_lanes * sizeof *v);
        return;
    }
    float32x4_t y = scaled(c, g->bias, acc);
    if (g->out_f32) {
        if (whole) {
            vst1q_f32(g->out_f32 + at, y);
            return;
        }
        float v[4];
        vst1q_f32(v, y);
        memcpy(g->out_f32 + at, v, c->n_lanes * sizeof *v);
        return;
    }
    y = vminq_f32(vmaxq_f32(y, vdupq_n_f32(-127)),
                  vdupq_n_f32(127)); /* NaN passes through and converts to 0 */
    int16x4_t q = vadd_s16(vmovn_s32(vcvtnq_s32_f32(y)), vdup_n_s16(128));
    uint8_t v[8];
    vst1_u8(v, vmovn_u16(vreinterpretq_u16_s16(vcombine_s16(q, q))));
    memcpy(g->out_u8 + at, v, c->n_lanes);
}

#endif
