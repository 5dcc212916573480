/* kernels/f32_template.h - every float kernel, written once over a vector type; included by one file per instruction set.
 *
 * The includer defines ISA (suffix of the names), W (floats per vector, 16, 8 or 4), MR (rows of the matrix product's block),
 * types vf, vi and the operations below. Bits are those of the scalar references: the same chains, the same lanes.
 *   vf: f_load f_store f_set1 f_fma(a,b,c) f_add f_sub f_mul f_div f_max f_round(nearest even) f_load_f16 f_load_bf16
 *   masks are all-ones lanes in vf: f_lt(a,b) f_gt(a,b) f_unord(a) f_sel(mask, a, b) f_and f_or f_andnot(mask, a)
 *   vi: i_cvt(vf) i_add i_sub i_sra1 (>> 1, arithmetic) i_srl31 (>> 31, logical) i_sll23 f_cast(vi) i_set1 */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#define CAT2(a, b) a##_##b
#define CAT(a, b) CAT2(a, b)
#define NAME(stem) CAT(stem, ISA)

/* Loops of constant length over accumulators: unrolled, so that the accumulators live in registers (gcc keeps arrays that a
 * loop indexes on the stack, at a third of the speed). */
#define UNROLL _Pragma("GCC unroll 16")

enum { PER_PANEL = TN_PANEL_N / W, N_LANE_REGS = 16 / W };

/* ---- matrix product ------------------------------------------------------------------------------- */

#define GEMM(dtype, elem, load)                                                                                              \
    static inline __attribute__((always_inline)) void block_##dtype(const float *a, size_t lda, const elem *b, const float *bias, \
                                                                    float *out, size_t ldo, int rows, size_t n_cols, size_t k) { \
        vf acc[MR][PER_PANEL];                                                                                               \
        UNROLL                                                                                                               \
        for (int r = 0; r < rows; r++)                                                                                       \
            UNROLL                                                                                                           \
            for (int j = 0; j < PER_PANEL; j++) acc[r][j] = f_set1(0.0f);                                                    \
        for (size_t c = 0; c < k; c++) {                                                                                     \
            vf w[PER_PANEL];                                                                                                 \
            UNROLL                                                                                                           \
            for (int j = 0; j < PER_PANEL; j++) w[j] = load(b + c * TN_PANEL_N + (size_t)j * W);                             \
            __builtin_prefetch(b + (c + 16) * TN_PANEL_N);                                                                   \
            UNROLL                                                                                                           \
            for (int r = 0; r < rows; r++) {                                                                                 \
                vf x = f_set1(a[(size_t)r * lda + c]);                                                                       \
                UNROLL                                                                                                       \
                for (int j = 0; j < PER_PANEL; j++) acc[r][j] = f_fma(x, w[j], acc[r][j]);                                   \
            }                                                                                                                \
        }                                                                                                                    \
        UNROLL                                                                                                               \
        for (int r = 0; r < rows; r++) {                                                                                     \
            float tile[TN_PANEL_N];                                                                                          \
            UNROLL                                                                                                           \
            for (int j = 0; j < PER_PANEL; j++) {                                                                            \
                if (n_cols == TN_PANEL_N) {                                                                                  \
                    vf v = bias ? f_add(acc[r][j], f_load(bias + (size_t)j * W)) : acc[r][j];                                \
                    f_store(out + (size_t)r * ldo + (size_t)j * W, v);                                                       \
                } else {                                                                                                     \
                    f_store(tile + (size_t)j * W, acc[r][j]);                                                                \
                }                                                                                                            \
            }                                                                                                                \
            for (size_t n = 0; n_cols < TN_PANEL_N && n < n_cols; n++) out[(size_t)r * ldo + n] = bias ? tile[n] + bias[n] : tile[n]; \
        }                                                                                                                    \
    }                                                                                                                        \
    static void NAME(tn_gemm_##dtype)(const float *a, size_t lda, const void *panels, const float *bias, float *out, size_t ldo, size_t m, \
                               size_t n0, size_t n1, size_t k) {                                                             \
        for (size_t n = n0; n < n1; n += TN_PANEL_N) {                                                                       \
            const elem *b = (const elem *)panels + n * k;                                                                    \
            size_t n_cols = n1 - n < TN_PANEL_N ? n1 - n : TN_PANEL_N, i = 0;                                                \
            const float *bn = bias ? bias + n : NULL;                                                                        \
            for (; i + MR <= m; i += MR) block_##dtype(a + i * lda, lda, b, bn, out + i * ldo + n, ldo, MR, n_cols, k);      \
            for (; i + 4 <= m && MR > 4; i += 4) block_##dtype(a + i * lda, lda, b, bn, out + i * ldo + n, ldo, 4, n_cols, k); \
            for (; i < m; i++) block_##dtype(a + i * lda, lda, b, bn, out + i * ldo + n, ldo, 1, n_cols, k);                 \
        }                                                                                                                    \
    }

