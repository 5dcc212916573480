/* engine/head.h - the head that was trained to draft for an engine's model (EAGLE-3, DFlash, Gemma 4's
 * assistant), a file of its own: found beside the model, or named; checked against it before a weight is
 * read; shared by the engine's sessions (session/mtp.h). */
#ifndef TN_ENGINE_HEAD_H
#define TN_ENGINE_HEAD_H

#include "engine/engine.h"

/* Opens the head of the engine's model, whose file is path, where the options draft with one: e->head. A head that was named
 * and cannot draft for this model is an error; one that was found is left out, with a warning. */
tern_status tn_head_open(tern_engine *e, const char *path, const tern_options *o, tern_error *err);
void tn_head_close(tern_engine *e);

/* What that takes, beside the model's own memory, in a context of n_ctx tokens. Zeros: there is none, or it cannot be read,
 * which opening tells. */
typedef struct tn_head_need {
    uint64_t weight_bytes, kv_bytes, work_bytes;
    int32_t n_taps; /* layers of the model whose input is kept of every row in flight */
} tn_head_need;
tn_head_need tn_head_estimate(tn_ctx *ctx, const char *path, const tn_hparams *model, bool quantised,
                              const tern_options *o, int32_t n_ctx, int n_threads);

#endif
