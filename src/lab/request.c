/* lab/request.c - one request: the prefill's graph filled with times instead of work, run on the virtual
 * clock; then decoding, energy and memory. */
#include "lab/sim.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    MAX_CHUNKS = 131072 / 32,
    DECODE_SHARE = 4,     /* a decode graph has a quarter of the rows of a prefill graph (sd.npu 4.2) */
    EST_ROWS = 128,       /* rows of Q in a launch of the estimate (shadowAttn 3.4) */
    N_UNITS_OF_LAYER = 5, /* its small tensors, and a unit per site */
    MAX_LAYERS = 64,
};
#define DEFAULT_RATIO 0.2

/* Shapes of the models' own configuration files. */
static const tn_sim_model models[] = {
    {"qwen1.5-1.8b", 24, 2048, 16, 16, 128, 5504, 151936},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936},
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936},
    {"gemma-2b", 18, 2048, 8, 1, 256, 16384, 256000},
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000},
    {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256},
    {"llama3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256},
    {"mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000},
    {"phi3-3.8b", 32, 3072, 32, 32, 96, 8192, 32064},
    {"phonelm-0.5b", 24, 1024, 16, 16, 64, 4864, 49152},
    {"phonelm-1.5b", 19, 2560, 16, 16, 160, 6816, 49152},
};

const tn_sim_model *tn_sim_model_at(int32_t i) {
    return i >= 0 && i < (int32_t)(sizeof models / sizeof *models) ? &models[i] : NULL;
}

const tn_sim_model *tn_sim_model_find(const char *name) {
    const tn_sim_model *m;
    for (int32_t i = 0; (m = tn_sim_model_at(i)) && strcmp(m->name, name);) i++;
    return m;
}

const char *tn_sim_load_name(tn_sim_load l) {
    static const char *const names[] = {"warm", "stream", "overlap", "sequential", "layers", "build"};
    return l < TN_N_SIM_LOADS ? names[l] : NULL;
}

const char *tn_sim_attention_name(tn_sim_attention a) {
    static const char *const names[] = {"full", "shadow", "float-sparse"};
    return a < TN_N_SIM_ATTENTIONS ? names[a] : NULL;
}

/* ---- shapes ---------------------------------------------------------------------------------------- */

/* Inputs and outputs of the site that a product or its shadow computes. */
static void site_shape(const tn_sim_model *m, tn_stage s, double *k, double *n) {
    double embd = m->n_embd, q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head;
    switch (s) {
    case TN_ST_QKV:
    case TN_ST_QKV_SHADOW: *k = embd, *n = q + 2 * kv; break;
    case TN_ST_O:
    case TN_ST_O_SHADOW: *k = q, *n = embd; break;
    case TN_ST_FFN:
    case TN_ST_FFN_SHADOW: *k = embd, *n = 2.0 * m->n_ff; break;
    default: *k = m->n_ff, *n = embd;
    }
}

static double stage_weights(const tn_sim_model *m, tn_stage s) {
    double k, n;
    site_shape(m, s, &k, &n);
    return k * n;
}

static const tn_stage products[] = {
    TN_ST_FFN, TN_ST_DOWN, TN_ST_QKV,
    TN_ST_O}; /* heaviest first: the order in which the device's memory is filled */
enum { N_PRODUCTS = 4 };

double tn_sim_weight_bytes(const tn_sim_model *m) {
    double sum = 0;
    for (int i = 0; i < N_PRODUCTS; i++) sum += stage_weights(m, products[i]);
    return sum * m->n_layers;
}

/* ---- times ----------------------------------------------------------------------------------------- */

/* A request while its graph is filled. */
typedef struct tn_sim_job {
    const tn_sim_request *r;
    const tn_sim_model *m;
    const tn_soc *c;
    int32_t first_chunk;                             /* of this wave */
    double plan_us[MAX_CHUNKS], attn_us[MAX_CHUNKS]; /* sparse attention of a layer: what the device's
                                                        estimate adds in front; the CPU's part */
    tn_prefill_unit units[MAX_LAYERS * N_UNITS_OF_LAYER];
    int32_t n_units, n_stage_tasks;
} job;

static double product_ns(const tn_soc *c, double weights, double rows) {
    return c->launch_ns + fmax(weights * c->byte_ns, weights * rows * c->mac_ns);
}

/* Is the site within the memory that the device can address? */
static bool on_device(const tn_sim_request *r, tn_stage s, int32_t layer) {
    if (r->npu_memory <= 0) return true;
    double sum = 0;
    for (int i = 0; products[i] != s; i++) sum += stage_weights(r->model, products[i]) * r->model->n_layers;
    return sum + stage_weights(r->model, s) * (layer + 1) <= r->npu_memory;
}

/* Kept outlier paths lie evenly over the sites: the papers do not say where. */
static bool kept(double share, int32_t layer, tn_stage shadow) {
    int32_t i = layer * N_PRODUCTS + (shadow == TN_ST_QKV_SHADOW   ? 0
                                      : shadow == TN_ST_O_SHADOW   ? 1
                                      : shadow == TN_ST_FFN_SHADOW ? 2
                                                                   : 3);
    return floor((i + 1) * share) > floor(i * share);
}

static bool has(void *user, tn_stage stage, int32_t layer) {
    const job *j = user;
    const tn_measured_stages *mt = j->r->measured;
    if (mt && (tn_stage_is_shadow(stage) || stage == TN_ST_PLAN))
        return mt->n_parts[stage] > 0 &&
               floor((layer + 1) * mt->shadow_kept[stage]) > floor(layer * mt->shadow_kept[stage]);
    if (stage == TN_ST_PLAN) return j->r->attention == TN_SIM_SHADOW;
    return tn_stage_is_shadow(stage) ? kept(j->c->shadow_kept, layer, stage) : true;
}

static double attention_ns(const job *j, int32_t chunk) {
    double rows = j->r->n_chunk, q = (double)j->m->n_heads * j->m->d_head;
    return 2 * rows * (chunk + 1) * rows * q * (j->r->one_core ? j->c->core_mac_ns : j->c->attn_mac_ns);
}

tern_status tn_sim_attention_kernel(const tn_soc *c, const tn_sim_model *m, double rows, double keys,
                                    double seen, const double *ratio, tn_headplan_switches switches,
                                    tn_sim_kernel *out, tern_error *err) {
    static const int32_t widths[] = {1, 2, 4};
    double full_us = 2 * rows * keys * m->d_head * c->core_mac_ns / 1e3;
    tn_headplan_costs h = {.n_heads = m->n_heads, .n_widths = 3};
    TN_FAIL_IF(h.n_heads > TN_HEADPLAN_MAX_HEADS, err, TERN_E_INVALID, "%d heads are too many to plan",
               h.n_heads);
    *out = (tn_sim_kernel){.full_us = full_us * m->n_heads};
    for (int32_t i = 0; i < h.n_heads; i++) {
        double kept = (ratio ? ratio[i] : DEFAULT_RATIO) * c->attend_factor;
        h.topk_us[i] = rows * seen * c->topk_ns / 1e3;
        h.attend_us[i] = full_us * kept * seen / keys;
        out->sparse_us += full_us * (c->estimate_float + kept);
    }
    for (int i = 0; i < 3; i++) {
        h.width[i] = widths[i];
        h.launch_us[i] = ceil(rows / EST_ROWS) *
                         (c->est_launch_ns + c->est_mac_ns * widths[i] * EST_ROWS * keys * m->d_head) / 1e3;
    }
    tn_headplan p;
    TN_TRY(tn_headplan_make(&h, switches, &p, err));
    out->shadow_us = p.total_us, out->shadow_cpu_us = p.cpu_us, out->shadow_npu_us = p.device_us;
    return TERN_OK;
}

/* Sparse attention of one layer, planned as the engine plans it. In a chunk's own square half of the
 * positions are masked, and skipped. */
static tern_status plan_attention(job *j, int32_t chunk, tern_error *err) {
    const tn_sim_request *r = j->r;
    double rows = r->n_chunk, keys = (chunk + 1) * rows, ratio[TN_HEADPLAN_MAX_HEADS];
    for (int32_t i = 0; i < TN_HEADPLAN_MAX_HEADS; i++) ratio[i] = r->ratio > 0 ? r->ratio : DEFAULT_RATIO;
    tn_sim_kernel k;
    TN_TRY(tn_sim_attention_kernel(j->c, j->m, rows, keys, keys - rows / 2, ratio, r->heads, &k, err));
    bool shadow = r->attention == TN_SIM_SHADOW;
    j->plan_us[chunk] = shadow ? k.shadow_us - k.shadow_cpu_us : 0;
    j->attn_us[chunk] = shadow ? k.shadow_cpu_us : k.sparse_us;
    return TERN_OK;
}

static void fill_measured(const job *j, tn_stage stage, tn_task *t) {
    const tn_measured_stages *mt = j->r->measured;
    int32_t pos = (j->first_chunk + t->chunk) * j->r->n_chunk, left = j->r->n_tokens - pos;
    double us = mt->stage_us[stage] + (stage == TN_ST_ATTN ? mt->attn_us_per_pos * pos : 0) +
                mt->part_us * mt->n_parts[stage];
    if (left < j->r->n_chunk) us *= (double)left / j->r->n_chunk;
    t->n_parts = mt->n_parts[stage];
    t->est_us[TN_LANE_CPU] = t->est_us[TN_LANE_NPU] = (float)us;
}

static void fill(void *user, tn_stage stage, tn_task *t) {
    job *j = user;
    const tn_sim_request *r = j->r;
    const tn_sim_model *m = j->m;
    const tn_soc *c = j->c;
    j->n_stage_tasks++;
    if (r->measured) {
        fill_measured(j, stage, t);
        return;
    }
    double rows = r->n_chunk, q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head,
           ns = 0, k, n;
    double elems = stage == TN_ST_ROPE ? q + 2 * kv : stage == TN_ST_GLU ? m->n_ff : m->n_embd;
    t->can_steal = false; /* lanes are different processors: only products can run on both */
    if (tn_stage_is_product(stage)) {
        ns = product_ns(c, stage_weights(m, stage), rows);
        t->est_us[TN_LANE_CPU] = (float)(ns * c->cpu_slower / 1e3);
        t->can_steal = true;
        if (r->policy.steal_above >= 0)
            t->n_parts = stage == TN_ST_QKV   ? 3
                         : stage == TN_ST_FFN ? 2
                                              : 1; /* a stolen product is one operator's (EdgeFlow 4.3) */
        if (!on_device(r, stage, t->layer)) t->lane = TN_LANE_CPU, ns *= c->cpu_slower, t->can_steal = false;
    } else if (tn_stage_is_shadow(stage)) {
        site_shape(m, stage, &k, &n);
        ns = c->shadow_channels * n * rows * c->attn_mac_ns + rows * n * c->sync_ns;
    } else if (stage == TN_ST_PLAN) {
        t->lane = TN_LANE_NPU;
        ns = j->plan_us[t->chunk] * 1e3;
    } else if (stage == TN_ST_ATTN) {
        ns = r->attention == TN_SIM_FULL ? attention_ns(j, t->chunk) : j->attn_us[t->chunk] * 1e3;
    } else {
        ns = rows * elems * c->elem_ns;
        if (r->float_on_npu) t->lane = TN_LANE_NPU, ns *= c->float_slower;
    }
    t->est_us[t->lane] = (float)(ns / 1e3);
    if (r->stage_major) t->plan = t->layer * TN_N_STAGES + (int32_t)stage;
}

/* ---- weights in the file --------------------------------------------------------------------------- */

static double unit_bytes(const job *j, int32_t unit) {
    if (j->r->load != TN_SIM_STREAM && j->r->load != TN_SIM_OVERLAP)
        return tn_sim_weight_bytes(j->m) / j->m->n_layers;
    return j->units[unit].stage == TN_ST_NORM ? 4.0 * 2 * j->m->n_embd
                                              : stage_weights(j->m, j->units[unit].stage);
}

static void fill_load(void *user, int32_t unit, tn_load_step step, tn_task *t) {
    const job *j = user;
    const tn_soc *c = j->c;
    bool packed = j->r->load == TN_SIM_STREAM || j->r->load == TN_SIM_OVERLAP;
    double bytes = unit_bytes(j, unit), bits = j->r->bits > 0 ? j->r->bits : 8, ns = 0;
    if (step == TN_LD_READ) {
        if (!packed) ns = bytes * c->graph_byte_ns; /* the vendor's runtime reads and loads in one call */
        else ns = bytes * (j->units[unit].stage == TN_ST_NORM ? 1 : bits / 8) * c->flash_byte_ns;
        if (unit == 0)
            ns += tn_sim_weight_bytes(j->m) *
                  (c->setup_byte_ns + (j->r->load == TN_SIM_BUILD ? c->optimise_byte_ns : 0));
    } else if (step == TN_LD_UNPACK && packed && j->units[unit].stage != TN_ST_NORM) {
        ns = bytes * c->unpack_ns;
    }
    t->can_steal = false;
    t->est_us[t->lane] = (float)(ns / 1e3);
    if (j->r->stage_major) t->plan = t->layer * TN_N_STAGES + t->subgraph - 1;
}

/* Computing begins, in every chunk, when the last unit is loaded. */
static void wait_for_all(void *user, tn_graph *g) {
    const job *j = user;
    if (j->r->load != TN_SIM_OVERLAP && j->r->load != TN_SIM_SEQUENTIAL && j->r->load != TN_SIM_BUILD) return;
    for (int32_t t = 0; t < j->n_stage_tasks; t++)
        if (g->tasks[t].layer == 0 && g->tasks[t].subgraph == TN_ST_NORM)
            tn_graph_depend(g, j->n_stage_tasks + TN_N_LOAD_STEPS * j->n_units - 1, t);
}

static void make_units(job *j) {
    static const tn_stage order[N_UNITS_OF_LAYER] = {TN_ST_NORM, TN_ST_QKV, TN_ST_O, TN_ST_FFN, TN_ST_DOWN};
    int32_t per_layer = j->r->load == TN_SIM_STREAM || j->r->load == TN_SIM_OVERLAP ? N_UNITS_OF_LAYER : 1;
    for (int32_t i = 0; j->r->load != TN_SIM_WARM && i < j->m->n_layers * per_layer; i++)
        j->units[j->n_units++] =
            (tn_prefill_unit){.layer = i / per_layer, .stage = order[i % per_layer], .after = -1};
}

/* ---- decoding, energy, memory ---------------------------------------------------------------------- */

static double step_ns(const tn_sim_request *r) {
    const tn_soc *c = r->soc;
    double bytes = tn_sim_weight_bytes(r->model) + (double)r->model->n_vocab * r->model->n_embd;
    return (r->model->n_layers * c->step_layer_ns + bytes * c->step_byte_ns) *
           (r->accepted > 1 ? c->verify_slower : 1);
}

/* What exchanging prefill for decode graphs adds, from the start of the prefill on. */
static tern_status switching(const tn_sim_request *r, double prefill_us, int32_t n_chunks, double *exposed_us,
                             tern_error *err) {
    const tn_soc *c = r->soc;
    double chunk = 0, sub = 0;
    for (int i = 0; i < N_PRODUCTS; i++) {
        double w = stage_weights(r->model, products[i]);
        chunk += product_ns(c, w, r->n_chunk);
        sub += product_ns(c, w, (double)r->n_chunk / DECODE_SHARE) * DECODE_SHARE;
    }
    tn_switch_costs costs = {.n_blocks = r->switch_blocks ? r->switch_blocks : 2, .n_chunks = n_chunks};
    TN_FAIL_IF(costs.n_blocks < 1 || costs.n_blocks > TN_SWITCH_MAX_BLOCKS ||
                   costs.n_blocks > r->model->n_layers,
               err, TERN_E_INVALID, "%d blocks of graphs are out of range", costs.n_blocks);
    for (int32_t b = 0; b < costs.n_blocks; b++) {
        costs.load_us[b] = tn_sim_weight_bytes(r->model) * c->graph_byte_ns / 1e3 / costs.n_blocks;
        costs.g1_us[b] = prefill_us / n_chunks / costs.n_blocks;
        costs.g2_us[b] = costs.g1_us[b] + (sub - chunk) * r->model->n_layers / 1e3 / costs.n_blocks;
        if (costs.g2_us[b] < costs.g1_us[b]) costs.g2_us[b] = costs.g1_us[b];
    }
    tn_switch_plan plan;
    TN_TRY(tn_switch_plan_make(&costs, r->switching, &plan, err));
    *exposed_us = plan.total_us - prefill_us;
    return TERN_OK;
}

/* Outputs of a layer's operators for one token: both norms and residuals, quantised copies, projections,
 * rope, gate, up, activation. */
static double layer_outputs(const tn_sim_model *m) {
    double q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head;
    return 6.0 * m->n_embd + 3 * q + 3 * kv + 4.0 * m->n_ff;
}

double tn_sim_graph_bytes(const tn_sim_model *m, int32_t n_chunk) {
    return tn_sim_weight_bytes(m) + 4.0 * n_chunk * layer_outputs(m) * m->n_layers;
}

/* Weights and embedding in INT8, KV cache in 16 bits, one layer's buffers. */
static double memory_bytes_of(const tn_sim_request *r) {
    const tn_sim_model *m = r->model;
    double kv = (double)m->n_kv_heads * m->d_head, ctx = r->n_tokens + r->n_gen;
    return tn_sim_weight_bytes(m) + (double)m->n_vocab * m->n_embd + 4 * kv * ctx * m->n_layers +
           4.0 * r->n_chunk * layer_outputs(m);
}

/* ---- the request ----------------------------------------------------------------------------------- */

static tern_status check(const tn_sim_request *r, tern_error *err) {
    TN_FAIL_IF(r->n_tokens < 1 || r->n_tokens > 131072 || r->n_chunk < 32 || r->n_chunk > 1024 ||
                   r->n_gen < 0 || r->n_gen > 131072,
               err, TERN_E_INVALID, "%d tokens in chunks of %d and %d more are out of range", r->n_tokens,
               r->n_chunk, r->n_gen);
    TN_FAIL_IF(r->bits && !(r->bits >= 1 && r->bits <= 8), err, TERN_E_INVALID, "%g bits are out of range",
               r->bits);
    TN_FAIL_IF(r->ratio && !(r->ratio > 0 && r->ratio <= 1), err, TERN_E_INVALID,
               "a ratio of %g is out of range", r->ratio);
    TN_FAIL_IF(r->accepted && !(r->accepted >= 1 && r->accepted <= 1000), err, TERN_E_INVALID,
               "%g accepted tokens are out of range", r->accepted);
    TN_FAIL_IF(r->measured && (r->load != TN_SIM_WARM || r->attention != TN_SIM_FULL), err, TERN_E_INVALID,
               "measured times are those of a warm prefill with its own attention");
    return TERN_OK;
}

/* Chunks first .. first + n - 1, all in flight together. */
static tern_status run_wave(tn_sim *s, job *j, int32_t first, int32_t n, tn_timeline *tl, tn_sim_result *out,
                            tn_virtual_result *run, tern_error *err) {
    static const int32_t one_each[TN_N_LANES] = {1, 1, 1};
    const tn_sim_request *r = j->r;
    tn_prefill_spec spec = {.n_chunks = n,
                            .n_layers = j->m->n_layers,
                            .user = j,
                            .has = has,
                            .fill = fill,
                            .n_units = j->n_units,
                            .units = j->units,
                            .fill_load = fill_load,
                            .finish = wait_for_all};
    j->first_chunk = first;
    j->n_stage_tasks = 0;
    tn_graph_clear(s->graph);
    TN_TRY(tn_prefill_graph_build(&spec, s->graph, err));
    TN_TRY(tn_graph_critical_path_ns(s->graph, &out->critical_ns, err));
    TN_TRY(tn_sched_bind(s->sched, s->graph, err));
    tn_virtual_run(s->sched, &r->policy, r->measured ? r->measured->n_workers : one_each, tl, run);
    return TERN_OK;
}

static tern_status run_prefill(tn_sim *s, job *j, tn_timeline *tl, tn_sim_result *out, tern_error *err) {
    const tn_sim_request *r = j->r;
    *out = (tn_sim_result){.n_chunks = (r->n_tokens + r->n_chunk - 1) / r->n_chunk};
    int32_t wave = r->measured ? r->measured->wave_chunks : out->n_chunks;
    for (int32_t c = 0; r->attention != TN_SIM_FULL && c < out->n_chunks; c++)
        TN_TRY(plan_attention(j, c, err));
    int64_t total = 0;
    for (int32_t first = 0; first < out->n_chunks; first += wave) {
        tn_virtual_result run;
        TN_TRY(run_wave(s, j, first, first + wave < out->n_chunks ? wave : out->n_chunks - first, tl, out,
                        &run, err));
        total += run.makespan_ns;
        for (int l = 0; l < TN_N_LANES; l++)
            out->run.busy_ns[l] += run.busy_ns[l], out->work_ns[l] += tn_graph_work_ns(s->graph, (tn_lane)l);
        out->run.n_stolen += run.n_stolen;
        out->n_tasks += s->graph->n_tasks;
    }
    if (wave < out->n_chunks) {
        out->critical_ns = 0;
        memset(out->work_ns, 0, sizeof out->work_ns);
    }
    if (r->measured) total += llrint(r->measured->rest_us * 1e3);
    out->run.makespan_ns = total;
    for (int l = 0; l < TN_N_LANES; l++) {
        int32_t n = r->measured ? r->measured->n_workers[l] : 1;
        if (n && total) out->run.bubble[l] = 1 - (double)out->run.busy_ns[l] / ((double)total * n);
    }
    return TERN_OK;
}

static tern_status run_request(tn_sim *s, job *j, tn_timeline *tl, tn_sim_result *out, tern_error *err) {
    const tn_sim_request *r = j->r;
    double warm_ms = 0;
    if (r->load != TN_SIM_WARM) { /* how long with all in memory: the rest was waiting for the storage */
        tn_sim_request warm = *r;
        warm.load = TN_SIM_WARM;
        j->r = &warm;
        TN_TRY(run_prefill(s, j, NULL, out, err));
        warm_ms = (double)out->run.makespan_ns / 1e6;
        j->r = r;
        make_units(j);
    }
    TN_TRY(run_prefill(s, j, tl, out, err));
    out->ttft_ms = (double)out->run.makespan_ns / 1e6;
    out->exposed_io_ms = r->load == TN_SIM_WARM ? 0 : out->ttft_ms - warm_ms;
    out->tokens_per_second = r->n_tokens / (out->ttft_ms / 1e3);
    if (!r->soc) return TERN_OK;
    const tn_soc *c = r->soc;
    double steps = r->n_gen / (r->accepted > 1 ? r->accepted : 1), exposed_us = 0;
    if (r->one_form) TN_TRY(switching(r, out->ttft_ms * 1e3, out->n_chunks, &exposed_us, err));
    out->exposed_switch_ms = exposed_us / 1e3;
    out->step_ms = step_ns(r) / 1e6;
    out->ms_per_token = r->n_gen ? (steps * out->step_ms + out->exposed_switch_ms) / r->n_gen : 0;
    double s_total = (out->ttft_ms + r->n_gen * out->ms_per_token) / 1e3,
           s_decode = steps * out->step_ms / 1e3;
    out->energy_j = s_total * c->idle_w + (double)out->run.busy_ns[TN_LANE_CPU] / 1e9 * c->cpu_w +
                    ((double)out->run.busy_ns[TN_LANE_NPU] / 1e9 + s_decode) * c->npu_w +
                    (double)out->run.busy_ns[TN_LANE_IO] / 1e9 * c->flash_w;
    out->memory_bytes = memory_bytes_of(r);
    return TERN_OK;
}

tern_status tn_sim_open(tn_ctx *ctx, tn_sim *out, tern_error *err) {
    *out = (tn_sim){.ctx = ctx, .job = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *out->job)};
    TN_FAIL_IF(!out->job, err, TERN_E_MEMORY, "no memory for a simulator");
    tern_status st = tn_graph_open(ctx, &out->graph, err);
    if (st == TERN_OK) st = tn_sched_open(ctx, &out->sched, err);
    if (st != TERN_OK) tn_sim_close(out);
    return st;
}

void tn_sim_close(tn_sim *s) {
    if (!s->ctx) return;
    tn_sched_close(&s->sched);
    tn_graph_close(&s->graph);
    tn_free(s->ctx, s->job);
    *s = (tn_sim){0};
}

tern_status tn_sim_run(tn_sim *s, const tn_sim_request *r, tn_timeline *tl, tn_sim_result *out,
                       tern_error *err) {
    TN_TRY(check(r, err));
    s->job->r = r, s->job->m = r->model, s->job->c = r->soc, s->job->n_units = 0;
    return run_request(s, s->job, tl, out, err);
}

const char *tn_sim_bottleneck(const tn_sim_result *r) {
    static const char *const names[TN_N_LANES] = {"cpu", "npu", "flash"};
    int lane = 0;
    for (int l = 1; l < TN_N_LANES; l++) lane = r->work_ns[l] > r->work_ns[lane] ? l : lane;
    bool chain = r->critical_ns > r->work_ns[lane] + r->work_ns[lane] / 10;
    int64_t bound = chain ? r->critical_ns : r->work_ns[lane];
    return r->run.makespan_ns > bound + bound / 4 ? "schedule" : chain ? "dependencies" : names[lane];
}
