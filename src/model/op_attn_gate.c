/* ATTN_GATE: att *= sigmoid(gate), where attention's output is gated. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        const float *gate = tn_frame_row(f, TN_BUF_ATT_GATE, op->width, i);
        f->r->kern->glu_f32(TN_ACT_SIGMOID, gate, out, out, (size_t)op->width);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 2 * c->values;
    c->bytes = 12 * c->values;
}

const tn_op_info tn_op_attn_gate = {"attention gate", rows, cost};
