#include "engine/sparse_attn.h"

#include "base/status.h"
#include "model/head_ratio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_SELECTED = 16, /* positions a row attends to at least, where it sees so many */
    BLOCK = 64,        /* of block-sparse attention */
    PART = 256,        /* positions estimated and merged at a time: 32 rows of them stay in L1 */
    PART_LD = PART + 16,
    NEAR = 256, FAR = 64, /* positions, the row's last and its first, whose largest score stands for the row's largest */
};
static const float BUCKET_STEP = 0.5f; /* the paper's sigma */

/* INT8 keys of one layer's KV head. */
typedef struct key_cache {
    int8_t *tiles;
    int32_t *sum;
    float *panel_max;   /* [cap / TN_KV_PANEL] largest magnitude in a panel, of the positions quantised */
    float *rows;        /* where rows share selections: the float keys [cap][d], which are picked one by one */
    int32_t n_rows;     /* of them valid */
    int32_t n_keys;     /* positions quantised with bucket's scale */
    int32_t bucket;     /* -1: none yet */
} key_cache;

typedef struct chunk_plan {
    int32_t *q_bucket; /* [n_heads], of pools of heads the first n_pools of a KV head's */
    int32_t *k_bucket; /* [n_kv_heads] */
} chunk_plan;

typedef struct worker_space {
    float *scratch;     /* of attn_sparse or attn_tiles */
    int32_t *scores;    /* [TN_ATTN_ROWS][ld] */
    uint8_t *q8;        /* [TN_ATTN_ROWS][q8_stride] */
    float *q_rows;      /* [TN_ATTN_ROWS][d] of one head, for float scores */
    float *float_scores; /* [TN_ATTN_ROWS][ld] */
    uint32_t *idx, *cuts; /* [n_group * TN_ATTN_ROWS][idx_stride], [..][n_blocks + 1] */
    uint32_t *exact;    /* [idx_stride] with check */
    uint32_t *exact_cuts;
    void *topk;
    int32_t *part;      /* [TN_ATTN_ROWS][PART_LD] scores of the positions at hand */
    int32_t *merged;    /* [tiles of a batch][ld] */
    float *tile_q, *tile_out; /* [TN_ATTN_ROWS][n_group][d] */
    int32_t *seen;      /* [2][TN_ATTN_ROWS * n_group] parts of its tile's list that a row sees: first, end */
} worker_space;

struct tn_sparse_attn {
    tn_ctx *ctx;
    const tn_npu_model *m;
    const tn_hparams *h;
    const tn_kernels *kern;
    const tn_kv *kv;
    tn_attn_options o;
    int32_t n_steps, n_group, n_workers, n_chunks;
    int32_t pool, n_pools;    /* query heads of a pool, pools of a KV head; 1 and n_group where heads do not share */
    size_t ld, idx_stride, n_blocks, q8_stride, room;
    float *scale_q, *scale_k; /* [n_layers][n_steps] */
    float *ratio;             /* [n_layers][n_heads] */
    key_cache *keys;          /* [n_layers][n_kv_heads] */
    tn_npu_graph **graphs;    /* [n_layers][n_steps of Q][n_steps of K] */
    tn_npu_graph **part_graphs; /* the same for PART positions; only where the device works part by part */
    chunk_plan *plans;        /* [n_chunks] */
    worker_space *space;      /* [n_workers] */
    tn_attn_stats fixed;
    atomic_uint_fast64_t n_rows, n_selected, n_seen, n_true, n_found, n_requantised, n_launches, mass_ppm; /* relaxed: statistics */
};

bool tn_attn_mode_parse(const char *name, tn_attn_mode *out) {
    static const char *const names[TN_N_ATTN_MODES] = {"full", "shadow", "float-sparse", "block-sparse", "npu-full"};
    for (int i = 0; i < TN_N_ATTN_MODES; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_attn_mode)i;
        return true;
    }
    return false;
}

static bool uses_int8(const tn_sparse_attn *s) { return s->o.mode == TN_ATTN_SHADOW || s->o.mode == TN_ATTN_NPU_FULL; }
static key_cache *keys_of(const tn_sparse_attn *s, int layer, int32_t kv_head) { return &s->keys[(size_t)layer * (size_t)s->h->n_kv_heads + (size_t)kv_head]; }

/* Are scores merged part by part, while they are in cache? Where the device shares it with us. */
static bool by_parts(const tn_sparse_attn *s) { return s->o.share_rows && !s->o.whole && tn_npu_device_caps(s->m->dev)->has_parts; }

static tern_status open_graph(tn_sparse_attn *s, const tn_npu_graph_desc *g, tn_npu_graph **out, tern_error *err) {
    TN_TRY(tn_npu_compile(s->m->dev, g, out, err));
    TN_TRY(tn_npu_load(*out, NULL, err));
    s->q8_stride = (size_t)tn_npu_graph_get(*out)->in_stride;
    s->fixed.bytes += tn_npu_load_bytes(*out);
    return TERN_OK;
}

static tern_status open_device_side(tn_sparse_attn *s, tern_error *err) {
    const tn_npu_caps *caps = tn_npu_device_caps(s->m->dev);
    size_t n_layers = (size_t)s->h->n_layers, n_kv = (size_t)s->h->n_kv_heads, cap = (size_t)s->kv->cap_tok, d = (size_t)s->h->d_head;
    TN_FAIL_IF(s->kv->cap_tok > caps->max_n || s->h->d_head > caps->max_k || s->h->d_head % 4, err, TERN_E_LIMIT,
               "device '%s' cannot estimate attention over %d positions with heads of %d; use --attention full", caps->name, s->kv->cap_tok, s->h->d_head);
    uint64_t tiles = tn_npu_tiles_bytes(&caps->layout, (int64_t)cap, (int64_t)d);
    size_t n_sum = (cap + (size_t)caps->layout.tile_n - 1) / (size_t)caps->layout.tile_n * (size_t)caps->layout.tile_n;
    s->graphs = tn_calloc(s->ctx, TN_MEM_GRAPHS, n_layers * (size_t)(s->n_steps * s->n_steps), sizeof(tn_npu_graph *));
    s->part_graphs = tn_calloc(s->ctx, TN_MEM_GRAPHS, n_layers * (size_t)(s->n_steps * s->n_steps), sizeof(tn_npu_graph *));
    TN_FAIL_IF(!s->graphs || !s->part_graphs, err, TERN_E_MEMORY, "no memory for INT8 keys");
    for (size_t i = 0; i < n_layers * n_kv; i++) {
        key_cache *k = &s->keys[i];
        k->tiles = tn_calloc(s->ctx, TN_MEM_KV, (size_t)tiles, 1);
        k->sum = tn_calloc(s->ctx, TN_MEM_KV, n_sum, sizeof *k->sum);
        k->panel_max = tn_calloc(s->ctx, TN_MEM_KV, cap / TN_KV_PANEL, sizeof *k->panel_max);
        TN_FAIL_IF(!k->tiles || !k->sum || !k->panel_max, err, TERN_E_MEMORY, "no memory for INT8 keys");
        s->fixed.bytes += tiles + n_sum * sizeof *k->sum + cap / TN_KV_PANEL * sizeof *k->panel_max;
    }
    for (size_t l = 0; l < n_layers; l++) {
        for (int q = 0; q < s->n_steps; q++) {
            for (int k = 0; k < s->n_steps; k++) {
                tn_npu_graph_desc g = {.kind = TN_NPU_QK, .m = TN_ATTN_ROWS, .k = s->h->d_head, .n_ops = 1};
                g.ops[0] = (tn_npu_op){.n = s->kv->cap_tok, .act_scale = s->scale_q[l * (size_t)s->n_steps + (size_t)q], .k_scale = s->scale_k[l * (size_t)s->n_steps + (size_t)k],
                                       .out = TN_NPU_OUT_S32, .out_stride = (int32_t)s->ld};
                size_t i = (l * (size_t)s->n_steps + (size_t)q) * (size_t)s->n_steps + (size_t)k;
                TN_TRY(open_graph(s, &g, &s->graphs[i], err));
                g.ops[0].n = PART;
                g.ops[0].out_stride = PART_LD;
                if (by_parts(s)) TN_TRY(open_graph(s, &g, &s->part_graphs[i], err));
            }
        }
    }
    return TERN_OK;
}

