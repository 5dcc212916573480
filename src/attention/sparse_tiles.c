/* Tiles: neighbouring rows, with all query heads of a KV head, that share one selection. */
#include "attention/sparse_impl.h"

#include <string.h>

/* A tile has the neighbouring rows i0..i1-1 of the block with all query heads of the KV head. */
typedef struct tile {
    int32_t i0, i1, n_in;             /* n_in: scored rows, pools x rows */
    size_t first, end;                /* positions any of them sees */
    const int32_t *row[TN_ATTN_ROWS]; /* scores of position `base` on */
    size_t base;
    int32_t row_first[TN_ATTN_ROWS], row_end[TN_ATTN_ROWS], top[TN_ATTN_ROWS];
    int32_t bound; /* of the merged scores so far */
} tile;

static int32_t n_tiles_of(const block *b) {
    return (b->n_rows + b->s->o.share_rows - 1) / b->s->o.share_rows;
}

/* Sets up tile i of the block. Scored rows come pool by pool, n_batch rows of the text each; row e0 of the
 * block is the first. */
static void tile_init(const block *b, const int32_t *scores, int32_t e0, int32_t n_batch, int32_t i_tile,
                      tile *t) {
    int32_t share = b->s->o.share_rows, i0 = i_tile * share,
            i1 = i0 + share < b->n_rows ? i0 + share : b->n_rows;
    const tn_sparse_attn *s = b->s;
    const int32_t *pos = b->r->pos + b->row0;
    *t = (tile){.i0 = i0,
                .i1 = i1,
                .first = (size_t)tn_rows_first_pos(s->h, b->layer, pos[i0]),
                .end = (size_t)pos[i1 - 1] + 1};
    for (int32_t i_pool = 0; i_pool < s->n_pools; i_pool++) {
        for (int32_t i = i0; i < i1; i++) {
            t->row[t->n_in] = scores + (size_t)(i_pool * n_batch + i - e0) * s->ld;
            t->row_first[t->n_in] = tn_rows_first_pos(s->h, b->layer, pos[i]);
            t->row_end[t->n_in++] = pos[i] + 1;
        }
    }
}

/* Puts the exact scores of a tile's pools in place of estimates. */
static void tile_floats(const block *b, const tile *t) {
    float max = 0;
    for (int32_t r = 0; r < t->n_in; r++)
        max = tn_sparse_largest(b->w->float_scores + (t->row[r] - b->w->scores), (size_t)t->row_end[r], max);
    for (int32_t r = 0; r < t->n_in; r++)
        tn_sparse_integers(b->w->float_scores + (t->row[r] - b->w->scores), max,
                           b->w->scores + (t->row[r] - b->w->scores), (size_t)t->row_end[r]);
}

/* Returns how many positions a tile keeps: the mean of its heads' shares. Its own positions are always
 * kept. */
static size_t tile_kept(const tn_sparse_attn *s, int layer, int32_t kv_head, const tile *t) {
    size_t n = t->end - t->first, least = (size_t)(MIN_SELECTED + t->i1 - t->i0);
    const size_t head = (size_t)layer * (size_t)s->h->n_heads + (size_t)(kv_head * s->n_group);
    return tn_sparse_kept(s, tn_sparse_mean_ratio(s, head), n, least);
}

/* Finds the reference of a row's scores: the largest among the last NEAR and the first FAR positions that
 * it sees. This is nearly always the row's largest; if not, larger scores count for more. So merging need
 * not wait for the whole row. */
static void tile_tops(tile *t) {
    for (int32_t r = 0; r < t->n_in; r++) {
        int32_t first = t->row_first[r], end = t->row_end[r], near = end - first > NEAR ? end - NEAR : first,
                far = near - first > FAR ? first + FAR : near;
        t->top[r] = tn_sparse_largest_score(
            t->row[r] + first, (size_t)(far - first),
            tn_sparse_largest_score(t->row[r] + near, (size_t)(end - near), INT32_MIN));
    }
    t->bound = 1;
}

