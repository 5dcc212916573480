/* kernels/arm/outlier_f32_neon.c - the outlier product: 16 output columns in registers while the row's
 * outliers pass. */
#include "kernels/outlier_f32.h"

#include <arm_neon.h>
#include <assert.h>

void tn_outlier_f32_neon(const tn_outlier_f32_args *a) {
    assert(a->n0 <= a->n1);
    for (size_t m = 0; m < a->m; m++) {
        uint32_t begin = a->first[m], end = a->first[m + 1];
        float *out = a->out + m * a->ldo;
        size_t n = begin == end ? a->n1 : a->n0;
        for (; n + 16 <= a->n1; n += 16) {
            float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
            for (uint32_t j = begin; j < end; j++) {
                int8x16_t w = vld1q_s8(a->w_rows[a->channel[j]] + n);
                int16x8_t lo = vmovl_s8(vget_low_s8(w)), hi = vmovl_s8(vget_high_s8(w));
                float32x4_t x = vdupq_n_f32(a->resid[j]);
                s[0] = vfmaq_f32(s[0], x, vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))));
                s[1] = vfmaq_f32(s[1], x, vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))));
                s[2] = vfmaq_f32(s[2], x, vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))));
                s[3] = vfmaq_f32(s[3], x, vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi))));
            }
            for (size_t t = 0; t < 4; t++) {
                float *o = out + n + 4 * t;
                vst1q_f32(o, vfmaq_f32(vld1q_f32(o), s[t], vld1q_f32(a->scale + n + 4 * t)));
            }
        }
        for (; n < a->n1; n++) {
            float s = 0;
            for (uint32_t j = begin; j < end; j++)
                s = __builtin_fmaf(a->resid[j], (float)a->w_rows[a->channel[j]][n], s);
            out[n] = __builtin_fmaf(s, a->scale[n], out[n]);
        }
    }
}
