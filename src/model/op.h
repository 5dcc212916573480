/* model/op.h - what every kind of op brings, one file op_NAME.c each: its contract (in that file), its float
 * form over rows, its cost. A row's result depends on that row, its position and the state only. */
#ifndef TN_MODEL_OP_H
#define TN_MODEL_OP_H

#include "model/model.h"
#include "model/rows.h"

/* The rows an op works on. Borrowed. */
typedef struct tn_frame {
    const tn_model *m;
    const tn_rows *r;
    const int32_t *ids; /* [n_rows] tokens */
    float *buf[TN_N_BUFFERS];
    /* EMBED: writes the embedding of a token, unscaled */
    void (*embed)(const void *user, int32_t id, float *out);
    /* EMBED_LAYERS: writes its embeddings for every layer, unscaled */
    void (*embed_layers)(const void *user, int32_t id, float *out);
    const void *embed_user;
} tn_frame;

typedef struct tn_op_info {
    const char *name;
    /* Rows row0 .. row1 - 1 in float. scratch: tn_rows_scratch floats. NULL: linears, which every reader has
     * its own way of computing. */
    void (*rows)(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch);
    void (*cost)(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *out);
} tn_op_info;

const tn_op_info *tn_op_info_of(tn_op_kind kind);

/* ATTEND: the heads' sinks, NULL where they have none. */
static inline const float *tn_op_sinks(const tn_op *op, const tn_frame *f) {
    return op->attend.sinks == TN_W_N_ROLES ? NULL : tn_model_vector(f->m, op->layer, op->attend.sinks);
}

/* up = act(gate) up; where most > 0, of act(gate) at most that and of up within it on either side: gate is changed then. */
void tn_gate_up(const tn_kernels *kern, tn_act act, float most, float *gate, float *up, size_t n);

/* Row `row` of a buffer of an op's width. */
static inline float *tn_frame_row(const tn_frame *f, tn_buffer b, int32_t width, int32_t row) {
    return f->buf[b] + (size_t)row * (size_t)width;
}

/* The rows of one text, r, among those of f, which has several: they begin at row0, in buffers as wide as in
 * `layer`. r gets its part of f's rope tables. */
void tn_frame_slice(const tn_frame *f, tn_rows *r, int32_t row0, int32_t layer, tn_frame *out);

extern const tn_op_info tn_op_embed, tn_op_norm, tn_op_linears, tn_op_rope, tn_op_attend, tn_op_gate,
    tn_op_residual, tn_op_cap, tn_op_copy, tn_op_route, tn_op_gather, tn_op_expert_gate, tn_op_expert_sum,
    tn_op_conv, tn_op_conv_gate, tn_op_delta_gates, tn_op_delta_mix, tn_op_delta, tn_op_delta_norm,
    tn_op_attn_gate, tn_op_embed_layers, tn_op_layer_mix, tn_op_scale, tn_op_norm_add, tn_op_gate_sparse,
    tn_op_embed_add, tn_op_latent, tn_op_heads, tn_op_streams, tn_op_altup_predict, tn_op_altup_correct,
    tn_op_altup_add, tn_op_altup_merge, tn_op_deepstack, tn_op_pair, tn_op_tap, tn_op_shift, tn_op_lerp,
    tn_op_low, tn_op_wkv_mix, tn_op_wkv_norm;

/* Scores of the streams by a row of the one that is active: tanh(router norm(x) / n_embd). */
void tn_altup_scores(const tn_op *op, const tn_frame *f, const float *x, float *normed,
                     float scores[TN_STREAMS]);
/* By how much a stream's n values must grow to be as large as the first's. */
float tn_stream_ratio(const float *first, const float *x, int32_t n);

/* HEADS: rows 0 .. n_rows - 1 of some heads, which may run beside others. */
void tn_heads_run(const tn_op *op, const tn_frame *f, int32_t n_rows, int32_t head0, int32_t head1);

/* out = x + share * shift of n channels. */
void tn_lerp(const float *x, const float *shift, const float *share, float *out, int32_t n);

/* LOW: some rows of one of its pairs, which may run beside the others. */
void tn_low_run(const tn_op *op, const tn_frame *f, int32_t pair, int32_t row0, int32_t row1);

/* DELTA: its work in items, which may run beside each other once the rows of DELTA_MIX are there; items of one call are
 * quicker together where rows are few. */
int32_t tn_delta_items(const tn_op *op);
void tn_delta_run(const tn_op *op, const tn_frame *f, int32_t item0, int32_t item1);

#endif
