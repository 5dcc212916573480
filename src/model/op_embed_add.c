/* EMBED_ADD: X[row] += type, and X[row] += positions[pos of the row]; of a model that has both, or one of them. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const float *type = op->add.type ? tn_model_vector(f->m, op->layer, TN_W_EMBD_TYPE) : NULL,
                *positions = op->add.positions ? tn_model_vector(f->m, op->layer, TN_W_POSITIONS) : NULL;
    size_t n = (size_t)op->width;
    for (int32_t i = row0; i < row1; i++) {
        float *x = tn_frame_row(f, op->out, op->width, i);
        if (type) f->r->kern->add_f32(x, type, 1, n);
        if (positions) f->r->kern->add_f32(x, positions + (size_t)f->r->pos[i] * n, 1, n);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    int n = op->add.type + op->add.positions;
    c->macs = n * c->values;
    c->bytes = (4 + 4 * n) * c->values;
}

const tn_op_info tn_op_embed_add = {"embed add", rows, cost};
