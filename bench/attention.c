/* bench/attention.c - sparse attention and its baselines beside full attention, on one thread (shadowAttn,
 * Table 5's head shapes).
 *
 *   bench_attention [--json] [--isa WORD] [--ratio PERCENT] [--only MODEL] [--max TOKENS] [--share ROWS]
 * [--pool HEADS]
 *
 * --share, --pool as in tern's --attention-share, --attention-pool; --share -1: every row and head its own
 * selection. Times are processor time of this thread, so that other programs disturb them little. One block
 * of 32 query rows of every head at the end of a causal context of 1k..16k tokens. Random keys and queries:
 * the selected positions are scattered, which is the hard case for the cache. Times are medians of 7 runs (3
 * where they are long) in microseconds per query row and head. full is attn_f32. shadow, float-sparse,
 * block-sparse and npu-full are what the engine runs (attention/sparse_attn.h): the plan of a chunk of these
 * 32 rows and their attention; the number after a time is how many times as fast as full it is. Then
 * shadow's stages, each alone: the share in brackets is of the limit that binds it (fp32 peak, INT8 peak;
 * attend counts gathering as well). */
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/order.h"
#include "base/rng.h"
#include "attention/sparse_attn.h"
#include "kernels/kernels.h"
#include "kernels/limits.h"
#include "kernels/qk_s8.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 7, ROWS = 32, TILE_ROWS = 128, Q_MAX = 3 /* largest magnitude of a query or key */ };

typedef struct shape {
    const char *model;
    size_t n_heads, n_kv_heads, d;
} shape;

static const shape shapes[] = {{"qwen2-0.5b", 14, 2, 64},
                               {"qwen2-1.5b", 12, 2, 128},
                               {"phonelm-0.5b", 16, 16, 64},
                               {"phonelm-1.5b", 16, 16, 160}};

static tn_ctx ctx; /* its large blocks have large pages, as the engine's */

static void *room(size_t n_bytes) {
    void *p = tn_calloc(&ctx, TN_MEM_OTHER, n_bytes, 1);
    if (!p) exit(1);
    return p;
}

typedef struct work {
    const tn_kernels *k;
    shape s;
    size_t n, n_group, k_sel;
    size_t share, pool, n_pools, batch; /* rows of a tile (0: none shares), heads of a pool, pools of a KV
                                           head, rows estimated together */
    float *k_rows, *tile_scratch;
    int32_t *merged, bound[ROWS];
    float *q, *q_heads; /* [n_heads][ROWS][d], [ROWS][n_heads][d] */
    float *out, *k_panels, *v, *scratch, *sparse_scratch;
    uint8_t *q8;
    int8_t *tiles;
    int32_t *sums, *scores;
    uint32_t *idx, *cuts; /* [n_group * ROWS][n + 32], [n_blocks + 1] */
    void *topk_scratch;
    int32_t first[ROWS], end[ROWS];
} work;

static size_t panel_floats(const work *w) { return w->n * w->s.d; }

static void full(work *w, size_t head) {
    size_t kv = head / w->n_group;
    w->k->attn_f32(&(tn_attn_f32_args){.q = w->q + head * ROWS * w->s.d,
                                       .q_stride = w->s.d,
                                       .out = w->out,
                                       .out_stride = w->s.d,
                                       .k_panels = w->k_panels + kv * panel_floats(w),
                                       .v = w->v + kv * panel_floats(w),
                                       .n_rows = ROWS,
                                       .d_head = w->s.d,
                                       .scale = 1.0f / sqrtf((float)w->s.d),
                                       .first_pos = w->first,
                                       .end_pos = w->end,
                                       .scratch = w->scratch});
}

static void estimate(work *w, size_t head) {
    size_t kv = head / w->n_group;
    tn_qk_s8(w->k->gemm_s8, &(tn_qk_s8_args){.q = w->q8 + head * ROWS * w->s.d,
                                             .ldq = w->s.d,
                                             .key_tiles = w->tiles + kv * w->n * w->s.d,
                                             .key_sum = w->sums + kv * w->n,
                                             .m = ROWS,
                                             .n_pos = w->n,
                                             .d = w->s.d,
                                             .scores_s32 = w->scores,
                                             .lds = w->n + 16});
}