static void tile_merge(const block *b, tile *t, int32_t *merged, size_t p0, size_t p1) {
    if (p0 < t->first) p0 = t->first;
    if (p1 > t->end) p1 = t->end;
    if (p0 >= p1) return;
    int32_t bound = b->s->kern->topk_merge(&(tn_topk_merge_args){.row = t->row,
                                                                 .base = t->base,
                                                                 .n_rows = (size_t)t->n_in,
                                                                 .first = t->row_first,
                                                                 .end = t->row_end,
                                                                 .top = t->top,
                                                                 .p0 = p0,
                                                                 .p1 = p1,
                                                                 .out = merged});
    t->bound = bound > t->bound ? bound : t->bound;
}

/* Selects, and returns how many positions. */
static uint32_t tile_select(const block *b, const tile *t, int32_t *merged, uint32_t *idx) {
    const tn_sparse_attn *s = b->s;
    size_t k = tile_kept(s, b->layer, b->kv_head, t);
    for (size_t p = t->end - (size_t)(t->i1 - t->i0); p < t->end; p++)
        merged[p] = t->bound + 1; /* their own, before all others */
    s->kern->topk(&(tn_topk_args){.scores = merged + t->first,
                                  .n = t->end - t->first,
                                  .k = k,
                                  .bound = t->bound + 1,
                                  .idx = idx,
                                  .scratch = b->w->topk});
    for (size_t i = 0; t->first && i < k; i++) idx[i] += (uint32_t)t->first;
    return (uint32_t)k;
}

static size_t lower_bound(const uint32_t *idx, size_t n, uint32_t x) {
    size_t lo = 0;
    while (n > lo) {
        size_t mid = lo + (n - lo) / 2;
        if (idx[mid] < x) lo = mid + 1;
        else n = mid;
    }
    return lo;
}

/* Makes the kernel's description of tile i_tile. */
static tn_attn_tile tile_ready(const block *b, int32_t i_tile, const uint32_t *idx, size_t k) {
    const tn_sparse_attn *s = b->s;
    int32_t i0 = i_tile * s->o.share_rows,
            i1 = i0 + s->o.share_rows < b->n_rows ? i0 + s->o.share_rows : b->n_rows;
    size_t part = (size_t)(s->n_group * s->h->d_head), r0 = (size_t)(i0 * s->n_group), n = r0;
    int32_t *first = b->w->seen, *end = first + TN_ATTN_ROWS * s->n_group;
    for (int32_t i = i0; i < i1; i++) {
        uint32_t pos = (uint32_t)b->r->pos[b->row0 + i],
                 from = (uint32_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]);
        int32_t lo = (int32_t)lower_bound(idx, k, from), hi = (int32_t)lower_bound(idx, k, pos + 1);
        for (int32_t g = 0; g < s->n_group; g++, n++) {
            first[n] = lo;
            end[n] = hi;
        }
        tn_sparse_count(b, (uint64_t)s->n_group, (uint64_t)s->n_group * (pos + 1 - from),
                        (uint64_t)(s->n_group * (hi - lo)));
    }
    return (tn_attn_tile){.q = b->w->tile_q + (size_t)i0 * part,
                          .out = b->w->tile_out + (size_t)i0 * part,
                          .n_rows = n - r0,
                          .idx = idx,
                          .n_idx = k,
                          .first = first + r0,
                          .end = end + r0};
}

/* Returns the number of rows of the text whose pools' scores have room. */
static int32_t batch_rows(const tn_sparse_attn *s) {
    return TN_ATTN_ROWS / s->n_pools / s->o.share_rows * s->o.share_rows;
}

/* Computes exact scores of the pools' queries, rows e0..e0+n-1 of the block. */
static void pools_float_scores(const block *b, int32_t e0, int32_t n) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    for (int32_t i = 0; i < s->n_pools * n; i++) {
        float *to = b->w->q_rows + (size_t)i * d;
        const float *x =
            tn_sparse_pooled_query(s, b->q + (size_t)(b->row0 + e0 + i % n) * row, b->kv_head, i / n, to);
        if (x != to) memcpy(to, x, d * sizeof *to);
    }
    tn_sparse_float_scores(b, b->w->q_rows, s->n_pools * n, b->r->pos[b->row0 + e0 + n - 1] + 1);
}

/* Makes a tile's list by the scores that pools_float_scores left. Returns its length. */
static uint32_t exact_list(const block *b, int32_t e0, int32_t n, int32_t i_tile, uint32_t *idx) {
    tile t;
    tile_init(b, b->w->scores, e0, n, i_tile, &t);
    tile_floats(b, &t);
    tile_tops(&t);
    tile_merge(b, &t, b->w->merged, t.first, t.end);
    return tile_select(b, &t, b->w->merged, idx);
}