static tern_status open_worker(tn_sparse_attn *s, worker_space *w, tern_error *err) {
    size_t rows = TN_ATTN_ROWS, all = (size_t)s->n_group * rows, d = (size_t)s->h->d_head;
    bool floats = s->o.mode != TN_ATTN_SHADOW || s->o.check, tiles = s->o.share_rows > 0, ok = true;
    if (tiles) {
        size_t n_floats = all * d;
        w->merged = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, sizeof(int32_t));
        w->part = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * PART_LD, sizeof(int32_t));
        w->tile_q = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, n_floats, sizeof(float));
        w->tile_out = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, n_floats, sizeof(float));
        w->seen = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, 2 * all, sizeof(int32_t));
        w->scratch = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, tn_attn_tiles_scratch(all, s->room, d), sizeof(float));
        ok = w->merged && w->part && w->tile_q && w->tile_out && w->seen && w->scratch;
        all = rows; /* a list a tile at most */
    } else {
        w->scratch = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, tn_attn_sparse_scratch(all, s->room, d), sizeof(float));
        ok = w->scratch;
    }
    w->scores = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, sizeof(int32_t));
    w->q8 = tn_calloc(s->ctx, TN_MEM_ACTIVATIONS, rows * (s->q8_stride + 64), 1);
    w->q_rows = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * d, sizeof(float));
    w->float_scores = floats ? tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, sizeof(float)) : NULL;
    w->idx = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all * s->idx_stride + 64, sizeof(uint32_t));
    w->cuts = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all * (s->n_blocks + 1), sizeof(uint32_t));
    w->exact = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, s->idx_stride + 64, sizeof(uint32_t));
    w->exact_cuts = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, s->n_blocks + 1, sizeof(uint32_t));
    w->topk = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, tn_topk_scratch(s->ld), 1);
    ok = ok && w->scores && w->q8 && w->q_rows && (w->float_scores || !floats) && w->idx && w->cuts && w->exact && w->exact_cuts && w->topk;
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for sparse attention");
    return TERN_OK;
}

/* Of the query heads of a KV head, the first at `head`. */
static float mean_ratio(const tn_sparse_attn *s, size_t head) {
    float sum = 0;
    for (size_t g = 0; g < (size_t)s->n_group; g++) sum += s->ratio[head + g];
    return sum / (float)s->n_group;
}

tern_status tn_sparse_attn_open(tn_ctx *ctx, const tn_npu_model *m, const tn_hparams *h, const tn_kernels *kern, const tn_kv *kv, const tn_attn_options *o,
                                int32_t n_workers, int32_t n_chunks, tn_sparse_attn **out, tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(!m->attn_scale_q, err, TERN_E_UNSUPPORTED, "the package does not know the scales of its heads: pack the model again for sparse attention");
    tn_sparse_attn *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for sparse attention");
    *s = (tn_sparse_attn){.ctx = ctx, .m = m, .h = h, .kern = kern, .kv = kv, .o = *o, .n_steps = o->n_buckets == 1 ? 1 : TN_ATTN_MAX_STEPS,
                          .n_group = h->n_heads / h->n_kv_heads, .n_workers = n_workers, .n_chunks = n_chunks};
    if (o->mode == TN_ATTN_BLOCK_SPARSE || o->mode == TN_ATTN_NPU_FULL) s->o.share_rows = 0; /* they have lists of their own, or none */
    else if (s->o.share_rows <= 0) s->o.share_rows = s->o.share_rows ? 0 : s->n_group == 1 ? 8 : 4;
    if (!s->o.threshold) s->o.threshold = o->mode != TN_ATTN_SHADOW ? 1 : m->tuned.attn_threshold ? m->tuned.attn_threshold : TN_ATTN_FROM;
    while (s->o.share_rows && s->n_group * s->o.share_rows > TN_ATTN_MAX_TILE) s->o.share_rows /= 2;
    s->pool = s->o.share_rows && o->pool_heads < s->n_group ? o->pool_heads : s->o.share_rows ? s->n_group : 1;
    while ((s->n_group + s->pool - 1) / s->pool * s->o.share_rows > TN_ATTN_ROWS) s->pool++; /* a tile's scores have room */
    s->n_pools = (s->n_group + s->pool - 1) / s->pool;
    size_t n_layers = (size_t)h->n_layers, n_all = n_layers * (size_t)h->n_heads, steps = (size_t)s->n_steps;
    tern_status st = TERN_OK;
    s->ld = (size_t)kv->cap_tok + 16; /* not a power of two: rows would share cache sets */
    s->n_blocks = tn_sparse_blocks((size_t)kv->cap_tok);
    s->q8_stride = ((size_t)h->d_head + 3) / 4 * 4;
    s->scale_q = tn_alloc(ctx, TN_MEM_OTHER, n_layers * steps, sizeof(float));
    s->scale_k = tn_alloc(ctx, TN_MEM_OTHER, n_layers * steps, sizeof(float));
    s->ratio = tn_alloc(ctx, TN_MEM_OTHER, n_all, sizeof(float));
    s->plans = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_chunks, sizeof *s->plans);
    s->space = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_workers, sizeof *s->space);
    TN_BAIL_IF(!s->scale_q || !s->scale_k || !s->ratio || !s->plans || !s->space, err, TERN_E_MEMORY, "no memory for sparse attention");
    for (size_t l = 0; l < n_layers; l++) {
        for (size_t i = 0; i < steps; i++) {
            float f = steps == 1 ? 1 : i == 0 ? BUCKET_STEP : i == 1 ? 1 : 1 / BUCKET_STEP;
            s->scale_q[l * steps + i] = m->attn_scale_q[l] * f;
            s->scale_k[l * steps + i] = m->attn_scale_k[l] * f;
        }
    }
    if (o->no_head_ratios) {
        for (size_t i = 0; i < n_all; i++) s->ratio[i] = o->ratio;
    } else {
        tn_head_ratios(m->attn_head_weight, n_all, o->ratio, s->ratio);
    }
    float widest = o->ratio;
    for (size_t i = 0; i < n_all; i += s->o.share_rows ? (size_t)s->n_group : 1) {
        float r = s->o.share_rows ? mean_ratio(s, i) : s->ratio[i];
        widest = r > widest ? r : widest;
    }
    s->room = (size_t)ceilf(widest * (float)kv->cap_tok) + 2 * BLOCK + MIN_SELECTED;
    if (s->room > (size_t)kv->cap_tok) s->room = (size_t)kv->cap_tok;
    s->idx_stride = s->room + 32;
    for (int32_t i = 0; i < n_chunks; i++) {
        s->plans[i].q_bucket = tn_calloc(ctx, TN_MEM_OTHER, (size_t)h->n_heads, sizeof(int32_t));
        s->plans[i].k_bucket = tn_calloc(ctx, TN_MEM_OTHER, (size_t)h->n_kv_heads, sizeof(int32_t));
        TN_BAIL_IF(!s->plans[i].q_bucket || !s->plans[i].k_bucket, err, TERN_E_MEMORY, "no memory for sparse attention");
    }
    size_t n_keys = n_layers * (size_t)h->n_kv_heads;
    s->keys = tn_calloc(ctx, TN_MEM_KV, n_keys, sizeof *s->keys);
    TN_BAIL_IF(!s->keys, err, TERN_E_MEMORY, "no memory for sparse attention");
    for (size_t i = 0; i < n_keys; i++) {
        s->keys[i].bucket = -1;
        if (!s->o.share_rows) continue;
        s->keys[i].rows = tn_alloc(ctx, TN_MEM_KV, (size_t)kv->cap_tok * (size_t)h->d_head, sizeof(float));
        TN_BAIL_IF(!s->keys[i].rows, err, TERN_E_MEMORY, "no memory for keys");
        s->fixed.bytes += (size_t)kv->cap_tok * (size_t)h->d_head * sizeof(float);
    }
    if (uses_int8(s) && (st = open_device_side(s, err)) != TERN_OK) goto out;
    for (int32_t i = 0; i < n_workers; i++) {
        if ((st = open_worker(s, &s->space[i], err)) != TERN_OK) goto out;
    }
    *out = s;
    return TERN_OK;
