/* Peak of float multiply-adds on NEON. */
#include <arm_neon.h>

#define PEAK_NAME tn_peak_fp32_neon
typedef float32x4_t vec;
#define PEAK_STEP(c, a, b) c = vfmaq_f32(c, a, b)
#define PEAK_ZERO vdupq_n_f32(0)
#define PEAK_ONE vdupq_n_f32(1e-3f)
#define PEAK_OPS 8
#define PEAK_REG(x) "+w"(x)

#include "kernels/peak_template.h"
