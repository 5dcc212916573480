/* kernels/arm/blocks_s8_dotprod.c - products over ggml's blocks on SDOT: 3 rows x 1 tile. */
#include <arm_neon.h>
#include <string.h>

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
    return vdotq_s32(acc, vreinterpretq_s8_s32(w), x.v);
}

#include "kernels/arm/blocks_s8_128.h"

void tn_blocks_gemm_dotprod(const tn_blocks_args *g) { gemm(g); }
