/* Sparse attention head by head on two lanes (shadowAttn 3.4): the tasks of package/prefill_graph.h. The
 * work of the slots is planned for every chunk and layer once its buckets are known. A layer keeps its
 * plan until they change or the text has grown by half. */
#include "attention/sparse_impl.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLACES = 2, /* for scores and lists: a block is estimated while the one before it is attended */
    SCORE_BYTES = 64 << 20, /* of all places: blocks are as many rows of a chunk as that allows, but at least
                               TN_ATTN_ROWS */
    GUESS_LAUNCH_US = 20,   /* before anything is measured: a launch as such... */
    GUESS_DEVICE_MACS = 400000,
    GUESS_CPU_MACS = 50000,
    GUESS_SELECT = 4000, /* ...and how much is done in a microsecond */
};
static const double STALE = 1.5;

typedef struct chunk_heads {
    uint8_t *q8; /* [n_units][n_blocks][n_scored * block_rows][q8_stride]: pool by pool, as many rows as the
                    block has */
    int32_t *scores[PLACES];   /* [n_units][n_scored * block_rows][ld], likewise */
    uint32_t *lists[PLACES];   /* [n_units][n_parts][n_lists][idx_stride] */
    uint32_t *lengths[PLACES]; /* [n_units][n_parts][n_lists], where rows share */
    uint32_t *cuts[PLACES];    /* [n_units][n_parts][n_lists][n_blocks + 1], where they do not */
    tn_headplan plan;
    int32_t launch[TN_HEADPLAN_MAX_HEADS]; /* [slot] the launch that it is the first to need, or -1 */
    atomic_int
        n_unplanned; /* KV heads of the layer at hand; the last one plans. acq_rel: publishes the buckets */
    atomic_int n_unattended; /* parts of units of the layer at hand */
    int64_t began_ns;        /* of its first estimate */
} chunk_heads;

typedef struct layer_plan {
    tn_headplan plan;
    int32_t n_pos; /* for which it was made; 0: no plan yet */
    int32_t bucket[TN_HEADPLAN_MAX_HEADS];
} layer_plan;

struct tn_sparse_heads {
    int32_t n_units, n_widths, n_scored; /* n_scored: scored rows of a unit for one of the text */
    int32_t chunk_rows, block_rows, n_blocks, n_parts, n_lists;
    tn_attn_times times;
    tn_npu_graph **graphs; /* [n_layers][n_steps of Q][n_steps of K][n_widths] */
    chunk_heads *chunks;   /* [s->n_chunks] */
    layer_plan *layers;    /* used by one chunk at a time: plan waits for attention of the chunk before */
    atomic_uint_fast64_t n_launches, n_fused, n_plans, plan_ns, plan_max_ns, planned_ns,
        took_ns; /* relaxed: statistics */
};
typedef struct tn_sparse_heads heads;

bool tn_attn_pipeline_parse(const char *name, tn_attn_pipeline *out) {
    static const char *const names[TN_N_ATTN_PIPELINES] = {"auto", "on", "off"};
    for (int i = 0; i < TN_N_ATTN_PIPELINES; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_attn_pipeline)i;
        return true;
    }
    return false;
}

bool tn_attn_plan_parse(const char *list, tn_headplan_switches *out) {
    enum { N_WORDS = 4 };
    *out = (tn_headplan_switches){0};
    if (!strcmp(list, "paper")) return true;
    const struct {
        const char *name;
        bool *flag;
    } words[] = {{"in-order", &out->in_order},
                 {"no-fusion", &out->no_fusion},
                 {"no-overlap", &out->no_overlap},
                 {"as-printed", &out->as_printed}};
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ","), i = 0;
        while (i < N_WORDS && (strlen(words[i].name) != n || strncmp(words[i].name, at, n))) i++;
        if (i == N_WORDS) return false;
        *words[i].flag = true;
        if (!*(at += n)) return true;
    }
}

bool tn_attn_pipelined(const tn_attn_options *o, const tn_npu_caps *caps) {
    return o->mode == TN_ATTN_SHADOW &&
           (o->pipeline == TN_ATTN_PIPELINE_ON || (o->pipeline == TN_ATTN_PIPELINE_AUTO && !caps->has_parts));
}

