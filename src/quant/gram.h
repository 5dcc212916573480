/* quant/gram.h - correlations of a site's inputs: their Gram matrix, as the factor that rounding needs.
 *
 * The error of a linear's output is e G e^T for a row's error e and G = X^T X / tokens. With G = L L^T
 * that is the square of L^T e, whose component j depends only on channels j and later. So a row is rounded
 * from its last channel to its first, each channel to the code that minimises its own component given all
 * later codes: error-compensated rounding (GPTQ, OBQ) without an inverse. The channels with the most
 * energy are rounded first and therefore come last.
 *
 * Wide sites are divided into blocks of channels that ignore each other. Small blocks make factoring and
 * rounding faster, and the result worse. */
#ifndef TN_QUANT_GRAM_H
#define TN_QUANT_GRAM_H

#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"

enum { TN_GRAM_BLOCK_MAX = 2304, TN_GRAM_BLOCK_QUICK = 256 };

typedef struct tn_factor_block {
    int32_t first, k; /* channels first .. first + k - 1 */
    int32_t *order;   /* [k] channel, minus first, at each place; the last place is rounded first */
    float *weight;    /* [k] L[j][j]^2: cost of a squared error at place j */
    float *panels;    /* panels of 32 places j: [k][32] L[i][j] / L[j][j] for i > j, else 0 */
} tn_factor_block;

typedef struct tn_factor {
    tn_ctx *ctx;
    int32_t k, n_blocks;
    tn_factor_block *blocks;
} tn_factor;

/* x [n_rows][k]: the inputs as multiplied with the device's weights. damping: share of the mean energy
 * that is added to every channel's, raised if the matrix has no factor in floats. block_max: the most
 * channels of a block. */
tern_status tn_factor_make(tn_ctx *ctx, tn_pool *pool, const tn_kernels *kern, const float *x, int32_t n_rows,
                           int32_t k, float damping, int32_t block_max, tn_factor *out, tern_error *err);
void tn_factor_close(tn_factor *f);

#endif
