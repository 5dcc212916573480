/* quant/recipe.h - the scheme "gram": one layer's sites from captured inputs to codes. Smoothing and clip
 * by the measured error of the outputs (choose.h), a rotation before `down` (kernels/hadamard.h), weights
 * rounded with knowledge of the inputs (gram.h, round.h). There are no outlier paths, so nothing is stored
 * twice. */
#ifndef TN_QUANT_RECIPE_H
#define TN_QUANT_RECIPE_H

#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/program.h"
#include "model/source.h"
#include "quant/capture.h"
#include "quant/stages.h"

/* One linear as the package stores it. */
typedef struct tn_rounded {
    uint8_t *bits; /* CHANNEL_BITS; NULL: not rounded yet */
    uint8_t *weightlets;
    uint64_t n_bytes; /* of them */
    int32_t *col_sum; /* [n rounded up to 16] */
    float *scale;
} tn_rounded;

typedef struct tn_recipe_site {
    float clip, alpha;
    float *smooth;    /* [k] or NULL */
    int32_t n_smooth; /* 0: one for all; n: one for each expert, [n][k] */
    int32_t rotated;  /* in blocks of this many inputs; 0: not rotated */
    double error;     /* mean square error of the outputs from rounding the weights, summed over them */
    tn_rounded ops[TN_SITE_MAX_OPS];
} tn_recipe_site;

/* Divisors of the inputs of row n of n_all of one of the site's linears; NULL: none. */
static inline const float *tn_recipe_smooth(const tn_recipe_site *s, int64_t n, int64_t n_all, int32_t k) {
    return s->n_smooth ? s->smooth + n / (n_all / s->n_smooth) * k : s->smooth;
}

typedef struct tn_recipe {
    tn_ctx *ctx;
    tn_pool *pool;
    const tn_kernels *kern;
    tn_source *src;
    const tn_hparams *h;
    const tn_program *program;
    double bits;       /* on average, for the choice of smoothing */
    int32_t block_max; /* of the factors (gram.h) */
    float rate;        /* weight of entropy against error (round.h) */
    tn_stage_clock *clock;
} tn_recipe;

/* Smoothing, rotation and clip of a site whose inputs are x [n_rows][k], one for all its experts; x becomes
 * the values that are quantised. The result belongs to the caller also after a failure. */
tern_status tn_recipe_choose(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops, float *x,
                             int32_t n_rows, tn_recipe_site *out, tern_error *err);
/* Makes a site of a layer (-1: of the model). Its inputs are modified. bits: of every row of its linears, in
 * order. The result belongs to the caller also after a failure. */
tern_status tn_recipe_site_make(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops,
                                const tn_inputs *in, const uint8_t *bits, tn_recipe_site *out,
                                tern_error *err);
/* The embedding, whose rows are looked up: each weight is rounded by itself. */
tern_status tn_recipe_table_make(const tn_recipe *r, tn_role role, int32_t n, int32_t k, const uint8_t *bits,
                                 tn_rounded *out, tern_error *err);
/* Allocates a linear of n rows, without its codes if they come later. The result belongs to the caller also
 * after a failure. */
tern_status tn_rounded_open(tn_ctx *ctx, int32_t n, int32_t k, const uint8_t *bits, bool with_codes,
                            tn_rounded *out, tern_error *err);
void tn_rounded_free(tn_ctx *ctx, tn_rounded *r);
void tn_recipe_codes_free(tn_ctx *ctx, tn_recipe_site *s); /* the codes alone */
void tn_recipe_site_free(tn_ctx *ctx, tn_recipe_site *s);

#endif
