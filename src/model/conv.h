/* model/conv.h - what short convolutions remember of a text: their last inputs, a few values of every channel.
 *
 * Inputs lie in a ring by cache slot, so that a row of a draft tree can be kept and the text can go back a little;
 * further back it goes to a snapshot. A forward reads positions in front of its rows and then writes those of its rows
 * that the ring can hold. */
#ifndef TN_MODEL_CONV_H
#define TN_MODEL_CONV_H

#include "base/ctx.h"
#include "model/hparams.h"

enum { TN_CONV_RING = 384 }; /* slots */

typedef struct tn_conv {
    tn_ctx *ctx;
    int32_t n_layers; /* with a convolution */
    int32_t n_embd, len;
    int32_t n_tok;                /* of the text */
    int32_t lowest;               /* position from which on the ring holds all; positions below 0 are zeros */
    int32_t index[TN_MAX_LAYERS]; /* of a layer among those with a convolution; -1: none */
    float *ring;                  /* [n_layers][TN_CONV_RING][n_embd] */
} tn_conv;

tern_status tn_conv_open(tn_ctx *ctx, const tn_hparams *h, tn_conv *out, tern_error *err);
void tn_conv_close(tn_conv *c);

static inline float *tn_conv_at(const tn_conv *c, int32_t layer, int32_t slot) {
    return c->ring +
           ((size_t)c->index[layer] * TN_CONV_RING + (size_t)(slot % TN_CONV_RING)) * (size_t)c->n_embd;
}

#endif
