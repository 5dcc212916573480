/* kernels/arm/quantise_s8_neon.c - quantisation of activations, 8 at a time. */
#include "kernels/gemm_s8.h"

#include <arm_neon.h>
#include <string.h>

/* Four rounded and offset values; *clipped: all ones in clipped lanes. */
static inline uint16x4_t quantise4(float32x4_t x, float inv_scale, uint32x4_t *clipped) {
    float32x4_t v = vmulq_n_f32(x, inv_scale);
    *clipped = vcgtq_f32(vabsq_f32(v), vdupq_n_f32(127));
    v = vminq_f32(vmaxq_f32(v, vdupq_n_f32(-127)),
                  vdupq_n_f32(127)); /* NaN passes through and converts to 0 */
    return vmovn_u32(vreinterpretq_u32_s32(vaddq_s32(vcvtnq_s32_f32(v), vdupq_n_s32(128))));
}

/* Writes 8 values; returns one byte per lane, 0xff where clipped, lane 0 lowest. */
static inline uint64_t quantise8(const float *x, float inv_scale, uint8_t *out) {
    uint32x4_t c0, c1;
    uint16x4_t q0 = quantise4(vld1q_f32(x), inv_scale, &c0), q1 = quantise4(vld1q_f32(x + 4), inv_scale, &c1);
    vst1_u8(out, vmovn_u16(vcombine_u16(q0, q1)));
    return vget_lane_u64(vreinterpret_u64_u8(vmovn_u16(vcombine_u16(vmovn_u32(c0), vmovn_u32(c1)))), 0);
}

/* The last n < 8 values, through the stack. */
static inline uint64_t quantise_tail(const float *x, float inv_scale, uint8_t *out, size_t n) {
    float in[8] = {0};
    uint8_t q[8];
    memcpy(in, x, n * sizeof *x);
    uint64_t clipped = quantise8(in, inv_scale, q);
    memcpy(out, q, n);
    return clipped;
}

size_t tn_quantise_s8_neon(const float *x, float inv_scale, uint8_t *out, size_t n) {
    size_t n_clipped = 0, i = 0;
    for (; i + 8 <= n; i += 8)
        n_clipped += (size_t)__builtin_popcountll(quantise8(x + i, inv_scale, out + i)) / 8;
    if (i < n) n_clipped += (size_t)__builtin_popcountll(quantise_tail(x + i, inv_scale, out + i, n - i)) / 8;
    return n_clipped;
}

size_t tn_quantise_outliers_neon(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                 uint32_t i0, uint32_t *idx, float *resid, size_t cap) {
    size_t n_clipped = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t clipped = i + 8 <= n ? quantise8(x + i, inv_scale, out + i)
                                      : quantise_tail(x + i, inv_scale, out + i, n - i);
        while (clipped) { /* rare: 0.1..0.3 % of the channels */
            size_t lane = (size_t)__builtin_ctzll(clipped) / 8, at = i + lane;
            clipped &= ~((uint64_t)0xff << (8 * lane));
            if (n_clipped < cap) {
                idx[n_clipped] = i0 + (uint32_t)at;
                resid[n_clipped] = __builtin_fmaf(-scale, x[at] * inv_scale > 0 ? 127.0f : -127.0f, x[at]);
            }
            n_clipped++;
        }
    }
    return n_clipped;
}
