#include "attention/sparse_impl.h"

#include "base/status.h"
#include "model/head_ratio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float BUCKET_STEP = 0.5f; /* the paper's sigma */
static const float ROOT_HALF = 0.70710678f;

bool tn_attn_mode_parse(const char *name, tn_attn_mode *out) {
    static const char *const names[TN_N_ATTN_MODES] = {"full", "shadow", "float-sparse", "block-sparse",
                                                       "npu-full"};
    for (int i = 0; i < TN_N_ATTN_MODES; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_attn_mode)i;
        return true;
    }
    return false;
}

static tern_status open_graph(tn_sparse_attn *s, const tn_npu_graph_desc *g, tn_npu_graph **out,
                              tern_error *err) {
    TN_TRY(tn_npu_compile(s->m->dev, g, out, err));
    TN_TRY(tn_npu_load(*out, NULL, err));
    s->q8_stride = (size_t)tn_npu_graph_get(*out)->in_stride;
    s->fixed.bytes += tn_npu_load_bytes(*out);
    return TERN_OK;
}

static tern_status open_device_side(tn_sparse_attn *s, tern_error *err) {
    const tn_npu_caps *caps = tn_npu_device_caps(s->m->dev);
    size_t n_layers = (size_t)s->h->n_layers, n_kv = (size_t)s->h->n_kv_heads, cap = (size_t)s->kv->cap_tok,
           d = (size_t)s->h->d_head;
    TN_FAIL_IF(
        s->kv->cap_tok > caps->max_n || s->h->d_head > caps->max_k || s->h->d_head % 4, err, TERN_E_LIMIT,
        "device '%s' cannot estimate attention over %d positions with heads of %d; use --attention full",
        caps->name, s->kv->cap_tok, s->h->d_head);
    uint64_t tiles = tn_npu_tiles_bytes(&caps->layout, (int64_t)cap, (int64_t)d);
    size_t n_sum =
        (cap + (size_t)caps->layout.tile_n - 1) / (size_t)caps->layout.tile_n * (size_t)caps->layout.tile_n;
    s->graphs = tn_calloc(s->ctx, TN_MEM_GRAPHS, n_layers * (size_t)(s->n_steps * s->n_steps),
                          sizeof(tn_npu_graph *));
    s->part_graphs = tn_calloc(s->ctx, TN_MEM_GRAPHS, n_layers * (size_t)(s->n_steps * s->n_steps),
                               sizeof(tn_npu_graph *));
    s->tiles = tn_alloc(s->ctx, TN_MEM_KV, (size_t)tn_n_sparse(s->h) * n_kv, (size_t)tiles);
    TN_FAIL_IF(!s->graphs || !s->part_graphs || !s->tiles, err, TERN_E_MEMORY, "no memory for INT8 keys");
    for (size_t i = 0, at = 0; i < n_layers * n_kv; i++) {
        key_cache *k = &s->keys[i];
        if (!tn_layer_may_be_sparse(s->h, (int32_t)(i / n_kv))) continue;
        k->tiles = s->tiles + at++ * (size_t)tiles;
        k->sum = tn_alloc(s->ctx, TN_MEM_KV, n_sum, sizeof *k->sum);
        k->panel_max = tn_alloc(s->ctx, TN_MEM_KV, cap / TN_KV_PANEL, sizeof *k->panel_max);
        TN_FAIL_IF(!k->sum || !k->panel_max, err, TERN_E_MEMORY, "no memory for INT8 keys");
        s->fixed.bytes += tiles + n_sum * sizeof *k->sum + cap / TN_KV_PANEL * sizeof *k->panel_max;
    }
    for (size_t l = 0; l < n_layers; l++) {
        for (int q = 0; q < s->n_steps && tn_layer_may_be_sparse(s->h, (int32_t)l); q++) {
            for (int k = 0; k < s->n_steps; k++) {
                tn_npu_graph_desc g = {.kind = TN_NPU_QK, .m = TN_ATTN_ROWS, .k = s->h->d_head, .n_ops = 1};
                g.ops[0] = (tn_npu_op){.n = s->kv->cap_tok,
                                       .act_scale = s->scale_q[l * (size_t)s->n_steps + (size_t)q],
                                       .k_scale = s->scale_k[l * (size_t)s->n_steps + (size_t)k],
                                       .out = TN_NPU_OUT_S32,
                                       .out_stride = (int32_t)s->ld};
                size_t i = (l * (size_t)s->n_steps + (size_t)q) * (size_t)s->n_steps + (size_t)k;
                TN_TRY(open_graph(s, &g, &s->graphs[i], err));
                g.ops[0].n = PART;
                g.ops[0].out_stride = PART_LD;
                if (tn_sparse_by_parts(s)) TN_TRY(open_graph(s, &g, &s->part_graphs[i], err));
            }
        }
    }
    return TERN_OK;
}

