/* kernels/round_template.h - the kernels of round.h over a vector type, included by one file per
 * instruction set. The includer defines ISA, W (floats per vector: 16, 8 or 4), vf, and f_load f_store
 * f_set1 f_fma(a,b,c) = a b + c f_sub f_mul f_add f_max f_min f_round (nearest even). */
#include "kernels/round.h"

#include <string.h>

#define CAT2(a, b) a##_##b
#define CAT(a, b) CAT2(a, b)
#define NAME(stem) CAT(stem, ISA)
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { LANES = 16, REGS = LANES / W };

static inline vf whole(vf x, vf inv, vf offset, vf lo, vf hi) {
    return f_round(f_min(f_max(f_fma(x, inv, offset), lo), hi));
}

/* 16 weights against all grids. */
static inline __attribute__((always_inline)) void errors16(const float *w, const float *weight,
                                                           const tn_grid *g, vf acc[][REGS]) {
    UNROLL for (int r = 0; r < REGS; r++) {
        vf x = f_load(w + r * W), c = f_load(weight + r * W);
        UNROLL for (int i = 0; i < TN_ROUND_GRIDS; i++) {
            vf u = whole(x, f_set1(g[i].inv), f_set1(g[i].offset), f_set1(g[i].lo), f_set1(g[i].hi));
            vf d = f_sub(x, f_fma(u, f_set1(g[i].step), f_set1(g[i].base)));
            acc[i][r] = f_fma(f_mul(c, d), d, acc[i][r]);
        }
    }
}

void NAME(tn_grid_errors)(const float *w, const float *weight, size_t k, const tn_grid *grids, float *error) {
    vf acc[TN_ROUND_GRIDS][REGS];
    UNROLL for (int i = 0; i < TN_ROUND_GRIDS; i++) {
        UNROLL for (int r = 0; r < REGS; r++) acc[i][r] = f_set1(0);
    }
    size_t i = 0;
    for (; i + LANES <= k; i += LANES) errors16(w + i, weight + i, grids, acc);
    if (i < k) { /* weights of 0 add +0 */
        float rest[2][LANES] = {0};
        memcpy(rest[0], w + i, (k - i) * sizeof *w);
        memcpy(rest[1], weight + i, (k - i) * sizeof *w);
        errors16(rest[0], rest[1], grids, acc);
    }
    for (int g = 0; g < TN_ROUND_GRIDS; g++) {
        float lane[LANES];
        UNROLL for (int r = 0; r < REGS; r++) f_store(lane + r * W, acc[g][r]);
        for (int stride = LANES / 2; stride; stride /= 2) {
            for (int l = 0; l < stride; l++) lane[l] += lane[l + stride];
        }
        error[g] = lane[0];
    }
}

void NAME(tn_grid_apply)(float *w, size_t k, const tn_grid *g) {
    vf inv = f_set1(g->inv), offset = f_set1(g->offset), lo = f_set1(g->lo), hi = f_set1(g->hi),
       step = f_set1(g->step), base = f_set1(g->base);
    size_t i = 0;
    for (; i + W <= k; i += W) f_store(w + i, f_fma(whole(f_load(w + i), inv, offset, lo, hi), step, base));
    if (i == k) return;
    float rest[W] = {0};
    memcpy(rest, w + i, (k - i) * sizeof *w);
    f_store(rest, f_fma(whole(f_load(rest), inv, offset, lo, hi), step, base));
    memcpy(w + i, rest, (k - i) * sizeof *w);
}

void NAME(tn_round_panel)(const tn_round_panel *p) {
    for (int r = 0; r < TN_ROUND_ROWS; r += W) {
        vf g[8];
        UNROLL for (int i = 0; i < 8; i++) g[i] = f_load(p->grid + i * TN_ROUND_ROWS + r);
        vf error = f_load(p->error + r);
        for (size_t j = p->n; j-- > 0;) {
            size_t at = j * TN_ROUND_ROWS + (size_t)r;
            vf x = f_load(p->target + at), u = whole(x, g[0], g[1], g[2], g[3]), value = f_fma(u, g[6], g[7]),
               miss = f_sub(x, value), e = f_sub(f_load(p->own + at), value);
            f_store(p->code + at, f_fma(u, g[4], g[5]));
            error = f_fma(f_mul(f_set1(p->weight[j]), miss), miss, error);
            f_store(p->e + at, e);
            const float *factor = p->factor + j * TN_ROUND_PLACES;
            for (size_t i = 0; i < j; i++) {
                float *t = p->target + i * TN_ROUND_ROWS + r;
                f_store(t, f_fma(e, f_set1(factor[i]), f_load(t)));
            }
        }
        f_store(p->error + r, error);
    }
}
