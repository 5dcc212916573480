/* quant/choose.h - brings a site's inputs to 8 bits: chooses smoothing, rotation and clip by the error of
 * the site's outputs on captured inputs, from rounding inputs and weights together. */
#ifndef TN_QUANT_CHOOSE_H
#define TN_QUANT_CHOOSE_H

#include "base/ctx.h"
#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"

typedef struct tn_choose_args {
    const tn_kernels *kern;
    tn_pool *pool;
    float *x; /* [n_rows][k] captured inputs; replaced by the values that are quantised: smoothed, rotated */
    int32_t n_rows, k;
    const float *w; /* [n_w][k] a sample of the rows of the site's linears, each standing for w_share rows */
    int32_t n_w;
    double w_share;
    double bits;         /* of the weights, on average */
    bool can_smooth;     /* the inverse of input scales can be folded */
    const int32_t *tied; /* [k] channels with the same number share a scale; NULL: each has its own */
    int32_t rotate;      /* in blocks of this size, which divides k; 0: not rotated */
} tn_choose_args;

typedef struct tn_choice {
    float *smooth; /* [k] divisors of the inputs (allocated from ctx); NULL: no smoothing */
    float clip;    /* largest magnitude after smoothing and rotation */
    float alpha;
    bool balanced; /* the weights of a channel count too */
} tn_choice;

tern_status tn_choose(tn_ctx *ctx, const tn_choose_args *a, tn_choice *out, tern_error *err);

#endif