static tern_status open_worker(tn_sparse_attn *s, worker_space *w, tern_error *err) {
    size_t rows = TN_ATTN_ROWS, all = (size_t)s->n_group * rows, d = (size_t)s->h->d_head;
    bool floats = s->o.mode != TN_ATTN_SHADOW || s->o.check, tiles = tn_sparse_uses_tiles(s), ok = true;
    size_t scratch = 0;
    if (tiles || s->o.decode) {
        w->merged = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, sizeof(int32_t));
        w->seen = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, 2 * all, sizeof(int32_t));
        scratch = tn_attn_tiles_scratch(s->o.share_rows ? (size_t)(s->n_group * s->o.share_rows)
                                        : tiles         ? rows
                                                        : (size_t)s->n_group,
                                        s->room, d);
        ok = w->merged && w->seen;
    }
    size_t n_floats = all * d;
    if (tiles || s->kv->rotated) {
        w->tile_q = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, n_floats, sizeof(float));
        ok = ok && w->tile_q;
    }
    if (tiles) {
        w->part = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * PART_LD, sizeof(int32_t));
        w->tile_out = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, n_floats, sizeof(float));
        ok = ok && w->part && w->tile_out;
        if (s->o.share_rows) all = rows; /* a list a tile at most */
    } else if (scratch < tn_attn_sparse_scratch(all, s->room, d)) {
        scratch = tn_attn_sparse_scratch(all, s->room, d);
    }
    w->scratch = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, scratch, sizeof(float));
    ok = ok && w->scratch;
    w->scores = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, sizeof(int32_t));
    w->q8 = tn_calloc(s->ctx, TN_MEM_ACTIVATIONS, rows * (s->q8_stride + 64), 1);
    w->q_rows = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * d, sizeof(float));
    w->float_scores = floats ? tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, sizeof(float)) : NULL;
    if (s->o.mode == TN_ATTN_NPU_FULL)
        ok = ok && (w->weights = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, rows * s->ld, 1));
    w->idx = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all * s->idx_stride + 64, sizeof(uint32_t));
    w->cuts = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, all * (s->n_blocks + 1), sizeof(uint32_t));
    w->exact = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, s->idx_stride + 64, sizeof(uint32_t));
    w->exact_cuts = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, s->n_blocks + 1, sizeof(uint32_t));
    w->topk = tn_alloc(s->ctx, TN_MEM_ACTIVATIONS, tn_topk_scratch(s->ld), 1);
    ok = ok && w->scores && w->q8 && w->q_rows && (w->float_scores || !floats) && w->idx && w->cuts &&
         w->exact && w->exact_cuts && w->topk;
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for sparse attention");
    return TERN_OK;
}

float tn_sparse_fallen(const tn_sparse_attn *s, size_t n) {
    if (!s->o.falls || n <= TN_ATTN_FALLS_FROM) return 1;
    return sqrtf((float)TN_ATTN_FALLS_FROM / (float)(n < TN_ATTN_FALLS_TO ? n : TN_ATTN_FALLS_TO));
}

size_t tn_sparse_kept(const tn_sparse_attn *s, float ratio, size_t n, size_t least) {
    size_t k = (size_t)ceilf(ratio * tn_sparse_fallen(s, n) * (float)n);
    if (k < least) k = least;
    if (k > s->room) k = s->room;
    return k < n ? k : n;
}

float tn_sparse_mean_ratio(const tn_sparse_attn *s, size_t head) {
    float sum = 0;
    for (size_t g = 0; g < (size_t)s->n_group; g++) sum += s->ratio[head + g];
    return sum / (float)s->n_group;
}