GEMM(f32, float, f_load)
GEMM(f16, uint16_t, f_load_f16)
GEMM(bf16, uint16_t, f_load_bf16)

/* ---- functions of one vector, as in elem_f32.c ------------------------------------------------------ */

static inline vf v_exp(vf x) {
    vf n = f_round(f_mul(x, f_set1(1.44269504f)));
    vf r = f_fma(n, f_set1(-0.693359375f), x);
    r = f_fma(n, f_set1(2.12194440e-4f), r);
    vf p = f_set1(1.9875691500e-4f);
    p = f_fma(p, r, f_set1(1.3981999507e-3f));
    p = f_fma(p, r, f_set1(8.3334519073e-3f));
    p = f_fma(p, r, f_set1(4.1665795894e-2f));
    p = f_fma(p, r, f_set1(1.6666665459e-1f));
    p = f_fma(p, r, f_set1(5.0000001201e-1f));
    p = f_add(f_fma(p, f_mul(r, r), r), f_set1(1.0f));
    vi i = i_cvt(n), half = i_sra1(i_add(i, i_srl31(i))), bias = i_set1(127); /* half rounds towards zero */
    p = f_mul(f_mul(p, f_cast(i_sll23(i_add(half, bias)))), f_cast(i_sll23(i_add(i_sub(i, half), bias))));
    p = f_sel(f_gt(x, f_set1(88.72283f)), f_set1(INFINITY), p);
    p = f_sel(f_lt(x, f_set1(-87.33654f)), f_set1(0.0f), p);
    return f_sel(f_unord(x), x, p);
}

static inline vf sign_mask(void) { return f_set1(-0.0f); }

static inline vf v_tanh(vf x) {
    vf sign = f_and(sign_mask(), x), a = f_andnot(sign_mask(), x);
    vf s = f_mul(x, x), q = f_fma(s, f_set1(-17.0f / 315), f_set1(2.0f / 15));
    q = f_fma(s, q, f_set1(-1.0f / 3));
    vf small = f_fma(f_mul(x, s), q, x);
    vf e = v_exp(f_mul(f_set1(-2.0f), a));
    vf big = f_or(f_div(f_sub(f_set1(1.0f), e), f_add(f_set1(1.0f), e)), sign);
    vf t = f_sel(f_lt(a, f_set1(0.125f)), small, big);
    t = f_sel(f_gt(a, f_set1(9.1f)), f_or(f_set1(1.0f), sign), t);
    return f_sel(f_unord(x), x, t);
}

static inline vf v_erf(vf x) {
    vf sign = f_and(sign_mask(), x), a = f_andnot(sign_mask(), x);
    vf t = f_div(f_set1(1.0f), f_fma(f_set1(0.5f), a, f_set1(1.0f))), p = f_set1(0.17087277f);
    static const float c[9] = {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f};
    for (int i = 0; i < 9; i++) p = f_fma(p, t, f_set1(c[i]));
    vf e = f_sub(f_set1(1.0f), f_mul(t, v_exp(f_fma(f_or(a, sign_mask()), a, p))));
    return f_or(f_andnot(sign_mask(), e), sign);
}

