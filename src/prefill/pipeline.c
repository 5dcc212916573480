/* Opening and closing a pipeline: its steps and buffers. */
#include "prefill/pipeline.h"

#include "base/status.h"
#include "prefill/impl.h"

#include <string.h>

enum { OUTLIER_SHARE = 4 }; /* a row keeps at most K / 4 outliers; more are dropped and counted */

/* ---- buffers -------------------------------------------------------------------------------------- */

typedef struct slice {
    void **at;
    size_t n_bytes;
} slice;

static tern_status plan_arena(tn_pipeline *p, int32_t i, const slice *plan, size_t n, tern_error *err) {
    size_t total = 0;
    for (size_t s = 0; s < n; s++) total += (plan[s].n_bytes + 63) / 64 * 64;
    char *base = p->arenas[i] = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, total, 1);
    TN_FAIL_IF(!base, err, TERN_E_MEMORY, "no memory for the activations of a chunk (%zu bytes)", total);
    p->stats.activation_bytes += total;
    for (size_t s = 0; s < n; s++) {
        *plan[s].at = base;
        base += (plan[s].n_bytes + 63) / 64 * 64;
    }
    return TERN_OK;
}

static void embed(const void *user, int32_t id, float *out) {
    const tn_npu_model *m = user;
    tn_npu_model_embed(m, &m->model->h, id, out);
}

static void embed_layers(const void *user, int32_t id, float *out) {
    const tn_npu_model *m = user;
    tn_npu_model_embed_layers(m, &m->model->h, id, out);
}

/* Channels of the widest site whose inputs are divided when quantised. */
static size_t widest_divided(const tn_npu_model *m) {
    int32_t k = 0;
    for (int32_t i = 0; i < m->n_sites; i++)
        if (m->sites[i].inverse && m->sites[i].ops.k > k) k = m->sites[i].ops.k;
    return (size_t)k;
}

static tern_status open_chunk(tn_pipeline *p, int32_t i, const tn_kv *kv, tern_error *err) {
    const tn_hparams *h = &p->model->h;
    const tn_program *prog = &p->model->program;
    chunk *c = &p->chunks[i];
    size_t rows = (size_t)p->n_rows, cap = p->m->any_outliers ? (size_t)p->out_cap : 0,
           n_outs = (size_t)p->share_n, n = 0;
    slice plan[TN_N_BUFFERS + 14] = {
        {(void **)&c->pos, rows * sizeof *c->pos},
        {(void **)&c->slot, rows * sizeof *c->slot},
        {(void **)&c->axes, tn_has_axes(h) ? rows * sizeof *c->axes : 0},
        {(void **)&c->picture, rows * sizeof *c->picture},
        {(void **)&c->rope_cs, rows * (size_t)(tn_rope_tables(h) * h->n_rot) * sizeof(float)},
        {(void **)&c->in.x, rows * (size_t)p->m->max_stride},
        {(void **)&c->in.own, rows * widest_divided(p->m) * sizeof *c->in.own},
        {(void **)&c->in.n_out, rows * sizeof *c->in.n_out},
        {(void **)&c->in.channel, rows * cap * sizeof *c->in.channel},
        {(void **)&c->in.resid, rows * cap * sizeof(float)},
        {(void **)&c->in.share, rows * n_outs * sizeof(float)},
        {(void **)&c->out8, rows * (size_t)p->m->max_output_n},
        {(void **)&c->expert_x, rows * (size_t)h->n_experts_used * (size_t)p->m->max_stride},
        {(void **)&c->expert_jobs, (size_t)h->n_experts * sizeof *c->expert_jobs},
    };
    n = 14;
    for (int b = 0; b < TN_BUF_LOGITS; b++) {
        if (b == TN_BUF_NORMED) continue; /* quantised at once: a row uses its row of BRANCH, free by then */
        plan[n].at = (void **)&c->f.buf[b];
        plan[n++].n_bytes = rows * (size_t)prog->width[b] * sizeof(float);
    }
    TN_TRY(plan_arena(p, i, plan, n, err));
    c->f.buf[TN_BUF_NORMED] = c->f.buf[TN_BUF_BRANCH];
    memset(c->in.n_out, 0, rows * sizeof *c->in.n_out);
    if (h->n_experts) memset(c->expert_jobs, 0, (size_t)h->n_experts * sizeof *c->expert_jobs);
    c->r = (tn_rows){.h = h,
                     .kern = p->kern,
                     .kv = kv,
                     .pos = c->pos,
                     .slot = c->slot,
                     .tree_base = -1,
                     .rope_cs = c->rope_cs};
    c->f.m = p->model;
    c->f.r = &c->r;
    c->f.embed = embed;
    c->f.embed_layers = embed_layers;
    c->f.embed_user = p->m;
    for (int32_t s = 0; s < p->m->n_sites; s++) {
        const tn_site_ops *ops = &p->m->sites[s].ops;
        tn_npu_job *job = tn_job_of(p, i, s);
        if (ops->n_experts) continue; /* a job for each chosen expert */
        *job = (tn_npu_job){.in = {c->in.x}};
        uint8_t *out8 = c->out8; /* of one linear after another */
        for (int32_t op = 0; op < ops->n_ops; op++) {
            bool int8 = p->m->sites[s].out_factor[op];
            job->out[op] = int8 ? (void *)out8 : c->f.buf[tn_role_buffer(ops->roles[op])];
            out8 += int8 ? rows * (size_t)ops->n[op] : 0;
        }
    }
    return TERN_OK;
}

