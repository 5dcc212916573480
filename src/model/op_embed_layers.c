/* EMBED_LAYERS: LAYERS[row] = the token's embeddings for every layer * scale. Extra rows have those of token 0, as Gemma 4
 * puts its padding in the place of pictures. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    for (int32_t i = row0; i < row1; i++) {
        float *x = tn_frame_row(f, op->out, op->width, i);
        const bool extra = f->r->extra && f->ids[i] >= f->r->extra->first;
        f->embed_layers(f->embed_user, extra ? 0 : f->ids[i], x);
        for (int32_t j = 0; j < op->width; j++) x[j] *= op->scale;
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = c->values;
    c->bytes = c->values + 4 * c->values;
}

const tn_op_info tn_op_embed_layers = {"embed layers", rows, cost};
