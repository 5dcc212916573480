/* kernels/x86/gemm_s8_ymm.h - the 256-bit gemm_s8: everything but the inner product. Included once by each
 * variant, which first defines:
 *   MAX_ROWS                rows per pass, as many as the registers hold
 *   OFFSET_COLUMNS          1: acc starts at -128 * col_sum because the product takes the u8 activation as it
 *                           is; 0: it takes s8
 *   struct act, load_act(p) four activations of one row, in all lanes, in the product's form
 *   dot(acc, act, w)        acc[n] += sum over 4 k of a * w, exact */
#include "kernels/x86/epilogue_ymm.h"

#include <assert.h>

/* R rows from m over the tile of column n: two registers of eight columns per row. */
static inline __attribute__((always_inline)) void rows_tile(int R, const tn_gemm_s8_args *g, size_t m,
                                                            size_t n) {
    size_t k4 = (g->k + 3) / 4, n_cols = g->n1 - n < TN_TILE_N ? g->n1 - n : TN_TILE_N;
    const int8_t *w = g->tiles + n / TN_TILE_N * k4 * 64;
    const uint8_t *a = g->a + m * g->lda;
    __m256i acc[MAX_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256i sum = _mm256_loadu_si256((const __m256i *)(g->col_sum + n + 8 * h));
            acc[r][h] = OFFSET_COLUMNS ? _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7))
                                       : _mm256_setzero_si256();
        }
    }
    for (size_t k = 0; k < k4; k++) {
        __m256i w0 = _mm256_load_si256((const __m256i *)(w + k * 64)),
                w1 = _mm256_load_si256((const __m256i *)(w + k * 64 + 32));
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            struct act x = load_act(a + (size_t)r * g->lda + k * 4);
            acc[r][0] = dot(acc[r][0], x, w0);
            acc[r][1] = dot(acc[r][1], x, w1);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        store8(g, m + (size_t)r, n, n_cols < 8 ? n_cols : 8, acc[r][0]);
        if (n_cols > 8) store8(g, m + (size_t)r, n + 8, n_cols - 8, acc[r][1]);
    }
}

static void gemm(const tn_gemm_s8_args *g) {
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n && (g->n1 % TN_TILE_N == 0 || g->n1 == g->n));
    assert((g->out_s32 != NULL) + (g->out_f32 != NULL) + (g->out_u8 != NULL) == 1);
    size_t n_groups = (g->m + MAX_ROWS - 1) / MAX_ROWS;
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        for (size_t i = 0, m = 0; i < n_groups; i++) {
            size_t n_rows = (g->m - m) / (n_groups - i); /* dealt evenly */
            switch (n_rows) {
            case 1: rows_tile(1, g, m, n); break;
            case 2: rows_tile(2, g, m, n); break;
            case 3: rows_tile(3, g, m, n); break;
            case 4: rows_tile(4, g, m, n); break;
#if MAX_ROWS > 4
            case 5: rows_tile(5, g, m, n); break;
            case 6: rows_tile(6, g, m, n); break;
#endif
            }
            m += n_rows;
        }
    }
}
