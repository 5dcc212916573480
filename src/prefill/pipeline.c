#include "prefill/pipeline.h"

#include "base/clock.h"
#include "base/status.h"
#include "package/loader.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

_Static_assert((int)TN_TREE_MAX <= (int)TN_DECODE_M, "a draft tree is evaluated in the decode form");

enum {
    ROW_BLOCK = 16,    /* rows of a part of a row-wise stage */
    ATTN_BLOCK = 32,   /* rows of a part of attention */
    FEW_ROWS = 4,      /* fewer are one part: handing them out costs more than they do */
    OUTLIER_SHARE = 4, /* a row keeps at most K / 4 outliers; more are dropped and counted */
};

/* What one chunk in flight needs; slices of one arena. */
typedef struct chunk {
    tn_rows r;
    const int32_t *ids;
    int32_t *pos, *slot;
    float *x, *branch, *q, *k, *v, *att, *gate, *up, *rope_cs;
    uint8_t *xq;
    /* outliers of the site quantised last: row i has n_out[i] entries at i * out_cap */
    uint32_t *n_out, *out_channel;
    float *out_resid;
    float *shadow; /* [rows][max_shadow_n]: rows with entries only */
} chunk;

typedef struct cold_cache { /* per worker: weight rows read from the package for one part */
    int8_t *rows;           /* [out_cap][max_shadow_n] */
    const int8_t **ptrs;    /* [max_k] by input channel, as the kernel wants them */
} cold_cache;

typedef struct task_arg {
    tn_pipeline *p;
    int32_t i_chunk, layer;
    tn_stage stage;
    int32_t i_block, slot; /* of the pipeline of heads */
} task_arg;

typedef struct load_arg {
    tn_pipeline *p;
    int32_t layer0, layer1;
} load_arg;

typedef struct cold_arg { /* a step of bringing in a part of the weights */
    tn_pipeline *p;
    int32_t unit;
    tn_load_step step;
} cold_arg;

typedef struct wave { /* the task graph of n_chunks chunks */
    tn_graph *graph;
    task_arg *args;
    int64_t *task_ns;
} wave;

struct tn_pipeline {
    tn_ctx *ctx;
    const tn_npu_model *m;
    const tn_model *model;
    const tn_kernels *kern;
    tn_pool *pool;
    tn_executor *exec;
    tn_policy policy;
    tn_stage_profile *profile;
    int32_t n_rows, n_workers, out_cap;
    int32_t n_compute;  /* of the workers: those of the CPU and the NPU */
    tn_form form;       /* of the forward that runs */
    int32_t small_rows; /* of the decode form: rows a part takes, so that all threads have some */
    chunk chunks[TN_WAVE_CHUNKS];
    int32_t n_chunks_open; /* buffers exist for so many */
    int32_t n_skipped;     /* rows by which the first chunk of this forward is shorter */
    void *arenas[TN_WAVE_CHUNKS];
    tn_sparse_attn *sparse; /* NULL: full attention always */
    bool sparse_prompt;     /* chunks of the prompt, not only decoding */
    bool sparse_now;        /* the forward that runs */
    tn_attn_shape heads;    /* of its pipeline of heads; n_slots 0: attention is one task */
    tn_npu_job *jobs;       /* [TN_WAVE_CHUNKS][n_layers][TN_SITE_LM_HEAD] */
    tn_npu_job head_job;
    uint8_t *head_xq;
    float *head_rows; /* [TN_DECODE_M][n_embd] normed */
    float *scratch;   /* [n_workers][scratch_stride] attention */
    size_t scratch_stride;
    cold_cache *cold; /* [n_workers] */
    wave waves[TN_WAVE_CHUNKS + 1];
    /* Devices that keep one form of a graph: a wave with loads is built for its run. */
    tn_switcher *switcher; /* NULL: both forms are loaded */
    wave switch_wave;
    struct load_arg *load_args; /* [TN_SWITCH_MAX_BLOCKS] */
    tn_switch_plan switch_plan;
    wave cold_wave; /* a wave while weights are still in the file: built for its run */
    cold_arg *cold_args;
    bool loading;      /* this forward brings them in */
    int32_t plan_wave; /* of the plan: the next one; -1: no plan */
    atomic_uint_fast64_t n_outliers, n_dropped, hot_hits, cold_misses; /* relaxed: statistics */
    tn_pipeline_stats stats;
};

static const tn_npu_site no_site;

static const tn_npu_site *site_at(const tn_npu_model *m, int layer, tn_site s) {
    const tn_npu_site *found = tn_npu_site_at(m, layer, s);
    return found ? found : &no_site;
}

/* Site an NPU stage or its shadow computes. */
static tn_site site_of(tn_stage s) {
    switch (s) {
    case TN_ST_QKV:
    case TN_ST_QKV_SHADOW: return TN_SITE_QKV;
    case TN_ST_O:
    case TN_ST_O_SHADOW: return TN_SITE_O;
    case TN_ST_FFN:
    case TN_ST_FFN_SHADOW: return TN_SITE_FFN;
    default: return TN_SITE_DOWN;
    }
}

/* ---- quantising, and what the clip cuts off ------------------------------------------------------- */

/* x is the caller's to lose: it is rotated in place where the site's inputs are. */
static void quantise_row(tn_pipeline *p, chunk *c, const tn_npu_site *s, int32_t row, float *x) {
    uint8_t *out = c->xq + (size_t)row * (size_t)s->in_stride;
    size_t k = (size_t)s->ops.k;
    if (s->rotated) p->kern->hadamard_f32(x, k);
    if (!s->shadow) {
        p->kern->quantise_s8(x, s->inv_scale, out, k);
        return;
    }
    size_t off = (size_t)row * (size_t)p->out_cap;
    size_t n = p->kern->quantise_outliers(x, s->inv_scale, s->act_scale, out, k, 0, c->out_channel + off,
                                          c->out_resid + off, (size_t)p->out_cap);
    if (n > (size_t)p->out_cap) {
        atomic_fetch_add_explicit(&p->n_dropped, n - (size_t)p->out_cap, memory_order_relaxed);
        n = (size_t)p->out_cap;
    }
    c->n_out[row] = (uint32_t)n;
    atomic_fetch_add_explicit(&p->n_outliers, n, memory_order_relaxed);
}

/* Outputs of an op of a site in a chunk's buffers. */
static float *op_out(const chunk *c, tn_role role) {
    switch (role) {
    case TN_W_Q: return c->q;
    case TN_W_K: return c->k;
    case TN_W_V: return c->v;
    case TN_W_GATE: return c->gate;
    case TN_W_UP: return c->up;
    default: return c->branch; /* O, DOWN */
    }
}

/* Weights of one input channel to all outputs of a site: resident where the channel is hot, else copied to
 * dst. */
static tern_status weight_row(tn_pipeline *p, const tn_npu_site *s, uint32_t channel, int8_t *dst,
                              const int8_t **row, tern_error *err) {
    size_t n_total = (size_t)s->ops.n_total;
    *row = s->hot_rows[channel];
    if (*row) return TERN_OK;
    *row = dst;
    if (p->m->cold_from_file) {
        TN_TRY(tn_pkg_read_range(p->m->pkg, s->rows_section, s->rows_off_bytes + (uint64_t)channel * n_total,
                                 n_total, dst, err));
        TN_FAIL_IF(XXH32(dst, n_total, 0) != s->row_hash[channel], err, TERN_E_FORMAT,
                   "layer %d: the weights of input channel %u of %s are damaged in the package",
                   s->rows_section->layer, channel, tn_role_name(s->ops.roles[0]));
        return TERN_OK;
    }
    const tn_npu_layout *l = &tn_npu_device_caps(tn_npu_site_device(p->m, s))->layout;
    for (int32_t op = 0; op < s->ops.n_ops; dst += s->ops.n[op++]) {
        tn_npu_tiles_column(l, s->image[op].tiles, s->ops.n[op], s->ops.k, channel, dst);
    }
    return TERN_OK;
}

/* shadow[row] = sum over the row's outliers of residual x weight row x weight scale, beside the device's
 * product. */
