/* model/conv.h - what short convolutions remember of a text: their last inputs, a few values of every
 * channel.
 *
 * Inputs lie in a ring by cache slot, so that a row of a draft tree can be kept and the text can go back a
 * little; further back it goes to a snapshot. A forward writes those of its rows that the ring can hold;
 * the chunks after its first one read them there. What the text left is kept apart (the tail), so that a
 * forward of many chunks that fails has changed nothing. */
#ifndef TN_MODEL_CONV_H
#define TN_MODEL_CONV_H

#include "base/ctx.h"
#include "model/hparams.h"

enum {
    TN_CONV_RING = 384, /* slots */
    TN_CONV_KEPT = 256, /* rows of a chunk that go there */
};

typedef struct tn_conv {
    tn_ctx *ctx;
    int32_t n_layers;             /* with a convolution */
    int32_t n_embd, len;          /* values of a row: n_embd of the model, or more (tn_kept_row) */
    int32_t n_tok;                /* of the text */
    int32_t lowest;               /* position from which on the ring holds all; positions below 0 are zeros */
    int32_t index[TN_MAX_LAYERS]; /* of a layer among those with a convolution; -1: none */
    float *ring;                  /* [n_layers][TN_CONV_RING][n_embd] */
    float *tail;                  /* [n_layers][len - 1][n_embd] positions n_tok - (len - 1) .. n_tok - 1 */
} tn_conv;

tern_status tn_conv_open(tn_ctx *ctx, const tn_hparams *h, tn_conv *out, tern_error *err);

static inline float *tn_conv_at(const tn_conv *c, int32_t layer, int32_t slot) {
    return c->ring +
           ((size_t)c->index[layer] * TN_CONV_RING + (size_t)(slot % TN_CONV_RING)) * (size_t)c->n_embd;
}

/* Position pos, one of the last len - 1 of the text. */
static inline float *tn_conv_tail(const tn_conv *c, int32_t layer, int32_t pos) {
    return c->tail +
           ((size_t)c->index[layer] * (size_t)(c->len - 1) + (size_t)(pos - (c->n_tok - (c->len - 1)))) *
               (size_t)c->n_embd;
}
/* Floats of both in one layer. */
static inline size_t tn_conv_floats(int32_t n_embd, int32_t len) {
    return (size_t)(TN_CONV_RING + len - 1) * (size_t)n_embd;
}

#endif
