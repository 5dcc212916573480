/* A tower's products in INT8: weights to codes, rows to codes, parts of a product. */
#include "model/tower_s8.h"

#include "base/status.h"

#include <string.h>

/* ---- weights ---------------------------------------------------------------------------------------------- */

typedef struct making {
    tn_ctx *ctx;
    const tn_kernels *kern;
    tn_linear *const *parts;
    int n_parts;
    const float *gain;
    tn_tower_s8 *out;
    atomic_bool no_memory;
} making;

static const tn_linear *part_of(const making *m, size_t row, size_t *in_part) {
    int i = 0;
    for (; row >= (size_t)m->parts[i]->n; i++) row -= (size_t)m->parts[i]->n;
    *in_part = row;
    return m->parts[i];
}

/* One tile: 16 outputs. */
static void make_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    making *m = arg;
    tn_tower_s8 *s = m->out;
    const size_t padded = (size_t)s->padded, n0 = (size_t)i_item * TN_TILE_N;
    const size_t n1 = n0 + TN_TILE_N < (size_t)s->n ? n0 + TN_TILE_N : (size_t)s->n;
    float *row = tn_alloc(m->ctx, TN_MEM_OTHER, 2 * padded, sizeof *row);
    int8_t *codes = tn_alloc(m->ctx, TN_MEM_OTHER, (TN_TILE_N + 1) * padded, 1);
    if (row && codes) {
        uint8_t *raised = (uint8_t *)codes + TN_TILE_N * padded; /* a row as value + 128 */
        for (size_t i = n0; i < n1; i++) {
            size_t at;
            const tn_linear *l = part_of(m, i, &at);
            tn_panels_row(l->dtype, l->panels, at, (size_t)l->k, row);
            s->scale[i] = tn_tower_s8_row(m->kern, row, (size_t)l->k, padded, row + padded, raised);
            s->bias[i] = l->bias ? l->bias[at] : 0;
            if (m->gain) s->scale[i] *= m->gain[i], s->bias[i] *= m->gain[i];
            for (size_t j = 0; j < padded; j++) codes[(i - n0) * padded + j] = (int8_t)(raised[j] - 128);
        }
        tn_tiles_s8_pack(s->tiles, s->col_sum, codes, n0, n1, padded);
    } else {
        atomic_store_explicit(&m->no_memory, true, memory_order_relaxed); /* no data follows */
    }
    tn_free(m->ctx, row);
    tn_free(m->ctx, codes);
}

tern_status tn_tower_s8_make(tn_ctx *ctx, const tn_kernels *kern, tn_pool *pool, tn_linear *const *parts,
                             int n_parts, const float *gain, tn_tower_s8 *out, uint64_t *bytes,
                             tern_error *err) {
    making m = {.ctx = ctx, .kern = kern, .parts = parts, .n_parts = n_parts, .gain = gain, .out = out};
    *out = (tn_tower_s8){.k = parts[0]->k, .padded = (parts[0]->k + 63) / 64 * 64};
    TN_FAIL_IF(out->padded > TN_S8_MAX_K, err, TERN_E_LIMIT, "a linear of %d inputs; INT8 has up to %d",
               out->k, TN_S8_MAX_K);
    for (int i = 0; i < n_parts; i++) out->n += parts[i]->n;
    size_t n = (size_t)out->n, n_tiles = (n + TN_TILE_N - 1) / TN_TILE_N,
           tiles = tn_tiles_s8_bytes(n, (size_t)out->padded);
    out->tiles = tn_alloc(ctx, TN_MEM_WEIGHTS, tiles, 1);
    out->col_sum = tn_alloc(ctx, TN_MEM_WEIGHTS, n_tiles * TN_TILE_N, sizeof *out->col_sum);
    out->scale = tn_alloc(ctx, TN_MEM_WEIGHTS, n, sizeof *out->scale);
    out->bias = tn_alloc(ctx, TN_MEM_WEIGHTS, n, sizeof *out->bias);
    bool there = out->tiles && out->col_sum && out->scale && out->bias;
    if (there) tn_pool_for(pool, (int)n_tiles, make_item, &m);
    TN_FAIL_IF(!there || atomic_load(&m.no_memory), err, TERN_E_MEMORY,
               "no memory for the INT8 weights of an encoder (%zu bytes)", tiles);
    for (int i = 0; i < n_parts; i++) {
        tn_free(ctx, parts[i]->panels);
        tn_free(ctx, parts[i]->bias);
        parts[i]->panels = NULL;
        parts[i]->bias = NULL;
    }
    *bytes += tiles + n_tiles * TN_TILE_N * sizeof *out->col_sum + 2 * n * sizeof *out->scale;
    return TERN_OK;
}

