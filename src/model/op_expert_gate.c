/* EXPERT_GATE: up = act(gate) up; without gates act(up); or, with a limit, (up + 1) gate sigmoid(1.702 gate) of clamped values
 * (gpt-oss); or act(gate) and up are clamped by themselves (Ling 3). A row is `used` places of the experts (experts.h), whosever they are. */
#include "model/experts.h"

static void clamped(float limit, const float *gate, float *up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float g = gate[i] < limit ? gate[i] : limit, u = up[i] < limit ? up[i] : limit;
        if (u < -limit) u = -limit;
        float x = 1.702f * g;
        float sigmoid = x < 0 ? tn_expf(x) / (1 + tn_expf(x)) : 1 / (1 + tn_expf(-x));
        up[i] = (u + 1) * (g * sigmoid);
    }
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    float *up = tn_frame_row(f, op->out, op->width, row0);
    size_t n = (size_t)(row1 - row0) * (size_t)op->width;
    if (!op->experts.gated) {
        f->r->kern->act_f32(op->experts.act, up, n);
        return;
    }
    float *gate = tn_frame_row(f, TN_BUF_EXPERT_GATE, op->width, row0);
    if (op->experts.limit > 0) clamped(op->experts.limit, gate, up, n);
    else tn_gate_up(f->r->kern, op->experts.act, op->experts.most, gate, up, n);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = (1 + op->experts.gated) * c->values;
    c->bytes = (8 + 4 * op->experts.gated) * c->values;
}

const tn_op_info tn_op_expert_gate = {"expert gate", rows, cost};
