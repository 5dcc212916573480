/* Peak of sdot: 16 byte products a step. */
#include <arm_neon.h>

#define PEAK_NAME tn_peak_int8_dotprod
typedef int32x4_t vec;
#define PEAK_STEP(c, a, b) c = vdotq_s32(c, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b))
#define PEAK_ZERO vdupq_n_s32(0)
#define PEAK_ONE vdupq_n_s32(0x01010101)
#define PEAK_OPS 32
#define PEAK_REG(x) "+w"(x)

#include "kernels/peak_template.h"
