#include "kernels/wkv_f32.h"

#include <assert.h>
#include <math.h>

void tn_wkv_f32_ref(const tn_wkv_f32_args *a) {
    assert(a->d_key % 2 == 0);
    for (size_t t = 0; t < a->n_rows; t++) {
        const size_t at = t * a->stride;
        const float *before = t ? a->state : a->from;
        for (size_t c = 0; c < a->n_cols; c++) {
            float u[2] = {0, 0}, out[2] = {0, 0};
            for (size_t i = 0; i < a->d_key; i++)
                u[i % 2] = fmaf(before[i * a->state_stride + c], a->z[at + i], u[i % 2]);
            const float found = u[0] + u[1], v = a->v[at + c];
            for (size_t i = 0; i < a->d_key; i++) {
                const float kept = a->w[at + i] * before[i * a->state_stride + c],
                            x = fmaf(a->k[at + i], v, fmaf(a->b[at + i], found, kept));
                a->state[i * a->state_stride + c] = x;
                out[i % 2] = fmaf(x, a->q[at + i], out[i % 2]);
            }
            a->out[t * a->out_stride + c] = out[0] + out[1];
        }
    }
}
