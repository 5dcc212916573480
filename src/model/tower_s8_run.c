/* A layer of a tower in INT8 (tower_s8.h). */
#include "model/tower_impl.h"

#include <math.h>
#include <string.h>

typedef tn_tower_run run;

/* A thread's scratch is the largest of: a row to rotate; a part of a product; rows of scores and what they give. */
static size_t values_width(const run *r) { return (r->d_head + 1 + TN_TILE_N - 1) / TN_TILE_N * TN_TILE_N; }
static size_t scores_width(const run *r) { return (r->n + TN_TILE_N - 1) / TN_TILE_N * TN_TILE_N; }
static size_t shares_width(const run *r) { return tn_tower_s8_ld(r->n); }

size_t tn_tower_s8_scratch(const run *r) {
    size_t of[] = {r->in.ld, (size_t)TN_TOWER_S8_ROWS * TN_TOWER_S8_COLS,
                   TN_TOWER_ATTEND_ROWS *
                           (scores_width(r) + shares_width(r) / sizeof(float) + values_width(r)) +
                       3 * values_width(r),
                   r->n * (r->d_padded / sizeof(float) + 1) + 2 * r->d_padded};
    size_t most = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) most = of[i] > most ? of[i] : most;
    return most;
}

static float *scratch_of(const run *r, int i_thread) {
    return r->scratch + (size_t)i_thread * r->scratch_stride;
}

/* ---- products --------------------------------------------------------------------------------------------- */

static void codes_item(void *arg, int i_item, int i_thread) {
    const run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    for (size_t i = row0; i < row1; i++)
        r->in.scale[i] = tn_tower_s8_row(r->kern, r->rows + i * r->row_width, r->row_width, r->row_padded,
                                         scratch_of(r, i_thread), r->in.codes + i * r->in.ld);
}

static void part_item(void *arg, int i_item, int i_thread) {
    const run *r = arg;
    tn_tower_s8_part(r->s8, r->kern, &r->in, r->n, i_item, r->then, scratch_of(r, i_thread), r->to, r->ldo);
}

/* to [n][ldo] = then(W rows), all n rows */
static void product_at(run *r, const tn_tower_s8 *s8, const float *rows, tn_tower_then then, float *to,
                       size_t ldo) {
    r->rows = rows;
    r->row_width = (size_t)s8->k;
    r->row_padded = (size_t)s8->padded;
    r->s8 = s8;
    r->then = then;
    r->to = to;
    r->ldo = ldo;
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), codes_item, r);
    tn_pool_for(r->pool, tn_tower_s8_parts(s8, r->n), part_item, r);
}

static void product(run *r, const tn_tower_s8 *s8, const float *rows, tn_tower_then then, float *to) {
    product_at(r, s8, rows, then, to, (size_t)s8->n);
}

/* to = W rows within its limits, where it has some */
static void apply(run *r, const tn_tower_s8 *s8, tn_tower_part part, const float *rows, float *to) {
    float *const *of = r->layer->limits[part].of;
    if (of[0]) tn_tower_limit(r, rows, r->limited, s8->k, of[0], of[1]);
    product(r, s8, of[0] ? r->limited : rows, TN_TOWER_SET, to);
    if (of[0]) tn_tower_limit(r, to, to, s8->n, of[2], of[3]);
}

