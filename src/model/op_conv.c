/* CONV: the input projection of a row is three vectors b, c, x. out = c * sum over k of w[k] * (b x) of the row len-1-k
 * positions before, oldest first, zeros in front of the text. A row of a draft tree looks back along its own branch. */
#include "model/conv.h"
#include "model/op.h"

#include <assert.h>
#include <math.h>

/* Row of this frame, or slot of the ring, that is `back` positions before row i: *in_frame tells which. -1: in front of
 * the text. */
static int32_t before(const tn_rows *r, int32_t i, int32_t back, bool *in_frame) {
    int32_t base = r->tree_mask ? r->tree_base : r->pos[0];
    *in_frame = true;
    if (!back) return i;
    if (!r->tree_mask) {
        if (back <= i) return i - back;
        *in_frame = false;
        return base + i - back;
    }
    uint64_t mask = r->tree_mask[(size_t)i * r->n_tree_words];
    for (int32_t j = i; j >= 0; j--) {
        if (!(mask >> j & 1)) continue;
        if (!back) return j;
        back--;
    }
    *in_frame = false;
    return base - 1 - back;
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
            int32_t at = before(r, i, len - 1 - k, &in_frame[k]);
            past[k] = at < 0        ? NULL
                      : in_frame[k] ? tn_frame_row(f, op->in, 3 * n, at)
                                    : tn_conv_at(r->conv, op->layer, at);
        }
        float *out = tn_frame_row(f, op->out, n, i);
        for (int32_t c = 0; c < n; c++) {
            float sum = 0;
            for (int32_t k = 0; k < len; k++) {
                if (!past[k]) continue;
                float v = in_frame[k] ? past[k][c] * past[k][2 * n + c] : past[k][c];
                sum = fmaf(w[(size_t)c * (size_t)len + (size_t)k], v, sum);
            }
            out[c] = own[n + c] * sum;
        }
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
