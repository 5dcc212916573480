#include "quant/round.h"

#include <math.h>
#include <string.h>

enum { PANEL = TN_ROUND_PLACES, CODED_SCALES = 24 };

/* To the nearest whole number, ties to even, for |x| < 2^22, in a form that compilers vectorise. */
static inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* The grid of B bits at a scale: B < 8: odd codes, 2 scale apart; 8: whole codes. */
static tn_grid grid_of(unsigned bits, float scale) {
    if (bits == 8) return (tn_grid){1 / scale, 0, -127, 127, 1, 0, scale, 0};
    float top = (float)((1 << bits) - 1);
    return (tn_grid){0.5f / scale, 0.5f * top, 0, top, 2, -top, 2 * scale, -top * scale};
}

float tn_largest(const float *w, int32_t k) {
    float lane[16] = {0}, max = 0;
    int32_t i = 0;
    for (; i + 16 <= k; i += 16) {
        for (int l = 0; l < 16; l++) {
            float a = fabsf(w[i + l]);
            lane[l] = a > lane[l] ? a : lane[l];
        }
    }
    for (; i < k; i++) lane[0] = fabsf(w[i]) > lane[0] ? fabsf(w[i]) : lane[0];
    for (int l = 0; l < 16; l++) max = lane[l] > max ? lane[l] : max;
    return max;
}

/* The best of four scales and of the best so far. */
static void try_scales(const tn_kernels *kern, const float *w, const float *weight, int32_t k, unsigned bits,
                       const float *scales, float *best, float *least) {
    tn_grid g[TN_ROUND_GRIDS];
    float error[TN_ROUND_GRIDS];
    for (int i = 0; i < TN_ROUND_GRIDS; i++) g[i] = grid_of(bits, scales[i]);
    kern->grid_errors(w, weight, (size_t)k, g, error);
    for (int i = 0; i < TN_ROUND_GRIDS; i++) {
        if (!(error[i] < *least)) continue;
        *least = error[i];
        *best = scales[i];
    }
}

/* The scale with the least weighted error; *error: that error. */
static float best_scale(const tn_kernels *kern, const float *w, const float *weight, int32_t k, unsigned bits,
                        float *error) {
    float max = tn_largest(w, k);
    *error = 0;
    if (!(max > 0)) return 0;
    /* Searches from the largest weight downwards, because few bits gain from clipping more: eight scales,
     * then four around the best of them. */
    float full = bits == 8 ? max / 127 : max / (float)(1 << bits), best = full;
    float step = full * (bits >= 7 ? 0.04f : bits == 6 ? 0.05f : bits == 5 ? 0.06f : 0.09f);
    float scales[TN_ROUND_GRIDS];
    *error = INFINITY;
    for (int i = 0; i < 8; i += TN_ROUND_GRIDS) {
        for (int j = 0; j < TN_ROUND_GRIDS; j++) scales[j] = 1.03f * full - step * (float)(i + j);
        try_scales(kern, w, weight, k, bits, scales, &best, error);
    }
    float near[TN_ROUND_GRIDS] = {best - 0.5f * step, best - 0.25f * step, best + 0.25f * step,
                                  best + 0.5f * step};
    try_scales(kern, w, weight, k, bits, near, &best, error);
    return best;
}

/* Bits per weight of a row's codes at a scale if entropy-coded: the entropy of its symbols. */
static double entropy(const float *w, int32_t k, unsigned bits, float scale) {
    const tn_grid g = grid_of(bits, scale);
    uint32_t counts[256] = {0};
    for (int32_t i = 0; i < k; i++) {
        float u = w[i] * g.inv + g.offset;
        u = u < g.lo ? g.lo : u > g.hi ? g.hi : u;
        counts[(int32_t)(u - g.lo + 0.5f)]++;
    }
    double sum = 0;
    for (int s = 0; s < 256; s++)
        if (counts[s]) sum += counts[s] * log2((double)k / counts[s]);
    return sum / k;
}

