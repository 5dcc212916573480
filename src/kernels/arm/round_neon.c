/* Rounding to grids on NEON. */
#include <arm_neon.h>

#define ISA neon
#define W 4
typedef float32x4_t vf;
#define f_load vld1q_f32
#define f_store vst1q_f32
#define f_set1 vdupq_n_f32
#define f_fma(a, b, c) vfmaq_f32(c, a, b)
#define f_sub vsubq_f32
#define f_mul vmulq_f32
#define f_max vmaxq_f32
#define f_min vminq_f32
#define f_round vrndnq_f32

#include "kernels/round_template.h"
