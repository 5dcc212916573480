/* kernels/arm/gemm_s8_i8mm.c - gemm_s8 on SMMLA: one instruction is 2 rows x 2 columns x 8 k. Two lines of a
 * tile, zipped by columns, give the 8 k of two columns; 4 rows x 16 columns share the zips. */
#include "kernels/gemm_s8.h"

#include <arm_neon.h>
#include <string.h>

#define MAX_ROWS 4

/* Eight (or, before the end, four and zeros) activations of rows p and p2 as s8. */
static inline int8x16_t load_pair(const uint8_t *p, const uint8_t *p2, int eight) {
    uint8x8_t lo, hi;
    if (eight) {
        lo = vld1_u8(p);
        hi = vld1_u8(p2);
    } else {
        uint32_t v[2];
        memcpy(&v[0], p, 4);
        memcpy(&v[1], p2, 4);
        lo = vreinterpret_u8_u64(vcreate_u64(v[0]));
        hi = vreinterpret_u8_u64(vcreate_u64(v[1]));
    }
    return vreinterpretq_s8_u8(veorq_u8(vcombine_u8(lo, hi), vdupq_n_u8(0x80)));
}

static inline __attribute__((always_inline)) void tile_rows(int R, const tn_gemm_s8_args *g, size_t m,
                                                            const int8_t *w, int32x4_t acc[][4]) {
    size_t k4 = (g->k + 3) / 4;
    int n_pairs = (R + 1) / 2;
    const uint8_t *a[MAX_ROWS];
    int32x4_t s[MAX_ROWS / 2][8]; /* [row pair][column pair]: r0c0 r0c1 r1c0 r1c1 */
    for (int r = 0; r < 2 * n_pairs; r++)
        a[r] = g->a + (m + (size_t)(r < R ? r : R - 1)) * g->lda; /* an odd row pairs with itself */
#pragma GCC unroll 2
    for (int p = 0; p < n_pairs; p++) {
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) s[p][c] = vdupq_n_s32(0);
    }
    for (size_t k = 0; k < k4; k += 2) {
        int two = k + 2 <= k4;
        int8x16_t x[MAX_ROWS / 2];
#pragma GCC unroll 2
        for (int p = 0; p < n_pairs; p++) x[p] = load_pair(a[2 * p] + k * 4, a[2 * p + 1] + k * 4, two);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            int32x4_t w0 = vreinterpretq_s32_s8(vld1q_s8(w + k * 64 + (size_t)q * 16)), w1 = vdupq_n_s32(0);
            if (two) w1 = vreinterpretq_s32_s8(vld1q_s8(w + (k + 1) * 64 + (size_t)q * 16));
            int8x16_t c01 = vreinterpretq_s8_s32(vzip1q_s32(w0, w1)),
                      c23 = vreinterpretq_s8_s32(vzip2q_s32(w0, w1));
#pragma GCC unroll 2
            for (int p = 0; p < n_pairs; p++) {
                s[p][2 * q] = vmmlaq_s32(s[p][2 * q], x[p], c01);
                s[p][2 * q + 1] = vmmlaq_s32(s[p][2 * q + 1], x[p], c23);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            int32x4_t c01 = s[r / 2][2 * q], c23 = s[r / 2][2 * q + 1];
            acc[r][q] = r % 2 ? vcombine_s32(vget_high_s32(c01), vget_high_s32(c23))
                              : vcombine_s32(vget_low_s32(c01), vget_low_s32(c23));
        }
    }
}

#include "kernels/arm/gemm_s8_neon.h"

void tn_gemm_s8_i8mm(const tn_gemm_s8_args *g) {
    if (g->m < MAX_ROWS) tn_gemm_s8_dotprod(g); /* half of a pair's products would be wasted */
    else gemm(g);
}
