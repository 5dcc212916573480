/* DEEPSTACK: X[row] += what the encoder of pictures gives the row for this layer; of other rows, nothing. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const size_t n = (size_t)op->width;
    for (int32_t i = row0; f->r->axes && i < row1; i++) {
        const float *deep = f->r->axes[i].deep;
        if (deep)
            f->r->kern->add_f32(tn_frame_row(f, op->out, op->width, i), deep + (size_t)op->layer * n, 1, n);
    }
}

/* What texts without pictures cost. */
static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)op, (void)n_rows, (void)pos0, (void)c;
}

const tn_op_info tn_op_deepstack = {"deepstack", rows, cost};