/* The mean is that of the heads that may attend sparsely; those of other layers have it too. */
static tern_status fill_ratios(tn_sparse_attn *s, float mean, tern_error *err) {
    const size_t n_heads = (size_t)s->h->n_heads, n_layers = (size_t)s->h->n_layers;
    for (size_t i = 0; i < n_layers * n_heads; i++) s->ratio[i] = mean;
    if (s->o.no_head_ratios || !s->m->attn_head_weight) return TERN_OK;
    float *weight = tn_alloc(s->ctx, TN_MEM_OTHER, 2 * n_layers * n_heads, sizeof *weight),
          *ratio = weight + n_layers * n_heads;
    size_t n = 0;
    TN_FAIL_IF(!weight, err, TERN_E_MEMORY, "no memory for sparse attention");
    for (size_t l = 0; l < n_layers; l++) {
        if (!tn_layer_may_be_sparse(s->h, (int32_t)l)) continue;
        memcpy(weight + n, s->m->attn_head_weight + l * n_heads, n_heads * sizeof *weight);
        n += n_heads;
    }
    tn_head_ratios(weight, n, mean, ratio);
    for (size_t l = n_layers; l-- > 0;)
        if (tn_layer_may_be_sparse(s->h, (int32_t)l))
            memcpy(s->ratio + l * n_heads, ratio + (n -= n_heads), n_heads * sizeof *ratio);
    tn_free(s->ctx, weight);
    return TERN_OK;
}

/* Returns the length of the prompt from which chunks attend sparsely. */
int32_t tn_sparse_attn_from(const tn_npu_model *m, const tn_attn_options *o) {
    if (o->threshold) return o->threshold;
    return o->mode != TN_ATTN_SHADOW ? 1 : m->tuned.attn_threshold ? m->tuned.attn_threshold : TN_ATTN_FROM;
}

int32_t tn_sparse_decode_from(const tn_npu_model *m, const tn_hparams *h, const tn_attn_options *o,
                              int32_t n_ctx) {
    if (h->n_heads / h->n_kv_heads > TN_ATTN_MAX_TILE) return 0;
    if (o->decode) return o->threshold ? o->threshold : TN_ATTN_DECODE_FROM;
    bool by_itself = o->automatic && o->mode == TN_ATTN_SHADOW && tn_sparse_attn_pays(m, o, n_ctx) &&
                     tn_npu_device_caps(m->dev)->has_parts;
    return by_itself && n_ctx >= TN_ATTN_DECODE_AUTO ? TN_ATTN_DECODE_AUTO : 0;
}

/* How many rows and heads share a list of positions: what fits a tile. */
static void choose_tiles(tn_sparse_attn *s, const tn_attn_options *o) {
    s->prompt = o->mode != TN_ATTN_FULL;
    if (!s->prompt) s->o.mode = TN_ATTN_SHADOW;
    s->decode_from = tn_sparse_decode_from(s->m, s->h, o, s->kv->cap_tok);
    s->o.decode = s->decode_from > 0;
    if (o->mode == TN_ATTN_BLOCK_SPARSE || o->mode == TN_ATTN_NPU_FULL)
        s->o.share_rows = 0; /* they have lists of their own, or none */
    else if (s->o.share_rows < 0) s->o.share_rows = 0;
    else if (!s->o.share_rows) /* as many as fill the lanes of one register, or nearly: more lose more */
        s->o.share_rows = s->n_group == 1 ? 8 : s->n_group <= 4 ? 4 : 2;
    s->o.threshold = tn_sparse_attn_from(s->m, &s->o);
    while (s->o.share_rows && s->n_group * s->o.share_rows > TN_ATTN_MAX_TILE) s->o.share_rows /= 2;
    s->pool = s->o.share_rows && o->pool_heads < s->n_group ? o->pool_heads
              : s->o.share_rows                             ? s->n_group
                                                            : 1;
    while ((s->n_group + s->pool - 1) / s->pool * s->o.share_rows > TN_ATTN_ROWS)
        s->pool++; /* a tile's scores have room */
    s->n_pools = (s->n_group + s->pool - 1) / s->pool;
    s->n_units_kv = s->o.share_rows ? 1 : s->n_group;
}