/* Sums the softmax mass of one head's rows at the lists of their tiles. */
static void tiles_mass(const block *b, int32_t head, const uint32_t *lists, const uint32_t *n_idx) {
    tn_sparse_attn *s = b->s;
    tn_sparse_head_float_scores(b, head, b->r->pos[b->row0 + b->n_rows - 1] + 1);
    for (int32_t i = 0; i < b->n_rows; i++) {
        int32_t pos = b->r->pos[b->row0 + i], i_tile = i / s->o.share_rows;
        const uint32_t *idx = lists + (size_t)i_tile * s->idx_stride;
        size_t first = (size_t)tn_rows_first_pos(s->h, b->layer, pos),
               lo = lower_bound(idx, n_idx[i_tile], (uint32_t)first),
               hi = lower_bound(idx, n_idx[i_tile], (uint32_t)pos + 1);
        tn_sparse_add_mass(b, b->w->float_scores + (size_t)i * s->ld, first, (size_t)pos + 1, idx + lo,
                           hi - lo);
    }
}

/* With the option check: counts the exact selection of the same rule beside each list, and the softmax mass
 * of every head at it. */
static void tiles_check(const block *b, const uint32_t *lists, const uint32_t *n_idx) {
    tn_sparse_attn *s = b->s;
    for (int32_t e0 = 0, i_tile = 0; e0 < b->n_rows; e0 += batch_rows(s)) {
        int32_t n = b->n_rows - e0 < batch_rows(s) ? b->n_rows - e0 : batch_rows(s);
        pools_float_scores(b, e0, n);
        for (int32_t i = 0; i < n; i += s->o.share_rows, i_tile++) {
            uint32_t k = exact_list(b, e0, n, i_tile, b->w->exact);
            atomic_fetch_add_explicit(&s->n_true, k, memory_order_relaxed);
            atomic_fetch_add_explicit(
                &s->n_found, tn_sparse_n_common(lists + (size_t)i_tile * s->idx_stride, b->w->exact, k),
                memory_order_relaxed);
        }
    }
    for (int32_t g = 0; g < s->n_group; g++) tiles_mass(b, b->kv_head * s->n_group + g, lists, n_idx);
}

/* Estimates rows e0..e0+n-1 of the block and merges them, tile by tile, into w->merged. A device that
 * shares our memory works part by part, so that scores are merged while they are in L1; first those that
 * tile_tops needs. */
static tern_status estimate_tiles(const block *b, int32_t e0, int32_t n, tile *tiles, int32_t n_tiles,
                                  tern_error *err) {
    const tn_sparse_attn *s = b->s;
    int32_t end = (int32_t)tiles[n_tiles - 1].end,
            tail = ((int32_t)tiles[0].end - NEAR - TN_ATTN_ROWS) / PART * PART;
    int32_t *scores = b->w->scores;
    bool parts = tn_sparse_by_parts(s) && tiles[n_tiles - 1].first == 0 && tail > PART;
    if (!parts) {
        TN_TRY(tn_sparse_estimate(b, 0, s->n_pools, e0, n, 0, end, scores, s->ld, err));
    } else {
        TN_TRY(tn_sparse_estimate(b, 0, s->n_pools, e0, n, 0, PART, scores, s->ld, err));
        TN_TRY(tn_sparse_estimate(b, 0, s->n_pools, e0, n, tail, end, scores + tail, s->ld, err));
    }
    for (int32_t t = 0; t < n_tiles; t++) {
        int32_t *merged = b->w->merged + (size_t)t * s->ld;
        tile_tops(&tiles[t]);
        tile_merge(b, &tiles[t], merged, parts ? (size_t)tail : 0, (size_t)end);
        if (parts) tile_merge(b, &tiles[t], merged, 0, PART);
    }
    for (int32_t p = PART; parts && p < tail; p += PART) {
        TN_TRY(tn_sparse_estimate(b, 0, s->n_pools, e0, n, p, p + PART, b->w->part, PART_LD, err));
        for (int32_t t = 0; p == PART && t < n_tiles; t++) {
            for (int32_t r = 0; r < tiles[t].n_in; r++)
                tiles[t].row[r] = b->w->part + (tiles[t].row[r] - scores) / (ptrdiff_t)s->ld * PART_LD;
        }
        for (int32_t t = 0; t < n_tiles; t++) {
            tiles[t].base = (size_t)p;
            tile_merge(b, &tiles[t], b->w->merged + (size_t)t * s->ld, (size_t)p, (size_t)(p + PART));
        }
    }
    return TERN_OK;
}

