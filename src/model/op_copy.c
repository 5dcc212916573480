/* COPY: out = in, or the part of in that is one of several residual streams. It stands where other architectures have a norm, so that what is quantised or rounded
 * for the linears after it is no longer the residual stream itself. */
#include "model/op.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    if (op->in == op->out) return; /* what linears left, which others read: it is only quantised */
    for (int32_t r = row0; r < row1; r++)
        memcpy(tn_frame_row(f, op->out, op->width, r),
               tn_frame_row(f, op->in, op->in_width, r) + op->stream * op->width,
               (size_t)op->width * sizeof(float));
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_copy = {"copy", rows, cost};
