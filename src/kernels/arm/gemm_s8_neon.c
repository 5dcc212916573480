/* kernels/arm/gemm_s8_neon.c - gemm_s8 on plain ARMv8: s8 x s8 products widen to s16; two of them fit (2 *
 * 128 * 127 = 32512) before they are added in pairs to s32. */
#include "kernels/gemm_s8.h"

#include <arm_neon.h>
#include <string.h>

#define MAX_ROWS 2

static inline int8x8_t load_a(const uint8_t *p) { /* four activations, twice */
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return vreinterpret_s8_u32(vdup_n_u32(v ^ 0x80808080u));
}

static inline __attribute__((always_inline)) void tile_rows(int R, const tn_gemm_s8_args *g, size_t m,
                                                            const int8_t *w, int32x4_t acc[][4]) {
    size_t k4 = (g->k + 3) / 4, k = 0;
    const uint8_t *a = g->a + m * g->lda;
    int32x4_t s[MAX_ROWS][8]; /* two columns each: c0 k01, c0 k23, c1 k01, c1 k23 */
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int h = 0; h < 8; h++) s[r][h] = vdupq_n_s32(0);
    }
    for (; k + 2 <= k4; k += 2) {
#pragma GCC unroll 8
        for (int h = 0; h < 8; h++) {
            int8x8_t w0 = vld1_s8(w + k * 64 + (size_t)h * 8), w1 = vld1_s8(w + (k + 1) * 64 + (size_t)h * 8);
#pragma GCC unroll 2
            for (int r = 0; r < R; r++) {
                const uint8_t *p = a + (size_t)r * g->lda + k * 4;
                s[r][h] = vpadalq_s16(s[r][h], vmlal_s8(vmull_s8(w0, load_a(p)), w1, load_a(p + 4)));
            }
        }
    }
    for (; k < k4; k++) {
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) {
            int8x8_t x = load_a(a + (size_t)r * g->lda + k * 4);
#pragma GCC unroll 8
            for (int h = 0; h < 8; h++)
                s[r][h] = vpadalq_s16(s[r][h], vmull_s8(vld1_s8(w + k * 64 + (size_t)h * 8), x));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) acc[r][q] = vpaddq_s32(s[r][2 * q], s[r][2 * q + 1]);
    }
}

#include "kernels/arm/gemm_s8_neon.h"

void tn_gemm_s8_neon(const tn_gemm_s8_args *g) { gemm(g); }
