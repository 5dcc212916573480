/* ALTUP_ADD: the streams of X but the first += norm(in), which is normed in place. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    float *in = f->buf[op->in];
    size_t e = (size_t)op->in_width;
    tn_rows_norm(f->r, tn_model_vector(f->m, op->layer, op->weight), NULL, in, in, row0, row1);
    for (int32_t r = row0; r < row1; r++)
        for (size_t s = 1; s < TN_STREAMS; s++)
            f->r->kern->add_f32(tn_frame_row(f, op->out, op->width, r) + s * e, in + (size_t)r * e, 1, e);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double one = (double)n_rows * op->in_width, others = (double)n_rows * (op->width - op->in_width);
    c->values = one + others;
    c->macs = 2 * one + others;
    c->bytes = 12 * one + 12 * others + 4.0 * op->in_width;
}

const tn_op_info tn_op_altup_add = {"altup add", rows, cost};