/* ---- places ---------------------------------------------------------------------------------------- */

static size_t block_scores(const tn_sparse_attn *s, const heads *p, int32_t rows) {
    return (size_t)(p->n_scored * rows) * s->ld;
}

static tern_status open_graphs(tn_sparse_attn *s, heads *p, tern_error *err) {
    size_t steps = (size_t)s->n_steps, n = (size_t)s->h->n_layers * steps * steps * (size_t)p->n_widths;
    p->graphs = tn_calloc(s->ctx, TN_MEM_GRAPHS, n, sizeof(tn_npu_graph *));
    TN_FAIL_IF(!p->graphs, err, TERN_E_MEMORY, "no memory for graphs");
    for (size_t i = 0; i < n; i++) {
        size_t pair = i / (size_t)p->n_widths, layer = pair / (steps * steps);
        if (!tn_layer_may_be_sparse(s->h, (int32_t)layer)) continue;
        tn_npu_graph_desc g = {.kind = TN_NPU_QK,
                               .m = p->n_scored * p->block_rows,
                               .k = s->h->d_head,
                               .n_ops = 1 << (i % (size_t)p->n_widths)};
        for (int32_t o = 0; o < g.n_ops; o++) {
            g.ops[o] = (tn_npu_op){.n = s->kv->cap_tok,
                                   .act_scale = s->scale_q[layer * steps + pair / steps % steps],
                                   .k_scale = s->scale_k[layer * steps + pair % steps],
                                   .out = TN_NPU_OUT_S32,
                                   .out_stride = (int32_t)s->ld};
        }
        TN_TRY(tn_npu_compile(s->m->dev, &g, &p->graphs[i], err));
        TN_TRY(tn_npu_load(p->graphs[i], NULL, err));
        s->fixed.bytes += tn_npu_load_bytes(p->graphs[i]);
    }
    return TERN_OK;
}

static tern_status open_chunk(tn_sparse_attn *s, heads *p, chunk_heads *c, tern_error *err) {
    size_t units = (size_t)p->n_units, all_lists = units * (size_t)(p->n_parts * p->n_lists);
    bool shared = s->o.share_rows > 0, ok = true;
    c->q8 = tn_calloc(s->ctx, TN_MEM_ACTIVATIONS,
                      units * (size_t)(p->n_blocks * p->n_scored * p->block_rows) * s->q8_stride + 64, 1);
    for (int i = 0; i < PLACES; i++) {
        c->scores[i] =
            tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, units * block_scores(s, p, p->block_rows), sizeof(int32_t));
        c->lists[i] = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all_lists * s->idx_stride + 64, sizeof(uint32_t));
        c->lengths[i] = shared ? tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all_lists, sizeof(uint32_t)) : NULL;
        c->cuts[i] =
            shared ? NULL
                   : tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all_lists * (s->n_blocks + 1), sizeof(uint32_t));
        ok = ok && c->scores[i] && c->lists[i] && (c->lengths[i] || c->cuts[i]);
        s->fixed.bytes += units * block_scores(s, p, p->block_rows) * sizeof(int32_t);
    }
    TN_FAIL_IF(!c->q8 || !ok, err, TERN_E_MEMORY, "no memory for the scores of %d heads", p->n_units);
    atomic_init(&c->n_unplanned, s->h->n_kv_heads);
    return TERN_OK;
}

/* Estimates unmeasured times by the number of operations. */
static tn_attn_times guess(const tn_sparse_attn *s, const heads *p) {
    double d = s->h->d_head, query_heads = s->o.share_rows ? s->n_group : 1;
    tn_attn_times t = {.share = s->o.share_rows,
                       .pools = p->n_scored,
                       .n_widths = TN_ATTN_WIDTHS,
                       .select_kpos_us = 1e3 * p->n_scored / GUESS_SELECT,
                       .attend_kpos_us = 1e3 * query_heads * 2 * d / GUESS_CPU_MACS};
    for (int w = 0; w < TN_ATTN_WIDTHS; w++) {
        t.launch_us[w] = GUESS_LAUNCH_US;
        t.score_us[w] = 1e6 * d * (1 << w) / GUESS_DEVICE_MACS;
    }
    return t;
}