static tern_status shadow_rows(tn_pipeline *p, chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1,
                               int i_worker, tern_error *err) {
    size_t n_total = (size_t)s->ops.n_total;
    cold_cache *cold = &p->cold[i_worker];
    for (int32_t row = row0; row < row1; row++) {
        size_t n = c->n_out[row], n_cold = 0;
        if (!n) continue;
        const uint32_t *channel = c->out_channel + (size_t)row * (size_t)p->out_cap,
                       first[2] = {0, (uint32_t)n};
        for (size_t i = 0; i < n; i++) {
            int8_t *dst = cold->rows + n_cold * (size_t)p->m->max_shadow_n;
            TN_TRY(weight_row(p, s, channel[i], dst, &cold->ptrs[channel[i]], err));
            n_cold += cold->ptrs[channel[i]] == dst;
        }
        atomic_fetch_add_explicit(&p->cold_misses, n_cold, memory_order_relaxed);
        atomic_fetch_add_explicit(&p->hot_hits, n - n_cold, memory_order_relaxed);
        float *out = c->shadow + (size_t)row * (size_t)p->m->max_shadow_n;
        memset(out, 0, n_total * sizeof *out);
        size_t n_off = 0;
        for (int32_t op = 0; op < s->ops.n_ops; op++) {
            size_t n_op = (size_t)s->ops.n[op];
            for (size_t i = 0; i < n; i++) cold->ptrs[channel[i]] += op ? s->ops.n[op - 1] : 0;
            tn_shadow_f32_args a = {.out = out + n_off,
                                    .ldo = n_op,
                                    .m = 1,
                                    .n0 = 0,
                                    .n1 = n_op,
                                    .first = first,
                                    .channel = channel,
                                    .resid = c->out_resid + (size_t)row * (size_t)p->out_cap,
                                    .w_rows = cold->ptrs,
                                    .scale = s->image[op].scale};
            p->kern->shadow_f32(&a);
            n_off += n_op;
        }
    }
    return TERN_OK;
}

static void merge_shadow(tn_pipeline *p, chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1) {
    if (!s->shadow) return;
    for (int32_t row = row0; row < row1; row++) {
        if (!c->n_out[row]) continue;
        const float *sh = c->shadow + (size_t)row * (size_t)p->m->max_shadow_n;
        for (int32_t op = 0; op < s->ops.n_ops; op++) {
            size_t n = (size_t)s->ops.n[op];
            p->kern->add_f32(op_out(c, s->ops.roles[op]) + (size_t)row * n, sh, 1.0f, n);
            sh += n;
        }
    }
}

/* ---- stages over rows row0..row1-1 ---------------------------------------------------------------- */

static void embed(tn_pipeline *p, chunk *c, int32_t row) {
    const tn_hparams *h = &p->model->h;
    float *x = c->x + (size_t)row * (size_t)h->n_embd;
    tn_npu_model_embed(p->m, h, c->ids[row], x);
    if (h->embd_scale == 1.0f) return;
    for (int32_t i = 0; i < h->n_embd; i++) x[i] *= h->embd_scale;
}

/* x += branch, after the branch's own norm where the architecture has one. */
static void residual(tn_pipeline *p, chunk *c, const float *post_norm, int32_t row) {
    size_t e = (size_t)p->model->h.n_embd;
    float *branch = c->branch + (size_t)row * e;
    if (post_norm) tn_rows_norm(&c->r, post_norm, NULL, c->branch, c->branch, row, row + 1);
    p->kern->add_f32(c->x + (size_t)row * e, branch, 1.0f, e);
}

static void norm_quantise(tn_pipeline *p, chunk *c, const float *w, const float *b, const tn_npu_site *s,
                          int32_t row) {
    tn_rows_norm(&c->r, w, b, c->x, c->branch, row, row + 1); /* the branch's rows are free again */
    quantise_row(p, c, s, row, c->branch + (size_t)row * (size_t)p->model->h.n_embd);
}

static void stage_norm(tn_pipeline *p, chunk *c, int layer, int32_t row0, int32_t row1) {
    const tn_layer *y = &p->model->layers[layer];
    bool post = p->model->h.post_norms;
    if (layer) merge_shadow(p, c, site_at(p->m, layer - 1, TN_SITE_DOWN), row0, row1);
    for (int32_t i = row0; i < row1; i++) {
        if (layer) residual(p, c, post ? p->model->layers[layer - 1].vectors[TN_W_FFN_POST_NORM] : NULL, i);
        else embed(p, c, i);
        norm_quantise(p, c, y->vectors[TN_W_ATTN_NORM], y->vectors[TN_W_ATTN_NORM_B],
                      site_at(p->m, layer, TN_SITE_QKV), i);
    }
}

static void stage_rope(tn_pipeline *p, chunk *c, int layer, int32_t row0, int32_t row1) {
    merge_shadow(p, c, site_at(p->m, layer, TN_SITE_QKV), row0, row1);
    tn_rows_rope_store(&c->r, layer, p->model->layers[layer].vectors[TN_W_Q_NORM],
                       p->model->layers[layer].vectors[TN_W_K_NORM], p->model->h.n_rot, c->q, c->k, c->v,
                       row0, row1);
}

/* Does this chunk attend sparsely? Decided by where it ends: the same in every schedule. */
static bool sparse_chunk(const tn_pipeline *p, const chunk *c) {
    return p->sparse_now && tn_sparse_attn_wanted(p->sparse, c->pos[c->r.n_rows - 1] + 1);
}

static tern_status stage_attn(tn_pipeline *p, int32_t i_chunk, int layer, int32_t row0, int32_t row1,
                              int i_worker, tern_error *err) {
    const tn_hparams *h = &p->model->h;
    chunk *c = &p->chunks[i_chunk];
    float *scratch = p->scratch + (size_t)i_worker * p->scratch_stride;
    bool sparse = sparse_chunk(p, c);
    if (sparse && !p->heads.n_slots)
        TN_TRY(
            tn_sparse_attn_rows(p->sparse, &c->r, i_chunk, layer, c->q, c->att, row0, row1, i_worker, err));
    for (int head = 0; !sparse && head < h->n_heads; head++)
        tn_rows_attention(&c->r, layer, head, c->q, c->att, row0, row1, scratch);
    size_t qd = (size_t)h->n_heads * (size_t)h->d_head;
    for (int32_t i = row0; i < row1; i++)
        quantise_row(p, c, site_at(p->m, layer, TN_SITE_O), i, c->att + (size_t)i * qd);
    return TERN_OK;
}

static void stage_norm2(tn_pipeline *p, chunk *c, int layer, int32_t row0, int32_t row1) {
    const tn_layer *y = &p->model->layers[layer];
    const tn_npu_site *ffn = site_at(p->m, layer, TN_SITE_FFN);
    merge_shadow(p, c, site_at(p->m, layer, TN_SITE_O), row0, row1);
    for (int32_t i = row0; i < row1; i++) {
        residual(p, c, p->model->h.post_norms ? y->vectors[TN_W_ATTN_POST_NORM] : NULL, i);
        if (ffn->ops.n_ops)
            norm_quantise(p, c, y->vectors[TN_W_FFN_NORM], y->vectors[TN_W_FFN_NORM_B], ffn, i);
    }
}

static void stage_glu(tn_pipeline *p, chunk *c, int layer, int32_t row0, int32_t row1) {
    const tn_hparams *h = &p->model->h;
    const tn_npu_site *ffn = site_at(p->m, layer, TN_SITE_FFN);
    size_t f = (size_t)h->n_ff;
    if (ffn->ops.n_ops) merge_shadow(p, c, ffn, row0, row1);
    for (int32_t i = row0; i < row1; i++) {
        float *up = c->up + (size_t)i * f;
        if (h->gated) p->kern->glu_f32(h->act, c->gate + (size_t)i * f, up, up, f);
        else p->kern->act_f32(h->act, up, f);
        quantise_row(p, c, site_at(p->m, layer, TN_SITE_DOWN), i, up);
    }
}

static void stage_final(tn_pipeline *p, chunk *c, int32_t row0, int32_t row1) {
    int last = p->m->n_layers - 1;
    merge_shadow(p, c, site_at(p->m, last, TN_SITE_DOWN), row0, row1);
    for (int32_t i = row0; i < row1; i++)
        residual(p, c, p->model->h.post_norms ? p->model->layers[last].vectors[TN_W_FFN_POST_NORM] : NULL, i);
}

/* ---- a stage as a task with parts ----------------------------------------------------------------- */

static tn_npu_job *job_of(const tn_pipeline *p, int32_t i_chunk, int layer, tn_site site) {
    return &p->jobs[((size_t)i_chunk * (size_t)p->m->n_layers + (size_t)layer) * TN_SITE_LM_HEAD +
                    (size_t)site];
}

