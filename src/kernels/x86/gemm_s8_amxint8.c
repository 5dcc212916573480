/* kernels/x86/gemm_s8_amxint8.c - tiles of weights as AMX multiplies them. A tile of gemm_s8.h is what tdpbusd takes
 * as its second operand: 16 lines of 16 columns by 4 inputs. So nothing is rearranged: 16 rows of 64 activations
 * meet 64 inputs of 16 columns, and the sums are exact int32, the same bits as with vpdpbusd.
 *
 * 32 rows and 32 columns have their sums in four tile registers, so that each load serves two products. Few rows
 * leave most of a product empty: they take the kernel for AVX-512. */
#include "kernels/x86/epilogue_avx512.h"
#include "kernels/x86/tiles_amx.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum {
    SIDE = AMX_ROWS,               /* rows, or columns, of a register of sums */
    STEP_K = AMX_BYTES,            /* inputs of one product */
    LINES = AMX_BYTES / TN_TILE_K, /* of a tile of weights, in one product */
    LEAST_M = 4,                   /* rows from which products are faster than vectors */
    COLUMNS = 4 * TN_TILE_N,       /* that a block of rows meets while it is in cache */
};

/* The inputs after the last whole step, filled up with zeros. */
typedef struct rest {
    _Alignas(64) uint8_t a[2][SIDE][STEP_K];
    _Alignas(64) int8_t b[2][LINES][STEP_K];
} rest;

/* Up to 32 rows and 32 columns, and their sums. The last 16 rows may be some that are done already: a row's sums do
 * not depend on the others, so the same values are written twice. */
typedef struct block {
    _Alignas(64) int32_t sums[2 * SIDE][2][SIDE]; /* [row][tile][column] */
    size_t m[2], n, n_rows, n_tiles;
    column_consts c[2];
} block;

/* Puts the block's rows from r on, up to n of them, into the output. */
INLINE void finish(const tn_gemm_s8_args *g, const block *b, size_t r, size_t n) {
    for (size_t end = r + n < b->n_rows ? r + n : b->n_rows; r < end; r++)
        for (size_t t = 0; t < b->n_tiles; t++)
            store(g, b->m[r / SIDE] + r % SIDE, b->n + t * TN_TILE_N,
                  _mm512_add_epi32(b->c[t].offset, _mm512_load_si512(b->sums[r][t])), &b->c[t]);
}

/* The sums of R times `side` rows, 16 or all of fewer, and T tiles. `done` is put into the output meanwhile: the tile unit leaves the others
 * nothing to do. */
INLINE void compute(int R, int T, size_t side, const tn_gemm_s8_args *g, const block *done, block *b,
                    rest *tail) {
    const size_t lda = g->lda, k4 = (g->k + 3) / 4, n_steps = k4 / LINES, n_rest = k4 % LINES,
                 tile_bytes = k4 * 64, each = n_steps ? (done->n_rows + n_steps - 1) / n_steps : 0;
    const uint8_t *a0 = g->a + b->m[0] * lda, *a1 = g->a + b->m[1] * lda;
    const int8_t *w = g->tiles + b->n / TN_TILE_N * tile_bytes;
#define PRODUCTS(a0, a1, lda, b0, b1)                                                                        \
    _tile_loadd(6, b0, STEP_K);                                                                              \
    _tile_loadd(4, a0, lda);                                                                                 \
    _tile_dpbusd(0, 4, 6);                                                                                   \
    if (T > 1) {                                                                                             \
        _tile_loadd(7, b1, STEP_K);                                                                          \
        _tile_dpbusd(1, 4, 7);                                                                               \
    }                                                                                                        \
    if (R > 1) {                                                                                             \
        _tile_loadd(5, a1, lda);                                                                             \
        _tile_dpbusd(2, 5, 6);                                                                               \
        if (T > 1) _tile_dpbusd(3, 5, 7);                                                                    \
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t s = 0; s < n_steps; s++, a0 += STEP_K, a1 += STEP_K, w += (size_t)LINES * STEP_K) {
        PRODUCTS(a0, a1, lda, w, w + tile_bytes)
        finish(g, done, s * each, each);
    }
    if (!n_steps) finish(g, done, 0, done->n_rows);
    if (n_rest) {
        for (size_t r = 0; r < side; r++) {
            memcpy(tail->a[0][r], a0 + r * lda, n_rest * 4);
            if (R > 1) memcpy(tail->a[1][r], a1 + r * lda, n_rest * 4);
        }
        for (int t = 0; t < T; t++) memcpy(tail->b[t], w + (size_t)t * tile_bytes, n_rest * STEP_K);
        __asm__ volatile("" : : : "memory"); /* compilers do not know that tiles are loaded from there */
        PRODUCTS(tail->a[0], tail->a[1], STEP_K, tail->b[0], tail->b[1])
    }
    enum { STRIDE = sizeof b->sums[0] };
    _tile_stored(0, b->sums[0][0], STRIDE);
    if (T > 1) _tile_stored(1, b->sums[0][1], STRIDE);
    if (R > 1) _tile_stored(2, b->sums[SIDE][0], STRIDE);
    if (R > 1 && T > 1) _tile_stored(3, b->sums[SIDE][1], STRIDE);
}

void tn_gemm_s8_amxint8(const tn_gemm_s8_args *g) {
    if (g->m < LEAST_M) {
        tn_gemm_s8_avx512vnni(g);
        return;
    }
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n && (g->n1 % TN_TILE_N == 0 || g->n1 == g->n));
    assert((g->out_s32 != NULL) + (g->out_f32 != NULL) + (g->out_u8 != NULL) == 1);
    const size_t side = g->m < SIDE ? g->m : SIDE, last = g->m - side;
    rest tail = {0};
    block two[2], *b = &two[0], *done = &two[1];
    done->n_rows = 0;
    use_tiles(side);
    for (size_t n0 = g->n0; n0 < g->n1; n0 += COLUMNS) {
        const size_t n1 = g->n1 - n0 > COLUMNS ? n0 + COLUMNS : g->n1;
        for (size_t m = 0; m < g->m; m += 2 * SIDE) {
            for (size_t n = n0; n < n1; n += 2 * TN_TILE_N) {
                b->m[0] = m < last ? m : last;
                b->m[1] = m + SIDE < last ? m + SIDE : last;
                b->n = n;
                b->n_rows = m < last ? 2 * SIDE : side;
                b->n_tiles = n1 - n > TN_TILE_N ? 2 : 1;
                b->c[0] = load_consts(g, n);
                if (b->n_tiles == 2) b->c[1] = load_consts(g, n + TN_TILE_N);
                if (b->n_rows == side && b->n_tiles == 1) compute(1, 1, side, g, done, b, &tail);
                else if (b->n_rows == side) compute(1, 2, side, g, done, b, &tail);
                else if (b->n_tiles == 1) compute(2, 1, side, g, done, b, &tail);
                else compute(2, 2, side, g, done, b, &tail);
                block *swap = done;
                done = b;
                b = swap;
            }
        }
    }
    finish(g, done, 0, done->n_rows);
    _tile_release();
}
