/* kernels/f32_softmax_template.h - softmax of a row, and its shares as bytes; a part of f32_template.h, which includes it. */
/* The largest of n values, in several chains: each waits for its own last one alone. tail [16]: those after the last
 * whole 16, filled up. */
static float most_of(const float *x, size_t n, float *tail) {
    enum { CHAINS = 4 };
    const size_t n_whole = n / 16 * 16;
    float lane[W], m = -INFINITY;
    vf max[CHAINS];
    UNROLL for (int j = 0; j < CHAINS; j++) max[j] = f_set1(-INFINITY);
    for (size_t i = 0; i < 16; i++) tail[i] = n_whole + i < n ? x[n_whole + i] : -INFINITY;
    size_t i = 0;
    for (; i + (size_t)CHAINS * W <= n_whole; i += (size_t)CHAINS * W) {
        UNROLL for (int j = 0; j < CHAINS; j++) max[j] = f_max(f_load(x + i + (size_t)j * W), max[j]);
    }
    for (; i < n_whole; i += W) max[0] = f_max(f_load(x + i), max[0]);
    for (i = 0; i < 16; i += W) max[0] = f_max(f_load(tail + i), max[0]);
    for (int j = 0; j < CHAINS; j++) {
        f_store(lane, max[j]);
        for (int k = 0; k < W; k++) m = lane[k] > m ? lane[k] : m;
    }
    return m;
}

static void NAME(tn_shares_u8)(const float *x, uint8_t *codes, size_t n) {
    const size_t n_whole = n / 16 * 16;
    float tail[16];
    uint8_t last[16];
    const vf m = f_set1(most_of(x, n, tail));
    for (size_t i = 0; i < n; i += 16) {
        const float *at = i < n_whole ? x + i : tail;
        uint8_t *to = i < n_whole ? codes + i : last;
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
            /* what lies lower has no step of its own, as NaN has none */
            vf x0 = f_max(f_sub(f_load(at + (size_t)j * W), m), f_set1(-20.0f)),
               share = f_mul(v_exp_near(x0), f_set1(TN_SHARES));
            u8_store(to + (size_t)j * W, i_add(i_cvt(share), i_set1(1)));
        }
    }
    memcpy(codes + n_whole, last, n - n_whole);
}

static float NAME(tn_softmax_f32)(float *x, size_t n) {
    const size_t n_whole = n / 16 * 16;
    float tail[16];
    const float m = most_of(x, n, tail);
    lanes l = lanes_zero();
    for (size_t i = 0; i < n; i += 16) {
        float *at = i < n_whole ? x + i : tail;
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
            vf w = v_exp_neg(f_sub(f_load(at + (size_t)j * W), f_set1(m)));
            f_store(at + (size_t)j * W, w);
            l.v[j] = f_add(l.v[j], w);
        }
    }
    for (size_t i = n_whole; i < n; i++) x[i] = tail[i - n_whole];
    return fold(&l, NULL, 0);
}