/* Products of sites beyond the device's memory are the CPU lane's. */
static tn_lane lane_of(const tn_pipeline *p, tn_stage s, int layer) {
    return tn_stage_is_product(s) && site_at(p->m, layer, site_of(s))->on_cpu ? TN_LANE_CPU
                                                                              : tn_stage_lane(s);
}

static bool has_parts(const tn_pipeline *p, const tn_npu_site *s) {
    return tn_npu_device_caps(tn_npu_site_device(p->m, s))->has_parts;
}

static bool has_stage(const tn_pipeline *p, tn_stage st, int32_t layer) {
    if (st == TN_ST_PLAN) return p->sparse_prompt && p->form == TN_FORM_CHUNK;
    const tn_npu_site *s = site_at(p->m, layer, site_of(st));
    return s->ops.n_ops && (tn_stage_is_product(st) || s->shadow);
}

/* Rows of a part of a row-wise stage. */
static int32_t row_block(const tn_pipeline *p, tn_stage st) {
    if (p->form == TN_FORM_DECODE) return p->small_rows;
    return st == TN_ST_ATTN ? ATTN_BLOCK : ROW_BLOCK;
}

static int32_t n_parts_of(const tn_pipeline *p, tn_stage st, int32_t n_rows, int layer) {
    if (st == TN_ST_PLAN) return p->model->h.n_kv_heads;
    if (tn_stage_is_head(st)) return tn_sparse_attn_parts(p->sparse, st);
    if (tn_stage_is_product(st)) {
        const tn_npu_site *s = site_at(p->m, layer, site_of(st));
        if (!has_parts(p, s)) return 1;
        int32_t tiles = (s->ops.n_total + 15) / 16, n = p->n_compute * 2;
        return tiles < n ? tiles : n;
    }
    int32_t block = row_block(p, st);
    return (n_rows + block - 1) / block;
}

/* A product in the form its layer has now: a chunk on the decode graph is several sub-chunks. Their rows are
 * the same, because a row's result depends neither on the others nor on M. */
static tern_status run_switched(tn_pipeline *p, int32_t i_chunk, int layer, tn_stage st, int32_t part,
                                int32_t n_parts, tern_error *err) {
    const tn_npu_site *s = site_at(p->m, layer, site_of(st));
    const tn_npu_job *whole = job_of(p, i_chunk, layer, site_of(st));
    tn_form form = s->on_cpu ? p->form : tn_switcher_form(p->switcher, layer);
    TN_FAIL_IF(form == TN_N_FORMS, err, TERN_E_DEVICE,
               "layer %d has no graph on the device: loading it failed", layer);
    int32_t m = form == TN_FORM_CHUNK ? p->n_rows : TN_DECODE_M;
    for (int32_t row = 0; row < whole->n_rows; row += m) {
        tn_npu_job job = {.graph = s->graphs[form],
                          .n_rows = whole->n_rows - row < m ? whole->n_rows - row : m,
                          .in = {whole->in[0] + (size_t)row * (size_t)s->in_stride}};
        for (int32_t op = 0; op < s->ops.n_ops; op++)
            job.out[op] = (float *)whole->out[op] + (size_t)row * (size_t)s->ops.n[op];
        if (has_parts(p, s)) {
            TN_TRY(tn_npu_run_part(&job, part, n_parts, err));
            continue;
        }
        TN_TRY(tn_npu_submit(&job, err));
        tern_status rc = tn_npu_wait(&job);
        TN_FAIL_IF(rc != TERN_OK, err, rc, "the device failed in %s of layer %d", tn_stage_name(st), layer);
    }
    return TERN_OK;
}

static tern_status run_part(tn_pipeline *p, int32_t i_chunk, int layer, tn_stage st, int32_t part,
                            int32_t n_parts, int i_worker, tern_error *err) {
    chunk *c = &p->chunks[i_chunk];
    if (tn_stage_is_product(st) && p->switcher)
        return run_switched(p, i_chunk, layer, st, part, n_parts, err);
    if (tn_stage_is_product(st)) {
        tn_npu_job *job = job_of(p, i_chunk, layer, site_of(st));
        if (has_parts(p, site_at(p->m, layer, site_of(st)))) return tn_npu_run_part(job, part, n_parts, err);
        TN_TRY(tn_npu_submit(job, err));
        tern_status rc = tn_npu_wait(job);
        TN_FAIL_IF(rc != TERN_OK, err, rc, "the device failed in %s of layer %d", tn_stage_name(st), layer);
        return TERN_OK;
    }
    if (st == TN_ST_PLAN) {
        return sparse_chunk(p, c) ? tn_sparse_attn_plan(p->sparse, &c->r, i_chunk, layer, part, c->q, err)
                                  : TERN_OK;
    }
    int32_t block = row_block(p, st), row0 = part * block, row1 = row0 + block;
    if (row1 > c->r.n_rows) row1 = c->r.n_rows;
    if (row0 >= row1) return TERN_OK; /* the last chunk of a prompt may be short */
    switch (st) {
    case TN_ST_NORM: stage_norm(p, c, layer, row0, row1); break;
    case TN_ST_ROPE: stage_rope(p, c, layer, row0, row1); break;
    case TN_ST_ATTN: return stage_attn(p, i_chunk, layer, row0, row1, i_worker, err);
    case TN_ST_NORM2: stage_norm2(p, c, layer, row0, row1); break;
    case TN_ST_GLU: stage_glu(p, c, layer, row0, row1); break;
    case TN_ST_FINAL: stage_final(p, c, row0, row1); break;
    default: return shadow_rows(p, c, site_at(p->m, layer, site_of(st)), row0, row1, i_worker, err);
    }
    return TERN_OK;
}

static tern_status run_task(void *arg, int part, const tn_worker *w, tern_error *err) {
    const task_arg *a = arg;
    tn_switcher *sw = a->p->switcher;
    if (sw) tn_switcher_compute(sw, true);
    const chunk *c = &a->p->chunks[a->i_chunk];
    tern_status st = TERN_OK;
    if (!tn_stage_is_head(a->stage))
        st = run_part(a->p, a->i_chunk, a->layer, a->stage, part,
                      n_parts_of(a->p, a->stage, a->p->n_rows, a->layer), w->i_worker, err);
    else if (sparse_chunk(a->p, c))
        st = tn_sparse_attn_slot(a->p->sparse, &c->r, a->i_chunk, a->layer, a->stage, a->i_block, a->slot,
                                 part, c->q, c->att, w->i_worker, err);
    if (sw) tn_switcher_compute(sw, false);
    return st;
}

static tern_status run_load(void *arg, int part, const tn_worker *w, tern_error *err) {
    (void)part;
    (void)w;
    const load_arg *a = arg;
    return tn_switcher_load(a->p->switcher, a->layer0, a->layer1, TN_FORM_DECODE, err);
}

/* ---- waves ---------------------------------------------------------------------------------------- */

/* Before anything is measured: multiply-adds at a round rate, so that the order of magnitude is right. */
static double guess_us(const tn_pipeline *p, tn_stage st, int layer) {
    double rows = p->n_rows;
    if (tn_stage_is_head(st)) rows /= p->heads.n_slots * p->heads.n_blocks;
    if (tn_stage_is_product(st)) {
        const tn_site_ops *o = &site_at(p->m, layer, site_of(st))->ops;
        return rows * (double)o->k * (double)o->n_total / 4e5;
    }
    return rows * (double)p->model->h.n_embd / 1e3;
}

/* Attention of a layer at position 0, as measured. */
static double attention_us(const tn_pipeline *p) {
    double us = p->profile->us[TN_ST_ESTIMATE] + p->profile->us[TN_ST_SELECT] + p->profile->us[TN_ST_ATTEND];
    return p->profile->us[TN_ST_ATTN] + us * p->heads.n_slots * p->heads.n_blocks;
}

static void set_estimates(const tn_pipeline *p, wave *w, int32_t n_tasks) {
    for (int32_t i = 0; i < n_tasks; i++) {
        const task_arg *a = &w->args[i];
        double us = guess_us(p, a->stage, a->layer);
        if (p->profile->measured) {
            us = p->profile->us[a->stage];
            /* what grows is the one task, or the tasks of the heads in proportion */
            double grows = p->profile->attn_us_per_pos * a->i_chunk * p->n_rows, first = attention_us(p);
            if (p->heads.n_slots) us *= tn_stage_is_head(a->stage) && first > 0 ? 1 + grows / first : 1;
            else if (a->stage == TN_ST_ATTN) us += grows;
        }
        for (int lane = TN_LANE_CPU; lane <= TN_LANE_NPU; lane++)
            tn_graph_set_est(w->graph, i, (tn_lane)lane, us);
    }
}

