#include "quant/gram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STRIP = 32 }; /* rows of a work item; width of a panel */

typedef struct work {
    const tn_kernels *kern;
    const float *x; /* [n_rows][ldx], of the block's first channel */
    int32_t n_rows, ldx, k, k_pad;
    const int32_t *order;
    float *xt;     /* [k_pad][n_rows] channels in order */
    float *packed; /* the same as panels */
    float *g;      /* [k_pad][k_pad] lower triangle: Gram matrix, then its factor */
    float *panel;  /* [k_pad][32] of the columns being factored */
    int32_t c0;    /* first of them */
} work;

static void transpose_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const work *w = arg;
    size_t t = (size_t)w->n_rows;
    for (int32_t j = i_item * STRIP; j < (i_item + 1) * STRIP; j++) {
        float *to = w->xt + (size_t)j * t;
        if (j >= w->k) memset(to, 0, t * sizeof *to);
        else
            for (size_t i = 0; i < t; i++) to[i] = w->x[i * (size_t)w->ldx + (size_t)w->order[j]];
    }
    tn_panels_pack(TN_PANEL_F32, w->packed + (size_t)i_item * STRIP * t, w->xt + (size_t)i_item * STRIP * t,
                   0, STRIP, t);
}

static void gram_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const work *w = arg;
    size_t row = (size_t)i_item * STRIP, t = (size_t)w->n_rows, ld = (size_t)w->k_pad;
    w->kern->gemm_f32[TN_PANEL_F32](w->xt + row * t, t, w->packed, NULL, w->g + row * ld, ld, STRIP, 0,
                                    row + STRIP, t);
}

/* Subtracts the earlier columns' share from the panel's columns, for the rows of strip i_item. */
static void subtract_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const work *w = arg;
    size_t row = (size_t)w->c0 + (size_t)i_item * STRIP, ld = (size_t)w->k_pad, c0 = (size_t)w->c0;
    float tmp[STRIP * STRIP];
    w->kern->gemm_f32[TN_PANEL_F32](w->g + row * ld, ld, w->panel, NULL, tmp, STRIP, STRIP, 0, STRIP, c0);
    for (size_t i = 0; i < STRIP; i++) {
        for (size_t j = 0; j < STRIP; j++) w->g[(row + i) * ld + c0 + j] -= tmp[i * STRIP + j];
    }
}

/* Rows below the panel: solved against its triangle. */
static void solve_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const work *w = arg;
    size_t row0 = (size_t)w->c0 + (size_t)(i_item + 1) * STRIP, ld = (size_t)w->k_pad, c0 = (size_t)w->c0;
    for (size_t i = row0; i < row0 + STRIP; i++) {
        float *r = w->g + i * ld + c0;
        for (size_t j = 0; j < STRIP; j++) {
            const float *l = w->g + (c0 + j) * ld + c0;
            float sum = r[j];
            for (size_t m = 0; m < j; m++) sum -= r[m] * l[m];
            r[j] = sum / l[j];
        }
    }
}

/* The triangle itself; false: not positive. */
static bool factor_triangle(const work *w) {
    size_t ld = (size_t)w->k_pad, c0 = (size_t)w->c0;
    for (size_t i = 0; i < STRIP; i++) {
        float *r = w->g + (c0 + i) * ld + c0;
        for (size_t j = 0; j <= i; j++) {
            const float *l = w->g + (c0 + j) * ld + c0;
            float sum = r[j];
            for (size_t m = 0; m < j; m++) sum -= r[m] * l[m];
            if (j < i) r[j] = sum / l[j];
            else if (!(sum > 0) || !isfinite(sum)) return false;
            else r[j] = sqrtf(sum);
        }
    }
    return true;
}

static bool cholesky(work *w, tn_pool *pool) {
    size_t ld = (size_t)w->k_pad;
    for (w->c0 = 0; w->c0 < w->k_pad; w->c0 += STRIP) {
        int n_strips = (w->k_pad - w->c0) / STRIP;
        if (w->c0) {
            for (size_t c = 0; c < (size_t)w->c0; c++) {
                for (size_t j = 0; j < STRIP; j++)
                    w->panel[c * STRIP + j] = w->g[((size_t)w->c0 + j) * ld + c];
            }
            tn_pool_for(pool, n_strips, subtract_item, w);
        }
        if (!factor_triangle(w)) return false;
        if (n_strips > 1) tn_pool_for(pool, n_strips - 1, solve_item, w);
    }
    return true;
}

typedef struct energy {
    float square;
    int32_t channel;
} energy;

static int by_energy(const void *a, const void *b) {
    const energy *x = a, *y = b;
    if (x->square != y->square) return x->square < y->square ? -1 : 1;
    return x->channel < y->channel ? -1 : x->channel > y->channel;
}

static tern_status order_channels(tn_ctx *ctx, const work *w, int32_t *order, tern_error *err) {
    energy *e = tn_calloc(ctx, TN_MEM_OTHER, (size_t)w->k, sizeof *e);
    TN_FAIL_IF(!e, err, TERN_E_MEMORY, "no memory to order %d channels", w->k);
    for (int32_t i = 0; i < w->n_rows; i++) {
        const float *row = w->x + (size_t)i * (size_t)w->ldx;
        for (int32_t j = 0; j < w->k; j++) e[j].square += row[j] * row[j];
    }
    for (int32_t j = 0; j < w->k; j++) e[j].channel = j;
    qsort(e, (size_t)w->k, sizeof *e, by_energy);
    for (int32_t j = 0; j < w->k; j++) order[j] = e[j].channel;
    tn_free(ctx, e);
    return TERN_OK;
}