static void select_rows(work *w, size_t head) {
    size_t n_blocks = tn_sparse_blocks(w->n);
    for (size_t r = 0; r < ROWS; r++) {
        size_t row = head % w->n_group * ROWS + r, n = (size_t)w->end[r];
        w->k->topk(&(tn_topk_args){.scores = w->scores + r * (w->n + 16),
                                   .n = n,
                                   .k = w->k_sel,
                                   .bound = 127 * 127 * (int32_t)w->s.d,
                                   .idx = w->idx + row * (w->n + 32),
                                   .cuts = w->cuts + row * (n_blocks + 1),
                                   .scratch = w->topk_scratch});
    }
}

/* All query heads of a KV head at once. */
static void attend(work *w, size_t head) {
    size_t kv = head / w->n_group, n_blocks = tn_sparse_blocks(w->n);
    if (head % w->n_group != w->n_group - 1) return;
    w->k->attn_sparse(&(tn_attn_sparse_args){.q = w->q + kv * w->n_group * ROWS * w->s.d,
                                             .q_stride = w->n_group * w->s.d,
                                             .out = w->out,
                                             .out_stride = w->n_group * w->s.d,
                                             .n_rows = ROWS,
                                             .n_group = w->n_group,
                                             .d_head = w->s.d,
                                             .k_panels = w->k_panels + kv * panel_floats(w),
                                             .v = w->v + kv * panel_floats(w),
                                             .idx = w->idx,
                                             .idx_stride = w->n + 32,
                                             .cuts = w->cuts,
                                             .cut_stride = n_blocks + 1,
                                             .n_blocks = n_blocks,
                                             .n_pos = w->n,
                                             .scale = 1.0f / sqrtf((float)w->s.d),
                                             .scratch = w->sparse_scratch});
}

/* ---- rows that share a selection, as in the engine: of every KV head (fn is called with its first query
 * head) -------- */

enum { PART = 256, PART_LD = PART + 16 };

/* One launch for all pools: random queries, so it does not matter which rows of which heads stand for them.
 */
static void share_estimate_part(work *w, size_t kv, size_t e0, size_t p0, size_t p1) {
    tn_qk_s8(w->k->gemm_s8, &(tn_qk_s8_args){.q = w->q8 + (kv * w->n_group * ROWS + e0) * w->s.d,
                                             .ldq = w->s.d,
                                             .key_tiles = w->tiles + (kv * w->n + p0) * w->s.d,
                                             .key_sum = w->sums + kv * w->n + p0,
                                             .m = w->n_pools * w->batch,
                                             .n_pos = p1 - p0,
                                             .d = w->s.d,
                                             .scores_s32 = w->scores,
                                             .lds = PART_LD});
}

static void share_estimate_rows(work *w, size_t kv, size_t e0) {
    for (size_t p = 0; p < w->n; p += PART) share_estimate_part(w, kv, e0, p, p + PART);
}

static void share_merge(work *w, size_t e0, size_t i0, size_t p0, size_t p1) {
    const int32_t *row[ROWS];
    int32_t first[ROWS] = {0}, end[ROWS], top[ROWS];
    size_t n_in = 0, n = (size_t)w->end[i0 + w->share - 1];
    for (size_t pool = 0; pool < w->n_pools; pool++) {
        for (size_t i = i0; i < i0 + w->share; i++) {
            row[n_in] = w->scores + (pool * w->batch + i - e0) * PART_LD;
            top[n_in] = 127 * 127; /* where scores count from does not matter to the time */
            end[n_in++] = w->end[i];
        }
    }
    int32_t bound = w->k->topk_merge(&(tn_topk_merge_args){.row = row,
                                                           .base = p0,
                                                           .n_rows = n_in,
                                                           .first = first,
                                                           .end = end,
                                                           .top = top,
                                                           .p0 = p0,
                                                           .p1 = p1 < n ? p1 : n,
                                                           .out = w->merged + i0 * w->n});
    w->bound[i0] = p0 && w->bound[i0] > bound ? w->bound[i0] : bound;
}

