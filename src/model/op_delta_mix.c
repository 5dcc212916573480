/* DELTA_MIX: what a gated delta net reads. q, k and v of all its heads pass through a short convolution
 * over the row and those before it, each channel by itself, and SiLU; queries and keys are then scaled to
 * length 1, queries by 1 / sqrt(d_key) besides. Of Kimi's delta attention they become what wkv_f32.h reads: k times its
 * rate is put in and taken back along k and its decays. Mamba 2 has a bias in front of SiLU, and no lengths. */
#include "model/op.h"

#include <math.h>

static const tn_buffer parts[3] = {TN_BUF_DELTA_Q, TN_BUF_DELTA_K, TN_BUF_DELTA_V};

static void convolve(const tn_op *op, const tn_frame *f, int32_t i, float *out) {
    const tn_rows *r = f->r;
    const tn_delta_net *n = &op->delta.net;
    static const tn_role own[3] = {TN_W_KDA_CONV_Q, TN_W_KDA_CONV_K, TN_W_KDA_CONV_V};
    const float *w = n->kda ? NULL : tn_model_vector(f->m, op->layer, TN_W_DELTA_CONV),
                *bias = n->mamba ? tn_model_vector(f->m, op->layer, TN_W_MAMBA_CONV_B) : NULL;
    int32_t len = op->delta.len, channels = tn_delta_channels(n),
            base = r->tree_mask ? r->tree_base : r->pos[0];
    const float *tail = tn_delta_of(r->delta, op->layer)->tail[tn_delta_at(r->delta, base)];
    int32_t at[TN_MAX_CONV], c0 = 0;
    bool in_frame[TN_MAX_CONV];
    for (int32_t k = 0; k < len; k++) at[k] = tn_rows_before(r, i, len - 1 - k, &in_frame[k]);
    for (int p = 0; p < 3; p++) {
        int32_t width = p < 2 ? n->n_key_heads * n->d_key : n->n_heads * n->d_value;
        const float *x[TN_MAX_CONV];
        for (int32_t k = 0; k < len; k++) {
            x[k] = at[k] < 0     ? NULL
                   : in_frame[k] ? tn_frame_row(f, parts[p], width, at[k])
                                 : tail + (size_t)(len - 1 - (base - at[k])) * (size_t)channels + c0;
        }
        if (n->kda) /* values come after what is made of keys */
            r->kern->taps_f32(x, tn_model_vector(f->m, op->layer, own[p]), (size_t)width, (size_t)len,
                              out + (p < 2 ? p : TN_WKV_KEYS) * width, (size_t)width);
        else r->kern->taps_f32(x, w + c0, (size_t)channels, (size_t)len, out + c0, (size_t)width);
        c0 += width;
    }
    for (int32_t c = 0; bias && c < channels; c++) out[c] += bias[c];
    if (!n->kda) r->kern->act_f32(TN_ACT_SILU, out, (size_t)channels);
}

/* x / sqrt(|x|^2 + 1e-6) * scale, of every head. */
static void to_length(const tn_kernels *kern, float *x, int32_t n_heads, int32_t d, float scale) {
    float w[TN_MAX_DELTA];
    for (int32_t i = 0; i < d; i++) w[i] = scale / sqrtf((float)d);
    for (int32_t h = 0; h < n_heads; h++)
        kern->rmsnorm_f32(x + h * d, w, 1e-6f / (float)d, x + h * d, (size_t)d);
}

/* q, k and v lie in their places of `out`. */
static void by_key(const tn_op *op, const tn_frame *f, int32_t i, float *out) {
    const tn_delta_net *net = &op->delta.net;
    const int32_t d = net->d_key, n = net->n_heads * d;
    const tn_kernels *kern = f->r->kern;
    const float *decay = tn_frame_row(f, TN_BUF_DELTA_DECAY, n, i),
                *rate = tn_frame_row(f, TN_BUF_DELTA_RATE, net->n_heads, i);
    float *k = out + n, *w = k + n, *z = w + n, *b = z + n;
    kern->act_f32(TN_ACT_SILU, out, 2 * (size_t)n);
    kern->act_f32(TN_ACT_SILU, out + TN_WKV_KEYS * n, (size_t)n);
    to_length(kern, out, net->n_heads, d, 1 / sqrtf((float)d));
    to_length(kern, k, net->n_heads, d, 1);
    for (int32_t c = 0; c < n; c++) {
        w[c] = decay[c];
        z[c] = -decay[c] * k[c];
        b[c] = k[c] = rate[c / d] * k[c];
    }
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_delta_net *n = &op->delta.net;
    int32_t keys = n->n_key_heads * n->d_key;
    for (int32_t i = row0; i < row1; i++) {
        float *out = tn_frame_row(f, op->out, op->width, i);
        convolve(op, f, i, out);
        if (n->kda) by_key(op, f, i, out);
        if (n->mamba || n->kda) continue;
        to_length(f->r->kern, out, n->n_key_heads, n->d_key, 1 / sqrtf((float)n->d_key));
        to_length(f->r->kern, out + keys, n->n_key_heads, n->d_key, 1);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double n = op->delta.net.kda ? tn_delta_channels(&op->delta.net) : op->width,
           keys = op->delta.net.mamba ? 0 : 2.0 * op->delta.net.n_key_heads * op->delta.net.d_key;
    c->macs = n_rows * (n * (op->delta.len + 1) + (op->delta.net.kda ? 3 : 2) * keys);
    c->values = (double)n_rows * op->width;
    c->bytes = 4 * (n_rows * n + n * op->delta.len) + 8 * c->values;
}

const tn_op_info tn_op_delta_mix = {"delta mix", rows, cost};