/* Queries, keys and values side by side; the limits of what they are wait for their heads. */
static void project(run *r, const tn_tower_layer *l) {
    if (l->qkv_s8.n) {
        product(r, &l->qkv_s8, r->h, TN_TOWER_SET, r->q);
        return;
    }
    for (int p = TN_TOWER_Q; p <= TN_TOWER_V; p++) {
        tn_tower_limit(r, r->h, r->limited, l->part_s8[p].k, l->limits[p].of[0], l->limits[p].of[1]);
        product_at(r, &l->part_s8[p], r->limited, TN_TOWER_SET, r->q + (size_t)p * r->width, 3 * r->width);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------- */

/* A head of a row: its limits and its norm, where the layer has them. */
static void ready(const run *r, tn_tower_part part, float *x) {
    float *const *of = r->layer->limits[part].of, *const *norm = r->layer->head_norm;
    for (size_t i = 0; of[0] && i < r->d_head; i++) x[i] = tn_tower_within(x[i], *of[2], *of[3]);
    if (!norm[0]) return;
    r->kern->rmsnorm_f32(x, part == TN_TOWER_V ? r->t->ones : norm[part], r->t->s.eps, x, r->d_head);
}

/* Queries of a head, with one scale for all of them. Returns that scale. */
static float put_queries(const run *r, int head, float *row) {
    const size_t d = r->d_head, ld = 3 * r->width;
    const bool rotate = d % TN_HADAMARD_BLOCK == 0;
    float *q = r->q + (size_t)head * d, most = 0;
    for (size_t i = 0; i < r->n; i++) {
        ready(r, TN_TOWER_Q, q + i * ld);
        tn_tower_turn(r, i, q + i * ld);
        if (rotate) r->kern->hadamard_f32(q + i * ld, d);
        most = fmaxf(most, r->kern->absmax_f32(q + i * ld, d));
    }
    const float inv = most > 0 ? 127 / most : 0;
    memset(row, 0, r->d_padded * sizeof *row);
    for (size_t i = 0; i < r->n; i++) {
        memcpy(row, q + i * ld, d * sizeof *row);
        r->kern->quantise_s8(row, inv, r->queries + ((size_t)head * r->n + i) * r->d_padded, r->d_padded);
    }
    return most / 127;
}

/* Keys of a head become tiles: a scale each, with that of the queries and of the scores in it. */
static void put_keys(const run *r, int head, float query_scale, float *scratch) {
    const size_t d = r->d_head, ld = 3 * r->width, padded = r->d_padded, n_scales = scores_width(r);
    const float *k = r->q + r->width + (size_t)head * d;
    float *row = scratch, *scale = r->key_scale + (size_t)head * n_scales;
    uint8_t *raised = (uint8_t *)(scratch + padded);
    int8_t *codes = (int8_t *)(scratch + 2 * padded);
    memset(row, 0, padded * sizeof *row);
    for (size_t i = 0; i < r->n; i++) {
        memcpy(row, k + i * ld, d * sizeof *row);
        ready(r, TN_TOWER_K, row);
        tn_tower_turn(r, i, row);
        if (d % TN_HADAMARD_BLOCK == 0) r->kern->hadamard_f32(row, d);
        const float most = r->kern->absmax_f32(row, d);
        r->kern->quantise_s8(row, most > 0 ? 127 / most : 0, raised, padded);
        for (size_t j = 0; j < padded; j++) codes[i * padded + j] = (int8_t)(raised[j] - 128);
        scale[i] = most / 127 * query_scale / (r->layer->head_norm[0] ? 1 : sqrtf((float)d));
    }
    tn_tiles_s8_pack(r->key_tiles + (size_t)head * r->key_bytes, r->key_sums + (size_t)head * n_scales, codes,
                     0, r->n, padded);
}

/* Values of a head become tiles, whose inputs are positions: a scale for each channel. The output after them has a one
 * for each position, so that a product gives the sum of the shares too. Sums of codes are kept after every 16 positions. */
static void put_values(const run *r, int head, float *scratch) {
    const size_t d = r->d_head, ld = 3 * r->width, width = values_width(r), k4 = (r->n + 3) / 4;
    float *v = r->q + 2 * r->width + (size_t)head * d, *scale = r->value_scale + (size_t)head * width,
          *inv = scratch, *row = scratch + width;
    int32_t *sums = r->value_sums + (size_t)head * (scores_width(r) / TN_TILE_N + 1) * width;
    uint8_t *raised = (uint8_t *)(row + width);
    uint32_t *tiles = (uint32_t *)(r->value_tiles + (size_t)head * r->value_bytes);
    memset(scale, 0, width * sizeof *scale);
    memset(row, 0, width * sizeof *row);
    memset(sums, 0, width * sizeof *sums);
    for (size_t i = 0; i < r->n; i++) {
        const float *of = v + i * ld;
        ready(r, TN_TOWER_V, v + i * ld);
        for (size_t j = 0; j < d; j++) scale[j] = fabsf(of[j]) > scale[j] ? fabsf(of[j]) : scale[j];
    }
    for (size_t j = 0; j < width; j++) inv[j] = scale[j] > 0 ? 127 / scale[j] : 0, scale[j] /= 127;
    scale[d] = row[d] = 1;
    for (size_t i = 0; i < r->n; i += TN_TILE_K) {
        for (size_t k = 0; k < TN_TILE_K; k++) { /* after the last there are zeros, and no ones */
            for (size_t j = 0; j < d && i + k < r->n; j++) row[j] = v[(i + k) * ld + j] * inv[j];
            if (i + k >= r->n) memset(row, 0, width * sizeof *row);
            r->kern->quantise_s8(row, 1, raised + k * width, width);
        }
        if (i % TN_TILE_N == 0) memcpy(sums + width, sums, width * sizeof *sums), sums += width;
        for (size_t j = 0; j < width; j++) {
            const uint8_t *of = raised + j;
            const uint32_t four = (uint32_t)of[0] | (uint32_t)of[width] << 8 | (uint32_t)of[2 * width] << 16 |
                                  (uint32_t)of[3 * width] << 24;
            tiles[j / TN_TILE_N * k4 * TN_TILE_N + i / TN_TILE_K * TN_TILE_N + j % TN_TILE_N] =
                four ^ 0x80808080u; /* value + 128 as value */
            sums[j] += of[0] + of[width] + of[2 * width] + of[3 * width] - 4 * 128;
        }
    }
}

static void keep_item(void *arg, int i_item, int i_thread) {
    const run *r = arg;
    float *scratch = scratch_of(r, i_thread);
    put_keys(r, i_item, put_queries(r, i_item, scratch), scratch);
    put_values(r, i_item, scratch);
}

static size_t least_of(size_t a, size_t b) { return a < b ? a : b; }

/* given [n_rows][values_width] = shares x the head's values, of keys key0 .. key1 - 1: all outputs at once, or tile by
 * tile. A share's code is 127 less than the product takes it for: hence the bias. */
static void give_values(const run *r, size_t head, const uint8_t *shares, size_t n_rows, size_t key0,
                        size_t key1, float *given) {
    const size_t width = values_width(r), k4 = (r->n + 3) / 4, last = (key1 + TN_TILE_N - 1) / TN_TILE_N;
    const int32_t *sums = r->value_sums + head * (scores_width(r) / TN_TILE_N + 1) * width;
    const float *scale = r->value_scale + head * width;
    float *bias = given + TN_TOWER_ATTEND_ROWS * width;
    int32_t *of_keys = (int32_t *)(bias + width);
    for (size_t j = 0; j < width; j++) {
        of_keys[j] = sums[last * width + j] - sums[key0 / TN_TILE_N * width + j];
        bias[j] = scale[j] * (float)(TN_SHARES / 2 * of_keys[j]);
    }
    const size_t each = key1 - key0 < r->n ? TN_TILE_N : width;
    for (size_t c = 0; c < width; c += each)
        r->kern->gemm_s8(&(tn_gemm_s8_args){.a = shares + key0,
                                            .lda = shares_width(r),
                                            .tiles = r->value_tiles + head * r->value_bytes +
                                                     (c / TN_TILE_N * k4 + key0 / 4) * 64,
                                            .col_sum = of_keys + c,
                                            .m = n_rows,
                                            .n = each,
                                            .k = key1 - key0,
                                            .n1 = each,
                                            .out_f32 = given + c,
                                            .ldo = width,
                                            .scale = scale + c,
                                            .bias = bias + c});
}

/* A head's next rows: scores in INT8, softmax in floats, values in INT8; of the keys that any of them sees. */
static void attend_item(void *arg, int i_item, int i_thread) {
    const run *r = arg;
    const int n_heads = r->t->s.n_heads;
    const size_t head = (size_t)(i_item % n_heads), d = r->d_head, ld = scores_width(r);
    float *scores = scratch_of(r, i_thread), *given = scores + TN_TOWER_ATTEND_ROWS * ld;
    uint8_t *shares = (uint8_t *)(given + (TN_TOWER_ATTEND_ROWS + 3) * values_width(r));
    size_t row0, row1;
    tn_tower_span(r, i_item / n_heads, TN_TOWER_ATTEND_ROWS, &row0, &row1);
    int32_t first, end;
    tn_tower_seen(r, row0, &first, &end);
    const size_t key0 = (size_t)first / TN_TILE_N * TN_TILE_N;
    tn_tower_seen(r, row1 - 1, &first, &end);
    const size_t key1 = least_of(((size_t)end + TN_TILE_N - 1) / TN_TILE_N * TN_TILE_N, r->n);
    r->kern->gemm_s8(&(tn_gemm_s8_args){.a = r->queries + (head * r->n + row0) * r->d_padded,
                                        .lda = r->d_padded,
                                        .tiles = r->key_tiles + head * r->key_bytes,
                                        .col_sum = r->key_sums + head * ld,
                                        .m = row1 - row0,
                                        .n = r->n,
                                        .k = r->d_padded,
                                        .n0 = key0,
                                        .n1 = key1,
                                        .out_f32 = scores,
                                        .ldo = ld,
                                        .scale = r->key_scale + head * ld});
    for (size_t i = 0; i < row1 - row0; i++) {
        uint8_t *of = shares + i * shares_width(r);
        tn_tower_seen(r, row0 + i, &first, &end);
        memset(of + key0, 1, (size_t)first - key0); /* keys beyond a window have no share */
        memset(of + end, 1, key1 - (size_t)end);
        r->kern->shares_u8(scores + i * ld + first, of + first, (size_t)(end - first));
    }
    give_values(r, head, shares, row1 - row0, key0, key1, given);
    for (size_t i = 0; i < row1 - row0; i++) {
        float *to = r->h + (row0 + i) * r->width + head * d;
        const float *of = given + i * values_width(r);
        for (size_t j = 0; j < d; j++) to[j] = of[j] / of[d];
    }
}

/* x += W rows, or its norm, for which h is free by then: rows are codes. */
static void add(run *r, const tn_tower_s8 *s8, tn_tower_part part, const float *rows, const float *post) {
    if (!post) {
        product(r, s8, rows, TN_TOWER_ADD, r->x);
        return;
    }
    apply(r, s8, part, rows, r->h);
    tn_tower_add(r, r->h, NULL, post);
}

void tn_tower_s8_layer(run *r, const tn_tower_layer *l) {
    tn_tower_norm(r, l->ln1);
    project(r, l);
    tn_pool_for(r->pool, r->t->s.n_heads, keep_item, r);
    const size_t groups = (r->n + TN_TOWER_ATTEND_ROWS - 1) / TN_TOWER_ATTEND_ROWS;
    tn_pool_for(r->pool, r->t->s.n_heads * (int)groups, attend_item, r);
    add(r, &l->out_s8, TN_TOWER_OUT, r->h, l->post[0]);
    tn_tower_norm(r, l->ln2);
    if (l->gate_s8.n) {
        apply(r, &l->gate_s8, TN_TOWER_GATE, r->h, r->gate);
        apply(r, &l->up_s8, TN_TOWER_UP, r->h, r->wide);
        tn_tower_gate(r);
    } else {
        const bool exact = tn_tower_act(r) == TN_ACT_GELU_ERF;
        product(r, &l->up_s8, r->h, exact ? TN_TOWER_GELU_ERF : TN_TOWER_GELU_TANH, r->wide);
    }
    add(r, &l->down_s8, TN_TOWER_DOWN, r->wide, l->post[1]);
}
