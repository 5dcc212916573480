/* Scalar reference of attn_sparse.h. */
#include "kernels/attn_sparse.h"

#include "kernels/elem_f32.h"

#include <math.h>

static float fold16(float lane[16]) {
    for (int w = 8; w; w /= 2) {
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    }
    return lane[0];
}

static void attend_row(const tn_attn_sparse_args *a, const float *q, const uint32_t *idx, size_t n,
                       float *out) {
    float *s = a->scratch, max = -INFINITY, sum[16] = {0};
    for (size_t j = 0; j < n; j++) {
        const float *k = a->k_panels + idx[j] / TN_KV_PANEL * a->d_head * TN_KV_PANEL + idx[j] % TN_KV_PANEL;
        float lane[16] = {0};
        for (size_t d = 0; d < a->d_head; d++) lane[d % 16] = fmaf(q[d], k[d * TN_KV_PANEL], lane[d % 16]);
        s[j] = fold16(lane) * a->scale;
        if (a->soft_cap > 0) s[j] = a->soft_cap * tn_tanhf(s[j] / a->soft_cap);
        if (s[j] > max) max = s[j];
    }
    for (size_t j = 0; j < n; j++) {
        s[j] = tn_expf(s[j] - max);
        sum[j % 16] += s[j];
    }
    float total = fold16(sum);
    for (size_t d = 0; d < a->d_head; d++) {
        float acc[2] = {0};
        for (size_t j = 0; j < n; j++) acc[j % 2] = fmaf(s[j], a->v[idx[j] * a->d_head + d], acc[j % 2]);
        out[d] = (acc[0] + acc[1]) / total;
    }
}

void tn_attn_sparse_ref(const tn_attn_sparse_args *a) {
    for (size_t r = 0; r < a->n_rows * a->n_group; r++) {
        size_t i = r % a->n_rows, g = r / a->n_rows;
        attend_row(a, a->q + i * a->q_stride + g * a->d_head, a->idx + r * a->idx_stride,
                   a->cuts[r * a->cut_stride + a->n_blocks], a->out + i * a->out_stride + g * a->d_head);
    }
}