typedef struct wave_filler {
    tn_pipeline *p;
    wave *w;
    int32_t n; /* tasks filled */
} wave_filler;

static bool filler_has(void *user, tn_stage stage, int32_t layer) {
    return has_stage(((wave_filler *)user)->p, stage, layer);
}

static void filler_fill(void *user, tn_stage stage, tn_task *t) {
    wave_filler *f = user;
    task_arg *a = &f->w->args[f->n++];
    *a = (task_arg){.p = f->p, .i_chunk = t->chunk, .layer = t->layer, .stage = stage};
    t->fn = run_task;
    t->arg = a;
    t->n_parts = n_parts_of(f->p, stage, f->p->n_rows, t->layer);
    t->lane = lane_of(f->p, stage, t->layer);
}

static void filler_fill_head(void *user, tn_stage stage, int32_t i_block, int32_t slot, tn_task *t) {
    wave_filler *f = user;
    filler_fill(user, stage, t);
    f->w->args[f->n - 1].i_block = i_block;
    f->w->args[f->n - 1].slot = slot;
}

static tn_prefill_spec wave_spec(wave_filler *f, int32_t n_chunks) {
    const tn_attn_shape *h = &f->p->heads;
    return (tn_prefill_spec){.n_chunks = n_chunks,
                             .n_layers = f->p->m->n_layers,
                             .user = f,
                             .has = filler_has,
                             .fill = filler_fill,
                             .n_head_slots = h->n_slots,
                             .n_head_blocks = h->n_blocks,
                             .no_head_overlap = h->no_overlap,
                             .fill_head = filler_fill_head};
}

static size_t most_tasks(const tn_pipeline *p, int32_t n_chunks) {
    return (size_t)n_chunks * (size_t)p->m->n_layers *
           (size_t)(TN_N_STAGES + 3 * p->heads.n_slots * p->heads.n_blocks);
}

static tern_status build_wave(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->waves[n_chunks];
    if (w->graph) return TERN_OK;
    size_t max_tasks = most_tasks(p, n_chunks);
    TN_TRY(tn_graph_open(p->ctx, &w->graph, err));
    w->args = tn_alloc(p->ctx, TN_MEM_GRAPHS, max_tasks, sizeof *w->args);
    w->task_ns = tn_alloc(p->ctx, TN_MEM_GRAPHS, max_tasks, sizeof *w->task_ns);
    TN_FAIL_IF(!w->args || !w->task_ns, err, TERN_E_MEMORY, "no memory for a task graph");
    wave_filler f = {.p = p, .w = w};
    const tn_prefill_spec spec = wave_spec(&f, n_chunks);
    TN_TRY(tn_prefill_graph_build(&spec, w->graph, err));
    set_estimates(p, w, f.n);
    return TERN_OK;
}

/* Does the plan begin the load of block b in the next wave? */
static bool loads_now(const tn_pipeline *p, int32_t b) {
    const tn_switch_plan *plan = &p->switch_plan;
    return p->plan_wave >= 0 && p->plan_wave < plan->n_chunks &&
           plan->start[b] / plan->n_blocks == p->plan_wave;
}

/* The loads that the plan begins in this wave, as tasks beside its chunks: either before the first product of
 * a block's layers, or after the last; each kind in the plan's order (one that can begin never waits for one
 * of the other kind that cannot). */
static void add_loads(void *user, tn_graph *g) {
    wave_filler *f = user;
    tn_pipeline *p = f->p;
    const tn_switch_plan *plan = &p->switch_plan;
    int32_t before[2] = {-1, -1};
    for (int32_t i = 0; i < plan->n_blocks; i++) {
        int32_t b = plan->order[i];
        if (!loads_now(p, b)) continue;
        bool first = tn_switch_chunk(plan, b) == p->plan_wave;
        load_arg *a = &p->load_args[b];
        *a = (load_arg){.p = p,
                        .layer0 = tn_switch_layer(plan, p->m->n_layers, b),
                        .layer1 = tn_switch_layer(plan, p->m->n_layers, b + 1)};
        tn_task t = {.fn = run_load,
                     .arg = a,
                     .name = "switch graphs",
                     .chunk = 0,
                     .layer = a->layer0,
                     .subgraph = TN_N_STAGES,
                     .n_parts = 1,
                     .lane = TN_LANE_IO};
        int32_t id = tn_graph_add(g, &t);
        for (int32_t task = 0; task < f->n; task++) {
            const task_arg *c = &f->w->args[task];
            if (c->layer < a->layer0 || c->layer >= a->layer1 || !tn_stage_is_product(c->stage)) continue;
            if (first) tn_graph_depend(g, id, task);
            else tn_graph_depend(g, task, id);
        }
        if (before[first] >= 0) tn_graph_depend(g, before[first], id);
        before[first] = id;
    }
}

static bool has_loads(const tn_pipeline *p) {
    bool any = false;
    for (int32_t b = 0; b < p->switch_plan.n_blocks; b++) any = any || loads_now(p, b);
    return any;
}

static tern_status build_switch_wave(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->switch_wave;
    tn_graph_clear(w->graph);
    wave_filler f = {.p = p, .w = w};
    tn_prefill_spec spec = wave_spec(&f, n_chunks);
    spec.finish = add_loads;
    TN_TRY(tn_prefill_graph_build(&spec, w->graph, err));
    set_estimates(p, w, f.n);
    return TERN_OK;
}

/* ---- cold start (EdgeFlow 4.3): the weights come in while the first wave runs -------------------------- */

static tern_status run_cold(void *arg, int part, const tn_worker *w, tern_error *err) {
    (void)w;
    const cold_arg *a = arg;
    tn_loader *l = a->p->m->loader;
    switch (a->step) {
    case TN_LD_READ: return tn_loader_read(l, a->unit, err);
    case TN_LD_UNPACK: return tn_loader_unpack(l, a->unit, part, err);
    default: return tn_loader_load(l, a->unit, err);
    }
}

/* Rough times of one worker: 3 GB/s from the disk, 4 weights a nanosecond unpacked. */
static void filler_fill_load(void *user, int32_t unit, tn_load_step step, tn_task *t) {
    wave_filler *f = user;
    cold_arg *a = &f->p->cold_args[unit * TN_N_LOAD_STEPS + (int32_t)step];
    *a = (cold_arg){.p = f->p, .unit = unit, .step = step};
    t->fn = run_cold;
    t->arg = a;
    double us = 50;
    if (step == TN_LD_UNPACK) t->n_parts = tn_loader_n_parts(f->p->m->loader, unit);
    if (step == TN_LD_READ) us = (double)tn_loader_unit_bytes(f->p->m->loader, unit) / 3e3;
    if (step == TN_LD_UNPACK && t->n_parts > 1)
        us = (double)tn_loader_unit_bytes(f->p->m->loader, unit) / 2.5e3;
    for (int l = 0; l < TN_N_LANES; l++) t->est_us[l] = (float)us;
}

static tern_status build_cold_wave(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->cold_wave;
    const tn_loader *l = p->m->loader;
    if (!w->graph) {
        size_t max_tasks = most_tasks(p, p->n_chunks_open);
        TN_TRY(tn_graph_open(p->ctx, &w->graph, err));
        w->args = tn_alloc(p->ctx, TN_MEM_GRAPHS, max_tasks, sizeof *w->args);
        p->cold_args = tn_alloc(p->ctx, TN_MEM_GRAPHS, (size_t)tn_loader_n_units(l) * TN_N_LOAD_STEPS,
                                sizeof *p->cold_args);
        TN_FAIL_IF(!w->args || !p->cold_args, err, TERN_E_MEMORY, "no memory for a task graph");
    }
    tn_graph_clear(w->graph);
    wave_filler f = {.p = p, .w = w};
    tn_prefill_spec spec = wave_spec(&f, n_chunks);
    spec.n_units = tn_loader_n_units(l);
    spec.units = tn_loader_units(l);
    spec.fill_load = filler_fill_load;
    TN_TRY(tn_prefill_graph_build(&spec, w->graph, err));
    set_estimates(p, w, f.n);
    return TERN_OK;
}

/* All that a wave needed the graph for is in memory: its own goes. */
static void drop_cold_wave(tn_pipeline *p) {
    tn_graph_close(&p->cold_wave.graph);
    tn_free(p->ctx, p->cold_wave.args);
    tn_free(p->ctx, p->cold_args);
    p->cold_wave.args = NULL;
    p->cold_args = NULL;
}