/* Workers' own buffers, and lm_head's. */
static tern_status open_shared(tn_pipeline *p, tern_error *err) {
    const tn_npu_model *m = p->m;
    const tn_npu_site *lm_head = tn_npu_site_at(m, 0, TN_SITE_LM_HEAD);
    size_t n_workers = (size_t)p->n_workers;
    p->jobs = tn_calloc(p->ctx, TN_MEM_GRAPHS, (size_t)TN_WAVE_CHUNKS * (size_t)m->n_sites, sizeof *p->jobs);
    p->lm_head_x = tn_calloc(p->ctx, TN_MEM_ACTIVATIONS, (size_t)TN_DECODE_M * (size_t)lm_head->in_stride, 1);
    p->lm_head_rows =
        tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, TN_DECODE_M * (size_t)lm_head->ops.k, sizeof(float));
    p->scratch = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, n_workers * p->scratch_stride, sizeof(float));
    p->cold = tn_calloc(p->ctx, TN_MEM_ACTIVATIONS, n_workers, sizeof *p->cold);
    if (p->lora_stride)
        p->lora = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, n_workers * p->lora_stride, sizeof(float));
    TN_FAIL_IF(p->lora_stride && !p->lora, err, TERN_E_MEMORY, "no memory for adapters");
    TN_FAIL_IF(!p->jobs || !p->lm_head_x || !p->lm_head_rows || !p->scratch || !p->cold, err, TERN_E_MEMORY,
               "no memory for a pipeline");
    for (size_t w = 0; m->any_outliers && w < n_workers; w++) {
        cold_cache *c = &p->cold[w];
        c->rows = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, (size_t)p->out_cap, (size_t)m->max_outlier_n);
        c->ptrs = tn_calloc(p->ctx, TN_MEM_ACTIVATIONS, (size_t)m->max_k, sizeof *c->ptrs);
        TN_FAIL_IF(!c->rows || !c->ptrs, err, TERN_E_MEMORY, "no memory for outlier rows");
    }
    return TERN_OK;
}

/* ---- life ----------------------------------------------------------------------------------------- */

/* Sparse attention of the prompt, of decoding, both or neither, for n_chunks chunks in flight. */
static tern_status open_attention(tn_pipeline *p, const tn_attn_options *attention, const tn_kv *kv,
                                  int32_t n_chunks, tern_error *err) {
    p->sparse_prompt = attention->mode != TN_ATTN_FULL &&
                       (!attention->automatic || tn_sparse_attn_pays(p->m, attention, kv->cap_tok));
    if (p->sparse_prompt || attention->decode) {
        tn_attn_options o = *attention;
        if (!p->sparse_prompt) o.pipeline = TN_ATTN_PIPELINE_OFF; /* decoding has none */
        tern_status rc = tn_sparse_attn_open(p->ctx, p->m, &p->model->h, p->kern, kv, &o, p->n_workers,
                                             n_chunks, p->n_rows, &p->sparse, err);
        if (attention->automatic && !attention->decode && (rc == TERN_E_LIMIT || rc == TERN_E_UNSUPPORTED))
            p->sparse_prompt = false; /* the device cannot */
        else if (rc != TERN_OK) return rc;
    }
    if (p->sparse) p->heads = tn_sparse_attn_shape(p->sparse);
    return TERN_OK;
}

static bool has_beside(void *user, int32_t site) { return tn_site_has_beside(user, site); }

static bool output_int8(void *user, int32_t site) {
    return ((const tn_pipeline *)user)->m->sites[site].out_factor[0];
}

static tern_status open_waves(tn_pipeline *p, const tn_kv *kv, int32_t n_chunks, tern_error *err) {
    const tn_steps_options o = {.plan = p->sparse_prompt,
                                .operators = p->m->operators,
                                .has_outliers = has_beside,
                                .output_int8 = output_int8,
                                .user = p};
    TN_TRY(tn_steps_make(p->ctx, &p->model->program, &o, &p->steps, err));
    for (int32_t i = 0; i < n_chunks; i++) {
        TN_TRY(open_chunk(p, i, kv, err));
        p->n_chunks_open++;
        TN_TRY(tn_wave_build(p, i + 1, err));
    }
    return tn_switching_open(p, err);
}