static void share_topk(work *w, size_t i0) {
    size_t n = (size_t)w->end[i0 + w->share - 1];
    int32_t bound = w->bound[i0], *merged = w->merged + i0 * w->n;
    for (size_t p = n - w->share; p < n; p++) merged[p] = bound;
    w->k->topk(&(tn_topk_args){.scores = merged,
                               .n = n,
                               .k = w->k_sel,
                               .bound = bound,
                               .idx = w->idx + i0 / w->share * (w->n + 32),
                               .scratch = w->topk_scratch});
}

/* All tiles of the block. */
static void share_attend_rows(work *w, size_t kv) {
    static int32_t first[ROWS * TILE_ROWS], end[ROWS * TILE_ROWS]; /* first stays zero */
    tn_attn_tile tiles[ROWS];
    size_t n = 0;
    for (size_t i = 0; i < ROWS; i += w->share) {
        tiles[i / w->share] = (tn_attn_tile){.q = w->q + (kv * w->n_group * ROWS + i * w->n_group) * w->s.d,
                                             .out = w->out + i * w->n_group * w->s.d,
                                             .n_rows = w->share * w->n_group,
                                             .idx = w->idx + i / w->share * (w->n + 32),
                                             .n_idx = w->k_sel,
                                             .first = first + n,
                                             .end = end + n};
        for (size_t x = 0; x < w->share * w->n_group; x++)
            end[n++] = (int32_t)(w->k_sel - (w->share - 1 - x / w->n_group));
    }
    w->k->attn_tiles(&(tn_attn_tiles_args){.tiles = tiles,
                                           .n_tiles = ROWS / w->share,
                                           .k = w->k_rows + kv * panel_floats(w),
                                           .v = w->v + kv * panel_floats(w),
                                           .d_head = w->s.d,
                                           .scale = 1.0f / sqrtf((float)w->s.d),
                                           .scratch = w->tile_scratch});
}

static void share_estimate(work *w, size_t head) {
    for (size_t e = 0; e < ROWS && head % w->n_group == 0; e += w->batch)
        share_estimate_rows(w, head / w->n_group, e);
}

/* Merging part by part, as after an estimate. */
static void share_select(work *w, size_t head) {
    for (size_t e = 0; e < ROWS && head % w->n_group == 0; e += w->batch) {
        for (size_t p = 0; p < w->n; p += PART) {
            for (size_t i = e; i < e + w->batch; i += w->share) share_merge(w, e, i, p, p + PART);
        }
        for (size_t i = e; i < e + w->batch; i += w->share) share_topk(w, i);
    }
}

static void share_attend(work *w, size_t head) {
    if (head % w->n_group == 0) share_attend_rows(w, head / w->n_group);
}

static double thread_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Median microseconds per row and head. */
static double median_us(void (*fn)(work *, size_t), work *w) {
    double t[RUNS];
    for (int i = 0; i < RUNS; i++) {
        double t0 = thread_s();
        for (size_t h = 0; h < w->s.n_heads; h++) fn(w, h);
        t[i] = thread_s() - t0;
    }
    qsort(t, RUNS, sizeof *t, tn_by_double);
    return t[RUNS / 2] * 1e6 / (double)(ROWS * w->s.n_heads);
}

/* ---- as the engine runs it ---------------------------------------------------------------------------- */

static const char *const mode_names[TN_N_ATTN_MODES] = {"full", "shadow", "float-sparse", "block-sparse",
                                                        "npu-full"};

typedef struct mode_run {
    tn_sparse_attn *s;
    tn_rows rows;
    const work *w;
    float *out;
    bool failed;
} mode_run;

/* A chunk of ROWS rows after a context whose keys were planned before. */
static void run_mode(mode_run *r) {
    tern_error err;
    tn_sparse_attn_rewind(r->s, (int32_t)r->w->n - ROWS);
    r->failed = false;
    for (int32_t kv = 0; kv < (int32_t)r->w->s.n_kv_heads; kv++)
        r->failed |= tn_sparse_attn_plan(r->s, &r->rows, 0, 0, kv, r->w->q_heads, &err) != TERN_OK;
    r->failed = r->failed ||
                tn_sparse_attn_rows(r->s, &r->rows, 0, 0, r->w->q_heads, r->out, 0, ROWS, 0, &err) != TERN_OK;
}