/* ---- buffers -------------------------------------------------------------------------------------- */

static tern_status open_chunk(tn_pipeline *p, int32_t i, const tn_kv *kv, tern_error *err) {
    const tn_hparams *h = &p->model->h;
    chunk *c = &p->chunks[i];
    size_t rows = (size_t)p->n_rows, e = (size_t)h->n_embd, f = (size_t)h->n_ff,
           qd = (size_t)h->n_heads * (size_t)h->d_head, kd = (size_t)h->n_kv_heads * (size_t)h->d_head,
           cap = p->m->any_shadow ? (size_t)p->out_cap : 0,
           sh = p->m->any_shadow ? (size_t)p->m->max_shadow_n : 0;
    struct {
        void **slice;
        size_t n_bytes;
    } plan[] = {
        {(void **)&c->pos, rows * sizeof(int32_t)},
        {(void **)&c->slot, rows * sizeof(int32_t)},
        {(void **)&c->x, rows * e * 4},
        {(void **)&c->branch, rows * e * 4},
        {(void **)&c->q, rows * qd * 4},
        {(void **)&c->k, rows * kd * 4},
        {(void **)&c->v, rows * kd * 4},
        {(void **)&c->att, rows * qd * 4},
        {(void **)&c->gate, h->gated ? rows * f * 4 : 0},
        {(void **)&c->up, rows * f * 4},
        {(void **)&c->rope_cs, rows * (size_t)h->n_rot * 4},
        {(void **)&c->xq, rows * (size_t)p->m->max_stride},
        {(void **)&c->n_out, rows * 4},
        {(void **)&c->out_channel, rows * cap * 4},
        {(void **)&c->out_resid, rows * cap * 4},
        {(void **)&c->shadow, rows * sh * 4},
    };
    size_t n_slices = sizeof plan / sizeof plan[0], total = 0;
    for (size_t s = 0; s < n_slices; s++) total += (plan[s].n_bytes + 63) / 64 * 64;
    char *base = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, total, 1);
    TN_FAIL_IF(!base, err, TERN_E_MEMORY, "no memory for the activations of a chunk (%zu bytes)", total);
    p->arenas[i] = base;
    p->stats.activation_bytes += total;
    for (size_t s = 0; s < n_slices; s++) {
        *plan[s].slice = base;
        base += (plan[s].n_bytes + 63) / 64 * 64;
    }
    memset(c->n_out, 0, rows * 4);
    c->r = (tn_rows){.h = h,
                     .kern = p->kern,
                     .kv = kv,
                     .pos = c->pos,
                     .slot = c->slot,
                     .tree_base = -1,
                     .rope_cs = c->rope_cs};
    for (int layer = 0; layer < p->m->n_layers; layer++) {
        for (int s = 0; s < TN_SITE_LM_HEAD; s++) {
            const tn_npu_site *site = site_at(p->m, layer, (tn_site)s);
            tn_npu_job *job = job_of(p, i, layer, (tn_site)s);
            *job = (tn_npu_job){.in = {c->xq}};
            for (int32_t op = 0; op < site->ops.n_ops; op++) job->out[op] = op_out(c, site->ops.roles[op]);
        }
    }
    return TERN_OK;
}

tern_status tn_pipeline_open(tn_ctx *ctx, const tn_npu_model *m, const tn_model *model,
                             const tn_kernels *kern, const tn_kv *kv, tn_pool *pool, tn_executor *exec,
                             tn_policy policy, const tn_attn_options *attention, tn_stage_profile *profile,
                             tn_pipeline **out, tern_error *err) {
    *out = NULL;
    tn_pipeline *p = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for a pipeline");
    p->ctx = ctx;
    p->m = m;
    p->model = model;
    p->kern = kern;
    p->pool = pool;
    p->exec = exec;
    p->policy = policy;
    p->profile = profile;
    p->n_rows = m->chunk;
    p->switcher = m->switcher;
    p->plan_wave = -1;
    p->out_cap = (m->max_k + OUTLIER_SHARE - 1) / OUTLIER_SHARE;
    p->n_compute = tn_executor_lane_workers(exec, TN_LANE_CPU) + tn_executor_lane_workers(exec, TN_LANE_NPU);
    p->n_workers =
        tn_executor_n_workers(exec) > tn_pool_size(pool) ? tn_executor_n_workers(exec) : tn_pool_size(pool);
    p->scratch_stride = (tn_rows_scratch(&model->h, kv->cap_tok) + 15) / 16 * 16;
    size_t e = (size_t)model->h.n_embd, n_workers = (size_t)p->n_workers;
    tern_status st = TERN_OK;
    p->jobs = tn_calloc(ctx, TN_MEM_GRAPHS, (size_t)TN_WAVE_CHUNKS * (size_t)m->n_layers * TN_SITE_LM_HEAD,
                        sizeof *p->jobs);
    p->head_xq = tn_calloc(ctx, TN_MEM_ACTIVATIONS,
                           (size_t)TN_DECODE_M * (size_t)site_at(m, 0, TN_SITE_LM_HEAD)->in_stride, 1);
    p->head_rows = tn_alloc(ctx, TN_MEM_ACTIVATIONS, TN_DECODE_M * e, sizeof(float));
    p->scratch = tn_alloc(ctx, TN_MEM_ACTIVATIONS, n_workers * p->scratch_stride, sizeof(float));
    p->cold = tn_calloc(ctx, TN_MEM_ACTIVATIONS, n_workers, sizeof *p->cold);
    TN_BAIL_IF(!p->jobs || !p->head_xq || !p->head_rows || !p->scratch || !p->cold, err, TERN_E_MEMORY,
               "no memory for a pipeline");
    for (size_t w = 0; m->any_shadow && w < n_workers; w++) {
        p->cold[w].rows = tn_alloc(ctx, TN_MEM_ACTIVATIONS, (size_t)p->out_cap, (size_t)m->max_shadow_n);
        p->cold[w].ptrs = tn_calloc(ctx, TN_MEM_ACTIVATIONS, (size_t)m->max_k, sizeof *p->cold[w].ptrs);
        TN_BAIL_IF(!p->cold[w].rows || !p->cold[w].ptrs, err, TERN_E_MEMORY, "no memory for outlier rows");
    }
    p->form = TN_FORM_CHUNK; /* of the waves built now */
    int32_t most = (kv->cap_tok + p->n_rows - 1) / p->n_rows,
            n_most =
                most < TN_WAVE_CHUNKS ? most : TN_WAVE_CHUNKS; /* never more chunks than the context has */
    p->sparse_prompt = attention->mode != TN_ATTN_FULL &&
                       (!attention->automatic || tn_sparse_attn_pays(m, attention, kv->cap_tok));
    if (p->sparse_prompt || attention->decode) {
        tn_attn_options o = *attention;
        if (!p->sparse_prompt) o.pipeline = TN_ATTN_PIPELINE_OFF; /* decoding has none */
        st = tn_sparse_attn_open(ctx, m, &model->h, kern, kv, &o, p->n_workers, n_most, p->n_rows, &p->sparse,
                                 err);
        if (attention->automatic && !attention->decode && (st == TERN_E_LIMIT || st == TERN_E_UNSUPPORTED))
            p->sparse_prompt = false; /* the device cannot */
        else if (st != TERN_OK) goto out;
    }
    if (p->sparse) p->heads = tn_sparse_attn_shape(p->sparse);
    for (int32_t i = 0; i < n_most; i++) {
        if ((st = open_chunk(p, i, kv, err)) != TERN_OK) goto out;
        p->n_chunks_open++;
        if ((st = build_wave(p, i + 1, err)) != TERN_OK) goto out;
    }
    if (p->switcher) {
        size_t max_tasks = most_tasks(p, p->n_chunks_open) + TN_SWITCH_MAX_BLOCKS;
        if ((st = tn_graph_open(ctx, &p->switch_wave.graph, err)) != TERN_OK) goto out;
        p->switch_wave.args = tn_alloc(ctx, TN_MEM_GRAPHS, max_tasks, sizeof *p->switch_wave.args);
        p->switch_wave.task_ns = tn_alloc(ctx, TN_MEM_GRAPHS, max_tasks, sizeof *p->switch_wave.task_ns);
        p->load_args = tn_alloc(ctx, TN_MEM_GRAPHS, TN_SWITCH_MAX_BLOCKS, sizeof *p->load_args);
        TN_BAIL_IF(!p->switch_wave.args || !p->switch_wave.task_ns || !p->load_args, err, TERN_E_MEMORY,
                   "no memory for graph switching");
    }
    *out = p;
    return TERN_OK;
out:
    tn_pipeline_close(&p);
    return st;
}