static inline vf v_act(tn_act act, vf x) {
    switch (act) {
    case TN_ACT_SILU: return f_div(x, f_add(f_set1(1.0f), v_exp(f_sub(f_set1(-0.0f), x))));
    case TN_ACT_GELU_TANH: {
        vf u = f_mul(f_set1(0.7978845608f), f_fma(f_mul(f_mul(f_set1(0.044715f), x), x), x, x));
        return f_mul(f_mul(f_set1(0.5f), x), f_add(f_set1(1.0f), v_tanh(u)));
    }
    case TN_ACT_GELU_ERF: return f_mul(f_mul(f_set1(0.5f), x), f_add(f_set1(1.0f), v_erf(f_mul(x, f_set1(0.7071067812f)))));
    case TN_ACT_RELU: return f_sel(f_gt(x, f_set1(0.0f)), x, f_set1(0.0f));
    case TN_ACT_RELU2: return f_sel(f_gt(x, f_set1(0.0f)), f_mul(x, x), f_set1(0.0f));
    }
    return x;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

typedef struct lanes {
    vf v[N_LANE_REGS];
} lanes;

static inline lanes lanes_zero(void) {
    lanes l;
    for (int i = 0; i < N_LANE_REGS; i++) l.v[i] = f_set1(0.0f);
    return l;
}

/* The 16 lanes and what is left of the row, then added pairwise at stride 8, 4, 2, 1. */
static inline float fold(const lanes *l, const float *tail, size_t n_tail) {
    float lane[16];
    for (int i = 0; i < N_LANE_REGS; i++) f_store(lane + i * W, l->v[i]);
    for (size_t i = 0; i < n_tail; i++) lane[i] = fmaf(tail[i], tail[i], lane[i]);
    for (int s = 8; s; s /= 2) {
        for (int i = 0; i < s; i++) lane[i] += lane[i + s];
    }
    return lane[0];
}

static void NAME(tn_rmsnorm_f32)(const float *x, const float *w, float eps, float *out, size_t n) {
    lanes l = lanes_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL
        for (int j = 0; j < N_LANE_REGS; j++) {
            vf v = f_load(x + i + (size_t)j * W);
            l.v[j] = f_fma(v, v, l.v[j]);
        }
    }
    float r = 1.0f / sqrtf(fold(&l, x + i, n - i) / (float)n + eps);
    vf rv = f_set1(r);
    for (i = 0; i + W <= n; i += W) {
        vf v = f_mul(f_load(x + i), rv);
        f_store(out + i, w ? f_mul(v, f_load(w + i)) : v);
    }
    for (; i < n; i++) out[i] = w ? x[i] * r * w[i] : x[i] * r;
}

static void NAME(tn_layernorm_f32)(const float *x, const float *w, const float *b, float eps, float *out, size_t n) {
    lanes sum = lanes_zero(), var = lanes_zero();
    float tail[16];
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL
        for (int j = 0; j < N_LANE_REGS; j++) sum.v[j] = f_add(sum.v[j], f_load(x + i + (size_t)j * W));
    }
    float lane[16];
    UNROLL
    for (int j = 0; j < N_LANE_REGS; j++) f_store(lane + j * W, sum.v[j]);
    for (size_t t = 0; t < n - i; t++) lane[t] += x[i + t];
    for (int s = 8; s; s /= 2) {
        for (int j = 0; j < s; j++) lane[j] += lane[j + s];
    }
    float mean = lane[0] / (float)n;
    vf mv = f_set1(mean);
    for (i = 0; i + 16 <= n; i += 16) {
        UNROLL
        for (int j = 0; j < N_LANE_REGS; j++) {
            vf d = f_sub(f_load(x + i + (size_t)j * W), mv);
            var.v[j] = f_fma(d, d, var.v[j]);
        }
    }
    for (size_t t = 0; t < n - i; t++) tail[t] = x[i + t] - mean;
    float r = 1.0f / sqrtf(fold(&var, tail, n - i) / (float)n + eps);
    vf rv = f_set1(r);
    for (i = 0; i + W <= n; i += W) {
        vf v = f_mul(f_sub(f_load(x + i), mv), rv);
        f_store(out + i, b ? f_fma(v, f_load(w + i), f_load(b + i)) : f_mul(v, f_load(w + i)));
    }
    for (; i < n; i++) {
        float v = (x[i] - mean) * r;
        out[i] = b ? fmaf(v, w[i], b[i]) : v * w[i];
    }
}

static void NAME(tn_glu_f32)(tn_act act, const float *gate, const float *up, float *out, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) f_store(out + i, f_mul(v_act(act, f_load(gate + i)), f_load(up + i)));
    if (i < n) tn_glu_f32_ref(act, gate + i, up + i, out + i, n - i);
}