void tn_sparse_tiles_select(const block *b, const int32_t *scores, int32_t n_stride, uint32_t *lists,
                            uint32_t *n_idx) {
    for (int32_t i = 0; i < n_tiles_of(b); i++) {
        tile t;
        tile_init(b, scores, 0, n_stride, i, &t);
        tile_tops(&t);
        tile_merge(b, &t, b->w->merged, t.first, t.end);
        n_idx[i] = tile_select(b, &t, b->w->merged, lists + (size_t)i * b->s->idx_stride);
    }
    if (b->s->o.check) tiles_check(b, lists, n_idx);
}

void tn_sparse_run_tiles(const block *b, const tn_attn_tile *tiles, size_t n) {
    const tn_sparse_attn *s = b->s;
    s->kern->attn_tiles(&(tn_attn_tiles_args){.tiles = tiles,
                                              .n_tiles = n,
                                              .k = tn_sparse_keys(s, b->layer, b->kv_head)->rows,
                                              .v = tn_kv_v(s->kv, b->layer, b->kv_head),
                                              .kv = s->kv->type,
                                              .d_head = (size_t)s->h->d_head,
                                              .scale = s->h->attn_scale,
                                              .soft_cap = s->h->attn_soft_cap,
                                              .scratch = b->w->scratch});
}

void tn_sparse_tiles_attend(const block *b, const uint32_t *lists, const uint32_t *n_idx, float *out) {
    const tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d, part = (size_t)s->n_group * d,
           off = (size_t)b->row0 * row + (size_t)b->kv_head * part;
    tn_attn_tile tiles[TN_ATTN_ROWS];
    for (int32_t i = 0; i < b->n_rows; i++)
        memcpy(w->tile_q + (size_t)i * part, b->q + off + (size_t)i * row, part * sizeof(float));
    tn_kv_query(s->kv, s->kern, d, w->tile_q, b->n_rows * s->n_group);
    for (int32_t i = 0; i < n_tiles_of(b); i++)
        tiles[i] = tile_ready(b, i, lists + (size_t)i * s->idx_stride, n_idx[i]);
    tn_sparse_run_tiles(b, tiles, (size_t)n_tiles_of(b));
    for (int32_t i = 0; i < b->n_rows; i++)
        memcpy(out + off + (size_t)i * row, w->tile_out + (size_t)i * part, part * sizeof(float));
}

/* As many rows are estimated together as there is room for scores. */
tern_status tn_sparse_attend_tiles(const block *b, float *out, tern_error *err) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    uint32_t n_idx[TN_ATTN_ROWS];
    for (int32_t e0 = 0, i_tile = 0; e0 < b->n_rows; e0 += batch_rows(s)) {
        int32_t n = b->n_rows - e0 < batch_rows(s) ? b->n_rows - e0 : batch_rows(s),
                n_tiles = (n + s->o.share_rows - 1) / s->o.share_rows;
        tile tiles[TN_ATTN_ROWS];
        if (s->o.mode == TN_ATTN_FLOAT_SPARSE) {
            pools_float_scores(b, e0, n);
            for (int32_t i = 0; i < n_tiles; i++)
                n_idx[i_tile + i] =
                    exact_list(b, e0, n, i_tile + i, w->idx + (size_t)(i_tile + i) * s->idx_stride);
        } else {
            for (int32_t i = 0; i < n_tiles; i++) tile_init(b, w->scores, e0, n, i_tile + i, &tiles[i]);
            TN_TRY(estimate_tiles(b, e0, n, tiles, n_tiles, err));
            for (int32_t i = 0; i < n_tiles; i++)
                n_idx[i_tile + i] = tile_select(b, &tiles[i], w->merged + (size_t)i * s->ld,
                                                w->idx + (size_t)(i_tile + i) * s->idx_stride);
        }
        i_tile += n_tiles;
    }
    if (s->o.check) tiles_check(b, w->idx, n_idx);
    tn_sparse_tiles_attend(b, w->idx, n_idx, out);
    return TERN_OK;
}
