/* WKV_NORM: what a layer of RWKV-7 gives: the mean of each head is taken out of what its memory gives, its size made 1,
 * with weights and a bias; the row's own share, v times the sum of r k RK over a head, is added; the gate multiplies.
 * In place. Some have no norm, and some no gate. */
#include "model/op.h"

/* 1e-5 for each of a head's 64 values, as all published models have it. */
static const float eps = 64e-5f;

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_delta_net *net = &op->delta.net;
    const int32_t d = net->d_key, n = net->n_heads * d, mixed = tn_delta_mixed(net);
    const float *weight = net->no_norm ? NULL : tn_model_vector(f->m, op->layer, op->weight),
                *bias = net->no_norm ? NULL : tn_model_vector(f->m, op->layer, TN_W_WKV_NORM_B),
                *own = tn_model_vector(f->m, op->layer, TN_W_WKV_RK);
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        const float *r = tn_frame_row(f, TN_BUF_DELTA_MIXED, mixed, i), *k = r + n, *v = r + TN_WKV_KEYS * n;
        for (int32_t c = 0; c < n; c += d) {
            float sum = 0;
            for (int32_t j = c; j < c + d; j++) sum += r[j] * k[j] * own[j];
            if (weight) f->r->kern->layernorm_f32(out + c, weight + c, bias + c, eps, out + c, (size_t)d);
            for (int32_t j = c; j < c + d; j++) out[j] += sum * v[j];
        }
        if (!op->delta.gated) continue;
        const float *gate = tn_frame_row(f, TN_BUF_DELTA_GATE, op->width, i);
        for (int32_t c = 0; c < n; c++) out[c] *= gate[c];
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = (op->delta.net.no_norm ? 3 : 6) * c->values + op->delta.gated * c->values;
    c->bytes = (op->delta.gated ? 24 : 20) * c->values + 12.0 * op->width;
}

const tn_op_info tn_op_wkv_norm = {"wkv norm", rows, cost};