/* The scale of a row whose codes will be entropy-coded: a coarser scale saves bits for a little more
 * error. With well-chosen widths one bit less means four times the error e, so a bit is worth 2 ln 2 e.
 * Hence minimise e(scale) / e(best) + rate 2 ln 2 entropy(scale). */
static float coded_scale(const tn_kernels *kern, const float *w, const float *weight, int32_t k,
                         unsigned bits, float rate, float best, float least) {
    float found = best;
    double lowest = INFINITY;
    for (int i = 0; least > 0 && i < CODED_SCALES; i += TN_ROUND_GRIDS) {
        tn_grid g[TN_ROUND_GRIDS];
        float error[TN_ROUND_GRIDS], scales[TN_ROUND_GRIDS];
        for (int j = 0; j < TN_ROUND_GRIDS; j++) {
            scales[j] = best * (1 + 0.04f * (float)(i + j));
            g[j] = grid_of(bits, scales[j]);
        }
        kern->grid_errors(w, weight, (size_t)k, g, error);
        for (int j = 0; j < TN_ROUND_GRIDS; j++) {
            const double cost =
                (double)(error[j] / least) + (double)rate * 2 * log(2) * entropy(w, k, bits, scales[j]);
            if (cost >= lowest) continue;
            lowest = cost;
            found = scales[j];
        }
    }
    return found;
}

float tn_round_plain(const tn_kernels *kern, float *w, const float *weight, int32_t k, unsigned bits) {
    float error, scale = best_scale(kern, w, weight, k, bits, &error);
    const tn_grid g = grid_of(bits, scale > 0 ? scale : 1);
    if (scale > 0) kern->grid_apply(w, (size_t)k, &g);
    return error;
}

void tn_round_embedding(const tn_kernels *kern, float *w, const float *weight, int32_t k, unsigned bits,
                        bool tied) {
    size_t block = tied ? (size_t)tn_hadamard_block(k) : 0;
    if (block) tn_hadamard_wide(kern->hadamard_f32, w, (size_t)k, block);
    (void)tn_round_plain(kern, w, weight, k, bits);
    if (block) tn_hadamard_wide(kern->hadamard_f32, w, (size_t)k, block);
}

enum { ROWS = TN_ROUND_ROWS };

/* A row's scale by least squares once its codes are known: with r = L^T (w - scale q) and b = L^T q the
 * error is least where the scale grows by r b / b b. */
typedef struct fit {
    double rb, bb;
} fit;

size_t tn_round_scratch(const tn_factor *f, int32_t n_rows) {
    size_t widest = 0, rows = ((size_t)n_rows + ROWS - 1) / ROWS * ROWS;
    for (int32_t i = 0; i < f->n_blocks; i++)
        widest = (size_t)f->blocks[i].k > widest ? (size_t)f->blocks[i].k : widest;
    return rows * (3 * widest + 2 * PANEL + 2 * sizeof(fit) / sizeof(float)) + (size_t)f->k;
}

/* Positions of a panel's places while up to 16 rows are rounded; a row's lane. */
typedef struct lanes {
    float own[PANEL * ROWS], target[PANEL * ROWS], code[PANEL * ROWS], e[PANEL * ROWS];
    float image[PANEL * ROWS]; /* of the codes: (L^T q)[j] / L[j][j] */
    float grid[8 * ROWS], error[ROWS];
} lanes;

/* Rows beyond n_rows are zero. */
static void set_grids(lanes *l, const uint8_t *bits, const float *scale, int32_t n_rows) {
    for (int r = 0; r < ROWS; r++) {
        tn_grid g = grid_of(r < n_rows ? bits[r] : 8, r < n_rows && scale[r] > 0 ? scale[r] : 1);
        if (r < n_rows && !(scale[r] > 0)) g.step = g.base = 0;
        const float f[8] = {g.inv, g.offset, g.lo, g.hi, g.mul, g.add, g.step, g.base};
        for (int i = 0; i < 8; i++) l->grid[i * ROWS + r] = f[i];
    }
}

