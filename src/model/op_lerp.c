/* LERP: out = x + share * (the row before - x), channel by channel, of what a norm leaves and SHIFT has put beside it. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const float *share = tn_model_vector(f->m, op->layer, op->weight);
    for (int32_t i = row0; i < row1; i++)
        tn_lerp(tn_frame_row(f, op->in, op->width, i), tn_frame_row(f, TN_BUF_SHIFT, op->width, i), share,
                tn_frame_row(f, op->out, op->width, i), op->width);
}

void tn_lerp(const float *x, const float *shift, const float *share, float *out, int32_t n) {
    for (int32_t c = 0; c < n; c++) out[c] = x[c] + share[c] * shift[c];
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = c->values;
    c->bytes = 12 * c->values + 4.0 * op->width;
}

const tn_op_info tn_op_lerp = {"lerp", rows, cost};
