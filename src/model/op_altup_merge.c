/* ALTUP_MERGE: active = the first stream of X + in, for stream 1; active += in for the others: `in` is what linears
 * made of a stream, scaled so that it is as large as the first. After the last, the first stream becomes the mean
 * of all. */
#include "model/op.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    size_t e = (size_t)op->width;
    for (int32_t r = row0; r < row1; r++) {
        float *active = tn_frame_row(f, op->out, op->width, r),
              *x = tn_frame_row(f, TN_BUF_X, op->width * TN_STREAMS, r);
        const float *in = tn_frame_row(f, op->in, op->in_width, r);
        if (op->stream == 1) memcpy(active, x, e * sizeof *x);
        f->r->kern->add_f32(active, in, tn_stream_ratio(x, in, op->width), e);
        for (size_t i = 0; op->stream == TN_STREAMS - 1 && i < e; i++) x[i] = active[i] / TN_STREAMS;
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = (op->stream == TN_STREAMS - 1 ? 4 : 3) * c->values; /* squares of two, sum; the mean */
    c->bytes = 16 * c->values;
}

const tn_op_info tn_op_altup_merge = {"altup merge", rows, cost};