void tn_pipeline_close(tn_pipeline **pp) {
    tn_pipeline *p = *pp;
    if (!p) return;
    *pp = NULL;
    for (int i = 0; i <= TN_WAVE_CHUNKS; i++) {
        tn_graph_close(&p->waves[i].graph);
        tn_free(p->ctx, p->waves[i].args);
        tn_free(p->ctx, p->waves[i].task_ns);
    }
    drop_cold_wave(p);
    tn_sparse_attn_close(&p->sparse);
    tn_graph_close(&p->switch_wave.graph);
    tn_free(p->ctx, p->switch_wave.args);
    tn_free(p->ctx, p->switch_wave.task_ns);
    tn_free(p->ctx, p->load_args);
    for (int i = 0; i < TN_WAVE_CHUNKS; i++) tn_free(p->ctx, p->arenas[i]);
    for (int i = 0; p->cold && i < p->n_workers; i++) {
        tn_free(p->ctx, p->cold[i].rows);
        tn_free(p->ctx, p->cold[i].ptrs);
    }
    tn_free(p->ctx, p->cold);
    tn_free(p->ctx, p->scratch);
    tn_free(p->ctx, p->head_xq);
    tn_free(p->ctx, p->head_rows);
    tn_free(p->ctx, p->jobs);
    tn_free(p->ctx, p);
}

/* ---- forward -------------------------------------------------------------------------------------- */

static void begin_chunk(tn_pipeline *p, int32_t i, const int32_t *ids, int32_t n, int32_t pos0,
                        const tn_tree *tree, bool rope_long) {
    chunk *c = &p->chunks[i];
    c->ids = ids;
    c->r.n_rows = n;
    for (int32_t r = 0; r < n; r++) {
        c->pos[r] = pos0 + (tree ? tree->depth[r] : r);
        c->slot[r] = pos0 + r;
    }
    c->r.tree_base = tree ? pos0 : -1;
    c->r.tree_mask = tree ? tree->mask : NULL;
    c->r.n_tree_words = tree ? 1 : 0;
    tn_rows_rope_table(&c->r, rope_long);
    for (int layer = 0; layer < p->m->n_layers; layer++) {
        for (int s = 0; s < TN_SITE_LM_HEAD; s++) {
            tn_npu_job *job = job_of(p, i, layer, (tn_site)s);
            const tn_npu_site *site = site_at(p->m, layer, (tn_site)s);
            bool own = i && p->form == TN_FORM_CHUNK && site->chunk_graphs[i - 1];
            job->graph = own ? site->chunk_graphs[i - 1] : site->graphs[p->form];
            job->n_rows = n;
        }
    }
}

typedef struct small_stage {
    tn_pipeline *p;
    int layer;
    tn_stage stage;
    int32_t n_parts, rows_per_part, round;
    tern_status status[64];
    tern_error errors[64];
} small_stage;

/* Attention of few rows: by KV head, then the rows are quantised. */
static void small_attention(void *arg, int i_item, int i_thread) {
    small_stage *s = arg;
    chunk *c = &s->p->chunks[0];
    tn_rows_attention_group(&c->r, s->layer, i_item, c->q, c->att, 0, c->r.n_rows,
                            s->p->scratch + (size_t)i_thread * s->p->scratch_stride);
}

/* The same where rows attend sparsely: by KV head and row. */
static void small_plan(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    small_stage *s = arg;
    tn_sparse_decode_plan(s->p->sparse, &s->p->chunks[0].r, s->layer, i_item, s->round);
}

static void small_sparse(void *arg, int i_item, int i_thread) {
    small_stage *s = arg;
    tn_pipeline *p = s->p;
    chunk *c = &p->chunks[0];
    int32_t n = c->r.n_rows, kv_head = i_item / n, row = i_item % n;
    if (n == 1) small_plan(s, kv_head, i_thread);
    tern_status st = tn_sparse_decode_row(p->sparse, &c->r, s->layer, kv_head, row, s->round, c->q, c->att,
                                          p->scratch + (size_t)i_thread * p->scratch_stride, i_thread,
                                          &s->errors[i_thread % 64]);
    if (st != TERN_OK) s->status[i_thread % 64] = st;
}

static void attend_small(tn_pipeline *p, small_stage *s, int32_t n) {
    int32_t n_rounds = p->sparse ? tn_sparse_decode_rounds(p->sparse, &p->chunks[0].r, s->layer) : 0,
            n_kv = p->model->h.n_kv_heads;
    if (!n_rounds) tn_pool_for(p->pool, n_kv, small_attention, s);
    for (s->round = 0; s->round < n_rounds; s->round++) {
        if (n > 1) tn_pool_for(p->pool, n_kv, small_plan, s);
        tn_pool_for(p->pool, n_kv * n, small_sparse, s);
    }
}

static void small_quantise(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    small_stage *s = arg;
    chunk *c = &s->p->chunks[0];
    size_t qd = (size_t)s->p->model->h.n_heads * (size_t)s->p->model->h.d_head;
    int32_t row0 = i_item * s->rows_per_part,
            row1 = row0 + s->rows_per_part < c->r.n_rows ? row0 + s->rows_per_part : c->r.n_rows;
    for (int32_t i = row0; i < row1; i++)
        quantise_row(s->p, c, site_at(s->p->m, s->layer, TN_SITE_O), i, c->att + (size_t)i * qd);
}

static void small_item(void *arg, int i_item, int i_thread) {
    small_stage *s = arg;
    tern_status st =
        run_part(s->p, 0, s->layer, s->stage, i_item, s->n_parts, i_thread, &s->errors[i_thread % 64]);
    if (st != TERN_OK) s->status[i_thread % 64] = st;
}

/* Few rows: stage by stage over the pool, no scheduling. */
static tern_status forward_small(tn_pipeline *p, int32_t n, const atomic_bool *cancel, tn_timeline *timeline,
                                 tern_error *err) {
    int32_t n_threads = tn_pool_size(p->pool);
    p->small_rows = n < FEW_ROWS ? n : (n + n_threads - 1) / n_threads;
    small_stage s = {.p = p, .rows_per_part = p->small_rows};
    wave_filler f = {.p = p};
    const tn_prefill_spec spec = {.n_layers = p->m->n_layers, .user = &f, .has = filler_has};
    for (int layer = 0; layer < p->m->n_layers; layer++) {
        TN_FAIL_IF(cancel && atomic_load_explicit(cancel, memory_order_relaxed), err, TERN_E_CANCELLED,
                   "cancelled in layer %d", layer);
        if (p->loading)
            TN_TRY(tn_loader_finish(p->m->loader, p->pool, layer,
                                    err)); /* later layers are being read meanwhile */
        for (int st = 0; st < TN_N_STAGES; st++) {
            if (!tn_prefill_has(&spec, (tn_stage)st, layer)) continue;
            s.layer = layer;
            s.stage = (tn_stage)st;
            s.n_parts = n_parts_of(p, s.stage, n, layer);
            int64_t start_ns = timeline ? tn_now_ns() : 0;
            if (st == TN_ST_ATTN) {
                attend_small(p, &s, n);
                tn_pool_for(p->pool, s.n_parts, small_quantise, &s);
            } else {
                tn_pool_for(p->pool, s.n_parts, small_item, &s);
            }
            if (timeline) { /* on the session's own track: the pool's threads are no lanes */
                tn_event e = {.start_ns = start_ns,
                              .end_ns = tn_now_ns(),
                              .name = tn_stage_name(s.stage),
                              .run = -1,
                              .task = -1,
                              .chunk = -1,
                              .layer = layer,
                              .n_parts = s.n_parts,
                              .lane = tn_stage_lane(s.stage)};
                tn_timeline_add(timeline, tn_timeline_n_workers(timeline), &e);
            }
            for (int t = 0; t < 64; t++) {
                if (s.status[t] == TERN_OK) continue;
                if (err) *err = s.errors[t];
                return s.status[t];
            }
        }
    }
    return TERN_OK;
}

