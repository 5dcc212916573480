/* kernels/f32_delta_template.h - the recurrence of a gated delta net over a vector type; part of
 * f32_template.h. */

static void NAME(tn_taps_f32)(const float *const *x, const float *w, size_t ld_w, size_t n_taps, float *out,
                              size_t n) {
    size_t c = 0;
    for (; c + W <= n; c += W) {
        vf sum = f_set1(0.0f);
        for (size_t k = 0; k < n_taps; k++)
            if (x[k]) sum = f_fma(f_load(w + k * ld_w + c), f_load(x[k] + c), sum);
        f_store(out + c, sum);
    }
    for (; c < n; c++) {
        float sum = 0;
        for (size_t k = 0; k < n_taps; k++)
            if (x[k]) sum = fmaf(w[k * ld_w + c], x[k][c], sum);
        out[c] = sum;
    }
}

/* One row over n vectors of value channels. */
INLINE void delta_row(int n, bool mamba, float past, const float *q, const float *k, const float *v,
                      float decay, float rate, float *state, size_t ld, size_t d_key, float *out) {
    vf even[4], odd[4], r[4], d = f_set1(decay);
    UNROLL for (int j = 0; j < n; j++) even[j] = odd[j] = f_set1(0.0f);
    for (size_t i = 0; !mamba && i < d_key; i += 2) {
        const float *s0 = state + i * ld, *s1 = s0 + ld;
        vf k0 = f_set1(k[i]), k1 = f_set1(k[i + 1]);
        UNROLL for (int j = 0; j < n; j++) even[j] = f_fma(f_load(s0 + j * W), k0, even[j]);
        UNROLL for (int j = 0; j < n; j++) odd[j] = f_fma(f_load(s1 + j * W), k1, odd[j]);
    }
    vf minus = f_set1(-decay), b = f_set1(rate);
    UNROLL for (int j = 0; j < n; j++) {
        vf x = f_load(v + j * W);
        r[j] = f_mul(b, mamba ? x : f_fma(minus, f_add(even[j], odd[j]), x));
        even[j] = odd[j] = f_set1(0.0f);
    }
    for (size_t i = 0; i < d_key; i += 2) {
        float *s0 = state + i * ld, *s1 = s0 + ld;
        vf k0 = f_set1(k[i]), k1 = f_set1(k[i + 1]), q0 = f_set1(q[i]), q1 = f_set1(q[i + 1]);
        UNROLL for (int j = 0; j < n; j++) {
            vf x = f_fma(k0, r[j], f_mul(d, f_load(s0 + j * W)));
            f_store(s0 + j * W, x);
            even[j] = f_fma(x, q0, even[j]);
        }
        UNROLL for (int j = 0; j < n; j++) {
            vf x = f_fma(k1, r[j], f_mul(d, f_load(s1 + j * W)));
            f_store(s1 + j * W, x);
            odd[j] = f_fma(x, q1, odd[j]);
        }
    }
    vf by = f_set1(past);
    UNROLL for (int j = 0; j < n; j++) {
        vf sum = f_add(even[j], odd[j]);
        f_store(out + j * W, mamba ? f_fma(by, f_load(v + j * W), sum) : sum);
    }
}

/* A block of value channels at once, or as many as TN_DELTA_COLS channels are. */
static void NAME(tn_delta_f32)(const tn_delta_f32_args *a) {
    enum {
        ALL = TN_DELTA_BLOCK / W < 4 ? TN_DELTA_BLOCK / W : 4,
        FEW = TN_DELTA_COLS / W < 4 ? TN_DELTA_COLS / W : 4
    };
    assert(a->d_key % 2 == 0 && a->n_cols % TN_DELTA_COLS == 0);
    for (size_t c = 0; c < a->n_cols;) {
        bool all = c + ALL * W <= a->n_cols;
        for (size_t t = 0; t < a->n_rows; t++) {
            const float *q = a->q + t * a->stride, *k = a->k + t * a->stride, *v = a->v + t * a->stride + c;
            float decay = a->decay[t * a->gate_stride], rate = a->rate[t * a->gate_stride], *s = a->state + c,
                  *out = a->out + t * a->out_stride + c;
            if (a->mamba && all)
                delta_row(ALL, true, a->past, q, k, v, decay, rate, s, a->state_stride, a->d_key, out);
            else if (a->mamba)
                delta_row(FEW, true, a->past, q, k, v, decay, rate, s, a->state_stride, a->d_key, out);
            else if (all) delta_row(ALL, false, 0, q, k, v, decay, rate, s, a->state_stride, a->d_key, out);
            else delta_row(FEW, false, 0, q, k, v, decay, rate, s, a->state_stride, a->d_key, out);
        }
        c += (size_t)(all ? ALL : FEW) * W;
    }
}
