/* RESIDUAL: X += scale * in, after the block's own norm (in place) where the architecture has one; or X =
 * norm(X + scale * in). */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    float *in = f->buf[op->in];
    if (op->weight != TN_W_N_ROLES && !op->after)
        tn_rows_norm(f->r, tn_model_vector(f->m, op->layer, op->weight), NULL, in, in, row0, row1);
    f->r->kern->add_f32(tn_frame_row(f, op->out, op->width, row0), tn_frame_row(f, op->in, op->width, row0),
                        op->scale, (size_t)(row1 - row0) * (size_t)op->width);
    if (op->after)
        tn_rows_norm(f->r, tn_model_vector(f->m, op->layer, op->weight),
                     tn_model_vector(f->m, op->layer, op->bias), f->buf[op->out], f->buf[op->out], row0,
                     row1);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    bool normed = op->weight != TN_W_N_ROLES;
    c->values = (double)n_rows * op->width;
    c->macs = (normed ? 3 : 1) * c->values;
    c->bytes = (normed ? 20 : 12) * c->values + (normed ? 4.0 * op->width : 0);
}

const tn_op_info tn_op_residual = {"residual", rows, cost};
