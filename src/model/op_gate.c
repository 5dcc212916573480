/* GATE: up = act(gate) * up, which may be clamped; or up = act(up) where the block has no gate. */
#include "model/op.h"

void tn_gate_up(const tn_kernels *kern, tn_act act, float most, float *gate, float *up, size_t n) {
    if (most <= 0) {
        kern->glu_f32(act, gate, up, up, n);
        return;
    }
    kern->act_f32(act, gate, n);
    for (size_t i = 0; i < n; i++) {
        const float g = gate[i] < most ? gate[i] : most, u = up[i] < most ? up[i] : most;
        up[i] = g * (u > -most ? u : -most);
    }
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    size_t off = (size_t)row0 * (size_t)op->width, n = (size_t)(row1 - row0) * (size_t)op->width;
    float *up = f->buf[TN_BUF_UP] + off;
    if (op->gate.gated) tn_gate_up(f->r->kern, op->gate.act, op->gate.most, f->buf[TN_BUF_GATE] + off, up, n);
    else f->r->kern->act_f32(op->gate.act, up, n);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = (op->gate.gated ? 2 : 1) * c->values;
    c->bytes = (op->gate.gated ? 12 : 8) * c->values;
}

const tn_op_info tn_op_gate = {"gate", rows, cost};
