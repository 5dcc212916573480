/* kernels/arm/blocks_s8_neon.c - products over ggml's blocks on the first NEON: 3 rows x 1 tile. */
#include <arm_neon.h>
#include <string.h>

#define MAX_ROWS 3
struct act {
    int8x16_t v;
};
static inline struct act act_load(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return (struct act){vreinterpretq_s8_s32(vdupq_n_s32(v))};
}
static inline int32x4_t dot(int32x4_t acc, int32x4_t w, struct act x, int wide) {
    (void)wide;
    int8x16_t b = vreinterpretq_s8_s32(w);
    int32x4_t lo = vpaddlq_s16(vmull_s8(vget_low_s8(b), vget_low_s8(x.v))),
              hi = vpaddlq_s16(vmull_high_s8(b, x.v));
    return vaddq_s32(acc, vpaddq_s32(lo, hi));
}

#include "kernels/arm/blocks_s8_128.h"

void tn_blocks_gemm_neon(const tn_blocks_args *g) { gemm(g); }
