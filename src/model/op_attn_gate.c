/* ATTN_GATE: att *= sigmoid(gate), where attention's output is gated: each number of the gate multiplies one value, or
 * those of a head. */
#include "model/op.h"

#include <math.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const int32_t each = op->gate_each, n = op->width / each;
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        const float *gate = tn_frame_row(f, TN_BUF_ATT_GATE, n, i);
        if (each == 1) {
            f->r->kern->glu_f32(TN_ACT_SIGMOID, gate, out, out, (size_t)n);
            continue;
        }
        for (int32_t h = 0; h < n; h++) {
            const float share = (float)(1 / (1 + exp(-(double)gate[h])));
            for (int32_t c = 0; c < each; c++) out[h * each + c] *= share;
        }
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    const double gates = (double)n_rows * (op->width / op->gate_each);
    c->values = (double)n_rows * op->width;
    c->macs = c->values + gates;
    c->bytes = 8 * c->values + 4 * gates;
}

const tn_op_info tn_op_attn_gate = {"attention gate", rows, cost};
