#include "kernels/delta_f32.h"

#include <assert.h>
#include <math.h>

void tn_taps_f32_ref(const float *const *x, const float *w, size_t ld_w, size_t n_taps, float *out,
                     size_t n) {
    for (size_t c = 0; c < n; c++) {
        float sum = 0;
        for (size_t k = 0; k < n_taps; k++)
            if (x[k]) sum = fmaf(w[k * ld_w + c], x[k][c], sum);
        out[c] = sum;
    }
}

void tn_delta_f32_ref(const tn_delta_f32_args *a) {
    assert(a->d_key % 2 == 0 && a->n_cols % TN_DELTA_COLS == 0);
    for (size_t t = 0; t < a->n_rows; t++) {
        const float *q = a->q + t * a->stride, *k = a->k + t * a->stride, *v = a->v + t * a->stride;
        float d = a->decay[t * a->gate_stride], b = a->rate[t * a->gate_stride];
        const float *before = t ? a->state : a->from;
        for (size_t c = 0; c < a->n_cols; c++) {
            float known[2] = {0, 0}, out[2] = {0, 0}, *s = a->state + c;
            const float *was = before + c;
            for (size_t i = 0; !a->mamba && i < a->d_key; i++)
                known[i % 2] = fmaf(was[i * a->state_stride], k[i], known[i % 2]);
            float r = b * (a->mamba ? v[c] : fmaf(-d, known[0] + known[1], v[c]));
            for (size_t i = 0; i < a->d_key; i++) {
                float *x = &s[i * a->state_stride];
                *x = fmaf(k[i], r, d * was[i * a->state_stride]);
                out[i % 2] = fmaf(*x, q[i], out[i % 2]);
            }
            float sum = out[0] + out[1];
            a->out[t * a->out_stride + c] = a->mamba ? fmaf(a->past, v[c], sum) : sum;
        }
    }
}