out:
    tn_sparse_attn_close(&s);
    return st;
}

void tn_sparse_attn_close(tn_sparse_attn **ps) {
    tn_sparse_attn *s = *ps;
    if (!s) return;
    *ps = NULL;
    for (int32_t i = 0; s->keys && i < s->h->n_layers * s->h->n_kv_heads; i++) {
        tn_free(s->ctx, s->keys[i].tiles);
        tn_free(s->ctx, s->keys[i].sum);
        tn_free(s->ctx, s->keys[i].panel_max);
        tn_free(s->ctx, s->keys[i].rows);
    }
    for (int32_t i = 0; s->graphs && s->part_graphs && i < s->h->n_layers * s->n_steps * s->n_steps; i++) {
        tn_npu_graph_close(&s->graphs[i]);
        tn_npu_graph_close(&s->part_graphs[i]);
    }
    for (int32_t i = 0; s->plans && i < s->n_chunks; i++) {
        tn_free(s->ctx, s->plans[i].q_bucket);
        tn_free(s->ctx, s->plans[i].k_bucket);
    }
    for (int32_t i = 0; s->space && i < s->n_workers; i++) {
        worker_space *w = &s->space[i];
        void *all[] = {w->scratch, w->scores, w->q8, w->q_rows, w->float_scores, w->idx, w->cuts, w->exact, w->exact_cuts, w->topk, w->merged, w->part, w->tile_q, w->tile_out, w->seen};
        for (size_t x = 0; x < sizeof all / sizeof *all; x++) tn_free(s->ctx, all[x]);
    }
    tn_free(s->ctx, s->keys);
    tn_free(s->ctx, s->graphs);
    tn_free(s->ctx, s->part_graphs);
    tn_free(s->ctx, s->plans);
    tn_free(s->ctx, s->space);
    tn_free(s->ctx, s->scale_q);
    tn_free(s->ctx, s->scale_k);
    tn_free(s->ctx, s->ratio);
    tn_free(s->ctx, s);
}

bool tn_sparse_attn_wanted(const tn_sparse_attn *s, int32_t n_pos) { return s->o.ratio < 1 && n_pos >= s->o.threshold; }

void tn_sparse_attn_rewind(tn_sparse_attn *s, int32_t n_pos) {
    for (int32_t i = 0; s->keys && i < s->h->n_layers * s->h->n_kv_heads; i++) {
        if (s->keys[i].n_keys > n_pos) s->keys[i].n_keys = n_pos;
        if (s->keys[i].n_rows > n_pos) s->keys[i].n_rows = n_pos;
    }
}

/* ---- plan: buckets, and keys in INT8 --------------------------------------------------------------- */

/* Nearest scale; the squared errors of Q and K add up, so each is chosen alone. */
static int32_t nearest(const float *scales, int32_t n, float want) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (fabsf(scales[i] - want) < fabsf(scales[best] - want)) best = i;
    }
    return best;
}

/* The largest of max and |x[i]|, n a multiple of 4: a NaN or an infinity has no scale. Magnitudes are compared as integers. */
typedef int32_t int4 __attribute__((vector_size(16)));
typedef float float4 __attribute__((vector_size(16)));

static float magnitude(const float *x, size_t n, float max) {
    int4 m = {0}, top[2];
    float lane[8];
    top[0] = top[1] = m;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        for (int j = 0; j < 2; j++) {
            int4 v;
            memcpy(&v, x + i + 4 * j, sizeof v);
            v &= 0x7fffffff;
            v &= v < 0x7f800000;
            m = top[j] > v;
            top[j] = (top[j] & m) | (v & ~m);
        }
    }
    if (n % 8) {
        int4 v;
        memcpy(&v, x + n - 4, sizeof v);
        v &= 0x7fffffff;
        v &= v < 0x7f800000;
        m = top[0] > v;
        top[0] = (top[0] & m) | (v & ~m);
    }
    memcpy(lane, top, sizeof lane);
    for (int i = 0; i < 8; i++) max = lane[i] > max ? lane[i] : max;
    return max;
}

static void put_key(const tn_npu_layout *y, key_cache *k, size_t pos, const uint8_t *q, size_t d) {
    size_t tn = (size_t)y->tile_n, tk = (size_t)y->tile_k, n_k = (d + tk - 1) / tk;
    int8_t *tile = k->tiles + pos / tn * n_k * tn * tk + pos % tn * tk;
    int32_t sum = 0;
    for (size_t i = 0; i < d; tile += tn * tk) {
        for (size_t j = 0; j < tk && i < d; j++, i++) {
            int8_t v = (int8_t)(q[i] - 128);
            tile[j] = v;
            sum += v;
        }
    }
    k->sum[pos] = sum;
}

/* The query that stands for pool i_pool of a KV head in a row of q: their sum, as large as one of them (of unlike ones). In `to`, but for
 * a pool of one. */
