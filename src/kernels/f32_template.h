/* kernels/f32_template.h - every float kernel, written once over a vector type; included by one file per
 * instruction set.
 *
 * The includer defines ISA (suffix of the names), W (floats per vector, 16, 8 or 4), WIDE and MANY (vectors
 * per block of the matrix product for up to 3 and up to MR rows, so that rows * vectors accumulators fit the
 * register file), types vf (floats), vi (int32) and vm (a mask of lanes), and the operations below.
 * Bits are those of the scalar references: the same chains, the same lanes.
 *
 *   vf: f_load f_store f_set1 f_fma(a, b, c) f_add f_sub f_mul f_div
 *       f_max(a, b) = a > b ? a : b
 *       f_load_s8, f_load_low4, f_load_high4: W bytes as signed numbers; their low or high halves, less 8
 *       f_round (to the nearest even) f_load_f16 f_load_bf16 f_load_pairs(p, even, odd) f_and f_or
 *       f_andnot(m, a) = a & ~m
 *   vm: f_lt(a, b) f_gt(a, b) f_unord(a)
 *       f_sel(mask, a, b) = mask ? a : b
 *   vi: u8_store(p, vi): the low byte of each, all of which are within 0 .. 255
 *       i_cvt(vf) i_add i_sub i_sra1 (>> 1, arithmetic) i_srl31 (>> 31, logical) i_sll23 f_cast(vi) i_set1
 *
 * Optional:
 *   f_transpose16(src, ld_src, dst, ld_dst): dst[i][j] = src[j][i] of 16 x 16 floats
 *   f_fold16(vf[16]), with W = 16: a vector of the 16 sums, each added pairwise at stride 8, 4, 2, 1
 *   f_transpose_rows16(row[16], d, dst, ld_dst): dst[i][j] = row[j][d + i], i, j < 16
 *   f_stream: f_store to a whole vector's boundary, around the caches; f_fence() after them */
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define CAT2(a, b) a##_##b
#define CAT(a, b) CAT2(a, b)
#define NAME(stem) CAT(stem, ISA)
#define INLINE static inline __attribute__((always_inline))
#ifndef f_stream
#define f_stream f_store
#define f_fence() (void)0
#endif
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

/* The same for -87 <= x <= 0: one factor 2^n will do, because exp(x) is normal. */
static inline vf v_exp_near(vf x) {
    vf n, p = exp_reduced(x, &n);
    return f_mul(p, f_cast(i_sll23(i_add(i_cvt(n), i_set1(127)))));
}

