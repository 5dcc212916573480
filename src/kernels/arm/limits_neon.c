/* Peak of NEON: fp32 fma; int8 without dot products is a widening multiply and a pairwise addition. */
#include "kernels/limits_loop.h"

#include <arm_neon.h>

#define FP32(a) vfmaq_f32(a, a, a)
#define INT8(a) vpadalq_s16(a, vmull_s8(vget_low_s8(vreinterpretq_s8_s32(a)), vget_low_s8(vreinterpretq_s8_s32(a))))
TN_LIMIT_LOOP(tn_limit_fp32_neon, 24, float32x4_t, vdupq_n_f32(0), FP32, "+w", 8)
TN_LIMIT_LOOP(tn_limit_int8_neon, 12, int32x4_t, vdupq_n_s32(0), INT8, "+w", 16)
