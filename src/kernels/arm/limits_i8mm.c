/* Peak of smmla and bfmmla. */
#include "kernels/limits_loop.h"

#include <arm_neon.h>

#define INT8(a) vmmlaq_s32(a, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(a))
#define BF16(a) vbfmmlaq_f32(a, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(a))
TN_LIMIT_LOOP(tn_limit_int8_i8mm, 24, int32x4_t, vdupq_n_s32(0), INT8, "+w", 64)
TN_LIMIT_LOOP(tn_limit_bf16_i8mm, 24, float32x4_t, vdupq_n_f32(0), BF16, "+w", 32)