/* Time of attention of a layer, all its tasks, in chunk i_chunk of a wave. */
static double attention_of(const tn_pipeline *p, const wave *w, int32_t i_chunk) {
    double us = 0;
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        const task_arg *a = &w->args[i];
        if (a->i_chunk == i_chunk && (a->stage == TN_ST_ATTN || tn_stage_is_head(a->stage)))
            us += (double)w->task_ns[i] * 1e-3;
    }
    return us / p->m->n_layers;
}

/* Mean time of each stage over the layers and chunks of a full wave. */
static void learn(tn_pipeline *p, const wave *w, int32_t n_chunks) {
    double sum[TN_N_STAGES] = {0};
    int64_t count[TN_N_STAGES] = {0};
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        const task_arg *a = &w->args[i];
        if ((a->stage == TN_ST_ATTN || tn_stage_is_head(a->stage)) && a->i_chunk > 0) continue;
        sum[a->stage] += (double)w->task_ns[i] * 1e-3;
        count[a->stage]++;
    }
    for (int s = 0; s < TN_N_STAGES; s++) p->profile->us[s] = count[s] ? sum[s] / (double)count[s] : 0;
    if (n_chunks > 1) {
        double per_pos =
            (attention_of(p, w, n_chunks - 1) - attention_us(p)) / ((double)(n_chunks - 1) * p->n_rows);
        p->profile->attn_us_per_pos = per_pos > 0 ? per_pos : 0;
    } else {
        p->profile->attn_us_per_pos =
            attention_us(p) * 2 / p->n_rows; /* a chunk sees half of itself on average */
    }
    p->profile->measured = true;
    for (int i = 1; i <= p->n_chunks_open; i++) set_estimates(p, &p->waves[i], p->waves[i].graph->n_tasks);
}

static void learn_growth(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0) {
    double per_pos =
        (attention_of(p, w, n_chunks - 1) - attention_us(p)) / (pos0 + (double)(n_chunks - 1) * p->n_rows);
    if (per_pos > 0) p->profile->attn_us_per_pos = per_pos;
}

static void note_stats(tn_pipeline *p, int32_t n_chunks, const tn_run_stats *r) {
    tn_pipeline_stats *s = &p->stats;
    s->wall_ns += r->wall_ns;
    s->n_decisions += r->n_decisions;
    s->decide_ns += r->decide_ns;
    s->n_stolen += r->n_stolen;
    if (r->decide_max_ns > s->decide_max_ns) s->decide_max_ns = r->decide_max_ns;
    for (int l = 0; l < TN_N_LANES; l++) s->busy_ns[l] += r->busy_ns[l];
    /* as the paper counts them: six subgraphs a layer, of which attention is the dynamic one */
    s->n_subgraphs = n_chunks * p->m->n_layers * 6;
    s->n_shared = p->m->no_chunk_sharing ? 0 : n_chunks * p->m->n_layers * 5;
    s->graph_bytes_unshared = p->m->prefill_graph_bytes * (uint64_t)n_chunks;
    s->graph_bytes =
        p->m->no_chunk_sharing ? p->m->prefill_graph_bytes * TN_WAVE_CHUNKS : p->m->prefill_graph_bytes;
}

/* A chunk's attention reads whole panels of keys while later chunks write theirs: chunks in flight must not
 * share a panel, so a first chunk that begins inside one is shorter. */
static int32_t skipped_rows(int32_t pos0) { return pos0 % TN_KV_PANEL; }

tern_status tn_pipeline_begin(tn_pipeline *p, int32_t n_tok, int32_t pos0, tern_error *err) {
    p->plan_wave = -1;
    if (!p->switcher || n_tok <= TN_DECODE_M) return TERN_OK;
    const tn_switch_plan *plan;
    tn_switcher_lock(p->switcher);
    if (!tn_switcher_has_times(p->switcher)) { /* the profile of former processes, or guesses */
        double product = 0, other = 0;
        for (int s = 0; s < TN_N_STAGES; s++) {
            bool is_product = tn_stage_is_product((tn_stage)s);
            if (tn_stage_is_head((tn_stage)s)) continue; /* with attention */
            double us = p->profile->measured ? s == TN_ST_ATTN ? attention_us(p) : p->profile->us[s]
                        : !is_product || has_stage(p, (tn_stage)s, 0) ? guess_us(p, (tn_stage)s, 0)
                                                                      : 0;
            *(is_product ? &product : &other) += us / p->n_workers;
        }
        tn_switcher_measured(p->switcher, TN_FORM_CHUNK, product, other);
    }
    /* waves as the session will make them; what is left for the last may be so little that it runs in the
     * decode form */
    int32_t n_rows = skipped_rows(pos0) + n_tok, wave_rows = p->n_chunks_open * p->n_rows,
            tail = n_rows % wave_rows;
    if (tail && tail <= TN_DECODE_M && tail < n_rows) n_rows -= tail;
    int32_t n_waves = (n_rows + wave_rows - 1) / wave_rows;
    double last_wave = (double)(n_rows - (n_waves - 1) * wave_rows) / wave_rows;
    tern_status st = tn_switcher_plan(p->switcher, n_waves, p->n_chunks_open, last_wave, &plan, err);
    if (st == TERN_OK && plan) {
        p->switch_plan = *plan;
        p->plan_wave = 0;
    }
    tn_switcher_unlock(p->switcher);
    return st;
}

/* Layers' times in the forms they had, from the tasks of a wave; those that changed form in it count for
 * neither. */
static void learn_forms(tn_pipeline *p, const wave *w, const tn_form *form_before, int32_t n_chunks,
                        int64_t wall_ns) {
    double product_us[TN_N_FORMS] = {0}, other_us = 0, sum_us = 0;
    int32_t n_layers[TN_N_FORMS] = {0};
    for (int32_t i = 0; i < p->m->n_layers; i++) {
        if (form_before[i] == tn_switcher_form(p->switcher, i) && form_before[i] < TN_N_FORMS)
            n_layers[form_before[i]]++;
    }
    int32_t n_tasks = p->waves[n_chunks].graph->n_tasks; /* of the stages: loads come behind them */
    for (int32_t i = 0; i < n_tasks; i++) {
        const task_arg *a = &w->args[i];
        double us = (double)w->task_ns[i] * 1e-3;
        sum_us += us;
        if (!tn_stage_is_product(a->stage)) other_us += us;
        else if (form_before[a->layer] == tn_switcher_form(p->switcher, a->layer) &&
                 form_before[a->layer] < TN_N_FORMS)
            product_us[form_before[a->layer]] += us;
    }
    /* shares of the wall's time: lanes overlap, and wait for each other */
    double share = sum_us > 0 ? (double)wall_ns * 1e-3 / sum_us / n_chunks : 0;
    for (int f = 0; f < TN_N_FORMS; f++) {
        if (n_layers[f])
            tn_switcher_measured(p->switcher, (tn_form)f, product_us[f] * share / n_layers[f],
                                 other_us * share / p->m->n_layers);
    }
}

static tern_status forward_locked(tn_pipeline *p, const int32_t *ids, int32_t n, int32_t pos0,
                                  const tn_tree *tree, bool rope_long, const atomic_bool *cancel,
                                  tn_timeline *timeline, tern_error *err) {
    p->stats.n_rows += (uint64_t)n;
    p->form = n <= TN_DECODE_M ? TN_FORM_DECODE : TN_FORM_CHUNK;
    p->sparse_now = p->sparse_prompt && p->form == TN_FORM_CHUNK;
    if (p->sparse) tn_sparse_attn_rewind(p->sparse, pos0);
    if (p->form == TN_FORM_DECODE) {
        if (p->switcher)
            TN_TRY(tn_switcher_ensure(p->switcher, TN_FORM_DECODE, err)); /* what prefill left to be loaded */
        p->n_skipped = 0;
        begin_chunk(p, 0, ids, n, pos0, tree, rope_long);
        return forward_small(p, n, cancel, timeline, err);
    }
    p->n_skipped = skipped_rows(pos0);
    int32_t n_chunks = (p->n_skipped + n + p->n_rows - 1) / p->n_rows;
    for (int32_t i = 0; i < n_chunks; i++) {
        int32_t at = i ? i * p->n_rows - p->n_skipped : 0, end = (i + 1) * p->n_rows - p->n_skipped;
        begin_chunk(p, i, ids + at, (end < n ? end : n) - at, pos0 + at, NULL, rope_long);
    }
    wave *w = &p->waves[n_chunks];
    bool full = n == n_chunks * p->n_rows && pos0 == 0 && !p->loading;
    bool later = n == n_chunks * p->n_rows && pos0 > 0 && p->profile->later_waves && !p->switcher;
    if (p->loading) {
        TN_TRY(build_cold_wave(p, n_chunks, err));
        w = &p->cold_wave;
    }
    tn_form form_before[TN_MAX_LAYERS];
    if (p->switcher) {
        if (has_loads(p)) {
            w = &p->switch_wave;
            full = false;
            TN_TRY(build_switch_wave(p, n_chunks, err));
        }
        for (int32_t i = 0; i < p->m->n_layers; i++) {
            form_before[i] = tn_switcher_form(p->switcher, i);
            full = full && form_before[i] == TN_FORM_CHUNK;
        }
    }
    tn_policy policy = p->policy;
    if (policy.steal_by_profile && p->profile->measured) policy.steal_above = tn_policy_steal_above(w->graph);
    tn_run run = {.graph = w->graph,
                  .policy = policy,
                  .cancel = cancel,
                  .timeline = timeline,
                  .task_ns = p->switcher || later || (full && !p->profile->measured) ? w->task_ns : NULL};
    tn_run_stats rs;
    TN_TRY(tn_executor_run(p->exec, &run, &rs, err));
    if (full && !p->profile->measured) learn(p, w, n_chunks);
    if (later) learn_growth(p, w, n_chunks, pos0);
    if (p->switcher && n == n_chunks * p->n_rows - p->n_skipped)
        learn_forms(p, w, form_before, n_chunks, rs.wall_ns);
    if (p->plan_wave >= 0) p->plan_wave++;
    note_stats(p, n_chunks, &rs);
    return TERN_OK;
}

