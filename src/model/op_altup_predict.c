/* ALTUP_PREDICT: what X's streams are expected to be after the layer, before it has been computed. The first
 * stream scores all: s = tanh(router norm(x_0) / n_embd). Every stream becomes x_i + sum over j of c_ij x_j,
 * c_ij = sum over k of predict[i * n + j][k] s_k. Active, which the layer works on, is the first of them. */
#include "model/op.h"

#include <string.h>

void tn_altup_scores(const tn_op *op, const tn_frame *f, const float *x, float *normed,
                     float scores[TN_STREAMS]) {
    size_t n = (size_t)f->m->h.n_embd;
    const float *router = tn_model_vector(f->m, op->layer, TN_W_ALTUP_ROUTER);
    f->r->kern->rmsnorm_f32(x, tn_model_vector(f->m, op->layer, TN_W_ALTUP_NORM), f->r->h->norm_eps, normed,
                            n);
    for (size_t s = 0; s < TN_STREAMS; s++, router += n) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += (double)normed[i] * (double)router[i];
        scores[s] = tn_tanhf((float)(sum / (double)n));
    }
}

enum { BLOCK = 64 }; /* values of a stream at a time: what all become is computed from what all were */

/* n at most BLOCK values of every stream, e apart. c [TN_STREAMS][TN_STREAMS]. */
static void predict(float *x, size_t e, size_t n, const float *c) {
    float was[TN_STREAMS][BLOCK];
    for (size_t s = 0; s < TN_STREAMS; s++) memcpy(was[s], x + s * e, n * sizeof *x);
    for (size_t s = 0; s < TN_STREAMS; s++, c += TN_STREAMS) {
        float *out = x + s * e;
        for (size_t i = 0; i < n; i++)
            out[i] += (c[0] * was[0][i] + c[1] * was[1][i]) + (c[2] * was[2][i] + c[3] * was[3][i]);
    }
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    size_t e = (size_t)op->width;
    const float *w = tn_model_vector(f->m, op->layer, TN_W_ALTUP_PREDICT);
    for (int32_t r = row0; r < row1; r++) {
        float *x = tn_frame_row(f, op->in, op->in_width, r), *active = tn_frame_row(f, op->out, op->width, r);
        float scores[TN_STREAMS], c[TN_STREAMS * TN_STREAMS];
        tn_altup_scores(op, f, x, active, scores);
        for (size_t i = 0; i < TN_STREAMS * TN_STREAMS; i++) {
            c[i] = 0;
            for (size_t k = 0; k < TN_STREAMS; k++) c[i] += w[i * TN_STREAMS + k] * scores[k];
        }
        for (size_t i = 0; i < e; i += BLOCK) predict(x + i, e, e - i < BLOCK ? e - i : BLOCK, c);
        memcpy(active, x, e * sizeof *x);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    const double n = TN_STREAMS;
    c->values = (double)n_rows * (op->in_width + op->width);
    /* the norm, scores, sums over all streams; coefficients and the scores' tangents */
    c->macs = (double)n_rows * ((2 + n + n * n) * op->width + n * n * n + n);
    c->bytes = 12 * c->values + 4 * (n + 1) * op->width;
}

const tn_op_info tn_op_altup_predict = {"altup predict", rows, cost};