static const float *pooled_query(const tn_sparse_attn *s, const float *row, int32_t kv_head, int32_t i_pool, float *to) {
    size_t d = (size_t)s->h->d_head;
    int32_t h0 = i_pool * s->pool, h1 = h0 + s->pool < s->n_group ? h0 + s->pool : s->n_group;
    const float *x = row + (size_t)(kv_head * s->n_group + h0) * d;
    if (h1 - h0 == 1) return x;
    float k = 1 / sqrtf((float)(h1 - h0));
    for (size_t j = 0; j < d; j += 4) {
        float4 sum, v;
        memcpy(&sum, x + j, sizeof sum);
        for (int32_t h = 1; h < h1 - h0; h++) {
            memcpy(&v, x + (size_t)h * d + j, sizeof v);
            sum += v;
        }
        sum *= k;
        memcpy(to + j, &sum, sizeof sum);
    }
    return to;
}

/* Keys up to `end` as rows. */
static void copy_rows(const tn_sparse_attn *s, int layer, int32_t kv_head, key_cache *k, int32_t end) {
    size_t d = (size_t)s->h->d_head;
    const float *panels = tn_kv_k(s->kv, layer, kv_head);
    for (int32_t pos = k->n_rows; pos < end; pos++) {
        const float *x = panels + (size_t)(pos / TN_KV_PANEL) * d * TN_KV_PANEL + (size_t)(pos % TN_KV_PANEL);
        float *to = k->rows + (size_t)pos * d;
        for (size_t i = 0; i < d; i++) to[i] = x[i * TN_KV_PANEL];
    }
    k->n_rows = end;
}

static void plan_keys(tn_sparse_attn *s, int layer, int32_t kv_head, int32_t end, int32_t *bucket) {
    key_cache *k = keys_of(s, layer, kv_head);
    size_t d = (size_t)s->h->d_head;
    const float *panels = tn_kv_k(s->kv, layer, kv_head);
    float max = 0;
    int32_t n_panels = (end + TN_KV_PANEL - 1) / TN_KV_PANEL;
    for (int32_t p = 0; p < n_panels; p++) {
        if (p >= k->n_keys / TN_KV_PANEL) {
            int32_t n = end - p * TN_KV_PANEL < TN_KV_PANEL ? end - p * TN_KV_PANEL : TN_KV_PANEL;
            const float *x = panels + (size_t)p * d * TN_KV_PANEL;
            float m = 0;
            for (size_t i = 0; i < d && n < TN_KV_PANEL; i++) {
                for (int32_t j = 0; j < n; j++) m = fabsf(x[i * TN_KV_PANEL + (size_t)j]) > m && isfinite(x[i * TN_KV_PANEL + (size_t)j]) ? fabsf(x[i * TN_KV_PANEL + (size_t)j]) : m;
            }
            k->panel_max[p] = n == TN_KV_PANEL ? magnitude(x, d * TN_KV_PANEL, 0) : m;
        }
        max = k->panel_max[p] > max ? k->panel_max[p] : max;
    }
    const float *scales = s->scale_k + (size_t)layer * (size_t)s->n_steps;
    *bucket = nearest(scales, s->n_steps, max / 127);
    int32_t from = k->n_keys;
    if (*bucket != k->bucket) {
        if (k->bucket >= 0 && from) atomic_fetch_add_explicit(&s->n_requantised, 1, memory_order_relaxed);
        from = 0;
        k->bucket = *bucket;
    }
    float inv = 1 / scales[*bucket], key[512];
    uint8_t q8[512];
    const tn_npu_layout *layout = &tn_npu_device_caps(s->m->dev)->layout;
    for (int32_t pos = from; pos < end; pos++) {
        const float *x = panels + (size_t)(pos / TN_KV_PANEL) * d * TN_KV_PANEL + (size_t)(pos % TN_KV_PANEL);
        for (size_t i = 0; i < d && !k->rows; i++) key[i] = x[i * TN_KV_PANEL];
        s->kern->quantise_s8(k->rows ? k->rows + (size_t)pos * d : key, inv, q8, d);
        put_key(layout, k, (size_t)pos, q8, d);
    }
    k->n_keys = end;
}

void tn_sparse_attn_plan(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer, int32_t kv_head, const float *q) {
    if (s->o.share_rows) copy_rows(s, layer, kv_head, keys_of(s, layer, kv_head), r->slot[r->n_rows - 1] + 1);
    if (!uses_int8(s)) return;
    chunk_plan *p = &s->plans[i_chunk];
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    plan_keys(s, layer, kv_head, r->slot[r->n_rows - 1] + 1, &p->k_bucket[kv_head]);
    for (int32_t i_pool = 0; i_pool < s->n_pools; i_pool++) {
        float max = 0, pooled[512];
        for (int32_t i = 0; i < r->n_rows; i++) {
            const float *x = pooled_query(s, q + (size_t)i * row, kv_head, i_pool, pooled);
            max = magnitude(x, d, max);
        }
        p->q_bucket[kv_head * s->n_group + i_pool] = nearest(s->scale_q + (size_t)layer * (size_t)s->n_steps, s->n_steps, max / 127);
    }
}

/* ---- rows: estimate, select, attend ---------------------------------------------------------------- */

/* One block of rows of one KV head. */
typedef struct block {
    tn_sparse_attn *s;
    const tn_rows *r;
    worker_space *w;
    int32_t i_chunk, layer, kv_head, row0, n_rows;
    const float *q;
} block;

/* Scores of pools pool0..pool1-1 (heads, where they do not share), all of one bucket and so in one launch, for rows i0..i0+n-1 of the block: n
 * rows a pool; of positions p0..p1-1, p0 a multiple of PART. Row 0 of pool 0 goes to `out`, the next ld behind: s->ld, or PART_LD of a part; 0: heads
 * that do not share, each from `out` on. */
static tern_status estimate(const block *b, int32_t pool0, int32_t pool1, int32_t i0, int32_t n, int32_t p0, int32_t p1, int32_t *out, size_t ld, tern_error *err) {
    tn_sparse_attn *s = b->s;
    const chunk_plan *p = &s->plans[b->i_chunk];
    const key_cache *k = keys_of(s, b->layer, b->kv_head);
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d, steps = (size_t)s->n_steps;
    int32_t qb = p->q_bucket[b->kv_head * s->n_group + pool0], kb = p->k_bucket[b->kv_head];
    float inv = 1 / s->scale_q[(size_t)b->layer * steps + (size_t)qb], pooled[512];
    size_t at = ld ? (size_t)(pool0 * n) : 0;
    uint8_t *q8 = b->w->q8 + at * s->q8_stride;
    for (int32_t i = 0; i < (pool1 - pool0) * n && p0 == 0; i++) { /* positions from 0 on come first */
        const float *x = pooled_query(s, b->q + (size_t)(b->row0 + i0 + i % n) * row, b->kv_head, pool0 + i / n, pooled);
        s->kern->quantise_s8(x, inv, q8 + (size_t)i * s->q8_stride, d);
    }
    tn_npu_job job = {.graph = (ld == PART_LD ? s->part_graphs : s->graphs)[((size_t)b->layer * steps + (size_t)qb) * steps + (size_t)kb], .n_rows = (pool1 - pool0) * n, .in = {q8}, .out = {out + at * ld}};
    const tn_npu_layout *layout = &tn_npu_device_caps(s->m->dev)->layout;
    job.k[0].tiles = k->tiles + tn_npu_tiles_bytes(layout, p0, s->h->d_head);
    job.k[0].col_sum = k->sum + p0;
    job.k[0].n_pos = p1 - p0;
    if (p0 == 0) atomic_fetch_add_explicit(&s->n_launches, 1, memory_order_relaxed);
    if (tn_npu_device_caps(s->m->dev)->has_parts) return tn_npu_run_part(&job, 0, 1, err);
    TN_TRY(tn_npu_submit(&job, err));
    tern_status st = tn_npu_wait(&job);
    TN_FAIL_IF(st != TERN_OK, err, st, "the device failed in estimating attention of layer %d", b->layer);
    return TERN_OK;
}

