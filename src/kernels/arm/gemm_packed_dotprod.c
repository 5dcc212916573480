/* kernels/arm/gemm_packed_dotprod.c - few rows against weightlets on SDOT: sums run along k, four to a register,
 * and are added up across it at the end of a block; 4 rows x 4 channels share their loads. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_STEP = 1, ROWS = 4, STRIDE = 1024 /* of a row or channel in a block of k */ };

static inline size_t lane_offset(size_t r, size_t k) { return r * STRIDE + k; }
static inline size_t code_offset(size_t c, size_t k) { return c * STRIDE + k; }
static void codes_product(size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[16]);

#include "kernels/arm/gemm_packed_neon.h"

_Static_assert((int)STRIDE == (int)BLOCK_K, "a row's block has its room");

/* R rows and four channels. */
INLINE void rows(int R, size_t n_k, const int8_t *codes, const int8_t *a, int32_t (*sums)[16], size_t c) {
    int32x4_t acc[ROWS][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) acc[r][i] = vdupq_n_s32(0);
    }
    for (size_t k = 0; k < n_k; k += 16) {
        int8x16_t x[ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) x[r] = vld1q_s8(a + (size_t)r * STRIDE + k);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            int8x16_t w = vld1q_s8(codes + (c + i) * STRIDE + k);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) acc[r][i] = vdotq_s32(acc[r][i], w, x[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        int32x4_t s = vpaddq_s32(vpaddq_s32(acc[r][0], acc[r][1]), vpaddq_s32(acc[r][2], acc[r][3]));
        vst1q_s32(sums[r] + c, vaddq_s32(vld1q_s32(sums[r] + c), s));
    }
}

static void codes_product(size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[16]) {
    for (size_t c = 0; c < TN_TILE_N; c += 4) {
        size_t r = 0;
        for (; r + ROWS <= n_rows; r += ROWS) rows(4, n_k, codes, a + r * STRIDE, sums + r, c);
        switch (n_rows - r) {
        case 3: rows(3, n_k, codes, a + r * STRIDE, sums + r, c); break;
        case 2: rows(2, n_k, codes, a + r * STRIDE, sums + r, c); break;
        case 1: rows(1, n_k, codes, a + r * STRIDE, sums + r, c); break;
        }
    }
}

void tn_gemm_packed_dotprod(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                            uint8_t *scratch) {
    gemm_packed(g, packed, bits, scratch);
}
