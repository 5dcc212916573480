/* kernels/arm/blocks_s8_dotprod.c - products over ggml's blocks on SDOT: 4 rows x half a tile. */
#include <arm_neon.h>
#include <string.h>

#define MAX_ROWS 4
#define SIXTEEN
#define MICRO "kernels/arm/blocks_rows_dotprod.h"
struct act {
    int8x16_t v;
};
static inline struct act act_load(const int8_t *p) { return (struct act){vld1q_s8(p)}; }
static inline __attribute__((always_inline)) int32x4_t dot(int32x4_t acc, int32x4_t w, struct act x, int wide,
                                                           int line) {
    const int8x16_t b = vreinterpretq_s8_s32(w);
    (void)wide;
    switch (line) {
    case 0: return vdotq_laneq_s32(acc, b, x.v, 0);
    case 1: return vdotq_laneq_s32(acc, b, x.v, 1);
    case 2: return vdotq_laneq_s32(acc, b, x.v, 2);
    default: return vdotq_laneq_s32(acc, b, x.v, 3);
    }
}

#include "kernels/arm/blocks_s8_128.h"

void tn_blocks_gemm_dotprod(const tn_blocks_args *g) { gemm(g); }
