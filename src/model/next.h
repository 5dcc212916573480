/* model/next.h - the layer that guesses one token further (MTP, "nextn"), which some files have after the others.
 *
 * It reads, for the token at position i + 1, that token's embedding and the hidden state that the model has after
 * position i and its last norm; each is normed, and a projection of both is what a decoder layer of the model's kind
 * gets. After that layer and a norm of its own, the model's output layer says what comes at position i + 2. The normed
 * state takes the place of the model's for a guess further. Its keys and values are its own.
 *
 * It is held as a tn_model of one layer, m->next, without embedding and output layer: those are m's.
 *
 * A head (EAGLE-3) is a file of its own: a tn_model of one layer, too, which may have an embedding and an output layer.
 * In place of the hidden state it gets what three layers of the model were given for that token (TAPS), joined by a
 * projection: its state, which is not normed. Its attention reads the embedding and the state, each normed, side by side;
 * what the layer leaves is the state for a guess further, and after a norm of its own its output layer reads it. */
#ifndef TN_MODEL_NEXT_H
#define TN_MODEL_NEXT_H

#include "model/forward.h"
#include "model/state.h"
#include "model/tree.h"

/* m->next without weights. */
tern_status tn_next_make(tn_model *m, tern_error *err);

/* A text that is guessed for: keys and values of rows 0 .. n - 1, as far as they were computed. */
typedef struct tn_next_text {
    tn_ctx *ctx;
    const tn_model *m; /* of one layer */
    const tn_kernels *kern;
    tn_pool *pool;
    tn_state state;
    tn_acts acts;
    float *pairs;          /* [TN_TREE_MAX][2 n_embd]; of a head a row of what it joins, normed */
    tn_blocks_act *blocks; /* as many quantised rows of that width; or one of n_embd, for the output layer */
    int32_t pos[TN_TREE_MAX], slot[TN_TREE_MAX];
    bool rope_long;
} tn_next_text;

/* For at most n_ctx rows. */
tern_status tn_next_open(tn_ctx *ctx, const tn_model *next, const tn_kernels *kern, tn_pool *pool,
                         int32_t n_ctx, bool rope_long, tn_next_text *out, tern_error *err);
void tn_next_close(tn_next_text *t);
uint64_t tn_next_bytes_of(const tn_hparams *h, int32_t n_ctx); /* of the model's hyperparameters */

/* What a text and its drafter take beside that and a forward's rows: each row's embedding and state, waiting, side by side
 * and quantised; and what threads attend in. */
uint64_t tn_next_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads);

/* Of a head: states [n][n_embd] of what the layers that it reads were given, taps [n][n_from n_target]. */
void tn_next_join(tn_next_text *t, const float *taps, int32_t n, float *states);
/* And the logits [head.n_vocab] of a state, where it has an output layer. */
void tn_next_logits(tn_next_text *t, const float *state, float *logits);

/* Rows row0 .. row0 + n - 1, n at most TN_TREE_MAX: embeddings [n][n_embd], scaled as the model's, and states [n][n_embd]
 * after the last norm, or of a head. Keys and values of these rows are stored over what was there. out: NULL, or where the last
 * row's normed state goes, for the output layer, or a head's state; without it nothing but keys and values is computed. */
void tn_next_rows(tn_next_text *t, int32_t row0, int32_t n, const float *embeddings, const float *states,
                  float *out);

#endif
