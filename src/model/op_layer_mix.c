/* LAYER_MIX: gate = act(gate) * (norm(in * in_scale) + the layer's part of LAYERS) / sqrt(2). */
#include "model/op.h"

static const float HALF_ROOT = 0.70710678f;

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_kernels *kern = f->r->kern;
    const float *w = tn_model_vector(f->m, op->layer, op->weight);
    size_t n = (size_t)op->mix.n;
    for (int32_t r = row0; r < row1; r++) {
        float *in = tn_frame_row(f, TN_BUF_LAYER_IN, op->mix.n, r),
              *gate = tn_frame_row(f, op->out, op->width, r);
        const float *own = tn_frame_row(f, TN_BUF_LAYERS, op->mix.n_all, r) + op->mix.first;
        for (size_t i = 0; i < n; i++) in[i] *= op->mix.in_scale;
        kern->rmsnorm_f32(in, w, f->r->h->norm_eps, in, n);
        for (size_t i = 0; i < n; i++) in[i] = (in[i] + own[i]) * HALF_ROOT;
        kern->glu_f32(op->mix.act, gate, in, gate, n);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 6 * c->values; /* scale, squares, weights, half, activation, product */
    c->bytes = 20 * c->values + 4.0 * op->width;
}

const tn_op_info tn_op_layer_mix = {"layer mix", rows, cost};
