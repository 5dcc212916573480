/* CONV: the input projection of a row is three vectors b, c, x. out = c * sum over k of w[k] * (b x) of the row len-1-k
 * positions before, oldest first, zeros in front of the text. A row of a draft tree looks back along its own branch. */
#include "model/conv.h"
#include "model/op.h"

#include <assert.h>

enum { SPAN = 256 }; /* channels at a time */

/* past[k]: what lies len-1-k positions before, b x as such or, in the frame, b and x still apart; NULL: zeros. */
static void gated(const tn_kernels *kern, const float *w, int32_t n, int32_t len, const float *const *past,
                  const bool *in_frame, const float *own, float *out) {
    float product[TN_MAX_CONV][SPAN];
    for (int32_t c0 = 0; c0 < n; c0 += SPAN) {
        int32_t width = n - c0 < SPAN ? n - c0 : SPAN;
        const float *x[TN_MAX_CONV];
        for (int32_t k = 0; k < len; k++) {
            x[k] = past[k] ? past[k] + c0 : NULL;
            if (!past[k] || !in_frame[k]) continue;
            for (int32_t c = 0; c < width; c++) product[k][c] = x[k][c] * x[k][2 * n + c];
            x[k] = product[k];
        }
        kern->taps_f32(x, w + c0, (size_t)n, (size_t)len, out + c0, (size_t)width);
        for (int32_t c = 0; c < width; c++) out[c0 + c] = own[n + c0 + c] * out[c0 + c];
    }
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_rows *r = f->r;
    int32_t n = op->conv.n_embd, len = op->conv.len;
    const float *w = tn_model_vector(f->m, op->layer, TN_W_CONV);
    for (int32_t i = row0; i < row1; i++) {
        const float *past[TN_MAX_CONV], *own = tn_frame_row(f, op->in, 3 * n, i);
        bool in_frame[TN_MAX_CONV];
        for (int32_t k = 0; k < len; k++) {
            int32_t at = tn_rows_before(r, i, len - 1 - k, &in_frame[k]);
            past[k] = at < 0        ? NULL
                      : in_frame[k] ? tn_frame_row(f, op->in, 3 * n, at)
                                    : tn_conv_at(r->conv, op->layer, at);
        }
        gated(r->kern, w, n, len, past, in_frame, own, tn_frame_row(f, op->out, n, i));
    }
}

void tn_conv_remember(const tn_op *op, const tn_frame *f) {
    const tn_rows *r = f->r;
    int32_t n = op->conv.n_embd;
    assert(r->n_rows <= 256 && r->n_rows + TN_MAX_CONV < TN_CONV_RING); /* what the text still needs stays */
    for (int32_t i = 0; i < r->n_rows; i++) {
        const float *in = tn_frame_row(f, op->in, 3 * n, i);
        float *to = tn_conv_at(r->conv, op->layer, r->slot[i]);
        for (int32_t c = 0; c < n; c++) to[c] = in[c] * in[2 * n + c];
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double n = op->conv.n_embd;
    c->macs = n_rows * n * (op->conv.len + 2);
    c->values = 2 * n_rows * n; /* and the inputs that it remembers */
    c->bytes = 4 * (4 * n_rows * n + n * op->conv.len) + 4 * c->values;
}

const tn_op_info tn_op_conv = {"convolution", rows, cost};
