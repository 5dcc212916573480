#include "quant/round_blocks.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { ROWS = 16, PANEL = 32, BLOCK = TN_ROUND_BLOCK, BLOCK_BYTES = 18 };

/* To the nearest code at a scale whose inverse is known. */
static inline float code_of(float x, float inv) {
    float u = (x * inv + 12582912.0f) - 12582912.0f; /* nearest, for |x * inv| < 2^22 */
    return u < -8 ? -8 : u > 7 ? 7 : u;
}

/* The weighted error of a block at a scale, and the best scale for its codes. */
static float block_error(const float *w, const float *weight, float scale, float *fitted) {
    float inv = 1 / scale, error = 0, wq = 0, qq = 0;
    for (int i = 0; i < BLOCK; i++) {
        float q = code_of(w[i], inv), d = w[i] - q * scale;
        error += weight[i] * d * d;
        wq += weight[i] * w[i] * q;
        qq += weight[i] * q * q;
    }
    *fitted = qq > 0 ? wq / qq : scale;
    return error;
}

static float as_half(float x) { return tn_f16_f32(tn_f32_f16(x)); }

/* The scale of a block, an f16: codes reach from -8 to 7, so either end may represent the largest weight. */
static float block_scale(const float *w, const float *weight) {
    enum { STEPS = 16 };
    float far = 0, best = 0, least = INFINITY;
    for (int i = 0; i < BLOCK; i++) far = fabsf(w[i]) > fabsf(far) ? w[i] : far;
    if (!(fabsf(far) > 0)) return 0;
    for (int i = 0; i < 2 * STEPS; i++) {
        float code = i < STEPS ? -8.8f + 0.2f * (float)i : 7.6f - 0.2f * (float)(i - STEPS), fitted;
        float scale = as_half(far / code);
        for (int again = 0; again < 2 && scale != 0; again++) {
            float error = block_error(w, weight, scale, &fitted);
            if (error < least) least = error, best = scale;
            scale = as_half(fitted);
        }
    }
    return best;
}

size_t tn_round_q4_0_scratch(const tn_factor *f) {
    size_t widest = 0, k = (size_t)f->k;
    for (int32_t i = 0; i < f->n_blocks; i++)
        widest = (size_t)f->blocks[i].k > widest ? (size_t)f->blocks[i].k : widest;
    return k + ROWS * (k / BLOCK + k + widest + PANEL);
}

/* Places of a panel while up to 16 rows are rounded; a row's lane. */
typedef struct lanes {
    float own[PANEL][ROWS], target[PANEL][ROWS], scale[PANEL][ROWS], inv[PANEL][ROWS], e[PANEL][ROWS],
        code[PANEL][ROWS];
} lanes;

static void round_lanes(lanes *l, const float *factor, int32_t n) {
    for (int32_t j = n - 1; j >= 0; j--) {
        for (int r = 0; r < ROWS; r++) {
            float q = code_of(l->target[j][r], l->inv[j][r]);
            l->code[j][r] = q;
            l->e[j][r] = l->own[j][r] - q * l->scale[j][r];
        }
        for (int32_t i = 0; i < j; i++)
            for (int r = 0; r < ROWS; r++) l->target[i][r] += factor[j * PANEL + i] * l->e[j][r];
    }
}

typedef struct rows {
    const float *w, *scale; /* [n][k], [n][k / 32] */
    float *codes;           /* [n][k] */
    float *errors, *tmp;    /* [n][of the factor's block], [n][32] */
    int32_t n;
    size_t k;
} rows;

static void round_block(const tn_factor_block *b, const tn_kernels *kern, const rows *at) {
    const size_t k = (size_t)b->k;
    lanes l;
    memset(&l, 0, sizeof l);
    for (int32_t place = (b->k - 1) / PANEL * PANEL; place >= 0; place -= PANEL) {
        const int32_t n = b->k - place < PANEL ? b->k - place : PANEL;
        const size_t behind = (size_t)place + PANEL;
        const float *panel = b->panels + (size_t)(place / PANEL) * PANEL * k;
        if (behind < k)
            kern->gemm_f32[TN_PANEL_F32](at->errors + behind, k, panel + behind * PANEL, NULL, at->tmp, PANEL,
                                         (size_t)at->n, 0, PANEL, k - behind);
        else memset(at->tmp, 0, (size_t)at->n * PANEL * sizeof *at->tmp);
        for (int32_t r = 0; r < at->n; r++) {
            for (int32_t j = 0; j < n; j++) {
                const size_t c = (size_t)b->first + (size_t)b->order[place + j];
                const float s = at->scale[(size_t)r * (at->k / BLOCK) + c / BLOCK];
                l.own[j][r] = at->w[(size_t)r * at->k + c];
                l.target[j][r] = l.own[j][r] + at->tmp[(size_t)r * PANEL + (size_t)j];
                l.scale[j][r] = s;
                l.inv[j][r] = s != 0 ? 1 / s : 0;
            }
        }
        round_lanes(&l, panel + (size_t)place * PANEL, n);
        for (int32_t r = 0; r < at->n; r++) {
            for (int32_t j = 0; j < n; j++) {
                at->errors[(size_t)r * k + (size_t)(place + j)] = l.e[j][r];
                at->codes[(size_t)r * at->k + (size_t)b->first + (size_t)b->order[place + j]] = l.code[j][r];
            }
        }
    }
}

static void put_block(const float *codes, float scale, uint8_t *out) {
    const uint16_t half = tn_f32_f16(scale);
    memcpy(out, &half, sizeof half);
    for (int i = 0; i < BLOCK / 2; i++)
        out[2 + i] = (uint8_t)((int)(codes[i] + 8) | (int)(codes[i + BLOCK / 2] + 8) << 4);
}

void tn_round_q4_0(const tn_factor *f, const tn_kernels *kern, const float *w, int32_t n_rows, uint8_t *out,
                   float *scratch) {
    assert(n_rows <= ROWS && f->k % BLOCK == 0);
    const size_t k = (size_t)f->k, n_blocks = k / BLOCK;
    float *weight = scratch, *scale = weight + k, *codes = scale + ROWS * n_blocks;
    for (size_t i = 0; i < k; i++) weight[i] = 1;
    for (int32_t i = 0; i < f->n_blocks; i++) {
        const tn_factor_block *b = &f->blocks[i];
        for (int32_t j = 0; j < b->k; j++) weight[b->first + b->order[j]] = b->weight[j];
    }
    for (size_t r = 0; r < (size_t)n_rows; r++) {
        for (size_t i = 0; i < n_blocks; i++) {
            const float *v = w + r * k + i * BLOCK;
            const float s = scale[r * n_blocks + i] = block_scale(v, weight + i * BLOCK);
            for (size_t j = 0; j < BLOCK; j++)
                codes[r * k + i * BLOCK + j] = s != 0 ? code_of(v[j], 1 / s) : 0;
        }
    }
    const rows at = {.w = w,
                     .scale = scale,
                     .codes = codes,
                     .errors = codes + ROWS * k,
                     .n = n_rows,
                     .k = k,
                     .tmp = scratch + tn_round_q4_0_scratch(f) - ROWS * PANEL};
    for (int32_t i = 0; i < f->n_blocks; i++) round_block(&f->blocks[i], kern, &at);
    for (size_t i = 0; i < (size_t)n_rows * n_blocks; i++)
        put_block(codes + i * BLOCK, scale[i], out + i * BLOCK_BYTES);
}
