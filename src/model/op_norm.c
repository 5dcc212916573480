/* NORM: out = in / rms(in) * weight (RMS), or (in - mean) / deviation * weight + bias (layer norm). */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    tn_rows_norm(f->r, tn_model_vector(f->m, op->layer, op->weight),
                 op->bias == TN_W_N_ROLES ? NULL : tn_model_vector(f->m, op->layer, op->bias), f->buf[op->in],
                 f->buf[op->out], row0, row1);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 2 * c->values; /* squares, weights */
    c->bytes = 8 * c->values + 4.0 * op->width;
}

const tn_op_info tn_op_norm = {"norm", rows, cost};