/* And for x <= 0 or NaN: 0 below. */
static inline vf v_exp_neg(vf x) {
    vf p = v_exp_near(x);
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
    case TN_ACT_SIGMOID: return f_div(f_set1(1.0f), f_add(f_set1(1.0f), v_exp(f_sub(f_set1(-0.0f), x))));
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

#include "kernels/f32_softmax_template.h"

static float NAME(tn_absmax_f32)(const float *x, size_t n) {
    float lane[W], most = 0;
    size_t i = 0;
    vf max = f_set1(0.0f);
    for (; i + W <= n; i += W) max = f_max(f_andnot(sign_mask(), f_load(x + i)), max);
    f_store(lane, max);
    for (int j = 0; j < W; j++) most = lane[j] > most ? lane[j] : most;
    for (; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* ---- attention --------------------------------------------------------------------------------------
 *
 * Blocks of ATTN_ROWS rows share what they read: per ATTN_POS positions all rows are scored, then per
 * ATTN_POS positions all rows add their weighted values, MR rows at a time. Where the rows of a group see
 * different positions, the odd ones are added row by row, so that no row ever touches a value it must not
 * see. */

enum { ATTN_ROWS = 24, ATTN_POS = 256 };

#include "kernels/kv_widen_template.h"

/* What a span of the cache is multiplied as: floats, or, where f is NULL, the cells, which become floats
 * as they are loaded. */
typedef struct span {
    const float *f;
    size_t pos; /* where it begins */
} span;

/* Halves are converted by the load itself, which costs less than to read twice as much. Codes cost more,
 * and are turned into floats once for many rows; few would not earn that back. A minimal build has no such
 * products with codes. */
static bool as_cells(const tn_attn_f32_args *a, size_t n_rows) {
    if (a->kv == TN_KV_F16) return a->d_head % (NARROW * W) == 0;
#ifndef TERN_MINIMAL
    return a->kv != TN_KV_F32 && n_rows <= TALL && a->d_head % TN_KV_GROUP == 0;
#else
    (void)n_rows;
    return false;
#endif
}

static const uint8_t *panel_at(const tn_attn_f32_args *a, const void *cells, size_t pos) {
    return (const uint8_t *)cells + pos / TN_KV_PANEL * tn_kv_panel_bytes(a->kv, a->d_head);
}

/* The keys of whole panels p0.. where values are keys too: a few positions at a time, turned to panels. */
static span keys_of_values(const tn_attn_f32_args *a, size_t p0, size_t n_pos, float *wide) {
    enum { AT_ONCE = 8 };
    float rows[AT_ONCE * TN_MAX_HEAD];
    size_t d = a->d_head;
    for (size_t p = 0; p < n_pos; p += AT_ONCE) {
        const float *from = rows;
        float *to = wide + p / TN_KV_PANEL * TN_KV_PANEL * d + p % TN_KV_PANEL;
        if (a->kv == TN_KV_F32) from = (const float *)a->v + (p0 + p) * d;
        else NAME(tn_kv_rows)(a->kv, d, a->v, p0 + p, AT_ONCE, rows);
        for (size_t i = 0; i < d; i++, to += TN_KV_PANEL)
            UNROLL for (size_t k = 0; k < AT_ONCE; k++) to[k] = from[k * d + i];
    }
    return (span){.f = wide};
}

/* The keys of whole panels p0.., where they lie or as floats in `wide`. */
static span keys_at(const tn_attn_f32_args *a, bool cells, size_t p0, size_t n_pos, float *wide) {
    if (!a->k_panels) return keys_of_values(a, p0, n_pos, wide);
    if (cells) return (span){.pos = p0};
    if (a->kv == TN_KV_F32) return (span){.f = (const float *)a->k_panels + p0 * a->d_head};
    widen_keys(a->kv, a->d_head, panel_at(a, a->k_panels, p0), n_pos / TN_KV_PANEL, wide);
    return (span){.f = wide};
}

static span values_at(const tn_attn_f32_args *a, bool cells, size_t p0, size_t n_pos, float *wide) {
    if (cells) return (span){.pos = p0};
    if (a->kv == TN_KV_F32) return (span){.f = (const float *)a->v + p0 * a->d_head};
    NAME(tn_kv_rows)(a->kv, a->d_head, a->v, p0, n_pos, wide);
    return (span){.f = wide};
}

/* A span without its first n positions. */
static span span_from(const tn_attn_f32_args *a, span x, size_t n) {
    return x.f ? (span){.f = x.f + n * a->d_head} : (span){.pos = x.pos + n};
}

/* Positions of a span. */
static size_t span_step(const tn_attn_f32_args *a, bool cells) {
    return cells || a->kv == TN_KV_F32 ? ATTN_POS : tn_kv_span(a->d_head);
}

/* Rows that go through a product together: all that may, or groups of nearly equal size. */
static size_t rows_together(size_t n_rows) {
    size_t n_groups = n_rows <= TALL ? 1 : (n_rows + MR - 1) / MR;
    return (n_rows + n_groups - 1) / n_groups;
}

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

/* Scores of the row's draft-tree slots move to the positions they stand for, one after another. */
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

/* Scores of n positions, from `first` on, fall by their distance from `own`. */
static void slope_row(float *s, size_t n, float first, float own, float slope) {
    const vf fall = f_set1(-slope);
    float far[W];
    for (size_t i = 0; i < n; i += W) {
        for (size_t k = 0; k < W; k++) far[k] = fabsf(first + (float)(i + k) - own);
        f_store(s + i, f_fma(fall, f_load(far), f_load(s + i)));
    }
}

/* Scores become exp(score - max), and 0 where the row sees nothing; returns their sum and the sink's share
 * (NULL: none). s: positions panel0.. of the row. */
static float softmax_row(const tn_attn_f32_args *a, seen *v, float *s, size_t row) {
    size_t n = v->panel1 - v->panel0;
    bool once = !v->tree && !(a->soft_cap > 0) && !a->slopes &&
                a->scale > 0; /* scaling leaves -inf what it is: the largest is found on the way */
    vf scale = f_set1(a->scale), cap = f_set1(a->soft_cap), max[PER_PANEL];
    for (int j = 0; j < PER_PANEL; j++) max[j] = f_set1(-INFINITY);
    for (size_t i = 0; i < n && !once; i += W) {
        vf x = f_mul(f_load(s + i), scale);
        if (a->soft_cap > 0) x = f_mul(cap, v_tanh(f_div(x, cap)));
        f_store(s + i, x);
    }
    if (a->slopes) slope_row(s, n, (float)v->panel0, (float)a->own_pos[row], a->slopes[row]);
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
    return a->sinks ? sum + tn_expf(fminf(a->sinks[row] - m, 80)) : sum;
}

/* out[r][0..d_head) continues its chains over n positions with values v and weights w[r][..], up to TALL
 * rows. */
/* The columns after the last whole vector, filled up to one. */
static void add_rest(int rows, const float *w, size_t ld, const float *v, size_t d, size_t n, float *out,
                     size_t ldo) {
    enum { AT_ONCE = 64 };
    const size_t j = d / W * W, rest = d - j;
    float wide[AT_ONCE * W] = {0}, sum[W] = {0};
    for (size_t p0 = 0; p0 < n; p0 += AT_ONCE) {
        const size_t some = n - p0 < AT_ONCE ? n - p0 : AT_ONCE;
        for (size_t p = 0; p < some; p++)
            for (size_t i = 0; i < rest; i++) wide[p * W + i] = v[(p0 + p) * d + j + i];
        for (int r = 0; r < rows; r++) {
            float *o = out + (size_t)r * ldo + j;
            memcpy(sum, o, rest * sizeof *o);
            block_f32(1, 1, false, w + (size_t)r * ld + p0, ld, wide, W, TN_PANEL_N, some, NULL, sum, 0,
                      true);
            memcpy(o, sum, rest * sizeof *o);
        }
    }
}

static void add_values(const tn_attn_f32_args *a, int rows, const float *w, size_t ld, span values, size_t n,
                       float *out) {
    if (!n) return;
    size_t d = a->d_head, c;
    if (!values.f && a->kv == TN_KV_F16) { /* as_cells: there is no rest */
        cols_f16(rows, d, w, ld, (const uint16_t *)a->v + values.pos * d, d, TN_PANEL_N, n, NULL, out,
                 a->out_stride, true);
        return;
    }
#ifndef TERN_MINIMAL
    if (!values.f) {
        coded_values(a->kv, rows, w, ld, d, a->v, values.pos, n, out, a->out_stride);
        return;
    }
#endif
    const float *v = values.f;
    c = cols_f32(rows, d, w, ld, v, d, TN_PANEL_N, n, NULL, out, a->out_stride, true);
    for (int r = 0; r < rows; r++) {
        const float *wr = w + (size_t)r * ld;
        float *o = out + (size_t)r * a->out_stride;
        size_t j = c;
        for (; j + W <= d; j += W)
            block_f32(1, 1, false, wr, ld, v + j, d, TN_PANEL_N, n, NULL, o + j, 0, true);
    }
    if (d % W) add_rest(rows, w, ld, v, d, n, out, a->out_stride);
}

static size_t clip(size_t x, size_t lo, size_t hi) { return x < lo ? lo : x > hi ? hi : x; }

/* Values of positions p0..p1-1, which lie at `values`, to up to TALL rows: what all see in one product,
 * the edges row by row. */
static void group_values(const tn_attn_f32_args *a, const seen *v, int rows, const float *s, size_t ld,
                         size_t base, size_t p0, size_t p1, span values, float *out) {
    size_t lo = p0, hi = p1;
    for (int r = 0; r < rows; r++) {
        lo = clip(v[r].first, lo, p1);
        hi = clip(v[r].end, p0, hi);
    }
    if (lo > hi) lo = hi = p1; /* nothing in common */
    for (int r = 0; r < rows; r++) {
        const float *sr = s + (size_t)r * ld;
        size_t f = clip(v[r].first, p0, p1), e = clip(v[r].end, f, p1), mid = clip(lo, f, e);
        add_values(a, 1, sr + (f - base), ld, span_from(a, values, f - p0), mid - f,
                   out + (size_t)r * a->out_stride);
    }
    add_values(a, rows, s + (lo - base), ld, span_from(a, values, lo - p0), hi - lo, out);
    for (int r = 0; r < rows; r++) {
        const float *sr = s + (size_t)r * ld;
        size_t f = clip(v[r].first, p0, p1), e = clip(v[r].end, f, p1), mid = clip(hi, f, e);
        add_values(a, 1, sr + (mid - base), ld, span_from(a, values, mid - p0), e - mid,
                   out + (size_t)r * a->out_stride);
    }
}

/* Values of a row's draft-tree slots, runs of neighbours together. s: packed weights of positions panel0.. of
 * the row. */
static void tree_values(const tn_attn_f32_args *a, bool cells, const seen *v, const float *s, float *wide,
                        float *out) {
    size_t n_slots = a->n_tree_words * 64, p = a->tree_base, most = span_step(a, cells);
    for (size_t j = 0, run; j < n_slots; j = run + 1) {
        for (run = j; run < n_slots && v->tree[run / 64] >> (run % 64) & 1; run++) {
        }
        for (size_t at = clip(v->first, p, p + run - j) - p, n; j + at < run; at += n) {
            n = run - j - at < most ? run - j - at : most;
            add_values(a, 1, s + (p + at - v->panel0), 0, values_at(a, cells, a->tree_base + j + at, n, wide),
                       n, out);
        }
        p += run - j;
    }
}

/* Scores of up to TALL rows with the keys of n positions, whole panels. */
static void scores_of(const tn_attn_f32_args *a, int rows, const float *q, span keys, size_t n, float *s,
                      size_t ld) {
    size_t d = a->d_head, ps = d * TN_KV_PANEL;
    if (keys.f) {
        cols_f32(rows, n, q, a->q_stride, keys.f, TN_KV_PANEL, ps, d, NULL, s, ld, false);
    } else if (a->kv == TN_KV_F16) {
        cols_f16(rows, n, q, a->q_stride, (const uint16_t *)a->k_panels + keys.pos * d, TN_KV_PANEL, ps, d,
                 NULL, s, ld, false);
    }
#ifndef TERN_MINIMAL
    else {
        for (size_t p = 0; p < n; p += TN_KV_PANEL)
            coded_scores(a->kv, rows, q, a->q_stride, d, panel_at(a, a->k_panels, keys.pos + p), s + p, ld);
    }
#endif
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
        float *wide = a->scratch, *s = wide + tn_kv_span_floats(a->d_head),
              *out = a->out + row0 * a->out_stride, sum[ATTN_ROWS];
        bool cells = as_cells(a, n_rows);
        size_t together = rows_together(n_rows),
               step = a->k_panels ? span_step(a, cells) : tn_kv_span(a->d_head);
        for (size_t p0 = base; p0 < stop; p0 += step) {
            const span keys = keys_at(a, cells, p0, stop - p0 < step ? stop - p0 : step, wide);
            for (size_t r = 0, n; r < n_rows; r += n) {
                n = n_rows - r < together ? n_rows - r : together;
                size_t from = stop, to = base;
                for (size_t i = r; i < r + n; i++) {
                    from = v[i].panel0 < from ? v[i].panel0 : from;
                    to = v[i].panel1 > to ? v[i].panel1 : to;
                }
                from = clip(from, p0, p0 + step);
                to = clip(to, from, p0 + step);
                scores_of(a, (int)n, q + r * a->q_stride, span_from(a, keys, from - p0), to - from,
                          s + r * ld + (from - base), ld);
            }
        }
        for (size_t r = 0; r < n_rows; r++) {
            sum[r] = softmax_row(a, &v[r], s + r * ld + (v[r].panel0 - base), row0 + r);
            memset(out + r * a->out_stride, 0, a->d_head * sizeof *out);
        }
        step = span_step(a, cells);
        for (size_t p0 = base; p0 < stop; p0 += step) {
            size_t p1 = stop - p0 < step ? stop : p0 + step;
            const span values = values_at(a, cells, p0, p1 - p0, wide);
            for (size_t r = 0, n; r < n_rows; r += n) {
                n = n_rows - r < together ? n_rows - r : together;
                group_values(a, v + r, (int)n, s + r * ld, ld, base, p0, p1, values, out + r * a->out_stride);
            }
        }
        for (size_t r = 0; r < n_rows; r++) {
            float *o = out + r * a->out_stride;
            size_t d = 0;
            if (v[r].tree) tree_values(a, cells, &v[r], s + r * ld + (v[r].panel0 - base), wide, o);
            for (; d + W <= a->d_head; d += W) f_store(o + d, f_div(f_load(o + d), f_set1(sum[r])));
            for (; d < a->d_head; d++) o[d] /= sum[r];
        }
    }
}

#include "kernels/f32_delta_template.h"
#include "kernels/f32_wkv_template.h"
#include "kernels/f32_sparse_template.h"

void NAME(tn_kernels_f32)(tn_kernels *k) {
    k->gemm_f32[TN_PANEL_F32] = NAME(tn_gemm_f32);
    k->gemm_f32[TN_PANEL_F16] = NAME(tn_gemm_f16);
    k->gemm_f32[TN_PANEL_BF16] = NAME(tn_gemm_bf16);
    k->attn_f32 = NAME(tn_attn_f32);
#ifndef TERN_MINIMAL
    k->attn_sparse = NAME(tn_attn_sparse);
#endif
    k->attn_tiles = NAME(tn_attn_tiles);
    k->kv_rows = NAME(tn_kv_rows);
    k->rmsnorm_f32 = NAME(tn_rmsnorm_f32);
    k->layernorm_f32 = NAME(tn_layernorm_f32);
    k->rope_f32 = NAME(tn_rope_f32);
    k->glu_f32 = NAME(tn_glu_f32);
    k->act_f32 = NAME(tn_act_f32);
    k->add_f32 = NAME(tn_add_f32);
    k->softmax_f32 = NAME(tn_softmax_f32);
    k->shares_u8 = NAME(tn_shares_u8);
    k->absmax_f32 = NAME(tn_absmax_f32);
    k->taps_f32 = NAME(tn_taps_f32);
    k->delta_f32 = NAME(tn_delta_f32);
    k->wkv_f32 = NAME(tn_wkv_f32);
}