/* The heads' shares of positions, and from the widest the positions that a list has room for. */
static tern_status measure_room(tn_sparse_attn *s, tern_error *err) {
    size_t n_all = (size_t)s->h->n_layers * (size_t)s->h->n_heads,
           n_kv = (size_t)s->h->n_layers * (size_t)s->h->n_kv_heads;
    TN_TRY(fill_ratios(s, s->o.decode_ratio, err));
    for (size_t i = 0; i < n_kv; i++) s->decode_ratio[i] = tn_sparse_mean_ratio(s, i * (size_t)s->n_group);
    TN_TRY(fill_ratios(s, s->o.ratio, err));
    float widest = s->o.ratio;
    for (size_t i = 0; i < n_all; i += s->o.share_rows ? (size_t)s->n_group : 1) {
        float r = s->o.share_rows ? tn_sparse_mean_ratio(s, i) : s->ratio[i];
        widest = r > widest ? r : widest;
    }
    for (size_t i = 0; i < n_kv; i++) widest = s->decode_ratio[i] > widest ? s->decode_ratio[i] : widest;
    s->room = (size_t)ceilf(widest * (float)s->kv->cap_tok) + 2 * BLOCK + MIN_SELECTED;
    if (s->o.decode && s->room < TN_ATTN_DECODE_LEAST) s->room = TN_ATTN_DECODE_LEAST;
    if (s->room > (size_t)s->kv->cap_tok) s->room = (size_t)s->kv->cap_tok;
    s->idx_stride = s->room + 32;
    return TERN_OK;
}

static tern_status open_keys(tn_sparse_attn *s, tern_error *err) {
    const tn_hparams *h = s->h;
    const size_t n_keys = (size_t)h->n_layers * (size_t)h->n_kv_heads,
                 head_bytes = tn_kv_layer_of(s->kv, tn_first_sparse(h))->head_bytes;
    s->keys = tn_calloc(s->ctx, TN_MEM_KV, n_keys, sizeof *s->keys);
    TN_FAIL_IF(!s->keys, err, TERN_E_MEMORY, "no memory for sparse attention");
    bool floats = s->kv->type == TN_KV_F32, baseline = s->o.mode == TN_ATTN_BLOCK_SPARSE ||
                                                       s->o.mode == TN_ATTN_NPU_FULL ||
                                                       s->o.mode == TN_ATTN_FLOAT_SPARSE;
    TN_FAIL_IF(!floats && (baseline || s->o.check || (s->prompt && !tn_sparse_uses_tiles(s))), err,
               TERN_E_UNSUPPORTED,
               "baselines of attention, attention-check and heads that do not share need kv f32, not %s",
               tn_kv_type_name(s->kv->type));
    if (tn_sparse_uses_tiles(s) || s->o.decode) {
        size_t n = (size_t)tn_n_sparse(h) * (size_t)h->n_kv_heads;
        s->rows = tn_alloc(s->ctx, TN_MEM_KV, n, head_bytes);
        TN_FAIL_IF(!s->rows, err, TERN_E_MEMORY, "no memory for keys");
        s->fixed.bytes += n * head_bytes;
    }
    for (size_t i = 0, at = 0; i < n_keys; i++) {
        s->keys[i].bucket = -1;
        if (!tn_layer_may_be_sparse(h, (int32_t)i / h->n_kv_heads)) continue;
        if (s->rows) s->keys[i].rows = s->rows + at++ * head_bytes;
        TN_TRY(tn_sparse_baseline_open(s, &s->keys[i], err));
    }
    return TERN_OK;
}

