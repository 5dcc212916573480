/* WKV_MIX: what the memory of RWKV-7 reads (wkv_f32.h), of queries r, keys k, values v and what LOW has made:
 *   w = exp(-0.606531 sigmoid(decay))     decays, of every key
 *   a = sigmoid(rate)
 *   v = v + (the first layer's v - v) sigmoid(share)     but in the first layer
 *   d = k KK / max(|k KK|, 1e-12), head by head
 *   k = k + k KA (a - 1)
 * and out = r, k, w, -d, d a, v. The first layer leaves its v for the others. */
#include "model/op.h"

#include <math.h>
#include <string.h>

/* Of one head; d of its keys, as many values. */
static void head(const float *kk, const float *ka, int32_t d, const float *k_in, const float *rate, float *k,
                 float *z, float *b) {
    float sum = 0;
    for (int32_t c = 0; c < d; c++) {
        b[c] = k_in[c] * kk[c];
        sum += b[c] * b[c];
    }
    const float length = sqrtf(sum), by = 1 / (length > 1e-12f ? length : 1e-12f);
    for (int32_t c = 0; c < d; c++) {
        const float direction = b[c] * by;
        k[c] = k_in[c] + k_in[c] * ka[c] * (rate[c] - 1);
        z[c] = -direction;
        b[c] = direction * rate[c];
    }
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_delta_net *net = &op->delta.net;
    const int32_t d = net->d_key, n = net->n_heads * d;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const tn_kernels *kern = f->r->kern;
    const float *kk = tn_model_vector(f->m, op->layer, TN_W_WKV_KK),
                *ka = tn_model_vector(f->m, op->layer, TN_W_WKV_KA);
    for (int32_t i = row0; i < row1; i++) {
        const float *k_in = tn_frame_row(f, TN_BUF_DELTA_K, n, i);
        float *q = tn_frame_row(f, op->out, op->width, i), *k = q + n, *w = k + n, *z = w + n, *b = z + n,
              *v = b + n, *first = tn_frame_row(f, TN_BUF_V_FIRST, n, i),
              *rate = tn_frame_row(f, TN_BUF_DELTA_RATE, n, i);
        memcpy(q, tn_frame_row(f, TN_BUF_DELTA_Q, n, i), n_bytes);
        memcpy(w, tn_frame_row(f, TN_BUF_DELTA_DECAY, n, i), n_bytes);
        memcpy(v, tn_frame_row(f, TN_BUF_DELTA_V, n, i), n_bytes);
        kern->act_f32(TN_ACT_SIGMOID, w, (size_t)n);
        for (int32_t c = 0; c < n; c++) w[c] = tn_expf(-0.606531f * w[c]);
        kern->act_f32(TN_ACT_SIGMOID, rate, (size_t)n);
        for (int32_t c = 0; c < n; c += d) head(kk + c, ka + c, d, k_in + c, rate + c, k + c, z + c, b + c);
        if (!op->layer) {
            memcpy(first, v, n_bytes);
            continue;
        }
        float *share = tn_frame_row(f, TN_BUF_V_SHARE, n, i);
        kern->act_f32(TN_ACT_SIGMOID, share, (size_t)n);
        for (int32_t c = 0; c < n; c++) v[c] += (first[c] - v[c]) * share[c];
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    const double n = (double)op->delta.net.n_heads * op->delta.net.d_key;
    c->macs = n_rows * n * (op->layer ? 11 : 9);
    c->values = (double)n_rows * op->width;
    c->bytes = n_rows * n * 4 * (op->layer ? 7 : 5) + 4 * c->values + 8 * n;
}

const tn_op_info tn_op_wkv_mix = {"wkv mix", rows, cost};