/* Adds a panel to the sums of up to 16 rows. image: the contribution of the codes after the panel. */
static void fit_panel(lanes *l, const float *factor, const float *weight, int32_t n, const float *scale,
                      int32_t n_rows, fit *fits) {
    for (int32_t j = n - 1; j > 0; j--)
        for (int32_t i = 0; i < j; i++)
            for (int r = 0; r < ROWS; r++)
                l->image[i * ROWS + r] += factor[j * PANEL + i] * l->code[j * ROWS + r];
    for (int32_t j = 0; j < n; j++) {
        for (int32_t r = 0; r < n_rows; r++) {
            double b = (double)(l->image[j * ROWS + r] + l->code[j * ROWS + r]),
                   miss = (double)l->target[j * ROWS + r] - (double)l->code[j * ROWS + r] * (double)scale[r];
            fits[r].rb += (double)weight[j] * miss * b;
            fits[r].bb += (double)weight[j] * b * b;
        }
    }
}

/* Rows of a block while they are rounded: errors and codes of its places, and the contribution of later
 * codes to a panel. */
typedef struct progress {
    float *e, *codes;              /* [row][k] */
    float *errors_tmp, *codes_tmp; /* [row][32] */
} progress;

/* One panel of places of up to 16 rows from row0 on. */
static void round_panel(const tn_factor_block *b, const tn_kernels *kern, int32_t place, int32_t n, lanes *l,
                        const float *w, const progress *at, int32_t row0, int32_t n_rows, size_t ldw,
                        int8_t *q, const float *scale, float *error, fit *fits) {
    size_t k = (size_t)b->k;
    for (int32_t r = 0; r < n_rows; r++) {
        const float *row = w + (size_t)r * k + place;
        const size_t tmp = (size_t)(row0 + r) * PANEL;
        for (int32_t j = 0; j < n; j++) {
            l->own[j * ROWS + r] = row[j];
            l->target[j * ROWS + r] = row[j] + at->errors_tmp[tmp + (size_t)j];
            l->image[j * ROWS + r] = at->codes_tmp[tmp + (size_t)j];
        }
        l->error[r] = error[r];
    }
    const tn_round_panel p = {.n = (size_t)n,
                              .factor =
                                  b->panels + (size_t)(place / PANEL) * PANEL * k + (size_t)place * PANEL,
                              .weight = b->weight + place,
                              .own = l->own,
                              .grid = l->grid,
                              .target = l->target,
                              .code = l->code,
                              .e = l->e,
                              .error = l->error};
    kern->round_panel(&p);
    fit_panel(l, p.factor, p.weight, n, scale, n_rows, fits);
    for (int32_t r = 0; r < n_rows; r++) {
        for (int32_t j = 0; j < n; j++) {
            const size_t to = (size_t)(row0 + r) * k + (size_t)(place + j);
            at->e[to] = l->e[j * ROWS + r];
            at->codes[to] = l->code[j * ROWS + r];
            q[(size_t)r * ldw + (size_t)b->order[place + j]] = (int8_t)l->code[j * ROWS + r];
        }
        error[r] = l->error[r];
    }
}

