/* quant/corpus.h - the float model over a calibration corpus, layer by layer. All windows pass a layer
 * before the next layer's weights are read. So a model of any depth needs memory for one layer and for the
 * residuals of the corpus. */
#ifndef TN_QUANT_CORPUS_H
#define TN_QUANT_CORPUS_H

#include "model/forward.h"
#include "model/state.h"

typedef struct tn_corpus {
    const tn_kernels *kern;
    tn_pool *pool;
    tn_source *src;
    tn_model *m; /* an outline (model.h); one layer at a time is loaded */
    const int32_t *ids;
    size_t n_tok;
    int32_t window; /* windows know nothing of each other */
    /* its own */
    float *x; /* [n_tok][tn_residual_width] residual before the layer; callers that pass a part of `all` move
                 it */
    float *all;    /* where x begins */
    float *emb;    /* [n_tok][n_embd] of the first stream before the first layer, where layers read it again;
                else NULL */
    uint8_t *kept; /* keys and values of layers that later ones share, window by window; else NULL */
    size_t kept_bytes; /* of a window */
    float *v_first; /* [n_tok][n_embd] values of the first layer that later ones read (RWKV-7), else NULL */
    tn_state state; /* always empty: every window starts a new text */
    tn_acts acts;
    int32_t *pos;
} tn_corpus;

/* Borrows the arguments of the first seven fields; embeds the corpus. */
tern_status tn_corpus_open(tn_corpus *c, tern_error *err);
void tn_corpus_close(tn_corpus *c); /* may be zero */

tern_status tn_corpus_begin_layer(tn_corpus *c, int layer, tern_error *err);
/* Copies the state of n tokens before the layer, keys and values included, to other tokens. Both ranges
 * begin at a window. */
void tn_corpus_copy(tn_corpus *c, size_t from, size_t to, size_t n);
/* Passes all windows through the layer; hooks are called. keep: the residuals become those after the layer.
 */
void tn_corpus_pass(tn_corpus *c, int layer, const tn_forward_hooks *hooks, bool keep);
void tn_corpus_end_layer(tn_corpus *c, int layer);

#endif