static void NAME(tn_act_f32)(tn_act act, float *x, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) f_store(x + i, v_act(act, f_load(x + i)));
    if (i < n) tn_act_f32_ref(act, x + i, n - i);
}

static void NAME(tn_add_f32)(float *x, const float *y, float scale, size_t n) {
    size_t i = 0;
    vf s = f_set1(scale);
    for (; i + W <= n; i += W) f_store(x + i, f_fma(s, f_load(y + i), f_load(x + i)));
    for (; i < n; i++) x[i] = fmaf(scale, y[i], x[i]);
}

/* ---- attention -------------------------------------------------------------------------------------- */

enum { ATTN_ROWS = W == 16 ? 8 : 4, ATTN_OUT_ROWS = 4, ATTN_D = 64 / W };

/* Scores of up to ATTN_ROWS rows at one panel of 32 positions, scaled: s[r * ld + 0..31]. */
static inline __attribute__((always_inline)) void score_panel(const tn_attn_f32_args *a, size_t row0, int rows, const float *k, float *s, size_t ld) {
    vf acc[ATTN_ROWS][PER_PANEL];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int j = 0; j < PER_PANEL; j++) acc[r][j] = f_set1(0.0f);
    for (size_t d = 0; d < a->d_head; d++) {
        vf kv[PER_PANEL];
        UNROLL
        for (int j = 0; j < PER_PANEL; j++) kv[j] = f_load(k + d * TN_KV_PANEL + (size_t)j * W);
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf q = f_set1(a->q[(row0 + (size_t)r) * a->q_stride + d]);
            UNROLL
            for (int j = 0; j < PER_PANEL; j++) acc[r][j] = f_fma(q, kv[j], acc[r][j]);
        }
    }
    vf scale = f_set1(a->scale), cap = f_set1(a->soft_cap);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int j = 0; j < PER_PANEL; j++) {
            vf v = f_mul(acc[r][j], scale);
            if (a->soft_cap > 0) v = f_mul(cap, v_tanh(f_div(v, cap)));
            f_store(s + (size_t)r * ld + (size_t)j * W, v);
        }
    }
}

/* out[r][d..d+63] for up to ATTN_OUT_ROWS rows: chains over positions p0..p1-1 of s[r][p] * v[p][d]. */
static inline __attribute__((always_inline)) void weigh_values(const tn_attn_f32_args *a, size_t row0, int rows, size_t d0, int regs, const float *s,
                                                               size_t ld, size_t base, size_t p0, size_t p1, const float *sum) {
    vf acc[ATTN_OUT_ROWS][ATTN_D];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int j = 0; j < regs; j++) acc[r][j] = f_set1(0.0f);
    for (size_t p = p0; p < p1; p++) {
        vf v[ATTN_D];
        UNROLL
        for (int j = 0; j < regs; j++) v[j] = f_load(a->v + p * a->d_head + d0 + (size_t)j * W);
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf w = f_set1(s[(size_t)r * ld + (p - base)]);
            UNROLL
            for (int j = 0; j < regs; j++) acc[r][j] = f_fma(w, v[j], acc[r][j]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        vf total = f_set1(sum[r]);
        UNROLL
        for (int j = 0; j < regs; j++) f_store(a->out + (row0 + (size_t)r) * a->out_stride + d0 + (size_t)j * W, f_div(acc[r][j], total));
    }
}

static void values_tail(const tn_attn_f32_args *a, size_t row, size_t d0, const float *s, size_t base, size_t p0, size_t p1, float sum) {
    for (size_t d = d0; d < a->d_head; d++) {
        float acc = 0;
        for (size_t p = p0; p < p1; p++) acc = fmaf(s[p - base], a->v[p * a->d_head + d], acc);
        a->out[row * a->out_stride + d] = acc / sum;
    }
}

