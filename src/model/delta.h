/* model/delta.h - what gated delta nets remember of a text: a matrix for every head (delta_f32.h), and the
 * last inputs of the convolution in front of it.
 *
 * A layer's memory is there twice. A forward reads what the text left, the settled one, and leaves what
 * its rows make of it in the other, so that one that fails or is cancelled has changed nothing; appending
 * its rows turns the two round. The chunks of one forward follow each other in the other one. Rows of a
 * draft tree change neither: what they would put in is noted by slot, and a kept row is put into the
 * settled one. It cannot go back but to snapshots: those of the text that a session takes at chunks of
 * prompts. */
#ifndef TN_MODEL_DELTA_H
#define TN_MODEL_DELTA_H

#include "base/ctx.h"
#include "kernels/delta_f32.h"
#include "kernels/wkv_f32.h"
#include "model/hparams.h"

enum { TN_DELTA_NOTES = 64 }; /* rows of a draft tree */

typedef struct tn_delta_layer {
    float *state[2]; /* [n_heads][d_key][d_value]: the settled one, the other */
    float *tail[2];  /* [conv_len - 1][channels] inputs of the convolution, the oldest first */
    int32_t other_n; /* tokens that the other one has taken in; -1: it holds nothing */
    float *notes;    /* [TN_DELTA_NOTES][tn_delta_note] */
} tn_delta_layer;

typedef struct tn_delta {
    tn_ctx *ctx;
    tn_delta_net net;
    int32_t conv_len, n_layers; /* layers with one */
    int32_t n_tok;              /* of the text */
    int32_t note0;              /* slot of the first noted row */
    bool far;                   /* so large that it has left the caches when the next row comes */
    tn_delta_f32_fn kernel;     /* with which kept rows are put in */
    tn_wkv_f32_fn kernel_wkv;   /* those of RWKV-7 */
    int16_t index[TN_MAX_LAYERS];
    tn_delta_layer *layers; /* [n_layers] */
    float *base, *out;      /* all floats; a row of values, to be thrown away */
} tn_delta;

tern_status tn_delta_open(tn_ctx *ctx, const tn_hparams *h, tn_delta *out, tern_error *err);
/* Floats of it all. */
uint64_t tn_delta_floats(const tn_hparams *h);

/* A note is what a row gives: its inputs of the convolution, what the convolution made of them (q, k, v of
 * all heads), then the heads' decays and rates, interleaved. Of RWKV-7 it is what its memory reads. */
static inline size_t tn_delta_note(const tn_delta_net *n) {
    return (size_t)tn_delta_channels(n) + (size_t)tn_delta_mixed(n) +
           (tn_delta_by_key(n) ? 0 : 2 * (size_t)n->n_heads);
}
static inline tn_delta_layer *tn_delta_of(const tn_delta *d, int32_t layer) {
    return &d->layers[d->index[layer]];
}
/* Where rows whose first lies at position pos begin: 0 in the settled memory, 1 in the other. */
static inline int tn_delta_at(const tn_delta *d, int32_t pos) { return pos != d->n_tok; }

#endif
