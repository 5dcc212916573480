/* NORM: out = in / rms(in) * weight (RMS), or (in - mean) / deviation * weight + bias (layer norm). */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const float *w = tn_model_vector(f->m, op->layer, op->weight),
                *b = op->bias == TN_W_N_ROLES ? NULL : tn_model_vector(f->m, op->layer, op->bias);
    if (op->in == TN_BUF_Q_A || op->in == TN_BUF_ATT || op->in == TN_BUF_UP) { /* not as wide as the model */
        /* the epsilon of latents is the published layer's own */
        const float eps = op->in == TN_BUF_Q_A ? 1e-6f : f->r->h->norm_eps;
        for (int32_t r = row0; r < row1; r++) {
            float *x = tn_frame_row(f, op->in, op->width, r);
            f->r->kern->rmsnorm_f32(x, w, eps, x, (size_t)op->width);
        }
        return;
    }
    for (int32_t r = row0; r < row1; r++) /* of several streams, the first is read */
        tn_rows_norm(f->r, w, b, tn_frame_row(f, op->in, op->in_width, r),
                     tn_frame_row(f, op->out, op->width, r), 0, 1);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 2 * c->values; /* squares, weights */
    c->bytes = 8 * c->values + 4.0 * op->width;
}

const tn_op_info tn_op_norm = {"norm", rows, cost};