tern_status tn_sparse_heads_open(tn_sparse_attn *s, int32_t chunk_rows, tern_error *err) {
    const tn_npu_caps *caps = tn_npu_device_caps(s->m->dev);
    heads *p = s->heads = tn_calloc(s->ctx, TN_MEM_OTHER, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for a pipeline of heads");
    p->n_units = s->h->n_kv_heads * s->n_units_kv;
    TN_FAIL_IF(p->n_units > TN_HEADPLAN_MAX_HEADS, err, TERN_E_UNSUPPORTED,
               "%d heads that select for themselves are too many to plan, %d are possible: use "
               "--attention-pipeline off",
               p->n_units, TN_HEADPLAN_MAX_HEADS);
    p->n_scored = s->o.share_rows ? s->n_pools : 1;
    p->chunk_rows = (chunk_rows + TN_ATTN_ROWS - 1) / TN_ATTN_ROWS * TN_ATTN_ROWS;
    p->block_rows =
        caps->has_parts ? TN_ATTN_ROWS : p->chunk_rows; /* a device in our caches: what fits them */
    while (p->block_rows > TN_ATTN_ROWS && ((size_t)(s->n_chunks * PLACES * p->n_units) *
                                                    block_scores(s, p, p->block_rows) * sizeof(int32_t) >
                                                SCORE_BYTES ||
                                            p->n_scored * p->block_rows > caps->max_m))
        p->block_rows -= TN_ATTN_ROWS;
    p->n_blocks = (p->chunk_rows + p->block_rows - 1) / p->block_rows;
    p->n_parts = p->block_rows / TN_ATTN_ROWS;
    p->n_lists = s->o.share_rows ? (TN_ATTN_ROWS + s->o.share_rows - 1) / s->o.share_rows : TN_ATTN_ROWS;
    const tn_attn_times *known[] = {&s->m->tuned.attn_times, &s->m->attn_times};
    p->times = guess(s, p);
    for (int i = 1; i >= 0; i--) {
        if (known[i]->n_widths && known[i]->share == s->o.share_rows && known[i]->pools == p->n_scored)
            p->times = *known[i];
    }
    while (p->n_widths < p->times.n_widths && 1 << p->n_widths <= p->n_units &&
           1 << p->n_widths <= TN_NPU_MAX_OPS && (!s->o.plan.no_fusion || !p->n_widths))
        p->n_widths++;
    TN_TRY(open_graphs(s, p, err));
    p->chunks = tn_calloc(s->ctx, TN_MEM_OTHER, (size_t)s->n_chunks, sizeof *p->chunks);
    p->layers = tn_calloc(s->ctx, TN_MEM_OTHER, (size_t)s->h->n_layers, sizeof *p->layers);
    TN_FAIL_IF(!p->chunks || !p->layers, err, TERN_E_MEMORY, "no memory for a pipeline of heads");
    for (int32_t i = 0; i < s->n_chunks; i++) TN_TRY(open_chunk(s, p, &p->chunks[i], err));
    return TERN_OK;
}

void tn_sparse_heads_close(tn_sparse_attn *s) {
    heads *p = s->heads;
    if (!p) return;
    for (int32_t i = 0; p->graphs && i < s->h->n_layers * s->n_steps * s->n_steps * p->n_widths; i++)
        tn_npu_graph_close(&p->graphs[i]);
    for (int32_t i = 0; p->chunks && i < s->n_chunks; i++) {
        chunk_heads *c = &p->chunks[i];
        tn_free(s->ctx, c->q8);
        for (int k = 0; k < PLACES; k++) {
            tn_free(s->ctx, c->scores[k]);
            tn_free(s->ctx, c->lists[k]);
            tn_free(s->ctx, c->lengths[k]);
            tn_free(s->ctx, c->cuts[k]);
        }
    }
    tn_free(s->ctx, p->graphs);
    tn_free(s->ctx, p->chunks);
    tn_free(s->ctx, p->layers);
    tn_free(s->ctx, p);
    s->heads = NULL;
}

/* A failed run leaves counters at any value, so they are reset. */
void tn_sparse_heads_rewind(tn_sparse_attn *s) {
    for (int32_t i = 0; i < s->n_chunks; i++)
        atomic_store_explicit(&s->heads->chunks[i].n_unplanned, s->h->n_kv_heads, memory_order_relaxed);
}

tn_attn_shape tn_sparse_attn_shape(const tn_sparse_attn *s) {
    const heads *p = s->heads;
    return p ? (tn_attn_shape){.n_slots = p->n_units,
                               .n_blocks = p->n_blocks,
                               .block_rows = p->block_rows,
                               .no_overlap = s->o.plan.no_overlap}
             : (tn_attn_shape){0};
}

int32_t tn_sparse_attn_parts(const tn_sparse_attn *s, tn_step_kind step) {
    if (step != TN_STEP_ESTIMATE) return s->heads->n_parts;
    if (!tn_npu_device_caps(s->m->dev)->has_parts || s->n_workers < 2) return 1;
    return s->n_workers - 1 < 16 ? s->n_workers - 1 : 16; /* one waits for storage */
}

/* ---- plan ------------------------------------------------------------------------------------------ */

static int32_t rows_of_block(const heads *p, const tn_rows *r, int32_t i_block) {
    int32_t left = r->n_rows - i_block * p->block_rows;
    return left < p->block_rows ? left : p->block_rows;
}

static uint8_t *block_q8(const tn_sparse_attn *s, const chunk_heads *c, int32_t unit, int32_t i_block) {
    const heads *p = s->heads;
    return c->q8 +
           (size_t)(unit * p->n_blocks + i_block) * (size_t)(p->n_scored * p->block_rows) * s->q8_stride;
}

static void quantise_unit(const tn_sparse_attn *s, chunk_heads *c, const tn_rows *r, int32_t i_chunk,
                          int layer, int32_t unit, const float *q) {
    const heads *p = s->heads;
    int32_t kv_head = unit / s->n_units_kv;
    size_t row = (size_t)(s->h->n_heads * s->h->d_head);
    float inv = 1 / s->scale_q[layer * s->n_steps + s->plans[i_chunk].q_bucket[unit]], pooled[512];
    for (int32_t b = 0, n; b < p->n_blocks && (n = rows_of_block(p, r, b)) > 0; b++) {
        uint8_t *to = block_q8(s, c, unit, b);
        for (int32_t i = 0; i < p->n_scored * n; i++, to += s->q8_stride) {
            int32_t pool = s->o.share_rows ? i / n : unit % s->n_units_kv;
            const float *x = tn_sparse_pooled_query(s, q + (size_t)(b * p->block_rows + i % n) * row, kv_head,
                                                    pool, pooled);
            s->kern->quantise_s8(x, inv, to, (size_t)s->h->d_head);
        }
    }
}

/* Fills in the costs of a block. */
static void fill_costs(const tn_sparse_attn *s, int layer, int32_t rows, int32_t n_pos, const int32_t *bucket,
                       tn_headplan_costs *c) {
    const heads *p = s->heads;
    const tn_attn_times *t = &p->times;
    *c = (tn_headplan_costs){.n_heads = p->n_units, .n_widths = p->n_widths};
    for (int32_t u = 0; u < p->n_units; u++) {
        size_t head = (size_t)(layer * s->h->n_heads + u * (s->o.share_rows ? s->n_group : 1));
        double kept = n_pos * (double)tn_sparse_fallen(s, (size_t)n_pos) *
                      (double)(s->o.share_rows ? tn_sparse_mean_ratio(s, head) : s->ratio[head]);
        c->bucket[u] = bucket[u];
        c->topk_us[u] = rows * (t->select_us + t->select_kpos_us * n_pos * 1e-3);
        c->attend_us[u] = rows * (t->attend_us + t->attend_kpos_us * kept * 1e-3);
    }
    for (int32_t w = 0; w < p->n_widths; w++) {
        c->width[w] = 1 << w;
        c->launch_us[w] = t->launch_us[w] + t->score_us[w] * p->n_scored * rows * (double)n_pos * 1e-6;
    }
}

static void add_ns(atomic_uint_fast64_t *sum, double ns) {
    atomic_fetch_add_explicit(sum, (uint64_t)ns, memory_order_relaxed);
}

static tern_status plan_layer(tn_sparse_attn *s, chunk_heads *c, const tn_rows *r, int32_t i_chunk, int layer,
                              tern_error *err) {
    heads *p = s->heads;
    layer_plan *y = &p->layers[layer];
    const chunk_plan *b = &s->plans[i_chunk];
    int32_t n_pos = r->pos[r->n_rows - 1] + 1, rows = rows_of_block(p, r, 0), bucket[TN_HEADPLAN_MAX_HEADS];
    for (int32_t u = 0; u < p->n_units; u++)
        bucket[u] = b->q_bucket[u] * s->n_steps + b->k_bucket[u / s->n_units_kv];
    if (!y->n_pos || n_pos > y->n_pos * STALE || y->n_pos > n_pos * STALE ||
        memcmp(bucket, y->bucket, (size_t)p->n_units * sizeof *bucket)) {
        int64_t t0 = tn_now_ns();
        tn_headplan_costs costs;
        fill_costs(s, layer, rows, n_pos, bucket, &costs);
        y->n_pos = 0;
        TN_TRY(tn_headplan_make(&costs, s->o.plan, &y->plan, err));
        memcpy(y->bucket, bucket, (size_t)p->n_units * sizeof *bucket);
        y->n_pos = n_pos;
        uint64_t ns = (uint64_t)(tn_now_ns() - t0),
                 max = atomic_load_explicit(&p->plan_max_ns, memory_order_relaxed);
        add_ns(&p->plan_ns, (double)ns);
        while (ns > max && !atomic_compare_exchange_weak_explicit(
                               &p->plan_max_ns, &max, ns, memory_order_relaxed, memory_order_relaxed)) {
        }
        atomic_fetch_add_explicit(&p->n_plans, 1, memory_order_relaxed);
    }
    c->plan = y->plan;
    for (int32_t i = 0, next = 0; i < p->n_units; i++) {
        int32_t l = c->plan.launch[c->plan.order[i]];
        assert(l <= next); /* in the order of first need */
        c->launch[i] = l == next ? next++ : -1;
    }
    add_ns(&p->planned_ns, c->plan.total_us * 1e3 * r->n_rows / rows);
    atomic_store_explicit(&c->n_unattended, p->n_units * ((r->n_rows + TN_ATTN_ROWS - 1) / TN_ATTN_ROWS),
                          memory_order_relaxed);
    return TERN_OK;
}

tern_status tn_sparse_heads_plan(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                 int32_t kv_head, const float *q, tern_error *err) {
    chunk_heads *c = &s->heads->chunks[i_chunk];
    for (int32_t u = 0; u < s->n_units_kv; u++)
        quantise_unit(s, c, r, i_chunk, layer, kv_head * s->n_units_kv + u, q);
    if (atomic_fetch_sub_explicit(&c->n_unplanned, 1, memory_order_acq_rel) > 1) return TERN_OK;
    atomic_store_explicit(&c->n_unplanned, s->h->n_kv_heads, memory_order_relaxed);
    return plan_layer(s, c, r, i_chunk, layer, err);
}

/* ---- the three stages ------------------------------------------------------------------------------ */

typedef struct head_block { /* of all units */
    tn_sparse_attn *s;
    const tn_rows *r;
    int32_t i_chunk, layer, i_block, n_rows;
} head_block;

static int32_t *unit_scores(const head_block *b, int32_t unit) {
    const heads *p = b->s->heads;
    return p->chunks[b->i_chunk].scores[b->i_block % PLACES] +
           (size_t)unit * block_scores(b->s, p, p->block_rows);
}

/* Runs one launch of n units of one bucket, or part of it where the device has parts. */
static tern_status launch(const head_block *b, const int32_t *units, int32_t n, int32_t part,
                          tern_error *err) {
    tn_sparse_attn *s = b->s;
    heads *p = s->heads;
    const chunk_plan *c = &s->plans[b->i_chunk];
    int32_t steps = s->n_steps, width = 0;
    while (1 << width < n) width++;
    tn_npu_job job = {.graph = p->graphs[((b->layer * steps + c->q_bucket[units[0]]) * steps +
                                          c->k_bucket[units[0] / s->n_units_kv]) *
                                             p->n_widths +
                                         width],
                      .n_rows = p->n_scored * b->n_rows};
    for (int32_t i = 0; i < n; i++) {
        const key_cache *k = tn_sparse_keys(s, b->layer, units[i] / s->n_units_kv);
        job.in[i] = block_q8(s, &p->chunks[b->i_chunk], units[i], b->i_block);
        job.out[i] = unit_scores(b, units[i]);
        job.k[i].tiles = k->tiles;
        job.k[i].col_sum = k->sum;
        job.k[i].n_pos = b->r->pos[b->i_block * p->block_rows + b->n_rows - 1] + 1;
    }
    if (!part) {
        atomic_fetch_add_explicit(&s->n_launches, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&p->n_launches, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&p->n_fused, (uint64_t)n, memory_order_relaxed);
    }
    int32_t n_parts = tn_sparse_attn_parts(s, TN_STEP_ESTIMATE);
    return n_parts > 1 ? tn_npu_run_part(&job, part, n_parts, err) : tn_sparse_launch(s, &job, b->layer, err);
}

static tern_status estimate_slot(const head_block *b, int32_t slot, int32_t part, tern_error *err) {
    chunk_heads *c = &b->s->heads->chunks[b->i_chunk];
    int32_t l = c->launch[slot], units[TN_NPU_MAX_OPS], n = 0;
    if (!slot && !b->i_block && !part) c->began_ns = tn_now_ns();
    if (l < 0) return TERN_OK;
    for (int32_t i = slot; n < c->plan.width[l]; i++) {
        if (c->plan.launch[c->plan.order[i]] == l) units[n++] = c->plan.order[i];
    }
    return launch(b, units, n, part, err);
}

/* Selects or attends for rows 32 * part .. of the block, of one unit. */
static void select_or_attend(const head_block *h, bool attend, int32_t unit, int32_t part, const float *q,
                             float *out, worker_space *w) {
    tn_sparse_attn *s = h->s;
    heads *p = s->heads;
    chunk_heads *c = &p->chunks[h->i_chunk];
    int32_t from = part * TN_ATTN_ROWS, place = h->i_block % PLACES,
            n = h->n_rows - from < TN_ATTN_ROWS ? h->n_rows - from : TN_ATTN_ROWS,
            head = unit; /* where rows do not share */
    block b = {.s = s,
               .r = h->r,
               .w = w,
               .i_chunk = h->i_chunk,
               .layer = h->layer,
               .kv_head = unit / s->n_units_kv,
               .row0 = h->i_block * p->block_rows + from,
               .n_rows = n,
               .q = q};
    if (n <= 0) return;
    size_t list = (size_t)((unit * p->n_parts + part) * p->n_lists);
    uint32_t *idx = c->lists[place] + list * s->idx_stride;
    int32_t *scores = unit_scores(h, unit) + (size_t)from * s->ld;
    if (s->o.share_rows) {
        if (attend) tn_sparse_tiles_attend(&b, idx, c->lengths[place] + list, out);
        else tn_sparse_tiles_select(&b, scores, h->n_rows, idx, c->lengths[place] + list);
    } else {
        uint32_t *cuts = c->cuts[place] + list * (s->n_blocks + 1);
        if (attend) {
            tn_sparse_heads_attend(&b, head, 1, idx, cuts, out);
        } else {
            if (s->o.check) tn_sparse_head_float_scores(&b, head, b.r->pos[b.row0 + n - 1] + 1);
            tn_sparse_head_select(&b, head, false, scores, idx, cuts);
        }
    }
    if (attend && atomic_fetch_sub_explicit(&c->n_unattended, 1, memory_order_relaxed) == 1)
        add_ns(&p->took_ns, (double)(tn_now_ns() - c->began_ns));
}

tern_status tn_sparse_attn_slot(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                tn_step_kind step, int32_t i_block, int32_t slot, int32_t part,
                                const float *q, float *out, int32_t i_worker, tern_error *err) {
    head_block b = {.s = s,
                    .r = r,
                    .i_chunk = i_chunk,
                    .layer = layer,
                    .i_block = i_block,
                    .n_rows = rows_of_block(s->heads, r, i_block)};
    if (b.n_rows <= 0) return TERN_OK;
    if (step == TN_STEP_ESTIMATE) return estimate_slot(&b, slot, part, err);
    select_or_attend(&b, step == TN_STEP_ATTEND, s->heads->chunks[i_chunk].plan.order[slot], part, q, out,
                     &s->space[i_worker]);
    return TERN_OK;
}

void tn_sparse_heads_stats(const tn_sparse_attn *s, tn_attn_stats *out) {
    const heads *p = s->heads;
    out->n_fused = atomic_load(&p->n_fused);
    out->n_fused_launches = atomic_load(&p->n_launches);
    out->n_plans = atomic_load(&p->n_plans);
    out->plan_ns = atomic_load(&p->plan_ns);
    out->plan_max_ns = atomic_load(&p->plan_max_ns);
    out->planned_us = (double)atomic_load(&p->planned_ns) * 1e-3;
    out->took_us = (double)atomic_load(&p->took_ns) * 1e-3;
}

/* ---- what it takes --------------------------------------------------------------------------------- */

enum {
    LENGTH = 512,
    N_LENGTHS = 2,
    MEASURE_ROWS = TN_CHUNK_DEFAULT,
    MEASURE_REPEATS = 9,
    EVICT_BYTES = 4 << 20
};
static const int64_t MEASURE_NS = 10000000;

typedef struct trial {
    head_block b; /* the last of the chunk */
    const float *q;
    float *out;
    char *evict; /* [EVICT_BYTES] */
    enum { TRY_LAUNCH, TRY_SELECT, TRY_ATTEND } what;
    int32_t width;
} trial;

/* Returns the median of several times, in microseconds. The data of a stage was written by another
 * processor, or long ago, so it must not be in the caches. */
static tern_status try_stage(const trial *t, double *us, tern_error *err) {
    int32_t units[TN_NPU_MAX_OPS], n_parts = tn_sparse_attn_parts(t->b.s, TN_STEP_ESTIMATE), n = 0;
    for (int32_t i = 0; i < TN_NPU_MAX_OPS; i++) units[i] = i;
    double all[MEASURE_REPEATS];
    for (int64_t end = tn_now_ns() + MEASURE_NS; n < MEASURE_REPEATS && (n < 3 || tn_now_ns() < end); n++) {
        memset(t->evict, n, EVICT_BYTES);
        int64_t t0 = tn_now_ns();
        for (int32_t part = 0; t->what == TRY_LAUNCH && part < n_parts; part++)
            TN_TRY(launch(&t->b, units, t->width, part, err));
        if (t->what != TRY_LAUNCH)
            select_or_attend(&t->b, t->what == TRY_ATTEND, 0, t->b.s->heads->n_parts - 1, t->q, t->out,
                             &t->b.s->space[0]);
        double x = (double)(tn_now_ns() - t0) * 1e-3;
        int32_t at = n;
        for (; at > 0 && all[at - 1] > x; at--) all[at] = all[at - 1];
        all[at] = x;
    }
    *us = all[n / 2];
    return TERN_OK;
}

/* The straight line through two points, without negative values. */
static void line(double x0, double y0, double x1, double y1, double *at_0, double *slope) {
    *slope = fmax(0, (y1 - y0) / (x1 - x0));
    *at_0 = fmax(0, y0 - *slope * x0);
}

static tern_status measure_all(tn_sparse_attn *s, const float *q, float *out, char *evict, tn_attn_times *t,
                               tern_error *err) {
    heads *p = s->heads;
    int32_t pos[MEASURE_ROWS];
    tn_rows r = {.h = s->h,
                 .kern = s->kern,
                 .kv = s->kv,
                 .n_rows = MEASURE_ROWS,
                 .pos = pos,
                 .slot = pos,
                 .tree_base = -1};
    double launch_us[N_LENGTHS][TN_ATTN_WIDTHS], us[N_LENGTHS][2];
    trial x = {.b = {.s = s, .r = &r, .i_block = p->n_blocks - 1}, .q = q, .out = out, .evict = evict};
    *t = (tn_attn_times){.share = s->o.share_rows, .pools = p->n_scored, .n_widths = p->n_widths};
    x.b.n_rows = rows_of_block(p, &r, x.b.i_block);
    for (int i = 0; i < N_LENGTHS; i++) {
        for (int32_t k = 0; k < MEASURE_ROWS; k++) pos[k] = LENGTH * (i + 1) - MEASURE_ROWS + k;
        tn_sparse_attn_rewind(s, 0);
        for (int32_t a = 0; a < s->h->n_kv_heads; a++) TN_TRY(tn_sparse_attn_plan(s, &r, 0, 0, a, q, err));
        x.what = TRY_LAUNCH;
        for (int32_t w = p->n_widths - 1; w >= 0; w--) {
            x.width = 1 << w;
            TN_TRY(try_stage(&x, &launch_us[i][w], err));
        }
        for (int k = 0; k < 2; k++) {
            x.what = k ? TRY_ATTEND : TRY_SELECT;
            TN_TRY(try_stage(&x, &us[i][k], err));
        }
    }
    double mega = 1e-6 * LENGTH * p->n_scored * x.b.n_rows, rows = TN_ATTN_ROWS, kpos = 1e-3 * LENGTH,
           kept = kpos * (double)s->o.ratio;
    for (int32_t w = 0; w < p->n_widths; w++)
        line(mega, launch_us[0][w], 2 * mega, launch_us[1][w], &t->launch_us[w], &t->score_us[w]);
    line(kpos, us[0][0] / rows, 2 * kpos, us[1][0] / rows, &t->select_us, &t->select_kpos_us);
    line(kept, us[0][1] / rows, 2 * kept, us[1][1] / rows, &t->attend_us, &t->attend_kpos_us);
    return TERN_OK;
}

tern_status tn_sparse_attn_measure(tn_ctx *ctx, const tn_kernels *kern, tn_npu_device *dev,
                                   const tn_hparams *h, const tn_attn_options *o, tn_attn_times *out,
                                   tern_error *err) {
    tn_hparams one = *h;
    one.n_layers = 1;
    one.layer_kind[0] = TN_LAYER_ATTENDS;
    one.window = one.window_d_head = one.window_kv_heads = one.n_kv_shared = 0;
    float scale = 1.0f / 127, *weight = tn_alloc(ctx, TN_MEM_OTHER, (size_t)h->n_heads, sizeof *weight);
    size_t d = (size_t)h->d_head, n_q = (size_t)MEASURE_ROWS * (size_t)h->n_heads * d;
    float *q = tn_alloc(ctx, TN_MEM_OTHER, 2 * n_q + 2 * d, sizeof *q), *k = q + 2 * n_q;
    char *evict = tn_alloc(ctx, TN_MEM_OTHER, EVICT_BYTES, 1);
    tn_npu_model m = {.ctx = ctx,
                      .kern = kern,
                      .dev = dev,
                      .attn_scale_q = &scale,
                      .attn_scale_k = &scale,
                      .attn_head_weight = weight};
    tn_attn_options with = *o;
    with.mode = TN_ATTN_SHADOW;
    with.pipeline = TN_ATTN_PIPELINE_ON;
    with.plan = (tn_headplan_switches){0};
    with.no_head_ratios = true;
    with.check = with.decode = false;
    with.n_buckets = 1;
    tn_kv kv = {0};
    tn_sparse_attn *s = NULL;
    tn_rng rng = {5};
    tern_status st = TERN_OK;
    TN_BAIL_IF(!weight || !q || !evict, err, TERN_E_MEMORY, "no memory to measure attention in");
    if ((st = tn_kv_open(ctx, &one, N_LENGTHS * LENGTH, TN_KV_F32, &kv, err)) != TERN_OK) goto out;
    for (size_t i = 0; i < n_q; i++) q[i] = (float)(2 * tn_rng_f64(&rng) - 1);
    for (int32_t i = 0; i < h->n_heads; i++) weight[i] = 1;
    for (int32_t i = 0; i < N_LENGTHS * LENGTH * h->n_kv_heads; i++) {
        for (size_t j = 0; j < 2 * d; j++) k[j] = (float)(2 * tn_rng_f64(&rng) - 1);
        tn_kv_put(&kv, 0, i % h->n_kv_heads, i / h->n_kv_heads, k, k + d);
    }
    st = tn_sparse_attn_open(ctx, &m, &one, kern, &kv, &with, 1, 1, MEASURE_ROWS, &s, err);
    if (st == TERN_OK) st = measure_all(s, q, q + n_q, evict, out, err);
out:
    tn_sparse_attn_close(&s);
    if (kv.k) tn_kv_close(&kv);
    tn_free(ctx, weight);
    tn_free(ctx, q);
    tn_free(ctx, evict);
    return st;
}