tern_status tn_sparse_attn_open(tn_ctx *ctx, const tn_npu_model *m, const tn_hparams *h,
                                const tn_kernels *kern, const tn_kv *kv, const tn_attn_options *o,
                                int32_t n_workers, int32_t n_chunks, int32_t chunk_rows, tn_sparse_attn **out,
                                tern_error *err) {
    *out = NULL;
    const char *why_not = tn_sparse_attn_why_not(h);
    TN_FAIL_IF(why_not, err, TERN_E_UNSUPPORTED, "sparse attention: architecture %s: %s", h->arch, why_not);
    TN_FAIL_IF(o->decode && h->n_heads / h->n_kv_heads > TN_ATTN_MAX_TILE, err, TERN_E_UNSUPPORTED,
               "sparse attention when decoding: %d query heads share a KV head, at most %d may",
               h->n_heads / h->n_kv_heads, TN_ATTN_MAX_TILE);
    TN_FAIL_IF(
        !m->attn_scale_q && !m->attn_follows, err, TERN_E_UNSUPPORTED,
        "the package does not know the scales of its heads: pack the model again for sparse attention");
    tn_sparse_attn *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for sparse attention");
    *s = (tn_sparse_attn){.ctx = ctx,
                          .m = m,
                          .h = h,
                          .kern = kern,
                          .kv = kv,
                          .o = *o,
                          .n_steps = o->n_buckets == 1 || m->attn_follows ? 1 : TN_ATTN_MAX_STEPS,
                          .n_group = h->n_heads / h->n_kv_heads,
                          .n_workers = n_workers,
                          .n_chunks = n_chunks};
    choose_tiles(s, o);
    size_t n_layers = (size_t)h->n_layers, n_all = n_layers * (size_t)h->n_heads, steps = (size_t)s->n_steps;
    tern_status st = TERN_OK;
    s->ld = (size_t)kv->cap_tok + 16; /* not a power of two: rows would share cache sets */
    s->n_blocks = tn_sparse_blocks((size_t)kv->cap_tok);
    s->q8_stride = ((size_t)h->d_head + 3) / 4 * 4;
    s->scale_q = tn_alloc(ctx, TN_MEM_OTHER, n_layers * steps, sizeof(float));
    s->scale_k = tn_alloc(ctx, TN_MEM_OTHER, n_layers * steps, sizeof(float));
    s->ratio = tn_alloc(ctx, TN_MEM_OTHER, n_all, sizeof(float));
    s->decode_ratio = tn_alloc(ctx, TN_MEM_OTHER, n_layers * (size_t)h->n_kv_heads, sizeof(float));
    s->plans = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_chunks, sizeof *s->plans);
    s->space = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_workers, sizeof *s->space);
    TN_BAIL_IF(!s->scale_q || !s->scale_k || !s->ratio || !s->decode_ratio || !s->plans || !s->space, err,
               TERN_E_MEMORY, "no memory for sparse attention");
    for (size_t l = 0; l < n_layers; l++) {
        for (size_t i = 0; i < steps; i++) {
            float f = steps == 1 ? 1 : i == 0 ? BUCKET_STEP : i == 1 ? 1 : 1 / BUCKET_STEP;
            s->scale_q[l * steps + i] = m->attn_follows ? 1 : m->attn_scale_q[l] * f;
            s->scale_k[l * steps + i] = m->attn_follows ? 1 : m->attn_scale_k[l] * f;
        }
    }
    if ((st = measure_room(s, err)) != TERN_OK) goto out;
    for (int32_t i = 0; i < n_chunks; i++) {
        s->plans[i].q_bucket =
            tn_calloc(ctx, TN_MEM_OTHER, (size_t)(h->n_kv_heads * s->n_units_kv), sizeof(int32_t));
        s->plans[i].k_bucket = tn_calloc(ctx, TN_MEM_OTHER, (size_t)h->n_kv_heads, sizeof(int32_t));
        TN_BAIL_IF(!s->plans[i].q_bucket || !s->plans[i].k_bucket, err, TERN_E_MEMORY,
                   "no memory for sparse attention");
    }
    if ((st = open_keys(s, err)) != TERN_OK) goto out;
    if (tn_sparse_uses_int8(s) && (st = open_device_side(s, err)) != TERN_OK) goto out;
    bool can_plan = h->n_kv_heads * s->n_units_kv <= TN_HEADPLAN_MAX_HEADS ||
                    o->pipeline == TN_ATTN_PIPELINE_ON; /* which tells why not */
    if (can_plan && !m->attn_follows && tn_attn_pipelined(o, tn_npu_device_caps(m->dev)) &&
        (st = tn_sparse_heads_open(s, chunk_rows, err)) != TERN_OK)
        goto out;
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
    tn_sparse_heads_close(s);
    for (int32_t i = 0; s->keys && i < s->h->n_layers * s->h->n_kv_heads; i++) {
        tn_free(s->ctx, s->keys[i].sum);
        tn_free(s->ctx, s->keys[i].panel_max);
        tn_free(s->ctx, s->keys[i].means);
        tn_free(s->ctx, s->keys[i].v_tiles);
        tn_free(s->ctx, s->keys[i].v_sum);
        tn_free(s->ctx, s->keys[i].v_panel_max);
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
        void *all[] = {w->scratch, w->scores, w->q8,         w->q_rows, w->float_scores, w->idx,
                       w->cuts,    w->exact,  w->exact_cuts, w->topk,   w->merged,       w->part,
                       w->weights, w->tile_q, w->tile_out,   w->seen};
        for (size_t x = 0; x < sizeof all / sizeof *all; x++) tn_free(s->ctx, all[x]);
    }
    tn_free(s->ctx, s->keys);
    tn_free(s->ctx, s->rows);
    tn_free(s->ctx, s->tiles);
    tn_free(s->ctx, s->graphs);
    tn_free(s->ctx, s->part_graphs);
    tn_free(s->ctx, s->plans);
    tn_free(s->ctx, s->space);
    tn_free(s->ctx, s->scale_q);
    tn_free(s->ctx, s->scale_k);
    tn_free(s->ctx, s->ratio);
    tn_free(s->ctx, s->decode_ratio);
    tn_free(s->ctx, s);
}

