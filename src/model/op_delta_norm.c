/* DELTA_NORM: what a gated delta net gives: out = out / rms(out) * weight of every head by itself, times
 * SiLU(gate). In place. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_kernels *kern = f->r->kern;
    const tn_delta_net *n = &op->delta.net;
    const float *w = tn_model_vector(f->m, op->layer, op->weight);
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        for (int32_t h = 0; h < n->n_heads; h++)
            kern->rmsnorm_f32(out + h * n->d_value, w, f->r->h->norm_eps, out + h * n->d_value,
                              (size_t)n->d_value);
        kern->glu_f32(TN_ACT_SILU, tn_frame_row(f, TN_BUF_DELTA_GATE, op->width, i), out, out,
                      (size_t)op->width);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 4 * c->values; /* squares, weights, the gate */
    c->bytes = 12 * c->values + 4.0 * op->delta.net.d_value;
}

const tn_op_info tn_op_delta_norm = {"delta norm", rows, cost};