static void NAME(tn_attn_f32)(const tn_attn_f32_args *a) {
    /* Draft trees are few rows over scattered slots: the reference serves them. */
    if (a->tree_mask || a->d_head % W) {
        tn_attn_f32_ref(a);
        return;
    }
    for (size_t row0 = 0; row0 < a->n_rows; row0 += ATTN_ROWS) {
        int rows = a->n_rows - row0 < ATTN_ROWS ? (int)(a->n_rows - row0) : ATTN_ROWS;
        size_t first = SIZE_MAX, end = 0;
        UNROLL
        for (int r = 0; r < rows; r++) {
            size_t f = (size_t)a->first_pos[row0 + (size_t)r], e = (size_t)a->end_pos[row0 + (size_t)r];
            first = f < first ? f : first;
            end = e > end ? e : end;
        }
        size_t base = first / TN_KV_PANEL * TN_KV_PANEL, stop = (end + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL, ld = stop - base;
        float *s = a->scratch, sum[ATTN_ROWS];
        for (size_t p = base; p < stop; p += TN_KV_PANEL) {
            const float *k = a->k_panels + p / TN_KV_PANEL * a->d_head * TN_KV_PANEL;
            if (rows == ATTN_ROWS) {
                score_panel(a, row0, ATTN_ROWS, k, s + (p - base), ld);
            } else {
                UNROLL
                for (int r = 0; r < rows; r++) score_panel(a, row0 + (size_t)r, 1, k, s + (size_t)r * ld + (p - base), ld);
            }
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            float *sr = s + (size_t)r * ld;
            size_t f = (size_t)a->first_pos[row0 + (size_t)r] - base, e = (size_t)a->end_pos[row0 + (size_t)r] - base;
            for (size_t p = 0; p < f; p++) sr[p] = -INFINITY;
            for (size_t p = e; p < ld; p++) sr[p] = -INFINITY;
            float max = -INFINITY;
            vf mv = f_set1(-INFINITY);
            for (size_t p = 0; p < ld; p += W) mv = f_max(mv, f_load(sr + p));
            float m[W];
            f_store(m, mv);
            for (int i = 0; i < W; i++) max = m[i] > max ? m[i] : max;
            lanes l = lanes_zero();
            vf xm = f_set1(max);
            for (size_t p = 0; p < ld; p += 16) {
                UNROLL
                for (int j = 0; j < N_LANE_REGS; j++) {
                    vf w = v_exp(f_sub(f_load(sr + p + (size_t)j * W), xm));
                    f_store(sr + p + (size_t)j * W, w);
                    l.v[j] = f_add(l.v[j], w);
                }
            }
            sum[r] = fold(&l, NULL, 0);
        }
        UNROLL
        for (int r = 0; r < rows; r += ATTN_OUT_ROWS) {
            int n = rows - r < ATTN_OUT_ROWS ? rows - r : ATTN_OUT_ROWS;
            float *sr = s + (size_t)r * ld;
            size_t row = row0 + (size_t)r, d = 0;
            for (; d + 64 <= a->d_head; d += 64) {
                if (n == ATTN_OUT_ROWS) weigh_values(a, row, ATTN_OUT_ROWS, d, ATTN_D, sr, ld, base, first, end, sum + r);
                else
                    for (int i = 0; i < n; i++) weigh_values(a, row + (size_t)i, 1, d, ATTN_D, sr + (size_t)i * ld, ld, base, first, end, sum + r + i);
            }
            for (; d + W <= a->d_head; d += W) {
                for (int i = 0; i < n; i++) weigh_values(a, row + (size_t)i, 1, d, 1, sr + (size_t)i * ld, ld, base, first, end, sum + r + i);
            }
            for (int i = 0; i < n && d < a->d_head; i++) values_tail(a, row + (size_t)i, d, sr + (size_t)i * ld, base, first, end, sum[r + i]);
        }
    }
}

void NAME(tn_kernels_f32)(tn_kernels *k) {
    k->gemm_f32[TN_PANEL_F32] = NAME(tn_gemm_f32);
    k->gemm_f32[TN_PANEL_F16] = NAME(tn_gemm_f16);
    k->gemm_f32[TN_PANEL_BF16] = NAME(tn_gemm_bf16);
    k->attn_f32 = NAME(tn_attn_f32);
    k->rmsnorm_f32 = NAME(tn_rmsnorm_f32);
    k->layernorm_f32 = NAME(tn_layernorm_f32);
    k->glu_f32 = NAME(tn_glu_f32);
    k->act_f32 = NAME(tn_act_f32);
    k->add_f32 = NAME(tn_add_f32);
}