const char *tn_sparse_attn_why_not(const tn_hparams *h) {
    return tn_latent(h)             ? "one key serves all heads (latent attention)"
           : tn_first_sparse(h) < 0 ? "no layer of this model sees more than a window"
           : h->sinks               ? "its heads have sinks, which take part in full attention only"
           : h->bidirectional       ? "its rows see the whole text"
                                    : NULL;
}

bool tn_sparse_attn_pays(const tn_npu_model *m, const tn_attn_options *o, int32_t n_ctx) {
    return (m->attn_scale_q || m->attn_follows) && n_ctx >= tn_sparse_attn_from(m, o);
}

bool tn_sparse_attn_wanted(const tn_sparse_attn *s, int layer, int32_t n_pos) {
    return tn_layer_may_be_sparse(s->h, layer) && s->prompt && s->o.ratio < 1 && n_pos >= s->o.threshold;
}

void tn_sparse_attn_rewind(tn_sparse_attn *s, int32_t n_pos) {
    if (s->heads) tn_sparse_heads_rewind(s);
    for (int32_t i = 0; s->keys && i < s->h->n_layers * s->h->n_kv_heads; i++) {
        if (s->keys[i].n_keys > n_pos) s->keys[i].n_keys = n_pos;
        if (s->keys[i].n_rows > n_pos) s->keys[i].n_rows = n_pos;
        if (s->keys[i].n_means > n_pos / BLOCK) s->keys[i].n_means = n_pos / BLOCK;
        if (s->keys[i].n_values > n_pos) s->keys[i].n_values = n_pos;
    }
}

/* ---- plan: buckets, and keys in INT8 --------------------------------------------------------------- */

enum { FOLLOWS_LEAST = -60, FOLLOWS_MOST = 60 }; /* exponents of 2; beyond them values are cut off */

/* The squared errors of Q and K add up, so each scale is chosen alone. */
int32_t tn_sparse_bucket(const tn_sparse_attn *s, const float *scales, int layer, float want) {
    if (s->m->attn_follows) {
        int exponent; /* want = part * 2^exponent, part from 1/2 on and below 1 */
        float part = frexpf(want, &exponent);
        if (!(want > 0) || exponent <= FOLLOWS_LEAST) return 0;
        if (exponent > FOLLOWS_MOST) exponent = FOLLOWS_MOST, part = 1;
        return 2 * (exponent - FOLLOWS_LEAST) - (part == 0.5f ? 2 : part <= ROOT_HALF);
    }
    const float *x = scales + (size_t)layer * (size_t)s->n_steps;
    int32_t best = 0;
    for (int32_t i = 1; i < s->n_steps; i++) {
        if (fabsf(x[i] - want) < fabsf(x[best] - want)) best = i;
    }
    return best;
}

float tn_sparse_scale(const tn_sparse_attn *s, const float *scales, int layer, int32_t bucket) {
    if (!s->m->attn_follows) return scales[(size_t)layer * (size_t)s->n_steps + (size_t)bucket];
    return ldexpf(bucket % 2 ? ROOT_HALF : 1, (bucket + 1) / 2 + FOLLOWS_LEAST);
}

tn_npu_graph *tn_sparse_graph(const tn_sparse_attn *s, tn_npu_graph *const *graphs, int layer, int32_t q,
                              int32_t k) {
    if (s->m->attn_follows) return graphs[layer]; /* whose results are integers: their scales are nobody's */
    return graphs[(layer * s->n_steps + q) * s->n_steps + k];
}

