/* kernels/f32_template.h - every float kernel, written once over a vector type; included by one file per
 * instruction set.
 *
 * The includer defines ISA (suffix of the names), W (floats per vector, 16, 8 or 4), WIDE and MANY (vectors
 * per block of the matrix product for up to 3 and up to MR rows, so that rows * vectors accumulators fit the
 * register file), types vf (floats), vi (int32) and vm (a mask of lanes), and the operations below.
 * Bits are those of the scalar references: the same chains, the same lanes.
 *   vf: f_load f_store f_set1 f_fma(a,b,c) f_add f_sub f_mul f_div f_max(a,b) = a > b ? a : b
 *       f_round(nearest even) f_load_f16 f_load_bf16 f_load_pairs(p, even, odd) f_and f_or f_andnot(m, a) = a
 *       & ~m
 *   vm: f_lt(a,b) f_gt(a,b) f_unord(a) f_sel(mask, a, b) = mask ? a : b
 *       f_transpose16(src, ld_src, dst, ld_dst), optional: dst[i][j] = src[j][i] of 16 x 16 floats
 *       f_fold16(vf[16]) with W = 16, optional: vector of the 16 sums, each added pairwise at stride 8, 4, 2,
 *       1 f_transpose_rows16(row[16], d, dst, ld_dst), optional: dst[i][j] = row[j][d + i], i, j < 16
 *   vi: i_cvt(vf) i_add i_sub i_sra1 (>> 1, arithmetic) i_srl31 (>> 31, logical) i_sll23 f_cast(vi) i_set1 */
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define CAT2(a, b) a##_##b
#define CAT(a, b) CAT2(a, b)
#define NAME(stem) CAT(stem, ISA)
#define INLINE static inline __attribute__((always_inline))
/* Loops of constant length over accumulators: unrolled, so that the accumulators live in registers (both
 * compilers keep arrays that a loop indexes on the stack, at a quarter of the speed). */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_SOME /* a length that is constant in some callers only: clang unrolls those by itself, and    \
                       warns of the others */
#else
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_SOME UNROLL
#endif

enum { PER_PANEL = TN_PANEL_N / W, N_LANE_REGS = 16 / W };

/* ---- matrix product -------------------------------------------------------------------------------
 *
 * One micro-kernel serves the weights, the scores (K panels) and the weighted values (rows of V): out[r][c] =
 * chain over k of a[r][k] * b(k, c) with b(k, c) at b + k * ks + c / 32 * ps + c % 32. Accumulators of rows x
 * vectors stay in registers; `load` continues chains left in out, so that k can be cut anywhere without
 * changing a bit. */

enum {
    MR = 6,
    TALL = W == 16 ? 8 : MR, /* rows by one panel of two vectors: M = 7 and 8 then read the panels once */
    FULL_N = MANY * W,       /* columns of the blocked product */
    NARROW = MANY < PER_PANEL ? MANY : PER_PANEL, /* vectors that always lie inside one panel */
    CHUNK_N = MANY * W > TN_PANEL_N ? MANY *W : TN_PANEL_N,
    FEW_ROWS = 2 * MR, /* up to here the panels are read once or twice: no widened copy */
    BLOCK_K = 128,     /* widened block: 128 x 64 floats = 32 KiB, inside L1 */
};

/* Prefetch distance in a panel: with more rows fewer panels are read side by side. Measured on Zen 5, M
 * = 1..8. */
#define AHEAD_BYTES(rows) ((rows) <= 3 ? 2048 : 4096)
#define LINE_VECTORS(elem) (64 / (int)sizeof(elem) / W) /* vectors of elem per cache line */