tern_status tn_pipeline_open(tn_ctx *ctx, const tn_npu_model *m, const tn_model *model,
                             const tn_kernels *kern, const tn_kv *kv, tn_pool *pool, tn_executor *exec,
                             tn_policy policy, const tn_attn_options *attention, tn_step_profile *profile,
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
    p->switching.switcher = m->switcher;
    p->call.form = TN_FORM_CHUNK; /* of the waves built now */
    p->share_n = m->any_outliers ? m->max_outlier_n : 0;
    for (int32_t i = 0; i < m->n_sites; i++) {
        const tn_npu_site *s = &m->sites[i];
        if (tn_site_in_layers(s->kind) && tn_site_has_beside(p, i) && s->ops.n_total > p->share_n)
            p->share_n = s->ops.n_total;
    }
    p->lora_stride = (tn_lora_scratch(model->loras, model->n_loras, &model->program) + 15) / 16 * 16;
    p->out_cap = (m->max_k + OUTLIER_SHARE - 1) / OUTLIER_SHARE;
    p->n_compute = tn_executor_lane_workers(exec, TN_LANE_CPU) + tn_executor_lane_workers(exec, TN_LANE_NPU);
    p->n_workers =
        tn_executor_n_workers(exec) > tn_pool_size(pool) ? tn_executor_n_workers(exec) : tn_pool_size(pool);
    p->scratch_stride = (tn_rows_scratch(&model->h, kv->cap_tok) + 15) / 16 * 16;
    int32_t most = (kv->cap_tok + p->n_rows - 1) / p->n_rows,
            n_chunks = most < TN_WAVE_CHUNKS ? most : TN_WAVE_CHUNKS; /* never more than the context has */
    tern_status rc = open_shared(p, err);
    if (rc == TERN_OK) rc = open_attention(p, attention, kv, n_chunks, err);
    if (rc == TERN_OK) rc = open_waves(p, kv, n_chunks, err);
    if (rc == TERN_OK) *out = p;
    else tn_pipeline_close(&p);
    return rc;
}

void tn_pipeline_close(tn_pipeline **pp) {
    tn_pipeline *p = *pp;
    if (!p) return;
    *pp = NULL;
    for (int i = 0; i <= TN_WAVE_CHUNKS; i++) tn_wave_close(p, &p->waves[i]);
    tn_wave_drop_cold(p);
    tn_sparse_attn_close(&p->sparse);
    tn_wave_close(p, &p->switching.wave);
    tn_free(p->ctx, p->switching.args);
    tn_steps_free(&p->steps);
    for (int i = 0; i < TN_WAVE_CHUNKS; i++) tn_free(p->ctx, p->arenas[i]);
    for (int i = 0; p->cold && i < p->n_workers; i++) {
        tn_free(p->ctx, p->cold[i].rows);
        tn_free(p->ctx, p->cold[i].ptrs);
    }
    tn_free(p->ctx, p->cold);
    tn_free(p->ctx, p->lora);
    tn_free(p->ctx, p->scratch);
    tn_free(p->ctx, p->lm_head_x);
    tn_free(p->ctx, p->lm_head_rows);
    tn_free(p->ctx, p->jobs);
    tn_free(p->ctx, p);
}

void tn_pipeline_remembers(tn_pipeline *p, const tn_conv *conv, tn_delta *delta) {
    for (int32_t i = 0; i < p->n_chunks_open; i++) p->chunks[i].r.conv = conv, p->chunks[i].r.delta = delta;
}

void tn_pipeline_adapt(tn_pipeline *p, const tn_lora_mix *mix) {
    for (int32_t i = 0; i < p->n_chunks_open; i++) p->chunks[i].r.lora = mix;
}

void tn_pipeline_see(tn_pipeline *p, const tn_extra_rows *extra) {
    for (int32_t i = 0; i < p->n_chunks_open; i++) p->chunks[i].r.extra = extra;
}

void tn_pipeline_pauses(tn_pipeline *p, const tn_pause *pause) { p->pause = pause; }

const tn_pause *tn_pipeline_pause_now(const tn_pipeline *p) {
    return p->call.loading || p->switching.switcher
               ? NULL
               : p->pause; /* others would wait for the lock that is held for these */
}

void tn_pipeline_forget(tn_pipeline *p) {
    if (p->sparse) tn_sparse_attn_rewind(p->sparse, 0);
}

const tn_pipeline_stats *tn_pipeline_stats_get(const tn_pipeline *p) {
    tn_pipeline_stats *s = (tn_pipeline_stats *)&p->stats;
    s->n_outliers = atomic_load(&p->n_outliers);
    s->n_dropped = atomic_load(&p->n_dropped);
    s->hot_hits = atomic_load(&p->hot_hits);
    s->cold_misses = atomic_load(&p->cold_misses);
    if (p->switching.switcher) tn_switcher_stats_get(p->switching.switcher, &s->switching);
    if (p->sparse) tn_sparse_attn_stats_get(p->sparse, &s->attention);
    return s;
}