/* Magnitudes are compared as integers. */
typedef int32_t int4 __attribute__((vector_size(16)));
typedef float float4 __attribute__((vector_size(16)));

static inline int4 larger_magnitude(int4 top, const float *x) {
    int4 v, m;
    memcpy(&v, x, sizeof v);
    v &= 0x7fffffff;
    v &= v < 0x7f800000;
    m = top > v;
    return (top & m) | (v & ~m);
}

float tn_sparse_magnitude(const float *x, size_t n, float max) {
    int4 a = {0}, b = a;
    float lane[8];
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        a = larger_magnitude(a, x + i);
        b = larger_magnitude(b, x + i + 4);
    }
    if (i < n) a = larger_magnitude(a, x + i);
    memcpy(lane, &a, sizeof a);
    memcpy(lane + 4, &b, sizeof b);
    for (int j = 0; j < 8; j++) max = lane[j] > max ? lane[j] : max;
    return max;
}

/* Positions come in order, from one that was there or from 0, so the first of a tile clears it: memory of
 * positions that nobody fills is never touched, and a session opens without waiting for it. */
static void put_key(const tn_npu_layout *y, key_cache *k, size_t pos, const uint8_t *q, size_t d) {
    size_t tn = (size_t)y->tile_n, tk = (size_t)y->tile_k, n_k = (d + tk - 1) / tk;
    int8_t *tile = k->tiles + pos / tn * n_k * tn * tk;
    int32_t sum = 0;
    if (pos % tn == 0) {
        memset(tile, 0, n_k * tn * tk);
        memset(k->sum + pos, 0, tn * sizeof *k->sum);
    }
    tile += pos % tn * tk;
    for (size_t i = 0; i < d; tile += tn * tk) {
        for (size_t j = 0; j < tk && i < d; j++, i++) {
            int8_t v = (int8_t)(q[i] - 128);
            tile[j] = v;
            sum += v;
        }
    }
    k->sum[pos] = sum;
}

const float *tn_sparse_pooled_query(const tn_sparse_attn *s, const float *row, int32_t kv_head,
                                    int32_t i_pool, float *to) {
    size_t d = (size_t)s->h->d_head;
    int32_t h0 = i_pool * s->pool, h1 = h0 + s->pool < s->n_group ? h0 + s->pool : s->n_group;
    return tn_sparse_add_queries(row + (size_t)(kv_head * s->n_group + h0) * d, h1 - h0, d, to);
}

const float *tn_sparse_add_queries(const float *x, int32_t n, size_t d, float *to) {
    if (n == 1) return x;
    float k = 1 / sqrtf((float)n);
    for (size_t j = 0; j < d; j += 4) {
        float4 sum, v;
        memcpy(&sum, x + j, sizeof sum);
        for (int32_t h = 1; h < n; h++) {
            memcpy(&v, x + (size_t)h * d + j, sizeof v);
            sum += v;
        }
        sum *= k;
        memcpy(to + j, &sum, sizeof sum);
    }
    return to;
}

void tn_sparse_copy_rows(const tn_sparse_attn *s, int layer, int32_t kv_head, key_cache *k, int32_t end) {
    const void *panels = tn_kv_k(s->kv, layer, kv_head);
    for (int32_t pos = k->n_rows; pos < end; pos++)
        tn_kv_key_as_value(s->kv->type, (size_t)s->h->d_head, panels, (size_t)pos, k->rows);
    k->n_rows = end;
}

/* The key at a position, as it was before it was kept. `to` has room for it. */
static const float *key_at(const tn_sparse_attn *s, const key_cache *k, const float *panels, int32_t pos,
                           float *to) {
    size_t d = (size_t)s->h->d_head;
    if (k->rows && s->kv->type == TN_KV_F32) return (const float *)k->rows + (size_t)pos * d;
    if (k->rows) {
        s->kern->kv_rows(s->kv->type, d, k->rows, (size_t)pos, 1, to);
        tn_kv_query(s->kv, s->kern, d, to, 1); /* its own inverse */
        return to;
    }
    const float *x = panels + (size_t)(pos / TN_KV_PANEL) * d * TN_KV_PANEL + (size_t)(pos % TN_KV_PANEL);
    for (size_t i = 0; i < d; i++) to[i] = x[i * TN_KV_PANEL];
    return to;
}

