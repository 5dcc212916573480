/* attention/sparse_impl.h - what the files of sparse attention share: its state, a block of rows, and the
 * steps by which one is attended.
 *   sparse_attn.c   state; plan: buckets, INT8 keys
 *   sparse_rows.c   estimates
 *   sparse_own.c    rows and heads that select for themselves
 *   sparse_tiles.c  rows, and heads of a KV head, that share a selection
 *   sparse_heads.c  the pipelined form
 *   sparse_decode.c rows of decode forwards
 *   sparse_baselines.c  block-sparse and npu-full */
#ifndef TN_ATTENTION_SPARSE_IMPL_H
#define TN_ATTENTION_SPARSE_IMPL_H

#include "attention/sparse_attn.h"

enum {
    MIN_SELECTED = 16,     /* positions that a row attends to at least, if it sees that many */
    BLOCK = 64,            /* of block-sparse attention */
    FLOAT_BOUND = 1 << 24, /* of scores that were floats */
    PART = 256,            /* positions estimated and merged at a time: 32 rows of them stay in L1 */
    PART_LD = PART + 16,
    NEAR = 256,
    FAR = 64, /* the row's last and first positions, whose largest score stands for the row's largest */
};

/* A key cache holds the INT8 keys of one layer's KV head. */
typedef struct key_cache {
    int8_t *tiles;
    int32_t *sum;
    float *panel_max; /* [cap / TN_KV_PANEL] largest magnitude in a panel, of the positions quantised */
    void *rows; /* where rows share lists, and for decoding: the keys in the layout of values (kv_cells.h), to
                   be picked one by one */
    int32_t n_rows; /* of them valid */
    int32_t n_keys; /* positions quantised with bucket's scale */
    int32_t bucket; /* -1: none yet */
    float *means;   /* block-sparse: [cap / BLOCK + 1][d] mean keys of the blocks that are whole */
    int32_t n_means;
    int8_t *v_tiles; /* npu-full: values as weights W [d][cap] of a product, a tile of 16 columns cap * 16
                        bytes after the one before */
    int32_t *v_sum;  /* [cap / TN_KV_PANEL][d up to a multiple of 16] sums of W over the positions up to a
                        panel's end */
    float *v_panel_max, v_max;
    int32_t n_values; /* positions quantised with v_max's scale */
} key_cache;

typedef struct chunk_plan {
    int32_t *q_bucket; /* [n_kv_heads * n_units_kv] */
    int32_t *k_bucket; /* [n_kv_heads] */
} chunk_plan;

typedef struct worker_space {
    float *scratch;       /* of attn_sparse or attn_tiles */
    int32_t *scores;      /* [TN_ATTN_ROWS][ld] */
    uint8_t *q8;          /* [TN_ATTN_ROWS][q8_stride] */
    float *q_rows;        /* [TN_ATTN_ROWS][d] of one head, for float scores */
    float *float_scores;  /* [TN_ATTN_ROWS][ld] */
    uint32_t *idx, *cuts; /* [n_group * TN_ATTN_ROWS][idx_stride], [..][n_blocks + 1] */
    uint32_t *exact;      /* [idx_stride] with check */
    uint32_t *exact_cuts;
    void *topk;
    int32_t *part;            /* [TN_ATTN_ROWS][PART_LD] scores of the positions at hand */
    int32_t *merged;          /* [tiles of a batch][ld] */
    uint8_t *weights;         /* npu-full: [TN_ATTN_ROWS][ld] */
    float *tile_q, *tile_out; /* [TN_ATTN_ROWS][n_group][d] */
    int32_t *seen; /* [2][TN_ATTN_ROWS * n_group] parts of its tile's list that a row sees: first, end */
} worker_space;

