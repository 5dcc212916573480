/* kernels/arm/gemm_s8_dotprod.c - gemm_s8 on SDOT: one instruction is four columns by four k; 4 rows x 16
 * columns. */
#include "kernels/gemm_s8.h"

#include <arm_neon.h>
#include <string.h>

#define MAX_ROWS 4

static inline __attribute__((always_inline)) void tile_rows(int R, const tn_gemm_s8_args *g, size_t m,
                                                            const int8_t *w, int32x4_t acc[][4]) {
    size_t k4 = (g->k + 3) / 4, k = 0;
    const uint8_t *a = g->a + m * g->lda;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) acc[r][q] = vdupq_n_s32(0);
    }
    for (; k + 4 <= k4; k += 4) {
        int8x16_t x[MAX_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            x[r] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(a + (size_t)r * g->lda + k * 4), vdupq_n_u8(0x80)));
#define STEP(l)                                                                                              \
    _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) {                                                    \
        int8x16_t b = vld1q_s8(w + (k + l) * 64 + (size_t)q * 16);                                           \
        _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) acc[r][q] =                                      \
            vdotq_laneq_s32(acc[r][q], b, x[r], l);                                                          \
    }
        STEP(0) STEP(1) STEP(2) STEP(3)
    }
    for (; k < k4; k++) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            uint32_t v;
            memcpy(&v, a + (size_t)r * g->lda + k * 4, sizeof v);
            int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(v ^ 0x80808080u));
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++)
                acc[r][q] = vdotq_s32(acc[r][q], vld1q_s8(w + k * 64 + (size_t)q * 16), x);
        }
    }
}

#include "kernels/arm/gemm_s8_neon.h"

void tn_gemm_s8_dotprod(const tn_gemm_s8_args *g) { gemm(g); }