/* Exact scores q.k of n query rows [n][d] (neither scaled nor capped: the order is the same). */
static void float_scores(const block *b, const float *q, int32_t n, int32_t n_pos) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, n_pad = (size_t)(n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    s->kern->gemm_f32[TN_PANEL_F32](q, d, tn_kv_k(s->kv, b->layer, b->kv_head), NULL, b->w->float_scores, s->ld, (size_t)n, 0, n_pad, d);
}

static void head_float_scores(const block *b, int32_t head, int32_t n_pos) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    for (int32_t i = 0; i < b->n_rows; i++) memcpy(b->w->q_rows + (size_t)i * d, b->q + (size_t)(b->row0 + i) * row + (size_t)head * d, d * sizeof(float));
    float_scores(b, b->w->q_rows, b->n_rows, n_pos);
}

enum { FLOAT_BOUND = 1 << 24 };

static float largest_of(const float *f, size_t n, float max) {
    for (size_t i = n / 4 * 4; i < n; i++) max = fabsf(f[i]) > max && isfinite(f[i]) ? fabsf(f[i]) : max;
    return magnitude(f, n / 4 * 4, max);
}

/* Float scores of one row, the largest magnitude `max`, as integers of 25 bits, in place of estimates. */
static void to_integers(const float *f, float max, int32_t *out, size_t n) {
    float k = max > 0 ? (float)FLOAT_BOUND / max : 0;
    for (size_t i = 0; i < n; i++) {
        float x = f[i] * k;
        out[i] = x >= (float)FLOAT_BOUND ? FLOAT_BOUND : x > -(float)FLOAT_BOUND ? (int32_t)x : -FLOAT_BOUND; /* a NaN is the least */
    }
}

/* How many positions a row keeps out of n. */
static size_t n_kept(const tn_sparse_attn *s, int layer, int32_t head, size_t n) {
    size_t k = (size_t)ceilf(s->ratio[(size_t)layer * (size_t)s->h->n_heads + (size_t)head] * (float)n);
    if (k < MIN_SELECTED) k = MIN_SELECTED;
    if (k > s->room) k = s->room;
    return k < n ? k : n;
}

/* The k best of positions first..end-1 of a row of scores (|score| <= bound), in idx, with their cuts. Scores before `first` in its
 * block are overwritten. */
static void select_row(const tn_sparse_attn *s, worker_space *w, int32_t *scores, size_t first, size_t end, size_t k, int32_t bound, uint32_t *idx, uint32_t *cuts) {
    size_t base = first / TN_SPARSE_BLOCK * TN_SPARSE_BLOCK, b0 = base / TN_SPARSE_BLOCK;
    for (size_t p = base; p < first; p++) scores[p] = -bound - 1; /* never among the best: there are k in the window */
    memset(cuts, 0, b0 * sizeof *cuts);
    s->kern->topk(&(tn_topk_args){.scores = scores + base, .n = end - base, .k = k, .bound = bound + 1, .idx = idx, .cuts = cuts + b0, .scratch = w->topk});
    for (size_t i = 0; base && i < k; i++) idx[i] += (uint32_t)base;
    for (size_t c = b0 + tn_sparse_blocks(end - base) + 1; c <= s->n_blocks; c++) cuts[c] = (uint32_t)k;
}

static size_t n_common(const uint32_t *a, const uint32_t *b, size_t n) {
    size_t i = 0, j = 0, c = 0;
    while (i < n && j < n) {
        c += a[i] == b[j];
        uint32_t x = a[i], y = b[j];
        i += x <= y;
        j += y <= x;
    }
    return c;
}

/* With check: how much of a row's softmax lies at the n positions of idx. f: its exact scores. */
static void add_mass(const block *b, const float *f, size_t first, size_t end, const uint32_t *idx, size_t n) {
    float max = -INFINITY;
    double all = 0, mine = 0, scale = (double)b->s->h->attn_scale;
    for (size_t p = first; p < end; p++) max = f[p] > max ? f[p] : max;
    for (size_t p = first; p < end; p++) all += exp((double)(f[p] - max) * scale);
    for (size_t i = 0; i < n; i++) mine += exp((double)(f[idx[i]] - max) * scale);
    if (all > 0) atomic_fetch_add_explicit(&b->s->mass_ppm, (uint64_t)(mine / all * 1e6), memory_order_relaxed);
}

static void count(const block *b, uint64_t n_rows, uint64_t n_seen, uint64_t n_selected) {
    atomic_fetch_add_explicit(&b->s->n_rows, n_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->s->n_seen, n_seen, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->s->n_selected, n_selected, memory_order_relaxed);
}

/* Lists of a head's rows from its scores. */
static void select_head(const block *b, int32_t g, int32_t head, bool floats) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    uint64_t n_seen = 0, n_selected = 0, n_found = 0;
    for (int32_t i = 0; i < b->n_rows; i++) {
        size_t row = (size_t)(g * b->n_rows + i), end = (size_t)b->r->pos[b->row0 + i] + 1, first = (size_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]);
        size_t k = n_kept(s, b->layer, head, end - first);
        int32_t *scores = w->scores + (size_t)i * s->ld, bound = 127 * 127 * s->h->d_head;
        uint32_t *idx = w->idx + row * s->idx_stride, *cuts = w->cuts + row * (s->n_blocks + 1);
        if (floats) {
            float *f = w->float_scores + (size_t)i * s->ld;
            to_integers(f, largest_of(f, end, 0), scores, end);
            bound = FLOAT_BOUND;
        }
        select_row(s, w, scores, first, end, k, bound, idx, cuts);
        n_seen += end - first;
        n_selected += k;
        if (s->o.check) {
            float *f = w->float_scores + (size_t)i * s->ld;
            to_integers(f, largest_of(f, end, 0), scores, end);
            select_row(s, w, scores, first, end, k, FLOAT_BOUND, w->exact, w->exact_cuts);
            n_found += n_common(idx, w->exact, k);
            add_mass(b, f, first, end, idx, k);
        }
    }
    count(b, (uint64_t)b->n_rows, n_seen, n_selected);
    if (s->o.check) {
        atomic_fetch_add_explicit(&s->n_true, n_selected, memory_order_relaxed);
        atomic_fetch_add_explicit(&s->n_found, n_found, memory_order_relaxed);
    }
}