void tn_tower_s8_free(tn_ctx *ctx, tn_tower_s8 *s) {
    tn_free(ctx, s->tiles);
    tn_free(ctx, s->col_sum);
    tn_free(ctx, s->scale);
    tn_free(ctx, s->bias);
    *s = (tn_tower_s8){0};
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

float tn_tower_s8_row(const tn_kernels *kern, const float *x, size_t n, size_t padded, float *scratch,
                      uint8_t *codes) {
    memcpy(scratch, x, n * sizeof *x);
    memset(scratch + n, 0, (padded - n) * sizeof *x);
    kern->hadamard_f32(scratch, padded);
    float scale = kern->absmax_f32(scratch, padded) / 127;
    kern->quantise_s8(scratch, scale > 0 ? 1 / scale : 0, codes, padded);
    return scale;
}

/* ---- products --------------------------------------------------------------------------------------------- */

static size_t blocks(size_t n, size_t of) { return (n + of - 1) / of; }

int tn_tower_s8_parts(const tn_tower_s8 *s, size_t n_rows) {
    return (int)(blocks(n_rows, TN_TOWER_S8_ROWS) * blocks((size_t)s->n, TN_TOWER_S8_COLS));
}

void tn_tower_s8_part(const tn_tower_s8 *s, const tn_kernels *kern, const tn_tower_codes *in, size_t n_rows,
                      int i_part, tn_tower_then then, float *y, float *out, size_t ldo) {
    const size_t n = (size_t)s->n, per_row = blocks(n, TN_TOWER_S8_COLS);
    const size_t row0 = (size_t)i_part / per_row * TN_TOWER_S8_ROWS,
                 n0 = (size_t)i_part % per_row * TN_TOWER_S8_COLS;
    const size_t rows = n_rows - row0 < TN_TOWER_S8_ROWS ? n_rows - row0 : TN_TOWER_S8_ROWS;
    const size_t cols = n - n0 < TN_TOWER_S8_COLS ? n - n0 : TN_TOWER_S8_COLS;
    kern->gemm_s8(
        &(tn_gemm_s8_args){.a = in->codes + row0 * in->ld,
                           .lda = in->ld,
                           .tiles = s->tiles + n0 * (size_t)s->padded, /* whole tiles of 16 outputs */
                           .col_sum = s->col_sum + n0,
                           .m = rows,
                           .n = cols,
                           .k = (size_t)s->padded,
                           .n1 = cols,
                           .out_f32 = y,
                           .ldo = TN_TOWER_S8_COLS,
                           .scale = s->scale + n0});
    for (size_t i = 0; i < rows; i++) {
        float *to = out + (row0 + i) * ldo + n0;
        if (then == TN_TOWER_ADD) kern->add_f32(to, s->bias + n0, 1, cols);
        else memcpy(to, s->bias + n0, cols * sizeof *to);
        kern->add_f32(to, y + i * TN_TOWER_S8_COLS, in->scale[row0 + i], cols);
        if (then == TN_TOWER_GELU_TANH) kern->act_f32(TN_ACT_GELU_TANH, to, cols);
        if (then == TN_TOWER_GELU_ERF) kern->act_f32(TN_ACT_GELU_ERF, to, cols);
    }
}
