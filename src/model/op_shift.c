/* SHIFT: out = the row before minus this one, of what a norm leaves; zeros stand in front of the text. A row of a draft
 * tree looks back along its own branch. Every row remembers itself, as those of a convolution do (op_conv.c), of which
 * this is one of two taps: a layer's two shifts keep their rows side by side. */
#include "model/conv.h"
#include "model/op.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_rows *r = f->r;
    const int32_t n = op->width, base = r->tree_mask ? r->tree_base : r->pos[0];
    for (int32_t i = row0; i < row1; i++) {
        const float *own = tn_frame_row(f, op->in, n, i), *before = NULL;
        float *out = tn_frame_row(f, op->out, n, i);
        bool in_frame;
        const int32_t at = tn_rows_before(r, i, 1, &in_frame);
        if (in_frame) before = tn_frame_row(f, op->in, n, at);
        else if (at >= 0)
            before = (base == r->conv->n_tok ? tn_conv_tail(r->conv, op->layer, at)
                                             : tn_conv_at(r->conv, op->layer, at)) +
                     op->shift_first;
        for (int32_t c = 0; c < n; c++) out[c] = (before ? before[c] : 0) - own[c];
        if (i >= r->n_rows - TN_CONV_KEPT)
            memcpy(tn_conv_at(r->conv, op->layer, r->slot[i]) + op->shift_first, own,
                   (size_t)n * sizeof *own);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->macs = (double)n_rows * op->width;
    c->values = 2.0 * n_rows * op->width; /* and what it remembers */
    c->bytes = 8.0 * n_rows * op->width + 4 * c->values;
}

const tn_op_info tn_op_shift = {"shift", rows, cost};