/* Baseline: whole blocks of 64 keys, the best by mean query . mean key, the row's own block always. */
static void select_blocks(const block *b, int32_t g, int32_t head) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    size_t d = (size_t)s->h->d_head, row_stride = (size_t)s->h->n_heads * d;
    size_t end_all = (size_t)b->r->pos[b->row0 + b->n_rows - 1] + 1, n_blocks = (end_all + BLOCK - 1) / BLOCK;
    const float *panels = tn_kv_k(s->kv, b->layer, b->kv_head);
    float q[512] = {0};
    for (int32_t i = 0; i < b->n_rows; i++) {
        for (size_t j = 0; j < d; j++) q[j] += b->q[(size_t)(b->row0 + i) * row_stride + (size_t)head * d + j];
    }
    for (size_t n = 0; n < n_blocks; n++) {
        size_t p0 = n * BLOCK, p1 = p0 + BLOCK < end_all ? p0 + BLOCK : end_all;
        float dot = 0;
        for (size_t p = p0; p < p1; p++) {
            for (size_t j = 0; j < d; j++) dot += q[j] * panels[p / TN_KV_PANEL * d * TN_KV_PANEL + j * TN_KV_PANEL + p % TN_KV_PANEL];
        }
        w->float_scores[n] = dot / (float)(p1 - p0);
    }
    size_t keep = (size_t)ceilf(s->ratio[(size_t)b->layer * (size_t)s->h->n_heads + (size_t)head] * (float)n_blocks);
    if (keep < 1) keep = 1;
    bool *kept = (bool *)w->topk; /* [n_blocks]: far more room than that */
    memset(kept, 0, n_blocks);
    kept[n_blocks - 1] = true;
    for (size_t c = 1; c < keep && c < n_blocks; c++) {
        size_t best = SIZE_MAX;
        for (size_t n = 0; n < n_blocks; n++) {
            if (!kept[n] && (best == SIZE_MAX || w->float_scores[n] > w->float_scores[best])) best = n;
        }
        kept[best] = true;
    }
    uint64_t n_seen = 0, n_selected = 0;
    for (int32_t i = 0; i < b->n_rows; i++) {
        size_t row = (size_t)(g * b->n_rows + i), end = (size_t)b->r->pos[b->row0 + i] + 1, first = (size_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]), n = 0;
        uint32_t *idx = w->idx + row * s->idx_stride, *cuts = w->cuts + row * (s->n_blocks + 1);
        for (size_t p = first; p < end; p++) {
            bool own = p / BLOCK == (end - 1) / BLOCK;
            if ((kept[p / BLOCK] || own) && n < s->room) idx[n++] = (uint32_t)p;
        }
        tn_sparse_cuts(idx, n, (size_t)s->kv->cap_tok, cuts);
        n_seen += end - first;
        n_selected += n;
    }
    count(b, (uint64_t)b->n_rows, n_seen, n_selected);
}

static void attend(const block *b, float *out) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d, off = (size_t)b->row0 * row + (size_t)(b->kv_head * s->n_group) * d;
    size_t n_blocks = tn_sparse_blocks((size_t)b->r->pos[b->row0 + b->n_rows - 1] + 1);
    s->kern->attn_sparse(&(tn_attn_sparse_args){.q = b->q + off, .q_stride = row, .out = out + off, .out_stride = row, .n_rows = (size_t)b->n_rows, .n_group = (size_t)s->n_group,
                                                .d_head = d, .k_panels = tn_kv_k(s->kv, b->layer, b->kv_head), .v = tn_kv_v(s->kv, b->layer, b->kv_head), .idx = b->w->idx,
                                                .idx_stride = s->idx_stride, .cuts = b->w->cuts, .cut_stride = s->n_blocks + 1, .n_blocks = n_blocks, .n_pos = (size_t)b->r->pos[b->row0 + b->n_rows - 1] + 1,
                                                .scale = s->h->attn_scale, .soft_cap = s->h->attn_soft_cap, .scratch = b->w->scratch});
}

/* Baseline: the device does everything. Weights and values are INT8 with static scales as well: a weight's step is 1 / 127, a value's that of
 * the largest key. For its accuracy only; its speed means nothing. */
static void npu_full(const block *b, int32_t head, float *out) {
    tn_sparse_attn *s = b->s;
    uint64_t n_seen = 0;
    const chunk_plan *p = &s->plans[b->i_chunk];
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d, steps = (size_t)s->n_steps;
    float scale = s->scale_q[(size_t)b->layer * steps + (size_t)p->q_bucket[head]] * s->scale_k[(size_t)b->layer * steps + (size_t)p->k_bucket[b->kv_head]] * s->h->attn_scale;
    float v_scale = s->scale_k[(size_t)b->layer * steps + steps / 2];
    const float *v = tn_kv_v(s->kv, b->layer, b->kv_head);
    for (int32_t i = 0; i < b->n_rows; i++) {
        size_t end = (size_t)b->r->pos[b->row0 + i] + 1, first = (size_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]);
        const int32_t *acc = b->w->scores + (size_t)i * s->ld;
        n_seen += end - first;
        float *w = b->w->float_scores, max = -INFINITY, sum = 0, *o = out + (size_t)(b->row0 + i) * row + (size_t)head * d;
        for (size_t x = first; x < end; x++) {
            w[x] = (float)acc[x] * scale;
            if (s->h->attn_soft_cap > 0) w[x] = s->h->attn_soft_cap * tanhf(w[x] / s->h->attn_soft_cap);
            max = w[x] > max ? w[x] : max;
        }
        for (size_t x = first; x < end; x++) sum += w[x] = expf(w[x] - max);
        memset(o, 0, d * sizeof *o);
        for (size_t x = first; x < end; x++) {
            float weight = nearbyintf(w[x] / sum * 127) / 127;
            for (size_t j = 0; weight > 0 && j < d; j++) o[j] += weight * v_scale * fminf(fmaxf(nearbyintf(v[x * d + j] / v_scale), -127), 127);
        }
    }
    count(b, (uint64_t)b->n_rows, n_seen, n_seen);
}

/* ---- rows that share a selection ---------------------------------------------------------------------- */

/* Neighbouring rows i0..i1-1 of the block with all query heads of the KV head. */
typedef struct tile {
    int32_t i0, i1, n_in;           /* n_in: scored rows, pools x rows */
    size_t first, end;              /* positions any of them sees */
    const int32_t *row[TN_ATTN_ROWS]; /* scores of position `base` on */
    size_t base;
    int32_t row_first[TN_ATTN_ROWS], row_end[TN_ATTN_ROWS], shift[TN_ATTN_ROWS], top[TN_ATTN_ROWS];
    int32_t bound;                  /* of the merged scores so far */
} tile;

/* Scored rows come pool by pool, n_batch rows of the text each, those of the batch that begins with row e0 of the block. */
static void tile_init(const block *b, int32_t e0, int32_t n_batch, int32_t i0, int32_t i1, bool floats, tile *t) {
    const tn_sparse_attn *s = b->s;
    const int32_t *pos = b->r->pos + b->row0;
    *t = (tile){.i0 = i0, .i1 = i1, .first = (size_t)tn_rows_first_pos(s->h, b->layer, pos[i0]), .end = (size_t)pos[i1 - 1] + 1};
    for (int32_t i_pool = 0; i_pool < s->n_pools; i_pool++) {
        for (int32_t i = i0; i < i1; i++) {
            t->row[t->n_in] = b->w->scores + (size_t)(i_pool * n_batch + i - e0) * s->ld;
            t->row_first[t->n_in] = tn_rows_first_pos(s->h, b->layer, pos[i]);
            t->row_end[t->n_in] = pos[i] + 1;
            /* scales are powers of two apart; float scores have one */
            t->shift[t->n_in++] = floats ? 0 : s->plans[b->i_chunk].q_bucket[b->kv_head * s->n_group + i_pool];
        }
    }
}

