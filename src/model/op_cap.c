/* CAP: logits *= scale, then logits = cap * tanh(logits / cap) where there is a cap. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    float *x = tn_frame_row(f, op->out, op->width, row0);
    size_t n = (size_t)(row1 - row0) * (size_t)op->width;
    float scale = op->logits.scale, cap = op->logits.cap;
    for (size_t i = 0; i < n && scale != 1; i++) x[i] *= scale;
    for (size_t i = 0; i < n && cap > 0; i++) x[i] = cap * tn_tanhf(x[i] / cap);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs =
        ((op->logits.scale != 1 ? 1 : 0) + (op->logits.cap > 0 ? 2 : 0)) * c->values; /* scale; tanh, scale */
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_cap = {"cap", rows, cost};
