/* TAP: part i of a row of out = X, as the layer gets it: what a head that drafts will join. */
#include "model/op.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const int32_t n = op->in_width;
    for (int32_t r = row0; r < row1; r++)
        memcpy(tn_frame_row(f, op->out, op->width, r) + op->stream * n,
               tn_frame_row(f, op->in, op->in_width, r), (size_t)n * sizeof(float));
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->in_width;
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_tap = {"tap", rows, cost};
