/* NORM_ADD: out = norm(in), and in += out: a block whose input, normed, goes by itself too (Gemma 3n). It is one
 * op because what quantises `out` for the linears after it may change it. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    float *in = tn_frame_row(f, op->in, op->width, row0), *out = tn_frame_row(f, op->out, op->width, row0);
    tn_rows_norm(f->r, tn_model_vector(f->m, op->layer, op->weight), NULL, in, out, 0, row1 - row0);
    f->r->kern->add_f32(in, out, 1, (size_t)(row1 - row0) * (size_t)op->width);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = 2.0 * n_rows * op->width;
    c->macs = 3.0 * n_rows * op->width; /* squares, weights, sum */
    c->bytes = 20.0 * n_rows * op->width + 4.0 * op->width;
}

const tn_op_info tn_op_norm_add = {"norm add", rows, cost};
