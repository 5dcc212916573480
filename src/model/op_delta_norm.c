/* DELTA_NORM: what a gated delta net gives: out = out / rms(out) * weight of every head by itself, times
 * SiLU(gate), of Kimi's delta attention sigmoid(gate). Of Mamba 2 the gate comes first, or last where the model says so, and all heads of a group are normed
 * together, or none. In place. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_kernels *kern = f->r->kern;
    const tn_delta_net *n = &op->delta.net;
    const float *w = n->no_norm ? NULL : tn_model_vector(f->m, op->layer, op->weight);
    const tn_act act = n->kda ? TN_ACT_SIGMOID : TN_ACT_SILU;
    bool gated_first = n->mamba && !n->norm_first;
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        const float *gate = tn_frame_row(f, TN_BUF_DELTA_GATE, op->width, i);
        int32_t each = n->mamba ? op->width / n->n_key_heads : n->d_value;
        if (gated_first) kern->glu_f32(act, gate, out, out, (size_t)op->width);
        for (int32_t c = 0; w && c < op->width; c += each)
            kern->rmsnorm_f32(out + c, w + (n->mamba ? c : 0), f->r->h->norm_eps, out + c, (size_t)each);
        if (!gated_first) kern->glu_f32(act, gate, out, out, (size_t)op->width);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    const tn_delta_net *n = &op->delta.net;
    c->macs = (n->no_norm ? 2 : 4) * c->values; /* the gate; squares, weights */
    c->bytes = 12 * c->values + (n->no_norm ? 0 : 4.0 * (n->mamba ? op->width : n->d_value));
}

const tn_op_info tn_op_delta_norm = {"delta norm", rows, cost};
