/* ALTUP_CORRECT: in = what the layer made of the first stream; what it differs by from the expected one tells of
 * all: x_i += (1 + sum over k of correct[i][k] s_k) (in - x_0), s the scores by `in`. Then in = x_0 * scale,
 * which reads the layer's embedding. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_kernels *kern = f->r->kern;
    size_t e = (size_t)op->in_width;
    const float *w = tn_model_vector(f->m, op->layer, TN_W_ALTUP_CORRECT),
                *scale = tn_model_vector(f->m, op->layer, TN_W_ALTUP_SCALE);
    for (int32_t r = row0; r < row1; r++) {
        float *x = tn_frame_row(f, op->out, op->width, r), *in = tn_frame_row(f, op->in, op->in_width, r);
        float scores[TN_STREAMS];
        tn_altup_scores(op, f, in, tn_frame_row(f, TN_BUF_NORMED, op->in_width, r), scores);
        kern->add_f32(in, x, -1, e);
        for (size_t s = 0; s < TN_STREAMS; s++) {
            float by = 1;
            for (size_t k = 0; k < TN_STREAMS; k++) by += w[s * TN_STREAMS + k] * scores[k];
            kern->add_f32(x + s * e, in, by, e);
        }
        for (size_t i = 0; i < e; i++) in[i] = x[i] * scale[i];
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    const double n = TN_STREAMS;
    c->values = (double)n_rows * (op->width + op->in_width);
    /* the norm, scores, what differs, streams, scale; coefficients and the scores' tangents */
    c->macs = (double)n_rows * ((2 + n + 1 + n + 1) * op->in_width + n * n + n);
    c->bytes = 12 * c->values + 4 * (n + 2) * op->in_width;
}

const tn_op_info tn_op_altup_correct = {"altup correct", rows, cost};