/* Median microseconds per row and head; negative: it failed. */
static double mode_us(tn_npu_device *dev, work *w, tn_attn_mode mode, double ratio, int share, int pool) {
    float scale_q = Q_MAX / 127.0f, scale_k = Q_MAX / 127.0f, weight[64];
    for (size_t i = 0; i < 64; i++) weight[i] = 1;
    tn_hparams h = {.n_layers = 1,
                    .n_heads = (int32_t)w->s.n_heads,
                    .n_kv_heads = (int32_t)w->s.n_kv_heads,
                    .d_head = (int32_t)w->s.d,
                    .attn_scale = 1.0f / sqrtf((float)w->s.d)};
    tn_kv kv = {.ctx = &ctx,
                .n_layers = 1,
                .layers = {{h.n_kv_heads, h.d_head, w->n * w->s.d * sizeof(float), 0}},
                .cap_tok = (int32_t)w->n,
                .k = (uint8_t *)w->k_panels,
                .v = (uint8_t *)w->v};
    tn_npu_model m = {.ctx = &ctx,
                      .dev = dev,
                      .kern = w->k,
                      .n_layers = 1,
                      .attn_scale_q = &scale_q,
                      .attn_scale_k = &scale_k,
                      .attn_head_weight = weight};
    tn_attn_options o = {.mode = mode,
                         .ratio = (float)ratio,
                         .n_buckets = 9,
                         .share_rows = share,
                         .pool_heads = pool,
                         .threshold = 1};
    int32_t pos[ROWS];
    for (int32_t i = 0; i < ROWS; i++) pos[i] = (int32_t)w->n - ROWS + i;
    mode_run r = {
        .w = w,
        .out = w->out,
        .rows = {.h = &h, .kern = w->k, .kv = &kv, .n_rows = ROWS, .pos = pos, .slot = pos, .tree_base = -1}};
    tern_error err;
    if (tn_sparse_attn_open(&ctx, &m, &h, w->k, &kv, &o, 1, 1, ROWS, &r.s, &err) != TERN_OK) {
        fprintf(stderr, "%s: %s\n", mode_names[mode], err.message);
        return -1;
    }
    run_mode(&r); /* all keys */
    double t[RUNS], all = 0;
    int n = 0;
    while (!r.failed && n < RUNS && (n < 3 || all < 1)) {
        double t0 = thread_s();
        run_mode(&r);
        all += t[n] = thread_s() - t0;
        n++;
    }
    qsort(t, (size_t)n, sizeof *t, tn_by_double);
    tn_sparse_attn_close(&r.s);
    return r.failed ? -1 : t[n / 2] * 1e6 / (double)(ROWS * w->s.n_heads);
}

static void fill(work *w, tn_rng *rng) {
    float k[512];
    for (size_t i = 0; i < w->s.n_heads * ROWS * w->s.d; i++)
        w->q[i] = (float)(tn_rng_f64(rng) + tn_rng_f64(rng) + tn_rng_f64(rng) - 1.5) * 2;
    w->k->quantise_s8(w->q, 127.0f / Q_MAX, w->q8, w->s.n_heads * ROWS * w->s.d);
    for (size_t i = 0; i < w->s.n_heads * ROWS; i++)
        memcpy(w->q_heads + (i % ROWS * w->s.n_heads + i / ROWS) * w->s.d, w->q + i * w->s.d,
               w->s.d * sizeof(float));
    for (size_t kv = 0; kv < w->s.n_kv_heads; kv++) {
        for (size_t p = 0; p < w->n; p++) {
            uint8_t k8[512];
            for (size_t d = 0; d < w->s.d; d++) {
                k[d] = (float)(tn_rng_f64(rng) + tn_rng_f64(rng) + tn_rng_f64(rng) - 1.5) * 2;
                w->k_panels[kv * panel_floats(w) + p / TN_KV_PANEL * w->s.d * TN_KV_PANEL + d * TN_KV_PANEL +
                            p % TN_KV_PANEL] = w->k_rows[kv * panel_floats(w) + p * w->s.d + d] = k[d];
                w->v[kv * panel_floats(w) + p * w->s.d + d] = (float)tn_rng_f64(rng);
            }
            w->k->quantise_s8(k, 127.0f / Q_MAX, k8, w->s.d);
            tn_qk_s8_append(w->tiles + kv * w->n * w->s.d, w->sums + kv * w->n, p, k8, w->s.d);
        }
    }
}

