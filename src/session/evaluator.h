/* session/evaluator.h - evaluates a session's tokens: one interface, two implementations. The float forward
 * serves a file's own weights (evaluator_plain.c, model/forward.h), the pipeline serves packages
 * (evaluator_packed.c, prefill/pipeline.h). A session has one evaluator, which borrows its state. */
#ifndef TN_SESSION_EVALUATOR_H
#define TN_SESSION_EVALUATOR_H

#include "base/pause.h"
#include "engine/engine.h"
#include "model/state.h"
#include "model/tree.h"

typedef struct tn_evaluator tn_evaluator;

/* The next tokens of a text, for its session's evaluator, at positions from pos0 on. tree is NULL, or the
 * shape of these tokens, whose K and V go to slots pos0.. in the order of the rows. */
typedef struct tn_evaluator_text {
    tn_evaluator *self;
    const int32_t *ids;
    int32_t n, pos0;
    const tn_tree *tree;
    bool rope_long;
    int32_t
        next; /* position of rope that a token at pos0 has: pos0, where no picture is before it (axes.h) */
} tn_evaluator_text;

typedef struct tn_evaluator_ops {
    /* The most rows that one evaluation takes when it begins at pos0, and the most of a piece after which
     * other sessions have their turn. */
    int32_t (*max_rows)(const tn_evaluator *v, int32_t pos0);
    int32_t (*chunk_rows)(const tn_evaluator *v, int32_t pos0);
    /* Announces n tokens from pos0 on, in one or more evaluations. */
    tern_status (*begin)(tn_evaluator *v, int32_t n, int32_t pos0, tern_error *err);
    /* Evaluates a text's next rows. Timelines may be NULL. */
    tern_status (*evaluate)(const tn_evaluator_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                            tern_error *err);
    /* Evaluates rows of several texts, at most TN_TREE_MAX in all, in one pass over the weights; all of them
     * must share weights. A row gets the bits that it gets alone. The rows are in the first text's evaluator,
     * text after text; no other evaluator is roomier. */
    tern_status (*together)(const tn_evaluator_text *t, int32_t n, tn_timeline *timeline, tern_error *err);
    bool (*shares)(const tn_evaluator *v);
    int32_t (*room)(const tn_evaluator *v); /* tokens of its cache */
    /* Row i of the last evaluation in X, which is the residual after the last layer, or in TAPS; and logits [n][n_vocab] of
     * rows. */
    const float *(*row)(const tn_evaluator *v, tn_buffer b, int32_t i);
    tern_status (*logits)(tn_evaluator *v, int32_t row0, int32_t n, float *logits, tern_error *err);
    /* Logits [n][n_vocab] of n <= TN_TREE_MAX states [n][n_embd] that passed a last norm, without
     * adapters. */
    tern_status (*head)(tn_evaluator *v, const float *states, int32_t n, float *logits, tern_error *err);
    /* From the next evaluation on, the text is read with this mix, borrowed; n == 0: without adapters. */
    void (*adapt)(tn_evaluator *v, const tn_lora_mix *mix);
    /* From the next evaluation on, ids beyond the vocabulary are these rows, borrowed. */
    void (*see)(tn_evaluator *v, const tn_extra_rows *extra);
    /* From the next evaluation of this text alone on, it is paused between parts, borrowed; NULL: never. */
    void (*pauses)(tn_evaluator *v, const tn_pause *pause);
    /* What sparse attention did. */
    void (*attention)(const tn_evaluator *v, tn_attn_stats *out);
    /* The state holds another text now. */
    void (*forget)(tn_evaluator *v);
    void (*close)(tn_evaluator *v);
} tn_evaluator_ops;

struct tn_evaluator { /* the beginning of both */
    const tn_evaluator_ops *ops;
    tn_ctx *ctx;
    tn_pipeline *pipeline; /* of a package, for its times and counts; else NULL */
};

/* Both borrow all their arguments. n_ctx is the session's. */
tern_status tn_evaluator_open_plain(tern_engine *e, tn_state *state, int32_t n_ctx, const tn_lora_mix *mix,
                                    tn_evaluator **out, tern_error *err);
tern_status tn_evaluator_open_packed(tern_engine *e, tn_state *state, tn_step_profile *profile,
                                     const tn_lora_mix *mix, tn_evaluator **out, tern_error *err);
static inline void tn_evaluator_close(tn_evaluator **v) {
    if (*v) (*v)->ops->close(*v);
    *v = NULL;
}

#endif