/* The largest magnitude of n keys at the begin of a panel. */
static float panel_magnitude(const tn_sparse_attn *s, const key_cache *k, const float *panels, int32_t panel,
                             int32_t n) {
    size_t d = (size_t)s->h->d_head;
    const float *x = panels + (size_t)panel * d * TN_KV_PANEL;
    float max = 0, key[512];
    if (s->kv->type != TN_KV_F32) {
        for (int32_t i = 0; i < n; i++)
            max = tn_sparse_magnitude(key_at(s, k, panels, panel * TN_KV_PANEL + i, key), d, max);
        return max;
    }
    if (n == TN_KV_PANEL) return tn_sparse_magnitude(x, d * TN_KV_PANEL, 0);
    for (size_t i = 0; i < d; i++) max = tn_sparse_largest(x + i * TN_KV_PANEL, (size_t)n, max);
    return max;
}

int32_t tn_sparse_plan_keys(tn_sparse_attn *s, int layer, int32_t kv_head, int32_t end) {
    key_cache *k = tn_sparse_keys(s, layer, kv_head);
    size_t d = (size_t)s->h->d_head;
    const float *panels = tn_kv_k(s->kv, layer, kv_head);
    float max = 0;
    int32_t n_panels = (end + TN_KV_PANEL - 1) / TN_KV_PANEL;
    for (int32_t p = 0; p < n_panels; p++) {
        if (p >= k->n_keys / TN_KV_PANEL) {
            int32_t n = end - p * TN_KV_PANEL < TN_KV_PANEL ? end - p * TN_KV_PANEL : TN_KV_PANEL;
            k->panel_max[p] = panel_magnitude(s, k, panels, p, n);
        }
        max = k->panel_max[p] > max ? k->panel_max[p] : max;
    }
    int32_t bucket = tn_sparse_bucket(s, s->scale_k, layer, max / 127);
    int32_t from = k->n_keys;
    if (bucket != k->bucket) {
        if (k->bucket >= 0 && from) atomic_fetch_add_explicit(&s->n_requantised, 1, memory_order_relaxed);
        from = 0;
        k->bucket = bucket;
    }
    float inv = 1 / tn_sparse_scale(s, s->scale_k, layer, bucket), key[512];
    uint8_t q8[512];
    const tn_npu_layout *layout = &tn_npu_device_caps(s->m->dev)->layout;
    for (int32_t pos = from; pos < end; pos++) {
        s->kern->quantise_s8(key_at(s, k, panels, pos, key), inv, q8, d);
        put_key(layout, k, (size_t)pos, q8, d);
    }
    k->n_keys = end;
    return bucket;
}

tern_status tn_sparse_attn_plan(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                int32_t kv_head, const float *q, tern_error *err) {
    if (tn_sparse_uses_tiles(s))
        tn_sparse_copy_rows(s, layer, kv_head, tn_sparse_keys(s, layer, kv_head), r->slot[r->n_rows - 1] + 1);
    tn_sparse_baseline_plan(s, layer, kv_head, r->slot[r->n_rows - 1] + 1);
    if (!tn_sparse_uses_int8(s)) return TERN_OK;
    chunk_plan *p = &s->plans[i_chunk];
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    p->k_bucket[kv_head] = tn_sparse_plan_keys(s, layer, kv_head, r->slot[r->n_rows - 1] + 1);
    float max = 0, pooled[512];
    for (int32_t i_pool = 0; i_pool < s->n_pools; i_pool++) {
        for (int32_t i = 0; i < r->n_rows; i++) {
            const float *x = tn_sparse_pooled_query(s, q + (size_t)i * row, kv_head, i_pool, pooled);
            max = tn_sparse_magnitude(x, d, max);
        }
        if (s->o.share_rows && i_pool + 1 < s->n_pools)
            continue; /* selected together: one scale, so that their scores compare */
        p->q_bucket[kv_head * s->n_units_kv + (s->o.share_rows ? 0 : i_pool)] =
            tn_sparse_bucket(s, s->scale_q, layer, max / 127);
        max = 0;
    }
    return s->heads ? tn_sparse_heads_plan(s, r, i_chunk, layer, kv_head, q, err) : TERN_OK;
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
    if (s->heads) tn_sparse_heads_stats(s, out);
}
