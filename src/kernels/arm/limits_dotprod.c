/* Peak of sdot. */
#include "kernels/limits_loop.h"

#include <arm_neon.h>

#define INT8(a) vdotq_s32(a, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(a))
TN_LIMIT_LOOP(tn_limit_int8_dotprod, 24, int32x4_t, vdupq_n_s32(0), INT8, "+w", 32)
