/* model/dflash.h - DFlash: a few layers that draft a block of tokens in one forward.
 *
 * Of every token of the text they keep keys and values: what some layers of the model were given for it, side
 * by side (TAPS), goes through one projection and a norm, and every layer makes its key and value of that,
 * without the norm in front of it. A draft is a block of rows at the positions from the text's end on: the
 * embedding of the token that was drawn and that of a mask in all others. Its rows pass the layers, where
 * they see the text that is kept and each other, later rows too; layers with a window see the rows before
 * them alone, unless the file says otherwise. After a norm the model's output layer says of row i which token
 * is i positions after the drawn one. The rows' own keys and values are for one block. */
#ifndef TN_MODEL_DFLASH_H
#define TN_MODEL_DFLASH_H

#include "model/forward.h"
#include "model/state.h"
#include "model/tree.h"

/* A text that is drafted for. One thread at a time. */
typedef struct tn_dflash {
    tn_ctx *ctx;
    const tn_model *m;
    const tn_kernels *kern;
    tn_pool *pool;
    tn_state state;
    tn_acts acts;
    float *features;       /* [TN_TREE_MAX][n_embd] of the tokens whose keys and values are made */
    tn_blocks_act *blocks; /* as many quantised rows of what they are made of */
    int32_t pos[TN_TREE_MAX];
    tn_row_picture block[TN_TREE_MAX]; /* which rows see each other */
    bool rope_long;
} tn_dflash;

/* For at most n_ctx tokens, a block's rows included. */
tern_status tn_dflash_open(tn_ctx *ctx, const tn_model *m, const tn_kernels *kern, tn_pool *pool,
                           int32_t n_ctx, bool rope_long, tn_dflash *out, tern_error *err);
void tn_dflash_close(tn_dflash *d);
/* Of keys and values; and of what a text takes beside these in rows and logits. */
uint64_t tn_dflash_bytes_of(const tn_hparams *h, int32_t n_ctx);
uint64_t tn_dflash_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads);
/* The most rows of a block. */
int32_t tn_dflash_rows(const tn_hparams *h);
/* Values that a token's features come of. */
size_t tn_dflash_taps(const tn_hparams *h);

/* Keeps tokens row0 .. row0 + n - 1 of the text, n at most TN_TREE_MAX: taps [n][tn_dflash_taps]. */
void tn_dflash_keep(tn_dflash *d, int32_t row0, int32_t n, const float *taps);
/* A block of n rows, at most TN_TREE_MAX, after the first n_tok tokens: embeddings and states [n][n_embd],
 * these after the last norm, for the output layer. They may be the same memory. */
void tn_dflash_block(tn_dflash *d, int32_t n_tok, int32_t n, const float *embeddings, float *states);

#endif