#define BLOCK(dtype, elem, load_b)                                                                             \
    INLINE void block_##dtype(int rows, int nv, bool prefetch, const float *a, size_t lda, const elem *b,      \
                              size_t ks, size_t ps, size_t k, const float *bias, float *out, size_t ldo,       \
                              bool load) {                                                                     \
        vf acc[TALL][16];                                                                                      \
        UNROLL for (int r = 0; r < rows; r++) {                                                                \
            UNROLL for (int j = 0; j < nv; j++) acc[r][j] =                                                    \
                load ? f_load(out + (size_t)r * ldo + j * W) : f_set1(0.0f);                                   \
        }                                                                                                      \
        for (size_t i = 0; i < k; i++, b += ks) {                                                              \
            if (prefetch) {                                                                                    \
                UNROLL for (int j = 0; j < nv; j += LINE_VECTORS(elem)) {                                      \
                    __builtin_prefetch((const char *)(b + (size_t)(j * W / 32) * ps + j * W % 32) +            \
                                       AHEAD_BYTES(rows));                                                     \
                }                                                                                              \
            }                                                                                                  \
            if (nv > rows) {                                                                                   \
                vf x[TALL];                                                                                    \
                UNROLL for (int r = 0; r < rows; r++) x[r] = f_set1(a[(size_t)r * lda + i]);                   \
                UNROLL for (int j = 0; j < nv; j++) {                                                          \
                    vf w = load_b(b + (size_t)(j * W / 32) * ps + j * W % 32);                                 \
                    UNROLL for (int r = 0; r < rows; r++) acc[r][j] = f_fma(x[r], w, acc[r][j]);               \
                }                                                                                              \
            } else {                                                                                           \
                vf w[16];                                                                                      \
                UNROLL for (int j = 0; j < nv; j++) w[j] =                                                     \
                    load_b(b + (size_t)(j * W / 32) * ps + j * W % 32);                                        \
                UNROLL for (int r = 0; r < rows; r++) {                                                        \
                    vf x = f_set1(a[(size_t)r * lda + i]);                                                     \
                    UNROLL for (int j = 0; j < nv; j++) acc[r][j] = f_fma(x, w[j], acc[r][j]);                 \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
        UNROLL for (int r = 0; r < rows; r++) {                                                                \
            UNROLL for (int j = 0; j < nv; j++) {                                                              \
                vf v = bias ? f_add(acc[r][j], f_load(bias + j * W)) : acc[r][j];                              \
                f_store(out + (size_t)r * ldo + j * W, v);                                                     \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
    /* Up to TALL rows by all vectors of n_cols; returns the columns done: the rest is less than one narrow  \
     * block. */ \
    static size_t cols_##dtype(int rows, size_t n_cols, const float *a, size_t lda, const elem *b,             \
                               size_t ks, size_t ps, size_t k, const float *bias, float *out, size_t ldo,      \
                               bool load) {                                                                    \
        size_t c = 0;                                                                                          \
        for (size_t wide = WIDE * W; rows <= 3 && c + wide <= n_cols; c += wide) {                             \
            const elem *bc = b + c / 32 * ps + c % 32;                                                         \
            const float *bias_c = bias ? bias + c : NULL;                                                      \
            switch (rows) {                                                                                    \
            case 1: block_##dtype(1, WIDE, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;    \
            case 2: block_##dtype(2, WIDE, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;    \
            case 3: block_##dtype(3, WIDE, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;    \
            }                                                                                                  \
        }                                                                                                      \
        ROWS_BY(dtype, elem, MANY)                                                                             \
        if (NARROW < MANY) ROWS_BY(dtype, elem, NARROW)                                                        \
        return c;                                                                                              \
    }

#define ROWS_BY(dtype, elem, nv)                                                                             \
    for (; (rows <= MR || (nv) == NARROW) && c + (nv)*W <= n_cols; c += (nv)*W) {                            \
        const elem *bc = b + c / 32 * ps + c % 32;                                                           \
        const float *bias_c = bias ? bias + c : NULL;                                                        \
        switch (rows) {                                                                                      \
        case 1: block_##dtype(1, nv, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;        \
        case 2: block_##dtype(2, nv, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;        \
        case 3: block_##dtype(3, nv, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;        \
        case 4: block_##dtype(4, nv, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;        \
        case 5: block_##dtype(5, nv, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;        \
        case 6: block_##dtype(6, nv, true, a, lda, bc, ks, ps, k, bias_c, out + c, ldo, load); break;        \
        case 7:                                                                                              \
            block_##dtype(TALL > 6 && (nv) == NARROW ? 7 : 0, nv, true, a, lda, bc, ks, ps, k, bias_c,       \
                          out + c, ldo, load);                                                               \
            break;                                                                                           \
        case 8:                                                                                              \
            block_##dtype(TALL > 6 && (nv) == NARROW ? 8 : 0, nv, true, a, lda, bc, ks, ps, k, bias_c,       \
                          out + c, ldo, load);                                                               \
            break;                                                                                           \
        }                                                                                                    \
    }

BLOCK(f32, float, f_load)
BLOCK(f16, uint16_t, f_load_f16)
BLOCK(bf16, uint16_t, f_load_bf16)

/* Many rows by FULL_N columns with k steps of b in cache. */
static void many_rows(size_t m, const float *a, size_t lda, const float *b, size_t ks, size_t ps, size_t k,
                      const float *bias, float *out, size_t ldo, bool load) {
    size_t i = 0;
    for (; i + MR <= m; i += MR)
        block_f32(MR, MANY, false, a + i * lda, lda, b, ks, ps, k, bias, out + i * ldo, ldo, load);
    if (i < m) cols_f32((int)(m - i), FULL_N, a + i * lda, lda, b, ks, ps, k, bias, out + i * ldo, ldo, load);
}

#define GEMM(dtype, elem, load_b)                                                                              \
    static void NAME(tn_gemm_##dtype)(const float *a, size_t lda, const void *panels, const float *bias,       \
                                      float *out, size_t ldo, size_t m, size_t n0, size_t n1, size_t k) {      \
        size_t n = n0, ps = k * TN_PANEL_N;                                                                    \
        for (; m > FEW_ROWS && n + FULL_N <= n1; n += FULL_N) {                                                \
            const elem *b = (const elem *)panels + n / TN_PANEL_N * ps + n % TN_PANEL_N;                       \
            _Alignas(64) float wide[BLOCK_K * FULL_N];                                                         \
            for (size_t k0 = 0; k0 < k || k0 == 0; k0 += BLOCK_K) {                                            \
                size_t nk = k - k0 < BLOCK_K ? k - k0 : BLOCK_K;                                               \
                const elem *bk = b + k0 * TN_PANEL_N;                                                          \
                for (size_t i = 0; i < nk; i++) {                                                              \
                    UNROLL for (int j = 0; j < MANY;                                                           \
                                j += LINE_VECTORS(elem)) { /* the next block, while this one is worked on */   \
                        __builtin_prefetch(bk + (BLOCK_K + i) * TN_PANEL_N + (size_t)(j * W / 32) * ps +       \
                                           j * W % 32);                                                        \
                    }                                                                                          \
                    UNROLL for (int j = 0; j < MANY; j++) {                                                    \
                        f_store(wide + i * FULL_N + j * W,                                                     \
                                load_b(bk + i * TN_PANEL_N + (size_t)(j * W / 32) * ps + j * W % 32));         \
                    }                                                                                          \
                }                                                                                              \
                const float *bias_n = bias && k0 + nk == k ? bias + n : NULL;                                  \
                many_rows(m, a + k0, lda, wide, FULL_N, TN_PANEL_N, nk, bias_n, out + n, ldo, k0 > 0);         \
            }                                                                                                  \
        }                                                                                                      \
        /* What is left: few rows, or fewer columns than a block. Row groups meet a chunk of panels while it \
         * is in cache. */ \
        size_t chunk = m <= 3 ? n1 - n : CHUNK_N;                                                              \
        for (size_t nc; n < n1; n += nc) {                                                                     \
            nc = n1 - n < chunk ? n1 - n : chunk;                                                              \
            const elem *b = (const elem *)panels + n / TN_PANEL_N * ps + n % TN_PANEL_N;                       \
            const float *bias_n = bias ? bias + n : NULL;                                                      \
            size_t n_groups = m <= TALL ? 1 : (m + MR - 1) / MR,                                               \
                   most = (m + n_groups - 1) / n_groups; /* groups of nearly equal size */                     \
            for (size_t i = 0, rows; i < m; i += rows) {                                                       \
                rows = m - i < most ? m - i : most;                                                            \
                const float *ai = a + i * lda;                                                                 \
                float *oi = out + i * ldo + n, tile[TALL * NARROW * W];                                        \
                size_t c =                                                                                     \
                    cols_##dtype((int)rows, nc, ai, lda, b, TN_PANEL_N, ps, k, bias_n, oi, ldo, false);        \
                if (c == nc) continue;                                                                         \
                const elem *bc =                                                                               \
                    b + c / TN_PANEL_N * ps + c % TN_PANEL_N; /* the panel is whole, the output is not */      \
                cols_##dtype((int)rows, NARROW *W, ai, lda, bc, TN_PANEL_N, ps, k, NULL, tile, NARROW *W,      \
                             false);                                                                           \
                for (size_t r = 0; r < rows; r++) {                                                            \
                    for (size_t j = 0; c + j < nc; j++) {                                                      \
                        float v = tile[r * NARROW * W + j];                                                    \
                        oi[r * ldo + c + j] = bias ? v + bias_n[c + j] : v;                                    \
                    }                                                                                          \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
    }

GEMM(f32, float, f_load)
GEMM(f16, uint16_t, f_load_f16)
GEMM(bf16, uint16_t, f_load_bf16)

/* ---- functions of one vector, as in elem_f32.c ------------------------------------------------------ */

/* exp(x) = 2^n times the value returned. */
static inline vf exp_reduced(vf x, vf *out_n) {
    vf n = f_round(f_mul(x, f_set1(1.44269504f)));
    vf r = f_fma(n, f_set1(-0.693359375f), x);
    r = f_fma(n, f_set1(2.12194440e-4f), r);
    vf p = f_set1(1.381454106e-3f);
    p = f_fma(p, r, f_set1(8.368745105e-3f));
    p = f_fma(p, r, f_set1(4.166839077e-2f));
    p = f_fma(p, r, f_set1(1.66665204e-1f));
    p = f_fma(p, r, f_set1(4.999999343e-1f));
    *out_n = n;
    return f_add(f_fma(p, f_mul(r, r), r), f_set1(1.0f));
}

static inline vf v_exp(vf x) {
    vf n, p = exp_reduced(x, &n);
    vi i = i_cvt(n), half = i_sra1(i_add(i, i_srl31(i))), bias = i_set1(127); /* half rounds towards zero */
    p = f_mul(f_mul(p, f_cast(i_sll23(i_add(half, bias)))), f_cast(i_sll23(i_add(i_sub(i, half), bias))));
    p = f_sel(f_gt(x, f_set1(88.72283f)), f_set1(INFINITY), p);
    p = f_sel(f_lt(x, f_set1(-87.33654f)), f_set1(0.0f), p);
    return f_sel(f_unord(x), x, p);
}

/* The same for x <= 0 (or NaN): one factor 2^n will do, because exp(x) is normal or x is below the bound. */
static inline vf v_exp_neg(vf x) {
    vf n, p = exp_reduced(x, &n);
    p = f_mul(p, f_cast(i_sll23(i_add(i_cvt(n), i_set1(127)))));
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
    vf t = f_div(f_set1(1.0f), f_fma(f_set1(0.5f), a, f_set1(1.0f))), p = f_set1(0.1643301458f);
    static const float c[8] = {-0.9939615559f, 2.435405262f,  -2.953343631f, 1.722207766f,
                               -0.6380636178f, 0.5520386498f, 0.9754171334f, -1.264030158f};
    UNROLL for (int i = 0; i < 8; i++) p = f_fma(p, t, f_set1(c[i]));
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
    case TN_ACT_GELU_ERF:
        return f_mul(f_mul(f_set1(0.5f), x), f_add(f_set1(1.0f), v_erf(f_mul(x, f_set1(0.7071067812f)))));
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
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
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

static void NAME(tn_layernorm_f32)(const float *x, const float *w, const float *b, float eps, float *out,
                                   size_t n) {
    lanes sum = lanes_zero(), var = lanes_zero();
    float tail[16];
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) sum.v[j] =
            f_add(sum.v[j], f_load(x + i + (size_t)j * W));
    }
    float lane[16];
    UNROLL for (int j = 0; j < N_LANE_REGS; j++) f_store(lane + j * W, sum.v[j]);
    for (size_t t = 0; t < n - i; t++) lane[t] += x[i + t];
    for (int s = 8; s; s /= 2) {
        for (int j = 0; j < s; j++) lane[j] += lane[j + s];
    }
    float mean = lane[0] / (float)n;
    vf mv = f_set1(mean);
    for (i = 0; i + 16 <= n; i += 16) {
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
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

static void NAME(tn_rope_f32)(float *x, const float *cs, size_t n_rot) {
    size_t half = n_rot / 2, i = 0;
    float *y = x + half;
    for (; i + W <= half; i += W) {
        vf a = f_load(x + i), b = f_load(y + i), c, s;
        f_load_pairs(cs + 2 * i, c, s);
        f_store(x + i, f_fma(a, c, f_sub(f_set1(-0.0f), f_mul(b, s))));
        f_store(y + i, f_fma(a, s, f_mul(b, c)));
    }
    for (; i < half; i++) {
        float a = x[i], b = y[i], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = fmaf(a, c, -(b * s));
        y[i] = fmaf(a, s, b * c);
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

static float NAME(tn_softmax_f32)(float *x, size_t n) {
    size_t n_whole = n / 16 * 16;
    float tail[16], lane[W], m = -INFINITY;
    vf max = f_set1(-INFINITY);
    for (size_t i = 0; i < 16; i++) tail[i] = n_whole + i < n ? x[n_whole + i] : -INFINITY;
    for (size_t i = 0; i < n_whole; i += W) max = f_max(f_load(x + i), max);
    for (size_t i = 0; i < 16; i += W) max = f_max(f_load(tail + i), max);
    f_store(lane, max);
    for (int i = 0; i < W; i++) m = lane[i] > m ? lane[i] : m;
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

/* ---- attention --------------------------------------------------------------------------------------
 *
 * Blocks of ATTN_ROWS rows share what they read: per ATTN_POS positions all rows are scored, then per
 * ATTN_POS positions all rows add their weighted values, MR rows at a time. Where the rows of a group see
 * different positions, the odd ones are added row by row, so that no row ever touches a value it must not
 * see. */

enum { ATTN_ROWS = 24, ATTN_POS = 256 };

typedef struct seen {
    size_t first, end; /* the contiguous part */
    size_t tree_end;   /* one past the last slot seen, >= end; once the scores are packed, one past the last
                          position */
    const uint64_t *tree;  /* the row's mask or NULL */
    size_t panel0, panel1; /* positions [panel0, panel1) that hold all of it, multiples of the panel */
} seen;

static seen seen_of(const tn_attn_f32_args *a, size_t row) {
    seen v = {.first = (size_t)a->first_pos[row], .end = (size_t)a->end_pos[row]};
    v.tree_end = v.end;
    if (a->tree_mask) {
        v.tree = a->tree_mask + row * a->n_tree_words;
        for (size_t i = a->n_tree_words; i-- > 0;) {
            if (!v.tree[i]) continue;
            size_t e = a->tree_base + i * 64 + 64 - (size_t)__builtin_clzll(v.tree[i]);
            v.tree_end = e > v.end ? e : v.end;
            break;
        }
    }
    v.panel0 = v.first / TN_KV_PANEL * TN_KV_PANEL;
    v.panel1 = (v.tree_end + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    return v;
}

/* Scores of the row's draft-tree slots move to the positions they stand for, one behind the other. */
static void pack_tree(const tn_attn_f32_args *a, seen *v, float *s) {
    size_t to = a->tree_base;
    for (size_t i = 0; i < a->n_tree_words; i++) {
        for (uint64_t bits = v->tree[i]; bits; bits &= bits - 1, to++) {
            size_t from = a->tree_base + i * 64 + (size_t)__builtin_ctzll(bits);
            if (to >= v->first) s[to - v->panel0] = s[from - v->panel0];
        }
    }
    v->tree_end = to;
}

/* Scores become exp(score - max), and 0 where the row sees nothing; returns their sum and the sink's share
 * (NULL: none). s: positions panel0.. of the row. */
static float softmax_row(const tn_attn_f32_args *a, seen *v, float *s, const float *sink) {
    size_t n = v->panel1 - v->panel0;
    bool once = !v->tree && !(a->soft_cap > 0) &&
                a->scale > 0; /* scaling leaves -inf what it is: the largest is found on the way */
    vf scale = f_set1(a->scale), cap = f_set1(a->soft_cap), max[PER_PANEL];
    for (int j = 0; j < PER_PANEL; j++) max[j] = f_set1(-INFINITY);
    for (size_t i = 0; i < n && !once; i += W) {
        vf x = f_mul(f_load(s + i), scale);
        if (a->soft_cap > 0) x = f_mul(cap, v_tanh(f_div(x, cap)));
        f_store(s + i, x);
    }
    if (v->tree) pack_tree(a, v, s);
    for (size_t p = v->panel0; p < v->first; p++) s[p - v->panel0] = -INFINITY;
    for (size_t p = v->tree_end; p < v->panel1; p++) s[p - v->panel0] = -INFINITY;
    for (size_t i = 0; i < n && once; i += TN_KV_PANEL) {
        UNROLL for (int j = 0; j < PER_PANEL; j++) {
            vf x = f_mul(f_load(s + i + (size_t)j * W), scale);
            f_store(s + i + (size_t)j * W, x);
            max[j] = f_max(x, max[j]);
        }
    }
    for (size_t i = 0; i < n && !once; i += TN_KV_PANEL) {
        UNROLL for (int j = 0; j < PER_PANEL; j++) max[j] = f_max(f_load(s + i + (size_t)j * W), max[j]);
    }
    for (int j = 1; j < PER_PANEL; j++) max[0] = f_max(max[j], max[0]);
    float lane[W], m = -INFINITY;
    f_store(lane, max[0]);
    for (int i = 0; i < W; i++) m = lane[i] > m ? lane[i] : m;
    lanes l = lanes_zero();
    for (size_t i = 0; i < n; i += 16) {
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
            float *at = s + i + (size_t)j * W;
            vf w = v_exp_neg(f_sub(f_load(at), f_set1(m)));
            f_store(at, w);
            l.v[j] = f_add(l.v[j], w);
        }
    }
    float sum = fold(&l, NULL, 0);
    return sink ? sum + tn_expf(fminf(*sink - m, 80)) : sum;
}

/* out[r][0..d_head) continues its chains over positions p0..p1-1 with weights w[r][p - p0], up to MR rows. */
static void add_values(const tn_attn_f32_args *a, int rows, const float *w, size_t ld, size_t p0, size_t p1,
                       float *out) {
    if (p0 >= p1) return;
    const float *v = a->v + p0 * a->d_head;
    size_t n = p1 - p0, d = a->d_head,
           c = cols_f32(rows, d, w, ld, v, d, TN_PANEL_N, n, NULL, out, a->out_stride, true);
    for (int r = 0; r < rows; r++) {
        const float *wr = w + (size_t)r * ld;
        float *o = out + (size_t)r * a->out_stride;
        size_t j = c;
        for (; j + W <= d; j += W)
            block_f32(1, 1, false, wr, ld, v + j, d, TN_PANEL_N, n, NULL, o + j, 0, true);
        for (; j < d; j++) {
            for (size_t p = 0; p < n; p++) o[j] = fmaf(wr[p], v[p * d + j], o[j]);
        }
    }
}

static size_t clip(size_t x, size_t lo, size_t hi) { return x < lo ? lo : x > hi ? hi : x; }

/* Values of positions p0..p1-1 to up to MR rows: what all see in one product, the edges row by row. */
static void group_values(const tn_attn_f32_args *a, const seen *v, int rows, const float *s, size_t ld,
                         size_t base, size_t p0, size_t p1, float *out) {
    size_t lo = p0, hi = p1;
    for (int r = 0; r < rows; r++) {
        lo = clip(v[r].first, lo, p1);
        hi = clip(v[r].end, p0, hi);
    }
    if (lo > hi) lo = hi = p1; /* nothing in common */
    for (int r = 0; r < rows; r++) {
        const float *sr = s + (size_t)r * ld;
        size_t f = clip(v[r].first, p0, p1), e = clip(v[r].end, f, p1), mid = clip(lo, f, e);
        add_values(a, 1, sr + (f - base), ld, f, mid, out + (size_t)r * a->out_stride);
    }
    add_values(a, rows, s + (lo - base), ld, lo, hi, out);
    for (int r = 0; r < rows; r++) {
        const float *sr = s + (size_t)r * ld;
        size_t f = clip(v[r].first, p0, p1), e = clip(v[r].end, f, p1), mid = clip(hi, f, e);
        add_values(a, 1, sr + (mid - base), ld, mid, e, out + (size_t)r * a->out_stride);
    }
}

/* Values of a row's draft-tree slots, runs of neighbours together. s: packed weights of positions panel0.. of
 * the row. */
static void tree_values(const tn_attn_f32_args *a, const seen *v, const float *s, float *out) {
    size_t n_slots = a->n_tree_words * 64, p = a->tree_base;
    for (size_t j = 0, run; j < n_slots; j = run + 1) {
        for (run = j; run < n_slots && v->tree[run / 64] >> (run % 64) & 1; run++) {
        }
        size_t skip = clip(v->first, p, p + run - j) - p;
        add_values(a, 1, s + (p + skip - v->panel0), 0, a->tree_base + j + skip, a->tree_base + run, out);
        p += run - j;
    }
}

static void NAME(tn_attn_f32)(const tn_attn_f32_args *a) {
    for (size_t row0 = 0; row0 < a->n_rows; row0 += ATTN_ROWS) {
        size_t n_rows = a->n_rows - row0 < ATTN_ROWS ? a->n_rows - row0 : ATTN_ROWS, base = SIZE_MAX,
               stop = 0;
        seen v[ATTN_ROWS];
        for (size_t r = 0; r < n_rows; r++) {
            v[r] = seen_of(a, row0 + r);
            base = v[r].panel0 < base ? v[r].panel0 : base;
            stop = v[r].panel1 > stop ? v[r].panel1 : stop;
        }
        size_t ld = stop - base + 16; /* not a power of two: rows would share cache sets */
        const float *q = a->q + row0 * a->q_stride;
        float *s = a->scratch, *out = a->out + row0 * a->out_stride, sum[ATTN_ROWS];
        for (size_t p0 = base; p0 < stop; p0 += ATTN_POS) {
            for (size_t r = 0, n; r < n_rows; r += n) {
                n = n_rows - r < MR ? n_rows - r : MR;
                size_t from = stop, to = base;
                for (size_t i = r; i < r + n; i++) {
                    from = v[i].panel0 < from ? v[i].panel0 : from;
                    to = v[i].panel1 > to ? v[i].panel1 : to;
                }
                from = clip(from, p0, p0 + ATTN_POS);
                to = clip(to, from, p0 + ATTN_POS);
                cols_f32((int)n, to - from, q + r * a->q_stride, a->q_stride, a->k_panels + from * a->d_head,
                         TN_KV_PANEL, a->d_head * TN_KV_PANEL, a->d_head, NULL, s + r * ld + (from - base),
                         ld, false);
            }
        }
        for (size_t r = 0; r < n_rows; r++) {
            sum[r] = softmax_row(a, &v[r], s + r * ld + (v[r].panel0 - base),
                                 a->sinks ? &a->sinks[row0 + r] : NULL);
            memset(out + r * a->out_stride, 0, a->d_head * sizeof *out);
        }
        for (size_t p0 = base; p0 < stop; p0 += ATTN_POS) {
            size_t p1 = stop - p0 < ATTN_POS ? stop : p0 + ATTN_POS;
            for (size_t r = 0, n; r < n_rows; r += n) {
                n = n_rows - r < MR ? n_rows - r : MR;
                group_values(a, v + r, (int)n, s + r * ld, ld, base, p0, p1, out + r * a->out_stride);
            }
        }
        for (size_t r = 0; r < n_rows; r++) {
            float *o = out + r * a->out_stride;
            size_t d = 0;
            if (v[r].tree) tree_values(a, &v[r], s + r * ld + (v[r].panel0 - base), o);
            for (; d + W <= a->d_head; d += W) f_store(o + d, f_div(f_load(o + d), f_set1(sum[r])));
            for (; d < a->d_head; d++) o[d] /= sum[r];
        }
    }
}

/* ---- attention at listed positions ------------------------------------------------------------------
 *
 * By spans of positions: their keys are turned from panels into rows inside L1, every query row takes the dot
 * products it wants from them, and later, span by span again, the values. A span's keys and values are so
 * read from memory once for all rows of a KV head. */

/* Keys of positions p0..p0+n-1 as rows of `row` floats; n a multiple of TN_KV_PANEL. */
static void key_rows(const tn_attn_sparse_args *a, size_t p0, size_t n, size_t row, float *rows) {
    const float *panel = a->k_panels + p0 * a->d_head;
    for (size_t p = 0; p < n; p += TN_KV_PANEL, panel += a->d_head * TN_KV_PANEL, rows += TN_KV_PANEL * row) {
        size_t d = 0;
#ifdef f_transpose16
        for (; d + 16 <= a->d_head; d += 16) {
            f_transpose16(panel + d * TN_KV_PANEL, TN_KV_PANEL, rows + d, row);
            f_transpose16(panel + d * TN_KV_PANEL + 16, TN_KV_PANEL, rows + 16 * row + d, row);
        }
#endif
        for (; d < a->d_head; d++) {
            for (size_t i = 0; i < TN_KV_PANEL; i++) rows[i * row + d] = panel[d * TN_KV_PANEL + i];
        }
    }
}

/* Dot products of q with n <= 16 key rows (of 16 * n16 floats) at k + idx[i] * row; writes 16 values. */
INLINE void sparse_scores(size_t n16, const float *q, const float *k, const uint32_t *idx, float *s) {
#ifdef f_fold16
    vf acc[16];
    UNROLL for (int i = 0; i < 16; i++) {
        const float *key = k + (size_t)idx[i] * n16 * 16;
        acc[i] = f_mul(f_load(q),
                       f_load(key)); /* fma onto +0, but for the sign of a zero, which no weight shows */
        UNROLL_SOME for (size_t j = 1; j < n16; j++) acc[i] =
            f_fma(f_load(q + j * 16), f_load(key + j * 16), acc[i]);
    }
    f_store(s, f_fold16(acc));
#else
    for (int i = 0; i < 16; i++) {
        const float *key = k + (size_t)idx[i] * n16 * 16;
        lanes l = lanes_zero();
        for (size_t j = 0; j < n16; j++) {
            UNROLL for (int r = 0; r < N_LANE_REGS; r++) l.v[r] =
                f_fma(f_load(q + j * 16 + (size_t)r * W), f_load(key + j * 16 + (size_t)r * W), l.v[r]);
        }
        s[i] = fold(&l, NULL, 0);
    }
#endif
}

/* Scores of list entries c0..c1-1 of one row, all inside the span whose key rows begin at position p0. Writes
 * up to 15 beyond c1. */
INLINE void span_scores(size_t n16, const float *q, const float *rows, size_t p0, const uint32_t *idx,
                        size_t c0, size_t c1, float *s) {
    const float *k = rows - p0 * n16 * 16;
    size_t c = c0;
    for (; c + 16 <= c1; c += 16) sparse_scores(n16, q, k, idx + c, s + c);
    if (c == c1) return;
    uint32_t last[16];
    uint32_t lo = idx[c], hi = idx[c1 - 1];
    for (size_t j = 0; j < 16; j++) { /* what comes behind the list may be anything */
        uint32_t p = idx[c + j] < hi ? idx[c + j] : hi;
        last[j] = p > lo ? p : lo;
    }
    sparse_scores(n16, q, k, last, s + c);
}

/* Weights exp(score - max) of n scores in place; returns their sum. Room up to the next multiple of 16. */
static float sparse_softmax(const tn_attn_sparse_args *a, float *s, size_t n) {
    size_t n_pad = (n + 15) / 16 * 16;
    vf scale = f_set1(a->scale), cap = f_set1(a->soft_cap), max = f_set1(-INFINITY);
    for (size_t i = n; i < n_pad; i++) s[i] = 0;
    for (size_t i = 0; i < n_pad; i += W) {
        vf x = f_mul(f_load(s + i), scale);
        if (a->soft_cap > 0) x = f_mul(cap, v_tanh(f_div(x, cap)));
        f_store(s + i, x);
    }
    for (size_t i = n; i < n_pad; i++) s[i] = -INFINITY;
    for (size_t i = 0; i < n_pad; i += W) max = f_max(f_load(s + i), max);
    float lane[W], m = -INFINITY;
    f_store(lane, max);
    for (int i = 0; i < W; i++) m = lane[i] > m ? lane[i] : m;
    lanes l = lanes_zero();
    for (size_t i = 0; i < n_pad; i += 16) {
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
            float *at = s + i + (size_t)j * W;
            vf w = v_exp_neg(f_sub(f_load(at), f_set1(m)));
            f_store(at, w);
            l.v[j] = f_add(l.v[j], w);
        }
    }
    return fold(&l, NULL, 0);
}

/* Continues the even and odd chains of nv vectors of one row's result over list entries c0..c1-1. */
INLINE void sparse_values(int nv, const float *v, size_t d_head, const uint32_t *idx, const float *w,
                          size_t c0, size_t c1, float *even, float *odd) {
    vf e[8], o[8];
    UNROLL for (int j = 0; j < nv; j++) {
        e[j] = f_load(even + j * W);
        o[j] = f_load(odd + j * W);
    }
    size_t c = c0;
    if (c % 2 && c < c1) {
        UNROLL for (int j = 0; j < nv; j++) o[j] =
            f_fma(f_set1(w[c]), f_load(v + (size_t)idx[c] * d_head + j * W), o[j]);
        c++;
    }
    for (; c + 2 <= c1; c += 2) {
        const float *v0 = v + (size_t)idx[c] * d_head, *v1 = v + (size_t)idx[c + 1] * d_head;
        vf w0 = f_set1(w[c]), w1 = f_set1(w[c + 1]);
        UNROLL for (int j = 0; j < nv; j++) {
            e[j] = f_fma(w0, f_load(v0 + j * W), e[j]);
            o[j] = f_fma(w1, f_load(v1 + j * W), o[j]);
        }
    }
    if (c < c1) {
        UNROLL for (int j = 0; j < nv; j++) e[j] =
            f_fma(f_set1(w[c]), f_load(v + (size_t)idx[c] * d_head + j * W), e[j]);
    }
    UNROLL for (int j = 0; j < nv; j++) {
        f_store(even + j * W, e[j]);
        f_store(odd + j * W, o[j]);
    }
}

static void span_values(const tn_attn_sparse_args *a, const uint32_t *idx, const float *w, size_t c0,
                        size_t c1, float *even, float *odd) {
    size_t d = 0, n = a->d_head;
    if (W == 16) {
        for (; d + 8 * W <= n; d += 8 * W)
            sparse_values(W == 16 ? 8 : 1, a->v + d, n, idx, w, c0, c1, even + d, odd + d);
    }
    for (; d + 4 * W <= n; d += 4 * W) sparse_values(4, a->v + d, n, idx, w, c0, c1, even + d, odd + d);
    for (; d + W <= n; d += W) sparse_values(1, a->v + d, n, idx, w, c0, c1, even + d, odd + d);
    for (; d < n; d++) {
        for (size_t c = c0; c < c1; c++) {
            float *acc = c % 2 ? odd : even;
            acc[d] = fmaf(w[c], a->v[(size_t)idx[c] * n + d], acc[d]);
        }
    }
}

static void NAME(tn_attn_sparse)(const tn_attn_sparse_args *a) {
    size_t row = tn_attn_sparse_row(a->d_head), n_all = a->n_rows * a->n_group, longest = 0,
           step = row <= 64 ? 2 : 1; /* rows of a span inside L1 */
    for (size_t r = 0; r < n_all; r++) {
        size_t n = a->cuts[r * a->cut_stride + a->n_blocks];
        longest = n > longest ? n : longest;
    }
    size_t ld = tn_attn_sparse_ld(longest);
    float *rows = a->scratch, *q = rows + TN_SPARSE_SPAN * row, *even = q + n_all * row,
          *odd = even + n_all * row, *s = odd + n_all * row;
    memset(q, 0, 3 * n_all * row * sizeof *q); /* even and odd as well */
    for (size_t r = 0; r < n_all; r++)
        memcpy(q + r * row, a->q + r % a->n_rows * a->q_stride + r / a->n_rows * a->d_head,
               a->d_head * sizeof *q);
    if (row != a->d_head) memset(rows, 0, TN_SPARSE_SPAN * row * sizeof *rows);
    for (size_t b = 0; b < a->n_blocks; b += step) {
        size_t b1 = b + step < a->n_blocks ? b + step : a->n_blocks, p0 = b * TN_SPARSE_BLOCK;
        size_t used = 0;
        for (size_t r = 0; r < n_all; r++)
            used += a->cuts[r * a->cut_stride + b1] - a->cuts[r * a->cut_stride + b];
        if (!used) continue;
        size_t p1 = b1 * TN_SPARSE_BLOCK, end = (a->n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
        key_rows(a, p0, (p1 < end ? p1 : end) - p0, row, rows);
        for (size_t r = 0; r < n_all; r++) {
            const uint32_t *cuts = a->cuts + r * a->cut_stride, *idx = a->idx + r * a->idx_stride;
            switch (row) {
            case 64: span_scores(4, q + r * row, rows, p0, idx, cuts[b], cuts[b1], s + r * ld); break;
            case 128: span_scores(8, q + r * row, rows, p0, idx, cuts[b], cuts[b1], s + r * ld); break;
            default: span_scores(row / 16, q + r * row, rows, p0, idx, cuts[b], cuts[b1], s + r * ld); break;
            }
        }
    }
    for (size_t r = 0; r < n_all; r++)
        q[r * row] = sparse_softmax(a, s + r * ld,
                                    a->cuts[r * a->cut_stride + a->n_blocks]); /* q is done with: the sums */
    for (size_t b = 0; b < a->n_blocks; b += step) {
        size_t b1 = b + step < a->n_blocks ? b + step : a->n_blocks;
        for (size_t r = 0; r < n_all; r++) {
            const uint32_t *cuts = a->cuts + r * a->cut_stride;
            if (cuts[b] < cuts[b1])
                span_values(a, a->idx + r * a->idx_stride, s + r * ld, cuts[b], cuts[b1], even + r * row,
                            odd + r * row);
        }
    }
    for (size_t r = 0; r < n_all; r++) {
        float *out = a->out + r % a->n_rows * a->out_stride + r / a->n_rows * a->d_head;
        for (size_t d = 0; d < a->d_head; d++) out[d] = (even[r * row + d] + odd[r * row + d]) / q[r * row];
    }
}

/* ---- attention of tiles --------------------------------------------------------------------------------
 *
 * The rows of a tile are lanes: position by position their scores lie beside each other. So keys and values
 * are read where they lie in the cache, a key one broadcast after the other, a value as a vector: nothing is
 * copied or turned, and no sum goes across lanes. Tiles walk over the cache together, SPAN_POS positions at a
 * time, so that what one has brought near the others find there. */

enum {
    SPAN_POS = 512,
    TILES = 64,
    TILE_STEP = 64,              /* entries of a list whose values stay in L1 while all rows take them */
    TILE_POS = W == 16 ? 12 : 5, /* positions scored together, */
    TILE_VECS =
        W == 4 ? 4
               : 2, /* by so many vectors of rows: accumulators, and what is multiplied, fit the registers */
};

typedef struct tile_space {
    size_t n_lanes, scored, added;  /* rows rounded up; entries of the list that are done with */
    size_t lo, hi;                  /* entries that all rows see */
    float *qt, *scores, *max, *sum; /* [d][n_lanes], [n_idx][n_lanes], [n_lanes], [n_lanes] */
} tile_space;

/* What is rare: scores of n entries at `at`, rows r0..r1-1, are capped, and -inf where a row does not see the
 * position. */
static void odd_scores(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t at,
                       size_t n, size_t r0, size_t r1) {
    float *s = w->scores + at * w->n_lanes;
    vf cap = f_set1(a->soft_cap);
    for (size_t p = 0; p < n; p++, s += w->n_lanes) {
        for (size_t r = r0; r < r1 && a->soft_cap > 0; r += W)
            f_store(s + r, f_mul(cap, v_tanh(f_div(f_load(s + r), cap))));
        for (size_t r = r0; r < r1 && r < t->n_rows; r++) {
            if ((int32_t)(at + p) < t->first[r] || (int32_t)(at + p) >= t->end[r]) s[r] = -INFINITY;
        }
        for (size_t r = r0; r < r1; r += W) f_store(w->max + r, f_max(f_load(s + r), f_load(w->max + r)));
    }
}

/* Scores of n <= TILE_POS neighbours in the list (behind the last, of the last), rows r0.. of nv vectors;
 * masked: some rows do not see some of them. */
INLINE void score_block(int nv, const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w,
                        size_t at, size_t n, size_t r0, bool masked) {
    const float *key[TILE_POS], *qt = w->qt + r0;
    vf acc[TILE_POS][TILE_VECS], scale = f_set1(a->scale);
    UNROLL for (int p = 0; p < TILE_POS; p++) {
        key[p] = a->k + t->idx[at + ((size_t)p < n ? (size_t)p : n - 1)] * a->d_head;
        UNROLL for (int j = 0; j < nv; j++) acc[p][j] = f_set1(0.0f);
    }
    for (size_t i = 0; i < a->d_head; i++, qt += w->n_lanes) {
        vf q[TILE_VECS];
        UNROLL for (int j = 0; j < nv; j++) q[j] = f_load(qt + j * W);
        UNROLL for (int p = 0; p < TILE_POS; p++) {
            vf k = f_set1(key[p][i]);
            UNROLL for (int j = 0; j < nv; j++) acc[p][j] = f_fma(k, q[j], acc[p][j]);
        }
    }
    float *s = w->scores + at * w->n_lanes + r0, *top = w->max + r0;
    bool plain = !masked && !(a->soft_cap > 0);
    vf max[TILE_VECS];
    UNROLL for (int j = 0; j < nv; j++) max[j] = f_load(top + j * W);
    UNROLL for (int p = 0; p < TILE_POS; p++) {
        UNROLL for (int j = 0; j < nv; j++) {
            vf x = f_mul(acc[p][j], scale);
            f_store(s + (size_t)p * w->n_lanes + (size_t)j * W, x);
            max[j] = f_max(x, max[j]);
        }
    }
    if (plain) {
        UNROLL for (int j = 0; j < nv; j++) f_store(top + j * W, max[j]);
    } else {
        odd_scores(a, t, w, at, n, r0, r0 + (size_t)nv * W);
    }
}

static void score_tile(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t at,
                       size_t n) {
    bool masked = at < w->lo || at + n > w->hi;
    for (size_t i = at + TILE_POS; i < at + 2 * TILE_POS && i < t->n_idx; i++) {
        const char *ahead = (const char *)(a->k + t->idx[i] * a->d_head);
        for (size_t b = 0; b < a->d_head * sizeof(float); b += 64) __builtin_prefetch(ahead + b);
    }
    for (size_t r = 0, nv; r < w->n_lanes; r += nv * W) {
        nv = (w->n_lanes - r) / W;
        nv = nv <= TILE_VECS ? nv : nv < 2 * TILE_VECS ? (nv + 1) / 2 : TILE_VECS; /* of nearly equal size */
        switch (nv) {
        case 1: score_block(1, a, t, w, at, n, r, masked); break;
        case 2: score_block(2, a, t, w, at, n, r, masked); break;
        case 3: score_block(TILE_VECS >= 3 ? 3 : 1, a, t, w, at, n, r, masked); break;
        default: score_block(TILE_VECS >= 4 ? 4 : 1, a, t, w, at, n, r, masked); break;
        }
    }
}

/* Scores become exp(score - max); their sums as attn_f32.h has them: 16 lanes by place in the list. */
static void softmax_tile(const tn_attn_tile *t, const tile_space *w) {
    for (size_t r = 0; r < w->n_lanes; r += W) {
        vf max = f_load(w->max + r), lane[16];
        float *s = w->scores + r;
        size_t i = 0;
        UNROLL for (int j = 0; j < 16; j++) lane[j] = f_set1(0.0f);
        for (; i + 16 <= t->n_idx; i += 16) {
            UNROLL for (int j = 0; j < 16; j++, s += w->n_lanes) {
                vf x = v_exp_neg(f_sub(f_load(s), max));
                f_store(s, x);
                lane[j] = f_add(lane[j], x);
            }
        }
        for (size_t j = 0; i + j < t->n_idx; j++, s += w->n_lanes) {
            vf x = v_exp_neg(f_sub(f_load(s), max));
            f_store(s, x);
            lane[j] = f_add(lane[j], x);
        }
        UNROLL for (int stride = 8; stride; stride /= 2) {
            UNROLL for (int j = 0; j < stride; j++) lane[j] = f_add(lane[j], lane[j + stride]);
        }
        f_store(w->sum + r, lane[0]);
    }
}

/* out[r][0..nv * W) continues its chains over n entries of the list, weights w[entry * ldw + r * ldr]. */
INLINE void value_block(int rows, int nv, const float *w, size_t ldw, size_t ldr, const uint32_t *idx,
                        const float *v, size_t d, size_t n, float *out) {
    vf acc[MR][MANY];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < nv; j++) acc[r][j] = f_load(out + (size_t)r * d + j * W);
    }
    for (size_t i = 0; i < n; i++, w += ldw) {
        const float *from = v + idx[i] * d;
        __asm__("" : "+r"(from)); /* one address for all vectors: gcc would compute each of them anew */
        vf x[MANY];
        UNROLL for (int j = 0; j < nv; j++) x[j] = f_load(from + j * W);
        UNROLL for (int r = 0; r < rows; r++) {
            vf y = f_set1(w[(size_t)r * ldr]);
            UNROLL for (int j = 0; j < nv; j++) acc[r][j] = f_fma(y, x[j], acc[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < nv; j++) f_store(out + (size_t)r * d + j * W, acc[r][j]);
    }
}

/* Up to MR rows from r0 on take the values of entries i0..i1-1, which all of them see. */
static void add_listed(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t r0,
                       size_t rows, size_t i0, size_t i1) {
    if (i0 >= i1) return;
    size_t d = a->d_head, n = i1 - i0, c = 0;
    const uint32_t *idx = t->idx + i0;
    const float *s = w->scores + i0 * w->n_lanes + r0;
    float *out = t->out + r0 * d;
    for (; c + FULL_N <= d; c += FULL_N) {
        switch (rows) {
        case 1: value_block(1, MANY, s, w->n_lanes, 1, idx, a->v + c, d, n, out + c); break;
        case 2: value_block(2, MANY, s, w->n_lanes, 1, idx, a->v + c, d, n, out + c); break;
        case 3: value_block(3, MANY, s, w->n_lanes, 1, idx, a->v + c, d, n, out + c); break;
        case 4: value_block(4, MANY, s, w->n_lanes, 1, idx, a->v + c, d, n, out + c); break;
        case 5: value_block(5, MANY, s, w->n_lanes, 1, idx, a->v + c, d, n, out + c); break;
        default: value_block(MR, MANY, s, w->n_lanes, 1, idx, a->v + c, d, n, out + c); break;
        }
    }
    for (; c + W <= d; c += W) {
        for (size_t r = 0; r < rows; r++)
            value_block(1, 1, s + r, w->n_lanes, 1, idx, a->v + c, d, n, out + r * d + c);
    }
    for (; c < d; c++) {
        for (size_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < n; i++)
                out[r * d + c] = fmaf(s[i * w->n_lanes + r], a->v[idx[i] * d + c], out[r * d + c]);
        }
    }
}

/* Rows of a tile that go through the product together: groups of nearly equal size, at most MR. */
static size_t group_rows(size_t n_rows) {
    size_t n_groups = (n_rows + MR - 1) / MR;
    return (n_rows + n_groups - 1) / n_groups;
}

/* Entries i0..i1-1: those all rows see together, the edges row by row, so that no row ever touches a value it
 * must not see. */
static void value_tile(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t i0,
                       size_t i1) {
    size_t lo = clip(w->lo, i0, i1), hi = clip(w->hi, lo, i1), step = group_rows(t->n_rows);
    for (size_t i = i1; i < i1 + TILE_STEP && i < t->n_idx; i++) {
        const char *ahead = (const char *)(a->v + t->idx[i] * a->d_head);
        for (size_t b = 0; b < a->d_head * sizeof(float); b += 64) __builtin_prefetch(ahead + b);
    }
    for (size_t r = 0; r < t->n_rows && lo > i0; r++)
        add_listed(a, t, w, r, 1, clip((size_t)t->first[r], i0, lo), clip((size_t)t->end[r], i0, lo));
    for (size_t r = 0; r < t->n_rows; r += step)
        add_listed(a, t, w, r, t->n_rows - r < step ? t->n_rows - r : step, lo, hi);
    for (size_t r = 0; r < t->n_rows && hi < i1; r++)
        add_listed(a, t, w, r, 1, clip((size_t)t->first[r], hi, i1), clip((size_t)t->end[r], hi, i1));
}

/* Lays out a tile in scratch; returns the floats it takes. */
static size_t open_tile(const tn_attn_tiles_args *a, const tn_attn_tile *t, float *scratch, tile_space *w) {
    size_t d = a->d_head, n = tn_attn_tile_lanes(t->n_rows);
    *w = (tile_space){.n_lanes = n,
                      .hi = t->n_idx,
                      .qt = scratch,
                      .max = scratch + d * n,
                      .sum = scratch + (d + 1) * n,
                      .scores = scratch + (d + 2) * n};
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) w->qt[i * n + r] = r < t->n_rows ? t->q[r * d + i] : 0;
        w->max[r] = -INFINITY;
        if (r >= t->n_rows) continue;
        w->lo = (size_t)t->first[r] > w->lo ? (size_t)t->first[r] : w->lo;
        w->hi = (size_t)t->end[r] < w->hi ? (size_t)t->end[r] : w->hi;
    }
    if (w->lo > w->hi) w->lo = w->hi; /* nothing in common */
    memset(t->out, 0, t->n_rows * d * sizeof *t->out);
    return tn_attn_tile_floats(t->n_rows, t->n_idx, d);
}

#ifdef f_transpose_rows16
/* One tile of few rows, as in decoding, would leave most lanes idle. So positions are lanes here: keys are
 * turned, a panel of the list at a time, and all rows multiplied with it; then all is as in full attention.
 * Every step prefetches the next. */
_Static_assert(W == 16, "a panel is two vectors");
enum {
    FEW_STEP = 4,
    FEW_AHEAD = 24
}; /* entries of the list whose values are added at a time; how far ahead they are prefetched */

static bool is_few(const tn_attn_tiles_args *a) {
    const tn_attn_tile *t = a->tiles;
    bool few = a->n_tiles == 1 && t->n_rows <= TALL && a->d_head % FULL_N == 0;
    for (size_t r = 0; few && r < t->n_rows; r++) few = t->first[r] == 0 && (size_t)t->end[r] == t->n_idx;
    return few;
}

static void prefetch_rows(const float *x, size_t d, const uint32_t *idx, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < d; j += 64 / sizeof *x) __builtin_prefetch(x + idx[i] * d + j);
    }
}

/* Keys of n <= TN_KV_PANEL list entries, behind the last those of the last, as a panel. */
static void turn_keys(const tn_attn_tiles_args *a, const uint32_t *idx, size_t n, float *panel) {
    for (size_t i = 0; i < TN_KV_PANEL; i += 16) {
        const float *row[16];
        for (size_t j = 0; j < 16; j++) row[j] = a->k + idx[i + j < n ? i + j : n - 1] * a->d_head;
        for (size_t x = 0; x < a->d_head; x += 16)
            f_transpose_rows16(row, x, panel + x * TN_KV_PANEL + i, TN_KV_PANEL);
    }
}

/* Products of all rows with a panel, while the keys of the next n entries come: two lines at every step, as
 * many as a panel has. */
INLINE void few_scores(int rows, const float *q, size_t d, const float *panel, const float *k,
                       const uint32_t *next, size_t n, float *s, size_t ld) {
    vf acc[TALL][2];
    size_t i_next = 0, line = 0;
    UNROLL for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = f_set1(0.0f);
    for (size_t i = 0; i < d; i++, panel += TN_KV_PANEL) {
        if (i_next < n) {
            const float *ahead = k + next[i_next] * d + line;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 16);
            line += 32;
            if (line == d) line = 0, i_next++;
        }
        vf x0 = f_load(panel), x1 = f_load(panel + 16);
        UNROLL for (int r = 0; r < rows; r++) {
            vf y = f_set1(q[(size_t)r * d + i]);
            acc[r][0] = f_fma(y, x0, acc[r][0]);
            acc[r][1] = f_fma(y, x1, acc[r][1]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        f_store(s + (size_t)r * ld, acc[r][0]);
        f_store(s + (size_t)r * ld + 16, acc[r][1]);
    }
}

static void few_rows(const tn_attn_tiles_args *a) {
    const tn_attn_tile *t = a->tiles;
    size_t d = a->d_head, n = t->n_idx, n_rows = t->n_rows,
           ld = (n + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL + 16, step = group_rows(n_rows);
    float *panel = a->scratch, *s = panel + TN_KV_PANEL * d, sum[TALL];
    for (size_t at = 0; at < n; at += TN_KV_PANEL) {
        size_t m = n - at < TN_KV_PANEL ? n - at : TN_KV_PANEL,
               n_next = n - at - m < TN_KV_PANEL ? n - at - m : TN_KV_PANEL;
        const uint32_t *next = t->idx + at + m;
        turn_keys(a, t->idx + at, m, panel);
        switch (n_rows) {
        case 1: few_scores(1, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 2: few_scores(2, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 3: few_scores(3, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 4: few_scores(4, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 5: few_scores(5, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 6: few_scores(6, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 7: few_scores(7, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        default: few_scores(8, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        }
    }
    prefetch_rows(a->v, d, t->idx, n < FEW_AHEAD ? n : FEW_AHEAD);
    const tn_attn_f32_args full = {.d_head = d, .scale = a->scale, .soft_cap = a->soft_cap};
    for (size_t r = 0; r < n_rows; r++) {
        seen all = {.end = n, .tree_end = n, .panel1 = ld - 16};
        sum[r] = softmax_row(&full, &all, s + r * ld, NULL);
    }
    memset(t->out, 0, n_rows * d * sizeof *t->out);
    for (size_t at = 0; at < n; at += FEW_STEP) {
        size_t m = n - at < FEW_STEP ? n - at : FEW_STEP, next = at + FEW_AHEAD;
        if (next < n) prefetch_rows(a->v, d, t->idx + next, n - next < FEW_STEP ? n - next : FEW_STEP);
        for (size_t r = 0, rows; r < n_rows; r += rows) {
            rows = n_rows - r < step ? n_rows - r : step;
            const float *w = s + r * ld + at;
            for (size_t c = 0; c < d; c += FULL_N) {
                float *out = t->out + r * d + c;
                switch (rows) {
                case 1: value_block(1, MANY, w, 1, ld, t->idx + at, a->v + c, d, m, out); break;
                case 2: value_block(2, MANY, w, 1, ld, t->idx + at, a->v + c, d, m, out); break;
                case 3: value_block(3, MANY, w, 1, ld, t->idx + at, a->v + c, d, m, out); break;
                case 4: value_block(4, MANY, w, 1, ld, t->idx + at, a->v + c, d, m, out); break;
                case 5: value_block(5, MANY, w, 1, ld, t->idx + at, a->v + c, d, m, out); break;
                default: value_block(MR, MANY, w, 1, ld, t->idx + at, a->v + c, d, m, out); break;
                }
            }
        }
    }
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t x = 0; x < d; x += W)
            f_store(t->out + r * d + x, f_div(f_load(t->out + r * d + x), f_set1(sum[r])));
    }
}
#endif

static void NAME(tn_attn_tiles)(const tn_attn_tiles_args *a) {
#ifdef f_transpose_rows16
    if (is_few(a)) {
        few_rows(a);
        return;
    }
#endif
    size_t end_pos = 0, d = a->d_head;
    for (const tn_attn_tile *t = a->tiles; t < a->tiles + a->n_tiles; t++)
        end_pos = t->idx[t->n_idx - 1] + 1 > end_pos ? t->idx[t->n_idx - 1] + 1 : end_pos;
    for (size_t t0 = 0, n_tiles; t0 < a->n_tiles; t0 += n_tiles) {
        const tn_attn_tile *tiles = a->tiles + t0;
        tile_space space[TILES];
        size_t used = 0;
        for (n_tiles = 0; n_tiles < TILES && t0 + n_tiles < a->n_tiles; n_tiles++) {
            const tn_attn_tile *t = &tiles[n_tiles];
            if (n_tiles && used + tn_attn_tile_floats(t->n_rows, t->n_idx, d) > TN_ATTN_TILES_TOGETHER) break;
            used += open_tile(a, t, a->scratch + used, &space[n_tiles]);
        }
        for (size_t p1 = SPAN_POS; p1 < end_pos + SPAN_POS; p1 += SPAN_POS) {
            for (size_t i = 0; i < n_tiles; i++) {
                const tn_attn_tile *t = &tiles[i];
                for (size_t *at = &space[i].scored, n; *at < t->n_idx && t->idx[*at] < p1; *at += n) {
                    n = t->n_idx - *at < TILE_POS ? t->n_idx - *at : TILE_POS;
                    score_tile(a, t, &space[i], *at, n);
                }
            }
        }
        for (size_t i = 0; i < n_tiles; i++) softmax_tile(&tiles[i], &space[i]);
        for (size_t p1 = SPAN_POS; p1 < end_pos + SPAN_POS; p1 += SPAN_POS) {
            for (size_t i = 0; i < n_tiles; i++) {
                const tn_attn_tile *t = &tiles[i];
                for (size_t *at = &space[i].added, n; *at < t->n_idx && t->idx[*at] < p1; *at += n) {
                    n = t->n_idx - *at < TILE_STEP ? t->n_idx - *at : TILE_STEP;
                    value_tile(a, t, &space[i], *at, *at + n);
                }
            }
        }
        for (size_t i = 0; i < n_tiles; i++) {
            for (size_t r = 0; r < tiles[i].n_rows; r++) {
                float *o = tiles[i].out + r * d, total = space[i].sum[r];
                size_t x = 0;
                for (; x + W <= d; x += W) f_store(o + x, f_div(f_load(o + x), f_set1(total)));
                for (; x < d; x++) o[x] /= total;
            }
        }
    }
}

void NAME(tn_kernels_f32)(tn_kernels *k) {
    k->gemm_f32[TN_PANEL_F32] = NAME(tn_gemm_f32);
    k->gemm_f32[TN_PANEL_F16] = NAME(tn_gemm_f16);
    k->gemm_f32[TN_PANEL_BF16] = NAME(tn_gemm_bf16);
    k->attn_f32 = NAME(tn_attn_f32);
    k->attn_sparse = NAME(tn_attn_sparse);
    k->attn_tiles = NAME(tn_attn_tiles);
    k->rmsnorm_f32 = NAME(tn_rmsnorm_f32);
    k->layernorm_f32 = NAME(tn_layernorm_f32);
    k->rope_f32 = NAME(tn_rope_f32);
    k->glu_f32 = NAME(tn_glu_f32);
    k->act_f32 = NAME(tn_act_f32);
    k->add_f32 = NAME(tn_add_f32);
    k->softmax_f32 = NAME(tn_softmax_f32);
}