/* Restores the matrix after a failed try, which overwrote its lower triangle. */
static bool factor_of(work *w, tn_pool *pool, float damping) {
    size_t ld = (size_t)w->k_pad;
    tn_pool_for(pool, w->k_pad / STRIP, gram_item, w);
    double mean = 0;
    for (size_t j = 0; j < (size_t)w->k; j++) mean += (double)w->g[j * ld + j] / w->k;
    float add = (float)(mean > 0 ? mean * (double)damping : 1);
    for (size_t j = 0; j < ld; j++) w->g[j * ld + j] = j < (size_t)w->k ? w->g[j * ld + j] + add : 1;
    return cholesky(w, pool);
}

static void store_block(const work *w, tn_factor_block *b) {
    size_t ld = (size_t)w->k_pad, k = (size_t)w->k;
    for (size_t j = 0; j < k; j++) {
        float d = w->g[j * ld + j], *p = b->panels + j / STRIP * STRIP * k + j % STRIP;
        b->weight[j] = d * d / (float)w->n_rows;
        for (size_t i = 0; i < k; i++) p[i * STRIP] = i > j ? w->g[i * ld + j] / d : 0;
    }
}

static tern_status make_block(tn_ctx *ctx, tn_pool *pool, work *w, float damping, tn_factor_block *b,
                              tern_error *err) {
    size_t pad = (size_t)w->k_pad, t = (size_t)w->n_rows;
    b->order = tn_alloc(ctx, TN_MEM_OTHER, (size_t)w->k, sizeof *b->order);
    b->weight = tn_alloc(ctx, TN_MEM_OTHER, (size_t)w->k, sizeof *b->weight);
    b->panels = tn_calloc(ctx, TN_MEM_OTHER, pad * (size_t)w->k, sizeof *b->panels);
    w->xt = tn_alloc(ctx, TN_MEM_OTHER, pad * t, sizeof *w->xt);
    w->packed = tn_alloc(ctx, TN_MEM_OTHER, pad * t, sizeof *w->packed);
    w->g = tn_alloc(ctx, TN_MEM_OTHER, pad * pad, sizeof *w->g);
    w->panel = tn_alloc(ctx, TN_MEM_OTHER, pad * STRIP, sizeof *w->panel);
    tern_status st = b->order && b->weight && b->panels && w->xt && w->packed && w->g && w->panel
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory for the Gram matrix of %d channels", w->k);
    if (st == TERN_OK) st = order_channels(ctx, w, b->order, err);
    if (st == TERN_OK) {
        w->order = b->order;
        tn_pool_for(pool, w->k_pad / STRIP, transpose_item, w);
        bool ok = false;
        for (int i = 0; i < 6 && !ok; i++, damping *= 10) ok = factor_of(w, pool, damping);
        if (ok) store_block(w, b);
        else st = tn_fail(err, TERN_E_FORMAT, "the calibration's activations are not finite");
    }
    tn_free(ctx, w->xt);
    tn_free(ctx, w->packed);
    tn_free(ctx, w->g);
    tn_free(ctx, w->panel);
    return st;
}

tern_status tn_factor_make(tn_ctx *ctx, tn_pool *pool, const tn_kernels *kern, const float *x, int32_t n_rows,
                           int32_t k, float damping, int32_t block_max, tn_factor *out, tern_error *err) {
    int32_t n = (k + block_max - 1) / block_max, step = ((k + n - 1) / n + 63) / 64 * 64;
    *out = (tn_factor){.ctx = ctx, .k = k, .n_blocks = (k + step - 1) / step};
    out->blocks = tn_calloc(ctx, TN_MEM_OTHER, (size_t)out->n_blocks, sizeof *out->blocks);
    TN_FAIL_IF(!out->blocks, err, TERN_E_MEMORY, "no memory for a Gram matrix");
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < out->n_blocks && st == TERN_OK; i++) {
        tn_factor_block *b = &out->blocks[i];
        b->first = i * step;
        b->k = k - b->first < step ? k - b->first : step;
        work w = {.kern = kern,
                  .x = x + b->first,
                  .n_rows = n_rows,
                  .ldx = k,
                  .k = b->k,
                  .k_pad = (b->k + STRIP - 1) / STRIP * STRIP};
        st = make_block(ctx, pool, &w, damping, b, err);
    }
    if (st != TERN_OK) tn_factor_close(out);
    return st;
}

void tn_factor_close(tn_factor *f) {
    for (int32_t i = 0; f->blocks && i < f->n_blocks; i++) {
        tn_free(f->ctx, f->blocks[i].order);
        tn_free(f->ctx, f->blocks[i].weight);
        tn_free(f->ctx, f->blocks[i].panels);
    }
    if (f->ctx) tn_free(f->ctx, f->blocks);
    *f = (tn_factor){0};
}
