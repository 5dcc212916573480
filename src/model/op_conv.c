/* CONV: the row of a convolution is three vectors b, c and, after CONV_GATE, b x. out = c * sum over k of
 * w[k] * (b x) of the row len-1-k positions before, oldest first, zeros in front of the text. A row of a
 * draft tree looks back along its own branch. Every row remembers its own b x: no other of its forward
 * reads that from the state. */
#include "model/conv.h"
#include "model/op.h"

#include <string.h>

/* What lies `pos` tokens from the beginning, in front of the rows; base: the position of the first row. */
static const float *remembered(const tn_op *op, const tn_conv *c, int32_t base, int32_t pos) {
    return base == c->n_tok ? tn_conv_tail(c, op->layer, pos) : tn_conv_at(c, op->layer, pos);
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_rows *r = f->r;
    int32_t n = op->conv.n_embd, len = op->conv.len, base = r->tree_mask ? r->tree_base : r->pos[0];
    const float *w = tn_model_vector(f->m, op->layer, TN_W_CONV);
    for (int32_t i = row0; i < row1; i++) {
        const float *past[TN_MAX_CONV], *own = tn_frame_row(f, op->in, 3 * n, i);
        for (int32_t k = 0; k < len; k++) {
            bool in_frame;
            int32_t at = tn_rows_before(r, i, len - 1 - k, &in_frame);
            past[k] = at < 0     ? NULL
                      : in_frame ? tn_frame_row(f, op->in, 3 * n, at) + 2 * n
                                 : remembered(op, r->conv, base, at);
        }
        float *out = tn_frame_row(f, op->out, n, i);
        r->kern->taps_f32(past, w, (size_t)n, (size_t)len, out, (size_t)n);
        for (int32_t c = 0; c < n; c++) out[c] *= own[n + c];
        if (i >= r->n_rows - TN_CONV_KEPT) /* what the text still needs stays */
            memcpy(tn_conv_at(r->conv, op->layer, r->slot[i]), own + 2 * n, (size_t)n * sizeof *own);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double n = op->conv.n_embd;
    c->macs = n_rows * n * (op->conv.len + 1);
    c->values = 2 * n_rows * n; /* and the inputs that it remembers */
    c->bytes = 4 * (4 * n_rows * n + n * op->conv.len) + 4 * c->values;
}

const tn_op_info tn_op_conv = {"convolution", rows, cost};