struct tn_sparse_attn {
    tn_ctx *ctx;
    const tn_npu_model *m;
    const tn_hparams *h;
    const tn_kernels *kern;
    const tn_kv *kv;
    tn_attn_options o;   /* mode: shadow also where only decoding is sparse */
    bool prompt;         /* chunks of the prompt too */
    int32_t decode_from; /* positions a row sees at least */
    int32_t n_steps, n_group, n_workers, n_chunks;
    int32_t n_units_kv; /* units of a KV head; a unit has one scale of estimation and one selection: 1 where
                           heads share, else one per head */
    int32_t pool,
        n_pools; /* query heads of a pool, pools of a KV head; 1 and n_group where heads do not share */
    size_t ld, idx_stride, n_blocks, q8_stride, room;
    float *scale_q, *scale_k; /* [n_layers][n_steps]; unused where they follow the text */
    float *ratio;             /* [n_layers][n_heads] */
    float *decode_ratio;      /* [n_layers][n_kv_heads]: mean of the heads */
    key_cache *keys;          /* [n_layers][n_kv_heads] */
    uint8_t *rows;            /* of all of them: one large block has large pages */
    int8_t *tiles;
    tn_npu_graph **graphs;         /* [n_layers][n_steps of Q][n_steps of K] */
    tn_npu_graph **part_graphs;    /* the same for PART positions; only where the device works part by part */
    chunk_plan *plans;             /* [n_chunks] */
    worker_space *space;           /* [n_workers] */
    struct tn_sparse_heads *heads; /* NULL: in place */
    tn_attn_stats fixed;
    atomic_uint_fast64_t n_rows, n_selected, n_seen, n_true, n_found, n_requantised, n_launches,
        mass_ppm; /* relaxed: statistics */
};

static inline bool tn_sparse_uses_int8(const tn_sparse_attn *s) {
    return s->o.mode == TN_ATTN_SHADOW || s->o.mode == TN_ATTN_NPU_FULL;
}
static inline key_cache *tn_sparse_keys(const tn_sparse_attn *s, int layer, int32_t kv_head) {
    return &s->keys[(size_t)layer * (size_t)s->h->n_kv_heads + (size_t)kv_head];
}

/* Tells whether several rows attend to one list. */
static inline bool tn_sparse_uses_tiles(const tn_sparse_attn *s) {
    return s->o.share_rows || s->o.mode == TN_ATTN_BLOCK_SPARSE;
}

/* Whether scores are merged part by part while they are in cache: if the device shares the CPU's caches. */
static inline bool tn_sparse_by_parts(const tn_sparse_attn *s) {
    return s->o.share_rows && !s->o.whole && tn_npu_device_caps(s->m->dev)->has_parts;
}

/* Returns how much of its ratio a head keeps of n positions: 1, or less where ratios fall. */
float tn_sparse_fallen(const tn_sparse_attn *s, size_t n);
/* Returns how many of n positions a row or a tile with that ratio keeps: at least `least`, where there are as many, and
 * no more than its list has room for. */
size_t tn_sparse_kept(const tn_sparse_attn *s, float ratio, size_t n, size_t least);
/* Returns the mean ratio of the query heads of a KV head, the first at `head`. */
float tn_sparse_mean_ratio(const tn_sparse_attn *s, size_t head);
/* Returns the largest of max and |x[i]|, n a multiple of 4. A NaN or an infinity has no scale. */
float tn_sparse_magnitude(const float *x, size_t n, float max);
/* Chooses the scale of queries or keys whose largest magnitude is 127 * want: the nearest of the layer's
 * scales, or, where scales follow the text, the least power of the root of 2 that is not below, so that
 * nothing is clipped. Returns its bucket, from 0 on; the second function returns the scale of a bucket. */
int32_t tn_sparse_bucket(const tn_sparse_attn *s, const float *scales, int layer, float want);
float tn_sparse_scale(const tn_sparse_attn *s, const float *scales, int layer, int32_t bucket);
/* Returns the layer's graph of two buckets, of s->graphs or s->part_graphs. */
tn_npu_graph *tn_sparse_graph(const tn_sparse_attn *s, tn_npu_graph *const *graphs, int layer, int32_t q,
                              int32_t k);
/* Adds up the queries of n heads, scaled to the size of one if they differ. The sum is in `to`, except for
 * n = 1. */
const float *tn_sparse_add_queries(const float *x, int32_t n, size_t d, float *to);
/* Returns the query that stands for pool i_pool of a KV head in a row of q. */
const float *tn_sparse_pooled_query(const tn_sparse_attn *s, const float *row, int32_t kv_head,
                                    int32_t i_pool, float *to);

/* The first copies keys up to `end` as rows. The second quantises them to INT8 by the scale that the
 * panels up to there need, and returns its bucket. */
void tn_sparse_copy_rows(const tn_sparse_attn *s, int layer, int32_t kv_head, key_cache *k, int32_t end);
int32_t tn_sparse_plan_keys(tn_sparse_attn *s, int layer, int32_t kv_head, int32_t end);
/* Runs an estimate of a layer and waits for it. */
tern_status tn_sparse_launch(const tn_sparse_attn *s, tn_npu_job *job, int layer, tern_error *err);

/* A block is some rows of one KV head. */
typedef struct block {
    tn_sparse_attn *s;
    const tn_rows *r;
    worker_space *w;
    int32_t i_chunk, layer, kv_head, row0, n_rows;
    const float *q;
} block;

