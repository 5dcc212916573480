/* EMBED: X[row] = embedding[ids[row]] * scale, and what adapters add; of several streams, the first. Extra rows stand as
 * they are. */
#include "model/lora.h"
#include "model/op.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    for (int32_t i = row0; i < row1; i++) {
        float *x = tn_frame_row(f, op->out, op->width, i);
        const tn_extra_rows *extra = f->r->extra;
        if (extra && f->ids[i] >= extra->first) {
            memcpy(x, tn_extra_row(extra, f->ids[i]),
                   (size_t)op->in_width * sizeof *x); /* the session has checked that it is there */
            continue;
        }
        f->embed(f->embed_user, f->ids[i], x);
        if (f->r->lora) tn_lora_embed(f->r->lora, f->r->kern, f->ids[i], x, (size_t)op->in_width);
        if (op->scale == 1.0f) continue;
        for (int32_t j = 0; j < op->in_width; j++) x[j] *= op->scale;
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = op->scale == 1.0f ? 0 : (double)n_rows * op->in_width;
    c->bytes = c->values + 4 * c->values;
}

const tn_op_info tn_op_embed = {"embed", rows, cost};
