/* PAIR: out = [norm(in), norm2(X)], what the attention of a head reads: of a token's embedding, and of what the head knows
 * of the token before it. Where the residual does not keep X as it is, X = norm2(X). */
#include "model/op.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const float *of_token = tn_model_vector(f->m, op->layer, op->weight),
                *of_state = tn_model_vector(f->m, op->layer, TN_W_NEXT_H_NORM);
    const int32_t n = op->in_width;
    for (int32_t r = row0; r < row1; r++) {
        float *out = tn_frame_row(f, op->out, op->width, r), *x = tn_frame_row(f, TN_BUF_X, n, r);
        tn_rows_norm(f->r, of_token, NULL, tn_frame_row(f, op->in, n, r), out, 0, 1);
        tn_rows_norm(f->r, of_state, NULL, x, out + n, 0, 1);
        if (!op->keeps) memcpy(x, out + n, (size_t)n * sizeof *x);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * (op->width + (op->keeps ? 0 : op->in_width));
    c->macs = 2.0 * n_rows * op->width; /* squares, weights */
    c->bytes = 4 * (c->values + (double)n_rows * op->width) + 4.0 * op->width;
}

const tn_op_info tn_op_pair = {"pair", rows, cost};
