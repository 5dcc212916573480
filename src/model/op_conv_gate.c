/* CONV_GATE: the input projection of a row is three vectors b, c, x; x becomes b x, which is what a
 * convolution reads. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    int32_t n = op->conv.n_embd;
    for (int32_t i = row0; i < row1; i++) {
        float *row = tn_frame_row(f, op->in, 3 * n, i), *x = row + 2 * n;
        for (int32_t c = 0; c < n; c++) x[c] *= row[c];
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->macs = (double)n_rows * op->conv.n_embd;
    c->values = (double)n_rows * op->width;
    c->bytes = 12 * c->values;
}

const tn_op_info tn_op_conv_gate = {"conv gate", rows, cost};