tern_status tn_pipeline_forward(tn_pipeline *p, const int32_t *ids, int32_t n, int32_t pos0,
                                const tn_tree *tree, bool rope_long, const atomic_bool *cancel,
                                tn_timeline *timeline, tern_error *err) {
    assert(n > 0 && n <= tn_pipeline_wave_rows(p, pos0) && (!tree || n <= TN_DECODE_M));
    if (!tn_loader_done(p->m->loader)) {
        tn_loader *l = p->m->loader;
        tn_loader_lock(l); /* another session may be at it */
        p->loading = !tn_loader_done(l);
        tern_status st = p->loading ? tn_loader_rows_begin(l, ids, n, err) : TERN_OK;
        if (st == TERN_OK) st = forward_locked(p, ids, n, pos0, tree, rope_long, cancel, timeline, err);
        if (p->loading && st == TERN_OK)
            st = tn_loader_finish(l, p->pool, p->m->n_layers, err); /* few rows leave the head */
        if (p->loading && st == TERN_OK) st = tn_loader_rows_begin(l, NULL, 0, err);
        p->loading = false;
        tn_loader_unlock(l);
        drop_cold_wave(p);
        return st;
    }
    if (!p->switcher) return forward_locked(p, ids, n, pos0, tree, rope_long, cancel, timeline, err);
    tn_switcher_lock(p->switcher);
    tern_status st = forward_locked(p, ids, n, pos0, tree, rope_long, cancel, timeline, err);
    tn_switcher_unlock(p->switcher);
    return st;
}

void tn_pipeline_forget(tn_pipeline *p) {
    if (p->sparse) tn_sparse_attn_rewind(p->sparse, 0);
}

int32_t tn_pipeline_wave_rows(const tn_pipeline *p, int32_t pos0) {
    return p->n_chunks_open * p->n_rows - skipped_rows(pos0);
}

const float *tn_pipeline_row(const tn_pipeline *p, int32_t i) {
    if (i + p->n_skipped >= p->n_rows) i += p->n_skipped;
    return p->chunks[i / p->n_rows].x + (size_t)(i % p->n_rows) * (size_t)p->model->h.n_embd;
}

typedef struct head_parts {
    tn_pipeline *p;
    int32_t n_parts;
    atomic_int failed;
} head_parts;

static void head_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    head_parts *h = arg;
    if (tn_npu_run_part(&h->p->head_job, i_item, h->n_parts, NULL) != TERN_OK) atomic_store(&h->failed, 1);
}

tern_status tn_pipeline_logits(tn_pipeline *p, int32_t row0, int32_t n, float *logits, tern_error *err) {
    assert(n > 0 && n <= TN_DECODE_M);
    const tn_hparams *h = &p->model->h;
    const tn_npu_site *s = site_at(p->m, 0, TN_SITE_LM_HEAD);
    size_t e = (size_t)h->n_embd;
    /* the head borrows chunk 0's outlier lists and shadow rows; its rows are few */
    chunk *c = &p->chunks[0];
    chunk head = *c;
    head.xq = p->head_xq;
    for (int32_t i = 0; i < n; i++) {
        float *row = p->head_rows + (size_t)i * e;
        const float *x = tn_pipeline_row(p, row0 + i);
        if (h->norm == TN_NORM_RMS)
            p->kern->rmsnorm_f32(x, p->model->top.vectors[TN_W_OUT_NORM], h->norm_eps, row, e);
        else
            p->kern->layernorm_f32(x, p->model->top.vectors[TN_W_OUT_NORM],
                                   p->model->top.vectors[TN_W_OUT_NORM_B], h->norm_eps, row, e);
        quantise_row(p, &head, s, i, row);
    }
    p->head_job =
        (tn_npu_job){.graph = s->graphs[TN_FORM_DECODE], .n_rows = n, .in = {p->head_xq}, .out = {logits}};
    if (has_parts(p, s)) {
        head_parts parts = {.p = p, .n_parts = tn_pool_size(p->pool) * 4};
        int32_t tiles = (h->n_vocab + 15) / 16;
        if (parts.n_parts > tiles) parts.n_parts = tiles;
        tn_pool_for(p->pool, parts.n_parts, head_item, &parts);
        TN_FAIL_IF(atomic_load(&parts.failed), err, TERN_E_DEVICE, "the device failed in the output head");
    } else {
        TN_TRY(tn_npu_submit(&p->head_job, err));
        tern_status rc = tn_npu_wait(&p->head_job);
        TN_FAIL_IF(rc != TERN_OK, err, rc, "the device failed in the output head");
    }
    if (s->shadow) {
        TN_TRY(shadow_rows(p, &head, s, 0, n, 0, err));
        for (int32_t i = 0; i < n; i++) {
            if (!head.n_out[i]) continue;
            p->kern->add_f32(logits + (size_t)i * (size_t)h->n_vocab,
                             head.shadow + (size_t)i * (size_t)p->m->max_shadow_n, 1.0f, (size_t)h->n_vocab);
        }
    }
    if (h->logit_soft_cap > 0) {
        for (size_t i = 0; i < (size_t)n * (size_t)h->n_vocab; i++)
            logits[i] = h->logit_soft_cap * tn_tanhf(logits[i] / h->logit_soft_cap);
    }
    return TERN_OK;
}

const tn_pipeline_stats *tn_pipeline_stats_get(const tn_pipeline *p) {
    tn_pipeline_stats *s = (tn_pipeline_stats *)&p->stats;
    s->n_outliers = atomic_load(&p->n_outliers);
    s->n_dropped = atomic_load(&p->n_dropped);
    s->hot_hits = atomic_load(&p->hot_hits);
    s->cold_misses = atomic_load(&p->cold_misses);
    if (p->switcher) tn_switcher_stats_get(p->switcher, &s->switching);
    if (p->sparse) tn_sparse_attn_stats_get(p->sparse, &s->attention);
    return s;
}

void tn_pipeline_measured(const tn_pipeline *p, tn_measured_stages *out) {
    *out = (tn_measured_stages){.attn_us_per_pos = p->profile->attn_us_per_pos,
                                .rest_us = p->profile->rest_us,
                                .part_us = p->profile->part_us,
                                .wave_chunks = TN_WAVE_CHUNKS};
    for (int s = 0; s < TN_N_STAGES; s++) {
        tn_stage st = (tn_stage)s;
        int32_t with = 0;
        if (tn_stage_is_head(st)) continue; /* the simulator's attention is one task */
        for (int32_t layer = 0; layer < p->m->n_layers; layer++) {
            bool has = !tn_stage_is_shadow(st) && st != TN_ST_PLAN ? true : has_stage(p, st, layer);
            with += has;
            if (has) out->n_parts[s] = n_parts_of(p, st, p->n_rows, layer);
        }
        out->stage_us[s] = st == TN_ST_ATTN ? attention_us(p) : p->profile->us[s];
        out->shadow_kept[s] = (double)with / p->m->n_layers;
    }
}