int main(int argc, char **argv) {
    const char *isa = NULL, *only = NULL;
    double ratio = 0.2;
    size_t max = 16384;
    int share = 0, pool = 2;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) json = true;
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc) isa = argv[++i];
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
        else if (!strcmp(argv[i], "--ratio") && i + 1 < argc) ratio = atof(argv[++i]) / 100;
        else if (!strcmp(argv[i], "--max") && i + 1 < argc) max = (size_t)atol(argv[++i]);
        else if (!strcmp(argv[i], "--share") && i + 1 < argc) share = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--pool") && i + 1 < argc) pool = atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: bench_attention [--json] [--isa WORD] [--ratio PERCENT] [--only MODEL] "
                            "[--max TOKENS] [--share ROWS] [--pool HEADS]\n");
            return 2;
        }
    }
    uint32_t cpu = tn_cpu_detect();
    if (isa) cpu = tn_cpu_limit(isa, cpu);
    tn_kernels k;
    tn_kernels_init(&k, cpu);
    tn_ctx_init(&ctx, NULL);
    tn_pool *threads;
    tn_limits limits;
    if (tn_pool_open(&ctx, 1, &threads, NULL) != TERN_OK ||
        tn_limits_measure(&ctx, threads, cpu, &limits, NULL) != TERN_OK)
        return 1;
    tn_pool_close(&threads);
    tn_npu_options device;
    tn_npu_options_defaults(&device);
    device.kernels = &k;
    tn_npu_device *dev;
    if (tn_npu_open(&ctx, "host", &device, &dev, NULL) != TERN_OK) return 1;
    double fp32 = limits.thread_fp32_flops, int8 = limits.thread_int8_ops > 0 ? limits.thread_int8_ops : fp32;
    if (!json) {
        printf("fp32 peak %.0f GFLOPS, INT8 peak %.0f GOPS, ratio %.2f; us per query row and head\n\n",
               fp32 * 1e-9, int8 * 1e-9, ratio);
        printf("%-14s%8s%16s%16s%16s%16s%16s%16s%9s%16s\n", "heads of", "tokens", "full", "shadow",
               "float-sparse", "block-sparse", "npu-full", "estimate", "top-k", "attend");
    } else {
        printf("[");
    }
    tn_rng rng = {1};
    int n_lines = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (only && strcmp(only, shapes[i].model)) continue;
        for (size_t n = 1024; n <= max && n <= 16384; n *= 2) {
            work w = {.k = &k,
                      .s = shapes[i],
                      .n = n,
                      .n_group = shapes[i].n_heads / shapes[i].n_kv_heads,
                      .k_sel = (size_t)ceil(ratio * (double)n)};
            if (w.k_sel > n - ROWS) w.k_sel = n - ROWS;
            size_t d = w.s.d, kv = w.s.n_kv_heads;
            if (share >= 0) {
                w.share = share ? (size_t)share : w.n_group == 1 ? 8 : 4;
                w.pool = pool < 1 ? 1 : (size_t)pool < w.n_group ? (size_t)pool : w.n_group;
                while ((w.n_group + w.pool - 1) / w.pool * w.share > ROWS) w.pool++;
                w.n_pools = (w.n_group + w.pool - 1) / w.pool;
                w.batch = w.share;
                while (ROWS % (2 * w.batch) == 0 && 2 * w.batch * w.n_pools <= ROWS) w.batch *= 2;
                if (ROWS % w.share || w.share * w.n_group > TILE_ROWS) {
                    fprintf(stderr,
                            "tiles of %zu rows: want 1, 2, 4, 8, with at most %d heads and rows together\n",
                            w.share, TILE_ROWS);
                    return 2;
                }
            }
            w.tile_scratch = room(tn_attn_tiles_scratch(ROWS * w.n_group, w.k_sel, d) * 4);
            w.merged = room(ROWS * n * 4);
            w.q = room(w.s.n_heads * ROWS * d * 4);
            w.q8 = room(w.s.n_heads * ROWS * d);
            w.q_heads = room(w.s.n_heads * ROWS * d * 4);
            w.out = room(w.s.n_heads * ROWS * d * 4);
            w.k_panels = room(kv * n * d * 4);
            w.v = room(kv * n * d * 4);
            w.k_rows = room(kv * n * d * 4);
            w.tiles = room(kv * n * d);
            w.sums = room(kv * n * 4);
            w.scores = room(ROWS * (n + 16) * 4);
            w.idx = room(w.n_group * ROWS * (n + 32) * 4);
            w.cuts = room(w.n_group * ROWS * (tn_sparse_blocks(n) + 1) * 4);
            w.sparse_scratch = room(tn_attn_sparse_scratch(w.n_group * ROWS, w.k_sel, d) * 4);
            w.scratch = room(tn_attn_f32_scratch(d, n) * 4);
            w.topk_scratch = room(tn_topk_scratch(n));
            for (int r = 0; r < ROWS; r++) {
                w.first[r] = 0;
                w.end[r] = (int32_t)n - ROWS + r + 1;
            }
            fill(&w, &rng);
            bool tiles = share >= 0;
            double t_full = median_us(full, &w), t_est = median_us(tiles ? share_estimate : estimate, &w),
                   t_top = median_us(tiles ? share_select : select_rows, &w);
            double t_att = median_us(tiles ? share_attend : attend, &w), t_mode[TN_N_ATTN_MODES];
            for (tn_attn_mode mode = TN_ATTN_SHADOW; mode < TN_N_ATTN_MODES; mode++) {
                if ((t_mode[mode] = mode_us(dev, &w, mode, ratio, share, pool)) < 0) return 1;
            }
            double full_share = 4.0 * (double)(n * d) / (t_full * 1e-6) / fp32,
                   est_share = 2.0 * (double)(n * d) / (t_est * 1e-6) / int8 *
                               (tiles ? (double)w.n_pools / (double)w.n_group : 1);
            double att_share = 4.0 * (double)(w.k_sel * d) / (t_att * 1e-6) / fp32;
            if (json) {
                printf("%s\n  {\"model\": \"%s\", \"tokens\": %zu, \"ratio\": %.3f, \"full_us\": %.3f, "
                       "\"full_share\": %.3f, \"estimate_us\": %.3f, \"estimate_share\": %.3f, \"topk_us\": "
                       "%.3f, "
                       "\"attend_us\": %.3f, \"attend_share\": %.3f",
                       n_lines++ ? "," : "", w.s.model, n, ratio, t_full, full_share, t_est, est_share, t_top,
                       t_att, att_share);
                for (int mode = TN_ATTN_SHADOW; mode < TN_N_ATTN_MODES; mode++) {
                    char name[24];
                    snprintf(name, sizeof name, "%s", mode_names[mode]);
                    if (strchr(name, '-')) *strchr(name, '-') = '_';
                    printf(", \"%s_us\": %.3f, \"%s_speedup\": %.3f", name, t_mode[mode], name,
                           t_full / t_mode[mode]);
                }
                printf("}");
            } else {
                printf("%-14s%8zu%9.2f (%2.0f %%)", w.s.model, n, t_full, 100 * full_share);
                for (int mode = TN_ATTN_SHADOW; mode < TN_N_ATTN_MODES; mode++)
                    printf("%9.2f %5.2fx", t_mode[mode], t_full / t_mode[mode]);
                printf("%9.2f (%2.0f %%)%9.2f%9.2f (%2.0f %%)\n", t_est, 100 * est_share, t_top, t_att,
                       100 * att_share);
                fflush(stdout);
            }
            void *all[] = {
                w.q,      w.q8,           w.out,   w.k_panels, w.v,       w.tiles,          w.sums,
                w.scores, w.idx,          w.cuts,  w.q_heads,  w.scratch, w.sparse_scratch, w.topk_scratch,
                w.k_rows, w.tile_scratch, w.merged};
            for (size_t x = 0; x < sizeof all / sizeof *all; x++) tn_free(&ctx, all[x]);
        }
    }
    if (json) printf("\n]\n");
    tn_npu_close(&dev);
    return 0;
}
