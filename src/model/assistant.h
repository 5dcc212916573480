/* model/assistant.h - Gemma 4's assistant: a few layers that draft for a model and read its keys and values.
 *
 * For a draft it reads the embedding of the last token, as the model's first layer gets it, and the model's
 * state after its last norm of the token before it, side by side, through one projection. Its layers are
 * Gemma 4's, but they have queries alone: a layer with a window attends to what the model's last layer with a
 * window keeps, the others to what its last layer without one keeps. After a norm its own embedding says
 * which token is next, and a projection leads back to a state, which takes the place of the model's for a
 * draft further. It keeps nothing: all drafts after a text stand at the position of the text's last token,
 * which the model has not evaluated yet, and see the tokens before it. */
#ifndef TN_MODEL_ASSISTANT_H
#define TN_MODEL_ASSISTANT_H

#include "model/forward.h"

/* Whether an assistant can read a model's keys and values. NULL: it can; else what differs. */
const char *tn_assistant_differs(const tn_hparams *assistant, const tn_hparams *model);

/* One at work beside a text, whose keys and values it borrows. One thread at a time. */
typedef struct tn_assistant {
    tn_ctx *ctx;
    const tn_model *m;
    const tn_kernels *kern;
    tn_pool *pool;
    const tn_kv *kv; /* the text's */
    tn_kv read;      /* the same, by the assistant's layers */
    tn_acts acts;
    float *pair;           /* embedding, state; and the state that the last norm leaves */
    tn_blocks_act *blocks; /* a quantised row of either */
} tn_assistant;

/* m is the assistant of the model with these hyperparameters; kv lives as long as out and may change its
 * content. */
tern_status tn_assistant_open(tn_ctx *ctx, const tn_model *m, const tn_hparams *model, const tn_kv *kv,
                              const tn_kernels *kern, tn_pool *pool, tn_assistant *out, tern_error *err);
void tn_assistant_close(tn_assistant *a);
/* What that takes beside the weights, in a context of n_ctx tokens. */
uint64_t tn_assistant_work_bytes(const tn_hparams *assistant, int32_t n_ctx, int n_threads);

/* The logits [n_vocab] of the token after n_tok evaluated ones and one more, n_tok at least 1. embedding and
 * state [n_target]: of that one token, scaled, and of the token before it. further [n_target]: the state for
 * the next draft; may be state. */
void tn_assistant_run(tn_assistant *a, int32_t n_tok, const float *embedding, const float *state,
                      float *logits, float *further);

#endif
