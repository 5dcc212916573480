/* kernels/arm/gemm_packed_i8mm.c - few rows against weightlets on SMMLA: one instruction is 2 rows x 2 channels
 * x 8 k. Rows and codes are laid out by pairs, eight k of each in turn, so nothing is zipped; 4 rows x 8
 * channels share their loads. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_STEP = 2, PAIRS = 2 /* of rows in a pass */, STRIDE = 2048 /* of a pair in a block of k */ };

/* k % 8 of both rows or channels of a pair lie together. */
static inline size_t lane_offset(size_t r, size_t k) {
    return r / 2 * STRIDE + k / 8 * 16 + r % 2 * 8 + k % 8;
}
static inline size_t code_offset(size_t c, size_t k) { return lane_offset(c, k); }
static void codes_product(size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[16]);

#include "kernels/arm/gemm_packed_neon.h"

_Static_assert((int)STRIDE == 2 * (int)BLOCK_K, "a pair's block has its room");

/* P pairs of rows and four pairs of channels. */
INLINE void pairs(int P, size_t n_k, const int8_t *codes, const int8_t *a, int32_t (*sums)[16], size_t c) {
    int32x4_t acc[PAIRS][4]; /* r0c0 r0c1 r1c0 r1c1 */
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) acc[p][i] = vdupq_n_s32(0);
    }
    for (size_t k = 0; k < 2 * n_k; k += 16) {
        int8x16_t x[PAIRS];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) x[p] = vld1q_s8(a + (size_t)p * STRIDE + k);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            int8x16_t w = vld1q_s8(codes + (c / 2 + i) * STRIDE + k);
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) acc[p][i] = vmmlaq_s32(acc[p][i], x[p], w);
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            int32_t *even = sums[2 * p] + c + 2 * i, *odd = sums[2 * p + 1] + c + 2 * i;
            vst1_s32(even, vadd_s32(vld1_s32(even), vget_low_s32(acc[p][i])));
            vst1_s32(odd, vadd_s32(vld1_s32(odd), vget_high_s32(acc[p][i])));
        }
    }
}

static void codes_product(size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[16]) {
    for (size_t c = 0; c < TN_TILE_N; c += 8) {
        size_t r = 0;
        for (; r + 2 * PAIRS <= n_rows; r += 2 * PAIRS) pairs(2, n_k, codes, a + r / 2 * STRIDE, sums + r, c);
        if (r < n_rows) pairs(1, n_k, codes, a + r / 2 * STRIDE, sums + r, c);
    }
}

void tn_gemm_packed_i8mm(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch) {
    gemm_packed(g, packed, bits, scratch);
}
