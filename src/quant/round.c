#include "quant/round.h"

#include <math.h>
#include <string.h>

enum { PANEL = 32 };

/* To the nearest whole number, ties to even, for |x| < 2^22; the compiler knows how to do many at once. */
static inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* The grid of B bits at a scale: B < 8: odd codes, 2 scale apart; 8: whole codes. */
typedef struct grid {
    float inv, offset, lo, hi, mul, add; /* code = clamp(nearest(x inv + offset), lo, hi) mul + add */
} grid;

static grid grid_of(unsigned bits, float scale) {
    if (bits == 8) return (grid){1 / scale, 0, -127, 127, 1, 0};
    float top = (float)((1 << bits) - 1);
    return (grid){0.5f / scale, 0.5f * top, 0, top, 2, -top};
}

static inline float code_of(const grid *g, float x) {
    float u = nearest(fminf(fmaxf(x * g->inv + g->offset, g->lo), g->hi));
    return u * g->mul + g->add;
}

static float weighted_error(const grid *g, float scale, const float *w, const float *weight, int32_t k) {
    float sum = 0;
    for (int32_t i = 0; i < k; i++) {
        float x = w[i] * g->inv + g->offset, u = x < g->lo ? g->lo : x > g->hi ? g->hi : x;
        float d = w[i] - (nearest(u) * g->mul + g->add) * scale;
        sum += weight[i] * d * d;
    }
    return sum;
}

/* The scale with the least weighted error; *error: that error. */
static float best_scale(const float *w, const float *weight, int32_t k, unsigned bits, float *error) {
    float max = 0;
    for (int32_t i = 0; i < k; i++) max = fmaxf(max, fabsf(w[i]));
    *error = 0;
    if (!(max > 0)) return 0;
    /* From the largest weight downwards: with few bits it pays to cut off more. */
    float full = bits == 8 ? max / 127 : max / (float)(1 << bits), best = full;
    float step = bits >= 7 ? 0.02f : bits == 6 ? 0.025f : bits == 5 ? 0.03f : 0.045f;
    *error = INFINITY;
    for (int i = 0; i < 16; i++) {
        float scale = full * (1.03f - step * (float)i);
        const grid g = grid_of(bits, scale);
        float e = weighted_error(&g, scale, w, weight, k);
        if (e < *error) {
            *error = e;
            best = scale;
        }
    }
    return best;
}

float tn_round_plain(float *w, const float *weight, int32_t k, unsigned bits) {
    float error, scale = best_scale(w, weight, k, bits, &error);
    const grid g = grid_of(bits, scale > 0 ? scale : 1);
    for (int32_t i = 0; i < k; i++) w[i] = code_of(&g, w[i]) * scale;
    return error;
}

size_t tn_round_scratch(const tn_factor *f, int32_t n_rows) {
    size_t widest = 0;
    for (int32_t i = 0; i < f->n_blocks; i++)
        widest = (size_t)f->blocks[i].k > widest ? (size_t)f->blocks[i].k : widest;
    return (size_t)n_rows * (2 * widest + PANEL) + (size_t)f->k;
}

/* One panel of places: targets[row][32] = weights + what the errors behind the panel ask for; rounds from the
 * last place to the first. */
static void round_panel(const tn_factor_block *b, int32_t place, int32_t n, const grid *g, float scale,
                        const float *w, float *target, float *e, int8_t *q, float *error) {
    const float *panel = b->panels + (size_t)(place / PANEL) * PANEL * (size_t)b->k;
    for (int32_t j = n - 1; j >= 0; j--) {
        float code = code_of(g, target[j]), miss = target[j] - code * scale,
              own = w[place + j] - code * scale;
        q[b->order[place + j]] = (int8_t)code;
        *error += b->weight[place + j] * miss * miss;
        e[place + j] = own;
        const float *m = panel + (size_t)(place + j) * PANEL;
        for (int32_t i = 0; i < PANEL; i++) target[i] += m[i] * own; /* zero from place j on */
    }
}

static void round_block(const tn_factor_block *b, const tn_kernels *kern, const float *w, int32_t n_rows,
                        size_t ldw, const uint8_t *bits, int8_t *q, const float *scale, float *error,
                        float *scratch) {
    size_t k = (size_t)b->k;
    float *ordered = scratch, *e = ordered + (size_t)n_rows * k, *tmp = e + (size_t)n_rows * k;
    for (int32_t r = 0; r < n_rows; r++) {
        for (size_t j = 0; j < k; j++) ordered[(size_t)r * k + j] = w[(size_t)r * ldw + (size_t)b->order[j]];
    }
    for (int32_t place = (b->k - 1) / PANEL * PANEL; place >= 0; place -= PANEL) {
        int32_t n = b->k - place < PANEL ? b->k - place : PANEL;
        size_t behind = (size_t)place + PANEL;
        const float *panel = b->panels + (size_t)(place / PANEL) * PANEL * k;
        if (behind < k)
            kern->gemm_f32[TN_PANEL_F32](e + behind, k, panel + behind * PANEL, NULL, tmp, PANEL,
                                         (size_t)n_rows, 0, PANEL, k - behind);
        else memset(tmp, 0, (size_t)n_rows * PANEL * sizeof *tmp);
        for (int32_t r = 0; r < n_rows; r++) {
            float *target = tmp + (size_t)r * PANEL;
            const float *row = ordered + (size_t)r * k;
            int8_t *codes = q + (size_t)r * ldw;
            for (int32_t j = 0; j < n; j++) target[j] += row[place + j];
            const grid g = grid_of(bits[r], scale[r] > 0 ? scale[r] : 1);
            round_panel(b, place, n, &g, scale[r], row, target, e + (size_t)r * k, codes, &error[r]);
        }
    }
}

void tn_round_rows(const tn_factor *f, const tn_kernels *kern, const float *w, int32_t n_rows,
                   const uint8_t *bits, int8_t *q, float *scale, float *error, float *scratch) {
    size_t k = (size_t)f->k;
    float *weight = scratch, *rest = scratch + k;
    for (int32_t i = 0; i < f->n_blocks; i++) {
        const tn_factor_block *b = &f->blocks[i];
        for (int32_t j = 0; j < b->k; j++) weight[b->first + b->order[j]] = b->weight[j];
    }
    for (int32_t r = 0; r < n_rows; r++) {
        float e;
        scale[r] = best_scale(w + (size_t)r * k, weight, f->k, bits[r], &e);
    }
    memset(error, 0, (size_t)n_rows * sizeof *error);
    for (int32_t i = 0; i < f->n_blocks; i++) {
        const tn_factor_block *b = &f->blocks[i];
        round_block(b, kern, w + b->first, n_rows, k, bits, q + b->first, scale, error, rest);
    }
}