/* Estimates the scores of pools pool0..pool1-1 (heads, where they do not share), all of one bucket and
 * therefore in one launch, for rows i0..i0+n-1 of the block: n rows a pool, of positions p0..p1-1, p0 a
 * multiple of PART. Row 0 of pool 0 goes to `out`, the next ld after: s->ld, or PART_LD of a part. With 0,
 * for heads that do not share, each goes from `out` on. */
tern_status tn_sparse_estimate(const block *b, int32_t pool0, int32_t pool1, int32_t i0, int32_t n,
                               int32_t p0, int32_t p1, int32_t *out, size_t ld, tern_error *err);
/* Both compute exact scores q.k, neither scaled nor capped, because the order is the same: the first of n
 * query rows [n][d], the second of a head's rows of the block. */
void tn_sparse_float_scores(const block *b, const float *q, int32_t n, int32_t n_pos);
void tn_sparse_head_float_scores(const block *b, int32_t head, int32_t n_pos);
/* The first returns the largest of max and |f[i]|. The second turns the float scores of one row, the largest
 * magnitude `max`, into integers of 25 bits, which take the place of estimates. */
float tn_sparse_largest(const float *f, size_t n, float max);
void tn_sparse_integers(const float *f, float max, int32_t *out, size_t n);
/* Returns the largest of max and n scores. */
int32_t tn_sparse_largest_score(const int32_t *x, size_t n, int32_t max);
/* These are for the option check. The first counts how many positions are in both lists. The second adds
 * up how much of a row's softmax lies at the n positions of idx; f has its exact scores. */
size_t tn_sparse_n_common(const uint32_t *a, const uint32_t *b, size_t n);
void tn_sparse_add_mass(const block *b, const float *f, size_t first, size_t end, const uint32_t *idx,
                        size_t n);
void tn_sparse_count(const block *b, uint64_t n_rows, uint64_t n_seen, uint64_t n_selected);

/* These are for rows and heads that select for themselves. The first makes lists (one every idx_stride)
 * and cuts of a head's rows from its scores, which it changes, or from its float scores, which with the
 * option check are also in the worker's space. The second attends exactly with neighbouring heads' rows at
 * such lists. */
void tn_sparse_head_select(const block *b, int32_t head, bool floats, int32_t *head_scores,
                           uint32_t *head_idx, uint32_t *head_cuts);
void tn_sparse_heads_attend(const block *b, int32_t head, int32_t n_heads, const uint32_t *idx,
                            const uint32_t *cuts, float *out);
/* These are for rows and heads that share. The first makes the lists of the block's tiles, from scores that
 * come pool by pool, n_stride rows each. The second attends exactly at them. */
void tn_sparse_tiles_select(const block *b, const int32_t *scores, int32_t n_stride, uint32_t *lists,
                            uint32_t *n_idx);
void tn_sparse_tiles_attend(const block *b, const uint32_t *lists, const uint32_t *n_idx, float *out);
/* Attends exactly with n tiles over the cache of the block's KV head. Used wherever several rows attend to
 * one list. */
void tn_sparse_run_tiles(const block *b, const tn_attn_tile *tiles, size_t n);
/* Estimates, selects and attends for all heads of a KV head and all rows of the block, where they share. */
tern_status tn_sparse_attend_tiles(const block *b, float *out, tern_error *err);

/* These are tn_sparse_attn_open, _close, _rewind, _plan and _stats_get of the pipelined form. */
tern_status tn_sparse_heads_open(tn_sparse_attn *s, int32_t chunk_rows, tern_error *err);
void tn_sparse_heads_close(tn_sparse_attn *s);
void tn_sparse_heads_rewind(tn_sparse_attn *s);
tern_status tn_sparse_heads_plan(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                 int32_t kv_head, const float *q, tern_error *err);
void tn_sparse_heads_stats(const tn_sparse_attn *s, tn_attn_stats *out);
/* Baselines: opens the data that only they keep of a KV head; plans keys and values up to position end;
 * attends with rows of all heads of a KV head, or of one head after its estimates. */
tern_status tn_sparse_baseline_open(tn_sparse_attn *s, key_cache *k, tern_error *err);
void tn_sparse_baseline_plan(const tn_sparse_attn *s, int layer, int32_t kv_head, int32_t end);
void tn_sparse_attend_blocks(const block *b, float *out);
void tn_sparse_attend_int8(const block *b, int32_t head, float *out);

#endif
