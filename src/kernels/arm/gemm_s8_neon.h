/* kernels/arm/gemm_s8_neon.h - the 128-bit gemm_s8: everything but the inner product. Included once by each
 * variant, which first defines MAX_ROWS (rows per pass, 2 or 4) and tile_rows(R, g, m, w, acc)  acc[r][q] =
 * the exact sums of row m + r and columns 4q..4q+3 of the tile at w, r < R <= MAX_ROWS on activations turned
 * to s8 (u8 ^ 0x80), so that col_sum is not needed. */
#include "kernels/arm/epilogue_neon.h"

#include <assert.h>

static inline __attribute__((always_inline)) void rows_tile(int R, const tn_gemm_s8_args *g, size_t m,
                                                            size_t n) {
    size_t n_cols = g->n1 - n < TN_TILE_N ? g->n1 - n : TN_TILE_N;
    int32x4_t acc[MAX_ROWS][4];
    tile_rows(R, g, m, g->tiles + n / TN_TILE_N * ((g->k + 3) / 4) * 64, acc);
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++) {
        if (4 * q >= n_cols) break;
        const columns4 c = columns4_of(g, n + 4 * q, n_cols - 4 * q < 4 ? n_cols - 4 * q : 4);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) store4(g, m + (size_t)r, &c, acc[r][q]);
    }
}

static void gemm(const tn_gemm_s8_args *g) {
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n && (g->n1 % TN_TILE_N == 0 || g->n1 == g->n));
    assert((g->out_s32 != NULL) + (g->out_f32 != NULL) + (g->out_u8 != NULL) == 1);
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        size_t m = 0;
        for (; m + MAX_ROWS <= g->m; m += MAX_ROWS) rows_tile(MAX_ROWS, g, m, n);
        for (; m < g->m; m++) rows_tile(1, g, m, n);
    }
}
