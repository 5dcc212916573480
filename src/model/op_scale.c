/* SCALE: out *= the layer's number, or where it has none a number of the op. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    float *x = tn_frame_row(f, op->out, op->width, row0),
          by = op->weight == TN_W_N_ROLES ? op->scale : *tn_model_vector(f->m, op->layer, op->weight);
    size_t n = (size_t)(row1 - row0) * (size_t)op->width;
    for (size_t i = 0; i < n; i++) x[i] *= by;
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = c->values;
    c->bytes = 8 * c->values + 4;
}

const tn_op_info tn_op_scale = {"scale", rows, cost};