static void round_block(const tn_factor_block *b, const tn_kernels *kern, const float *w, int32_t n_rows,
                        size_t ldw, const uint8_t *bits, int8_t *q, const float *scale, float *error,
                        fit *fits, float *scratch) {
    size_t k = (size_t)b->k, all = (size_t)n_rows * k;
    float *ordered = scratch;
    const progress at = {ordered + all, ordered + 2 * all, ordered + 3 * all,
                         ordered + 3 * all + (size_t)n_rows * PANEL};
    lanes l = {0};
    for (int32_t r = 0; r < n_rows; r++) {
        for (size_t j = 0; j < k; j++) ordered[(size_t)r * k + j] = w[(size_t)r * ldw + (size_t)b->order[j]];
    }
    for (int32_t place = (b->k - 1) / PANEL * PANEL; place >= 0; place -= PANEL) {
        int32_t n = b->k - place < PANEL ? b->k - place : PANEL;
        size_t behind = (size_t)place + PANEL;
        const float *panel = b->panels + (size_t)(place / PANEL) * PANEL * k;
        for (int i = 0; i < 2; i++) {
            const float *of = i ? at.codes : at.e;
            float *tmp = i ? at.codes_tmp : at.errors_tmp;
            if (behind < k)
                kern->gemm_f32[TN_PANEL_F32](of + behind, k, panel + behind * PANEL, NULL, tmp, PANEL,
                                             (size_t)n_rows, 0, PANEL, k - behind);
            else memset(tmp, 0, (size_t)n_rows * PANEL * sizeof *tmp);
        }
        for (int32_t r = 0; r < n_rows; r += ROWS) {
            int32_t some = n_rows - r < ROWS ? n_rows - r : ROWS;
            set_grids(&l, bits + r, scale + r, some);
            round_panel(b, kern, place, n, &l, ordered + (size_t)r * k, &at, r, some, ldw,
                        q + (size_t)r * ldw, scale + r, error + r, fits + r);
        }
    }
}

void tn_round_rows(const tn_factor *f, const tn_kernels *kern, const float *w, int32_t n_rows,
                   const uint8_t *bits, float rate, int8_t *q, float *scale, float *error, float *scratch) {
    size_t k = (size_t)f->k;
    fit *fits = (fit *)scratch;
    float *weight = scratch + (size_t)n_rows * sizeof(fit) / sizeof(float), *rest = weight + k;
    for (int32_t i = 0; i < f->n_blocks; i++) {
        const tn_factor_block *b = &f->blocks[i];
        for (int32_t j = 0; j < b->k; j++) weight[b->first + b->order[j]] = b->weight[j];
    }
    for (int32_t j = 0; !f->n_blocks && j < f->k; j++) weight[j] = 1;
    for (int32_t r = 0; r < n_rows; r++) {
        float e;
        scale[r] = best_scale(kern, w + (size_t)r * k, weight, f->k, bits[r], &e);
        if (rate > 0)
            scale[r] = coded_scale(kern, w + (size_t)r * k, weight, f->k, bits[r], rate, scale[r], e);
    }
    memset(error, 0, (size_t)n_rows * sizeof *error);
    memset(fits, 0, (size_t)n_rows * sizeof *fits);
    for (int32_t r = 0; !f->n_blocks && r < n_rows; r++) {
        const tn_grid g = grid_of(bits[r], scale[r] > 0 ? scale[r] : 1);
        const float *row = w + (size_t)r * k;
        for (size_t j = 0; j < k; j++) {
            float u = row[j] * g.inv + g.offset;
            u = u < g.lo ? g.lo : u > g.hi ? g.hi : u;
            float code = nearest(u) * g.mul + g.add, d = row[j] - code * scale[r];
            q[(size_t)r * k + j] = (int8_t)code;
            error[r] += d * d;
            fits[r].rb += (double)d * (double)code;
            fits[r].bb += (double)code * (double)code;
        }
    }
    for (int32_t i = 0; i < f->n_blocks; i++) {
        const tn_factor_block *b = &f->blocks[i];
        round_block(b, kern, w + b->first, n_rows, k, bits, q + b->first, scale, error, fits, rest);
    }
    for (int32_t r = 0; r < n_rows; r++) {
        double by = fits[r].bb > 0 ? fits[r].rb / fits[r].bb : 0;
        if (!(scale[r] > 0) || !(fabs(by) < 0.5 * (double)scale[r]))
            continue; /* a row of zeros, or nothing to fit */
        scale[r] = (float)((double)scale[r] + by);
        error[r] = (float)fmax(0, (double)error[r] - fits[r].rb * by);
    }
}