/* The exact scores of a tile's pools in place of estimates. */
static void tile_floats(const block *b, const tile *t) {
    float max = 0;
    for (int32_t r = 0; r < t->n_in; r++) max = largest_of(b->w->float_scores + (t->row[r] - b->w->scores), (size_t)t->row_end[r], max);
    for (int32_t r = 0; r < t->n_in; r++) to_integers(b->w->float_scores + (t->row[r] - b->w->scores), max, b->w->scores + (t->row[r] - b->w->scores), (size_t)t->row_end[r]);
}

/* What a tile keeps: the mean of its heads' shares. Its own positions are always among it. */
static size_t tile_kept(const tn_sparse_attn *s, int layer, int32_t kv_head, const tile *t) {
    size_t n = t->end - t->first, least = (size_t)(MIN_SELECTED + t->i1 - t->i0);
    size_t k = (size_t)ceilf(mean_ratio(s, (size_t)layer * (size_t)s->h->n_heads + (size_t)(kv_head * s->n_group)) * (float)n);
    if (k < least) k = least;
    if (k > s->room) k = s->room;
    return k < n ? k : n;
}

/* Where the scores of a row count from: the largest of the last NEAR and the first FAR that it sees. Nearly always the row's largest; where it is
 * not, what is larger counts for more. So merging need not wait for the whole row. */
static void tile_tops(tile *t) {
    for (int32_t r = 0; r < t->n_in; r++) {
        int32_t first = t->row_first[r], end = t->row_end[r], near = end - first > NEAR ? end - NEAR : first, top = INT32_MIN;
        for (int32_t p = near; p < end; p++) top = t->row[r][p] > top ? t->row[r][p] : top;
        for (int32_t p = first; p < near && p < first + FAR; p++) top = t->row[r][p] > top ? t->row[r][p] : top;
        t->top[r] = top;
    }
    t->bound = 1;
}

static void tile_merge(const block *b, tile *t, int32_t *merged, size_t p0, size_t p1) {
    if (p0 < t->first) p0 = t->first;
    if (p1 > t->end) p1 = t->end;
    if (p0 >= p1) return;
    int32_t bound = b->s->kern->topk_merge(&(tn_topk_merge_args){.row = t->row, .base = t->base, .n_rows = (size_t)t->n_in, .first = t->row_first, .end = t->row_end, .top = t->top, .shift = t->shift,
                                                                 .p0 = p0, .p1 = p1, .out = merged});
    t->bound = bound > t->bound ? bound : t->bound;
}

static void tile_select(const block *b, const tile *t, int32_t *merged, size_t k, uint32_t *idx) {
    const tn_sparse_attn *s = b->s;
    for (size_t p = t->end - (size_t)(t->i1 - t->i0); p < t->end; p++) merged[p] = t->bound; /* their own */
    s->kern->topk(&(tn_topk_args){.scores = merged + t->first, .n = t->end - t->first, .k = k, .bound = t->bound, .idx = idx, .scratch = b->w->topk});
    for (size_t i = 0; t->first && i < k; i++) idx[i] += (uint32_t)t->first;
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

/* What the kernel wants to know of a tile. */
static tn_attn_tile tile_ready(const block *b, const tile *t, const uint32_t *idx, size_t k) {
    const tn_sparse_attn *s = b->s;
    size_t part = (size_t)(s->n_group * s->h->d_head), r0 = (size_t)(t->i0 * s->n_group), n = r0;
    int32_t *first = b->w->seen, *end = first + TN_ATTN_ROWS * s->n_group;
    for (int32_t i = t->i0; i < t->i1; i++) {
        uint32_t pos = (uint32_t)b->r->pos[b->row0 + i], from = (uint32_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]);
        int32_t lo = (int32_t)lower_bound(idx, k, from), hi = (int32_t)lower_bound(idx, k, pos + 1);
        for (int32_t g = 0; g < s->n_group; g++, n++) {
            first[n] = lo;
            end[n] = hi;
        }
        count(b, (uint64_t)s->n_group, (uint64_t)s->n_group * (pos + 1 - from), (uint64_t)(s->n_group * (hi - lo)));
    }
    return (tn_attn_tile){.q = b->w->tile_q + (size_t)t->i0 * part, .out = b->w->tile_out + (size_t)t->i0 * part, .n_rows = n - r0, .idx = idx, .n_idx = k, .first = first + r0, .end = end + r0};
}

/* With check: the exact selection of the same rule, and the softmax mass of every head at the list. */
static void tile_check(const block *b, tile *t, const uint32_t *idx, size_t k) {
    tn_sparse_attn *s = b->s;
    tile_tops(t);
    tile_merge(b, t, b->w->merged, t->first, t->end);
    tile_select(b, t, b->w->merged, k, b->w->exact);
    atomic_fetch_add_explicit(&s->n_true, k, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_found, n_common(idx, b->w->exact, k), memory_order_relaxed);
}

/* Softmax mass of one head's rows at the lists of their tiles, which begin at idx, one for every `share` rows. */
static void tiles_mass(const block *b, int32_t head, const size_t *n_idx) {
    tn_sparse_attn *s = b->s;
    head_float_scores(b, head, b->r->pos[b->row0 + b->n_rows - 1] + 1);
    for (int32_t i = 0; i < b->n_rows; i++) {
        int32_t pos = b->r->pos[b->row0 + i], i_tile = i / s->o.share_rows;
        const uint32_t *idx = b->w->idx + (size_t)i_tile * s->idx_stride;
        size_t first = (size_t)tn_rows_first_pos(s->h, b->layer, pos), lo = lower_bound(idx, n_idx[i_tile], (uint32_t)first), hi = lower_bound(idx, n_idx[i_tile], (uint32_t)pos + 1);
        add_mass(b, b->w->float_scores + (size_t)i * s->ld, first, (size_t)pos + 1, idx + lo, hi - lo);
    }
}

static tern_status estimate_pools(const block *b, int32_t e0, int32_t n, int32_t p0, int32_t p1, int32_t *out, size_t ld, tern_error *err) {
    const int32_t *bucket = b->s->plans[b->i_chunk].q_bucket + b->kv_head * b->s->n_group;
    for (int32_t pool = 0, next; pool < b->s->n_pools; pool = next) {
        for (next = pool + 1; next < b->s->n_pools && bucket[next] == bucket[pool]; next++) {}
        TN_TRY(estimate(b, pool, next, e0, n, p0, p1, out, ld, err));
    }
    return TERN_OK;
}

/* Estimates rows e0..e0+n-1 of the block and merges them, tile by tile, into w->merged. A device that shares our memory works part by part, so
 * that scores are merged while they are in L1; first those that tile_tops looks at. */
