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

/* The variant of delta_row, known at compile time. */
typedef struct delta_form {
    int n; /* vectors of value channels */
    bool mamba, far;
} delta_form;

/* One row's state: where it lies, where the new one goes, and how many floats ahead to fetch. */
typedef struct delta_state {
    const float *from;
    float *to;
    size_t ld, d_key, ahead;
} delta_state;

INLINE void delta_ahead(delta_form form, const float *from, size_t ahead) {
    if (!form.far) return;
    UNROLL for (int j = 0; j < form.n; j += 16 / W) __builtin_prefetch(from + ahead + j * W, 0, 2);
}

INLINE void delta_put(delta_form form, float *to, vf x) {
    if (form.far) f_stream(to, x);
    else f_store(to, x);
}

INLINE void delta_row(delta_form form, const tn_delta_f32_args *a, size_t t, size_t c, const delta_state *s) {
    const int n = form.n;
    const float *q = a->q + t * a->stride, *k = a->k + t * a->stride, *v = a->v + t * a->stride + c;
    float decay = a->decay[t * a->gate_stride], *out = a->out + t * a->out_stride + c;
    vf even[4], odd[4], r[4], d = f_set1(decay);
    UNROLL for (int j = 0; j < n; j++) even[j] = odd[j] = f_set1(0.0f);
    for (size_t i = 0; !form.mamba && i < s->d_key; i += 2) {
        const float *s0 = s->from + i * s->ld, *s1 = s0 + s->ld;
        vf k0 = f_set1(k[i]), k1 = f_set1(k[i + 1]);
        delta_ahead(form, s0, s->ahead);
        delta_ahead(form, s1, s->ahead);
        UNROLL for (int j = 0; j < n; j++) even[j] = f_fma(f_load(s0 + j * W), k0, even[j]);
        UNROLL for (int j = 0; j < n; j++) odd[j] = f_fma(f_load(s1 + j * W), k1, odd[j]);
    }
    vf minus = f_set1(-decay), b = f_set1(a->rate[t * a->gate_stride]);
    UNROLL for (int j = 0; j < n; j++) {
        vf x = f_load(v + j * W);
        r[j] = f_mul(b, form.mamba ? x : f_fma(minus, f_add(even[j], odd[j]), x));
        even[j] = odd[j] = f_set1(0.0f);
    }
    for (size_t i = 0; i < s->d_key; i += 2) {
        const float *s0 = s->from + i * s->ld, *s1 = s0 + s->ld;
        float *to0 = s->to + i * s->ld, *to1 = to0 + s->ld;
        vf k0 = f_set1(k[i]), k1 = f_set1(k[i + 1]), q0 = f_set1(q[i]), q1 = f_set1(q[i + 1]);
        if (form.mamba) delta_ahead(form, s0, s->ahead), delta_ahead(form, s1, s->ahead);
        UNROLL for (int j = 0; j < n; j++) {
            vf x = f_fma(k0, r[j], f_mul(d, f_load(s0 + j * W)));
            delta_put(form, to0 + j * W, x);
            even[j] = f_fma(x, q0, even[j]);
        }
        UNROLL for (int j = 0; j < n; j++) {
            vf x = f_fma(k1, r[j], f_mul(d, f_load(s1 + j * W)));
            delta_put(form, to1 + j * W, x);
            odd[j] = f_fma(x, q1, odd[j]);
        }
    }
    vf by = f_set1(a->past);
    UNROLL for (int j = 0; j < n; j++) {
        vf sum = f_add(even[j], odd[j]);
        f_store(out + j * W, form.mamba ? f_fma(by, f_load(v + j * W), sum) : sum);
    }
}

enum {
    DELTA_ALL = TN_DELTA_BLOCK / W < 4 ? TN_DELTA_BLOCK / W : 4,
    DELTA_FEW = TN_DELTA_COLS / W < 4 ? TN_DELTA_COLS / W : 4
};

#ifndef TERN_MINIMAL /* this would be one more copy of every variant */
/* One row around the caches: whole lines, so that no line is read before it is overwritten. */
INLINE void delta_far(const tn_delta_f32_args *a, bool mamba) {
    for (size_t c = 0; c < a->n_cols; c += DELTA_ALL * W) {
        size_t ahead = c + 2 * DELTA_ALL * W <= a->n_cols ? DELTA_ALL * W : 0;
        delta_state s = {a->from + c, a->state + c, a->state_stride, a->d_key, ahead};
        delta_row((delta_form){DELTA_ALL, mamba, true}, a, 0, c, &s);
    }
    f_fence();
}
#endif

/* All rows over n vectors of value channels from c on. */
INLINE void delta_near(const tn_delta_f32_args *a, int n, bool mamba, size_t c) {
    delta_state s = {a->from + c, a->state + c, a->state_stride, a->d_key, 0};
    for (size_t t = 0; t < a->n_rows; t++, s.from = s.to)
        delta_row((delta_form){n, mamba, false}, a, t, c, &s);
}

/* Handles a block of value channels, of at most TN_DELTA_COLS. */
static void NAME(tn_delta_f32)(const tn_delta_f32_args *a) {
    assert(a->d_key % 2 == 0 && a->n_cols % TN_DELTA_COLS == 0);
#ifndef TERN_MINIMAL
    bool lines =
        (uintptr_t)a->state % 64 == 0 && a->state_stride % 16 == 0 && a->n_cols % TN_DELTA_BLOCK == 0;
    if (a->far && a->n_rows == 1 && a->from != a->state && lines) {
        if (a->mamba) delta_far(a, true);
        else delta_far(a, false);
        return;
    }
#endif
    for (size_t c = 0, n; c < a->n_cols; c += n) {
        bool all = c + DELTA_ALL * W <= a->n_cols;
        n = (size_t)(all ? DELTA_ALL : DELTA_FEW) * W;
        if (a->mamba && all) delta_near(a, DELTA_ALL, true, c);
        else if (a->mamba) delta_near(a, DELTA_FEW, true, c);
        else if (all) delta_near(a, DELTA_ALL, false, c);
        else delta_near(a, DELTA_FEW, false, c);
    }
}
