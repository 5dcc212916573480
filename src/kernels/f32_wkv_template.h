/* kernels/f32_wkv_template.h - the recurrence of RWKV-7 over a vector type; part of f32_template.h. */

/* One row over n vectors of value channels from c on; `from` is the state before it. */
INLINE void wkv_row(const tn_wkv_f32_args *a, size_t t, int n, size_t c, const float *from) {
    const size_t at = t * a->stride, ld = a->state_stride;
    const float *q = a->q + at, *k = a->k + at, *w = a->w + at, *z = a->z + at, *b = a->b + at;
    vf even[4], odd[4], u[4], v[4];
    UNROLL for (int j = 0; j < n; j++) even[j] = odd[j] = f_set1(0.0f);
    for (size_t i = 0; i < a->d_key; i += 2) {
        const float *s0 = from + i * ld + c, *s1 = s0 + ld;
        vf z0 = f_set1(z[i]), z1 = f_set1(z[i + 1]);
        UNROLL for (int j = 0; j < n; j++) even[j] = f_fma(f_load(s0 + j * W), z0, even[j]);
        UNROLL for (int j = 0; j < n; j++) odd[j] = f_fma(f_load(s1 + j * W), z1, odd[j]);
    }
    UNROLL for (int j = 0; j < n; j++) {
        u[j] = f_add(even[j], odd[j]);
        v[j] = f_load(a->v + at + c + j * W);
        even[j] = odd[j] = f_set1(0.0f);
    }
    for (size_t i = 0; i < a->d_key; i += 2) {
        for (size_t o = 0; o < 2; o++) {
            const float *s = from + (i + o) * ld + c;
            float *to = a->state + (i + o) * ld + c;
            vf kept = f_set1(w[i + o]), back = f_set1(b[i + o]), key = f_set1(k[i + o]),
               asked = f_set1(q[i + o]), *sum = o ? odd : even;
            UNROLL for (int j = 0; j < n; j++) {
                vf x = f_fma(key, v[j], f_fma(back, u[j], f_mul(kept, f_load(s + j * W))));
                f_store(to + j * W, x);
                sum[j] = f_fma(x, asked, sum[j]);
            }
        }
    }
    UNROLL for (int j = 0; j < n; j++)
        f_store(a->out + t * a->out_stride + c + j * W, f_add(even[j], odd[j]));
}

/* All rows over n vectors of value channels. */
INLINE void wkv_rows(const tn_wkv_f32_args *a, int n, size_t c) {
    for (size_t t = 0; t < a->n_rows; t++) wkv_row(a, t, n, c, t ? a->state : a->from);
}

static void NAME(tn_wkv_f32)(const tn_wkv_f32_args *a) {
    assert(a->d_key % 2 == 0 && a->n_cols % TN_DELTA_COLS == 0);
    for (size_t c = 0, n; c < a->n_cols; c += n) {
        bool all = c + DELTA_ALL * W <= a->n_cols;
        n = (size_t)(all ? DELTA_ALL : DELTA_FEW) * W;
        if (all) wkv_rows(a, DELTA_ALL, c);
        else wkv_rows(a, DELTA_FEW, c);
    }
}