static tern_status estimate_tiles(const block *b, int32_t e0, int32_t n, tile *tiles, int32_t n_tiles, tern_error *err) {
    const tn_sparse_attn *s = b->s;
    int32_t end = (int32_t)tiles[n_tiles - 1].end, tail = ((int32_t)tiles[0].end - NEAR - TN_ATTN_ROWS) / PART * PART;
    int32_t *scores = b->w->scores;
    bool parts = by_parts(s) && tiles[n_tiles - 1].first == 0 && tail > PART;
    if (!parts) {
        TN_TRY(estimate_pools(b, e0, n, 0, end, scores, s->ld, err));
    } else {
        TN_TRY(estimate_pools(b, e0, n, 0, PART, scores, s->ld, err));
        TN_TRY(estimate_pools(b, e0, n, tail, end, scores + tail, s->ld, err));
    }
    for (int32_t t = 0; t < n_tiles; t++) {
        int32_t *merged = b->w->merged + (size_t)t * s->ld;
        tile_tops(&tiles[t]);
        tile_merge(b, &tiles[t], merged, parts ? (size_t)tail : 0, (size_t)end);
        if (parts) tile_merge(b, &tiles[t], merged, 0, PART);
    }
    for (int32_t p = PART; parts && p < tail; p += PART) {
        TN_TRY(estimate_pools(b, e0, n, p, p + PART, b->w->part, PART_LD, err));
        for (int32_t t = 0; p == PART && t < n_tiles; t++) {
            for (int32_t r = 0; r < tiles[t].n_in; r++) tiles[t].row[r] = b->w->part + (tiles[t].row[r] - scores) / (ptrdiff_t)s->ld * PART_LD;
        }
        for (int32_t t = 0; t < n_tiles; t++) {
            tiles[t].base = (size_t)p;
            tile_merge(b, &tiles[t], b->w->merged + (size_t)t * s->ld, (size_t)p, (size_t)(p + PART));
        }
    }
    return TERN_OK;
}

/* All heads of a KV head and all rows of the block: as many rows are estimated together as the scores have room for. */
static tern_status attend_tiles(const block *b, float *out, tern_error *err) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    size_t n_idx[TN_ATTN_ROWS], d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    int32_t share = s->o.share_rows, batch = TN_ATTN_ROWS / s->n_pools / share * share; /* at least one tile */
    bool exact = s->o.mode == TN_ATTN_FLOAT_SPARSE;
    tile batch_tiles[TN_ATTN_ROWS];
    tn_attn_tile tiles[TN_ATTN_ROWS];
    size_t n_tiles = 0, part = (size_t)s->n_group * d, off = (size_t)b->row0 * row + (size_t)b->kv_head * part;
    for (int32_t i = 0; i < b->n_rows; i++) memcpy(w->tile_q + (size_t)i * part, b->q + off + (size_t)i * row, part * sizeof(float));
    for (int32_t e0 = 0; e0 < b->n_rows; e0 += batch) {
        int32_t n = b->n_rows - e0 < batch ? b->n_rows - e0 : batch, n_batch = (n + share - 1) / share;
        if (exact || s->o.check) {
            for (int32_t i = 0; i < s->n_pools * n; i++) {
                float *to = w->q_rows + (size_t)i * d;
                const float *x = pooled_query(s, b->q + (size_t)(b->row0 + e0 + i % n) * row, b->kv_head, i / n, to);
                if (x != to) memcpy(to, x, d * sizeof *to);
            }
            float_scores(b, w->q_rows, s->n_pools * n, b->r->pos[b->row0 + e0 + n - 1] + 1);
        }
        for (int32_t i = 0; i < n_batch; i++) tile_init(b, e0, n, e0 + i * share, i + 1 < n_batch ? e0 + (i + 1) * share : e0 + n, exact, &batch_tiles[i]);
        if (!exact) TN_TRY(estimate_tiles(b, e0, n, batch_tiles, n_batch, err));
        for (int32_t i = 0; i < n_batch; i++) {
            tile *t = &batch_tiles[i];
            int32_t *merged = w->merged + (size_t)i * s->ld;
            if (exact) {
                tile_floats(b, t);
                tile_tops(t);
                tile_merge(b, t, merged, t->first, t->end);
            }
            size_t k = tile_kept(s, b->layer, b->kv_head, t);
            uint32_t *idx = w->idx + n_tiles * s->idx_stride;
            tile_select(b, t, merged, k, idx);
            tiles[n_tiles] = tile_ready(b, t, idx, k);
            n_idx[n_tiles++] = k;
            if (!s->o.check) continue;
            tile_init(b, e0, n, t->i0, t->i1, true, t);
            tile_floats(b, t);
            tile_check(b, t, idx, k);
        }
    }
    s->kern->attn_tiles(&(tn_attn_tiles_args){.tiles = tiles, .n_tiles = n_tiles, .k = keys_of(s, b->layer, b->kv_head)->rows, .v = tn_kv_v(s->kv, b->layer, b->kv_head), .d_head = d,
                                              .scale = s->h->attn_scale, .soft_cap = s->h->attn_soft_cap, .scratch = w->scratch});
    for (int32_t i = 0; i < b->n_rows; i++) memcpy(out + off + (size_t)i * row, w->tile_out + (size_t)i * part, part * sizeof(float));
    for (int32_t g = 0; g < s->n_group && s->o.check; g++) tiles_mass(b, b->kv_head * s->n_group + g, n_idx);
    return TERN_OK;
}

tern_status tn_sparse_attn_rows(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer, const float *q, float *out, int32_t row0, int32_t row1,
                                int32_t i_worker, tern_error *err) {
    block b = {.s = s, .r = r, .w = &s->space[i_worker], .i_chunk = i_chunk, .layer = layer, .row0 = row0, .n_rows = row1 - row0, .q = q};
    int32_t n_pos = r->pos[row1 - 1] + 1;
    for (b.kv_head = 0; b.kv_head < s->h->n_kv_heads; b.kv_head++) {
        if (s->o.share_rows) {
            TN_TRY(attend_tiles(&b, out, err));
            continue;
        }
        for (int32_t g = 0; g < s->n_group; g++) {
            int32_t head = b.kv_head * s->n_group + g;
            if (s->o.mode == TN_ATTN_BLOCK_SPARSE) {
                select_blocks(&b, g, head);
                continue;
            }
            if (s->o.mode != TN_ATTN_FLOAT_SPARSE) TN_TRY(estimate(&b, g, g + 1, 0, b.n_rows, 0, n_pos, b.w->scores, 0, err));
            if (s->o.mode == TN_ATTN_NPU_FULL) {
                npu_full(&b, head, out);
                continue;
            }
            if (s->o.mode == TN_ATTN_FLOAT_SPARSE || s->o.check) head_float_scores(&b, head, n_pos);
            select_head(&b, g, head, s->o.mode == TN_ATTN_FLOAT_SPARSE);
        }
        if (s->o.mode != TN_ATTN_NPU_FULL) attend(&b, out);
    }
    return TERN_OK;
}

void tn_sparse_attn_stats_get(const tn_sparse_attn *s, tn_attn_stats *out) {
    *out = s->fixed;
    out->n_rows = atomic_load(&s->n_rows);
    out->n_selected = atomic_load(&s->n_selected);
    out->n_seen = atomic_load(&s->n_seen);
    out->n_true = atomic_load(&s->n_true);
    out->n_found = atomic_load(&s->n_found);
    out->n_requantised = atomic_load(&s->n_requantised);
    out->n_launches = atomic_load(&s->n_launches);
    out->mass = (double)atomic_load(&s->mass_ppm) * 1e-6;
}
