/* DELTA_NORM: what a gated delta net gives: out = out / rms(out) * weight of every head by itself, times
 * SiLU(gate). Of Mamba 2 the gate comes first, and all heads of a group are normed together. In place. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_kernels *kern = f->r->kern;
    const tn_delta_net *n = &op->delta.net;
    const float *w = tn_model_vector(f->m, op->layer, op->weight);
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        const float *gate = tn_frame_row(f, TN_BUF_DELTA_GATE, op->width, i);
        int32_t each = n->mamba ? op->width / n->n_key_heads : n->d_value;
        if (n->mamba) kern->glu_f32(TN_ACT_SILU, gate, out, out, (size_t)op->width);
        for (int32_t c = 0; c < op->width; c += each)
            kern->rmsnorm_f32(out + c, w + (n->mamba ? c : 0), f->r->h->norm_eps, out + c, (size_t)each);
        if (!n->mamba) kern->glu_f32(TN_ACT_SILU, gate, out, out, (size_t)op->width);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 4 * c->values; /* squares, weights, the gate */
    c->bytes = 12 * c->values + 4.0 * (op->delta.net.mamba ? op->width : op->delta.net.d_value);
}

const tn_op_info tn_op_delta_norm = {"delta norm", rows, cost};
