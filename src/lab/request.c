/* lab/request.c - one request: the prefill's graph filled with times instead of work, run on the virtual
 * clock; then decoding, energy and memory. */
#include "lab/sim.h"

#include "base/status.h"
#include "lab/sim_views.h"
#include "prefill/steps.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    MAX_CHUNKS = 131072 / 32,
    VERIFY_ROWS = 32, /* of a decode graph: a draft is padded to what saturates the device (sd.npu 5.1) */
    DECODE_SHARE = 4, /* a decode graph has a quarter of the rows of a prefill graph (sd.npu 4.2) */
    EST_ROWS = 128,   /* rows of Q in a launch of the estimate (shadowAttn 3.4) */
    PLACES = 1 << 10, /* of a layer, in plans: more than it has steps */
};
#define DEFAULT_RATIO 0.2

/* These are the shapes of the models' own configuration files. */
static const tn_sim_model models[] = {
    {"qwen1.5-1.8b", 24, 2048, 16, 16, 128, 5504, 151936, .every = 0},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, .every = 0},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, .every = 0},
    {"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, .every = 0},
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, .every = 0},
    {"qwen3.5-0.8b", 24, 1024, 8, 2, 256, 3584, 248320, .every = 4, .delta_heads = 16, .delta_d = 128,
     .conv_len = 4},
    {"qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, .every = 0},
    {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, .every = 0},
    {"gemma2-2b", 26, 2304, 8, 4, 256, 9216, 256000, .every = 0},
    {"gemma3-1b", 26, 1152, 4, 1, 256, 6912, 262144, .every = 0},
    {"gemma3-4b", 34, 2560, 8, 4, 256, 10240, 262144, .every = 0},
    {"gemma-2b", 18, 2048, 8, 1, 256, 16384, 256000, .every = 0},
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, .every = 0},
    {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256, .every = 0},
    {"llama3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, .every = 0},
    {"llama3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, .every = 0},
    {"mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, .every = 0},
    {"baichuan2-7b", 32, 4096, 32, 32, 128, 11008, 125696, .every = 0},
    {"falcon3-7b", 28, 3072, 12, 4, 256, 23040, 131072, .every = 0},
    {"granite3.1-8b", 40, 4096, 32, 8, 128, 12800, 49155, .every = 0},
    {"granite3.3-2b", 40, 2048, 32, 8, 64, 8192, 49159, .every = 0},
    {"glm-edge-1.5b", 28, 2048, 16, 4, 128, 6144, 59264, .every = 0},
    {"jais-6.7b", 32, 4096, 32, 32, 128, 10922, 84992, .every = 0},
    {"smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, .every = 0},
    {"smollm2-360m", 32, 960, 15, 5, 64, 2560, 49152, .every = 0},
    {"smollm3-3b", 36, 2048, 16, 4, 128, 11008, 128256, .every = 0},
    {"phi4-mini", 32, 3072, 24, 8, 128, 8192, 200064, .every = 0},
    {"phi3-3.8b", 32, 3072, 32, 32, 96, 8192, 32064, .every = 0},
    {"phonelm-0.5b", 24, 1024, 16, 16, 64, 4864, 49152, .every = 0},
    {"phonelm-1.5b", 19, 2560, 16, 16, 160, 6816, 49152, .every = 0},
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

/* A job is a request while its graph is filled. */
typedef struct tn_sim_job {
    const tn_sim_request *r;
    const tn_sim_model *m;
    const tn_soc *c;
    tn_program program;
    tn_steps steps;
    int32_t first_chunk;                             /* of this wave */
    double plan_us[MAX_CHUNKS], attn_us[MAX_CHUNKS]; /* sparse attention of a layer: what the device's
                                                        estimate adds in front; the CPU's part */
    tn_prefill_unit *units;                          /* one for every layer's small tensors and every site */
    int32_t n_units, n_step_tasks;
    int32_t n_turns; /* staged: layers that take turns */
    bool apart;      /* all views are encoded before the prompt */
} job;

/* Makes the program. The models here are gated decoders, plain or with delta nets between layers that attend. */
static tern_status make_program(tn_ctx *ctx, const tn_sim_model *m, tn_program *out, tern_error *err) {
    tn_hparams h = {.n_layers = m->n_layers,
                    .n_embd = m->n_embd,
                    .n_heads = m->n_heads,
                    .n_kv_heads = m->n_kv_heads,
                    .d_head = m->d_head,
                    .n_rot = m->d_head,
                    .n_ff = m->n_ff,
                    .n_vocab = m->n_vocab,
                    .gated = true,
                    .attn_gate = m->every > 0,
                    .conv_len = m->conv_len,
                    .embd_scale = 1,
                    .residual_scale = 1,
                    .logit_scale = 1};
    if (m->every) {
        h.delta = (tn_delta_net){.n_heads = m->delta_heads,
                                 .n_key_heads = m->delta_heads,
                                 .d_key = m->delta_d,
                                 .d_value = m->delta_d};
        for (int32_t i = 0; i < m->n_layers; i++)
            if ((i + 1) % m->every) h.layer_kind[i] = TN_LAYER_DELTA;
    }
    return tn_program_make(ctx, &h, out, err);
}

static double site_weights(const tn_program *p, int32_t site) {
    const tn_site_ops *o = tn_program_linears(p, site);
    return (double)o->k * o->n_total;
}

/* Returns the weights of the model's layers; lm_head is no part of a prefill. */
static double layer_weights(const tn_program *p) {
    double sum = 0;
    for (int32_t i = 0; i < p->n_sites; i++)
        if (tn_site_in_layers(p->sites[i].kind)) sum += site_weights(p, i);
    return sum;
}

static int32_t n_attending(const tn_sim_model *m) { return m->every ? m->n_layers / m->every : m->n_layers; }

double tn_sim_weight_bytes(const tn_sim_model *m) {
    double e = m->n_embd, q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head,
           d = (double)m->delta_heads *
               m->delta_d; /* queries, keys, values, gate and the way out, two rates a head */
    return n_attending(m) * (e * ((m->every ? 2 : 1) * q + 2 * kv) + q * e) +
           (m->n_layers - n_attending(m)) * (5 * e * d + 2 * e * m->delta_heads) +
           3 * m->n_layers * e * m->n_ff;
}

/* ---- times ----------------------------------------------------------------------------------------- */

static double site_values(const tn_program *p, int32_t site) {
    const tn_site_ops *o = tn_program_linears(p, site);
    return (double)o->k + o->n_total;
}

/* Tells whether the site is within the memory that the device can address. The feed-forward network's go
 * there first (llm.npu 4). */
static bool on_device(const job *j, int32_t site) {
    static const tn_site first[] = {TN_SITE_FFN, TN_SITE_DOWN, TN_SITE_QKV, TN_SITE_O};
    if (j->r->npu_memory <= 0 || j->r->staged) return true;
    const tn_program *p = &j->program;
    double sum = 0;
    for (size_t k = 0; k < sizeof first / sizeof *first; k++) {
        for (int32_t i = 0; i < p->n_sites; i++) {
            if (p->sites[i].kind != first[k]) continue;
            sum += site_weights(p, i);
            if (i == site) return sum <= j->r->npu_memory;
        }
    }
    return false;
}

/* Spreads kept outlier paths evenly over the sites, because the papers do not say where they are. */
static bool spread(double share, int32_t i) { return floor((i + 1) * share) > floor(i * share); }

static bool has_outliers(void *user, int32_t site) {
    const job *j = user;
    return j->r->measured || spread(j->c->outliers_kept, site);
}

static const tn_measured_step *measured_step(const tn_measured_steps *m, const char *name) {
    for (int32_t i = 0; i < m->n; i++)
        if (m->step[i].name && !strcmp(m->step[i].name, name)) return &m->step[i];
    return NULL;
}

/* Of measured steps there are those that were measured. Outlier paths and plans are in their share of
 * layers. */
static bool has(void *user, const tn_step *step) {
    const job *j = user;
    if (!j->r->measured) return true;
    const tn_measured_step *m = measured_step(j->r->measured, step->name);
    if (step->kind != TN_STEP_OUTLIERS && step->kind != TN_STEP_PLAN) return m != NULL;
    return m && m->n_parts > 0 && spread(m->kept, step->layer);
}

static double attention_ns(const job *j, int32_t chunk) {
    const tn_soc *c = j->c;
    double rows = j->r->n_chunk, q = (double)j->m->n_heads * j->m->d_head, keys = (chunk + 1) * rows;
    if (c->device_attention) return 2 * rows * fmax(keys, c->prefill_context) * q * c->mac_ns;
    return 2 * rows * keys * q * (j->r->one_core ? c->core_mac_ns : c->attn_mac_ns);
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

/* Plans sparse attention of one layer as the engine plans it. In a chunk's own square half of the positions
 * are masked, and skipped. */
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

static void fill_measured(const job *j, const tn_step *step, tn_task *t) {
    const tn_measured_steps *all = j->r->measured;
    const tn_measured_step *m = measured_step(all, step->name);
    int32_t pos = (j->first_chunk + t->chunk) * j->r->n_chunk, left = j->r->n_tokens - pos;
    double us = m->us + (step->kind == TN_STEP_ATTENTION ? all->attn_us_per_pos * pos : 0) +
                all->part_us * m->n_parts;
    if (left < j->r->n_chunk) us *= (double)left / j->r->n_chunk;
    t->n_parts = m->n_parts;
    t->est_us[TN_LANE_CPU] = t->est_us[TN_LANE_NPU] = (float)us;
}

static double product_step(const job *j, const tn_step_work *w, tn_task *t) {
    const tn_sim_request *r = j->r;
    const tn_site_ops *o = tn_program_linears(&j->program, w->site);
    double ns = tn_sim_product_ns(j->c, site_weights(&j->program, w->site), site_values(&j->program, w->site),
                                  r->n_chunk);
    if (w->alone) ns *= (double)o->n[w->alone - 1] / o->n_total; /* its share of the site's launch, too */
    t->est_us[TN_LANE_CPU] = (float)(ns * j->c->cpu_slower / 1e3);
    t->can_steal = true;
    if (!on_device(j, w->site)) t->lane = TN_LANE_CPU, ns *= j->c->cpu_slower, t->can_steal = false;
    return ns;
}

/* Prices a step of rows. Its ops pass over a row together, so the one with the most values counts. A recurrence takes
 * its multiplications beside that: it is no product of matrices. */
static double rows_step(const job *j, const tn_step_work *w, tn_task *t) {
    const tn_soc *c = j->c;
    double most = 0, recurrent = 0;
    for (int32_t i = 0; i < w->n_ops; i++) {
        tn_cost o = tn_op_cost(&w->ops[i], j->r->n_chunk, 0);
        most = fmax(most, o.values);
        if (w->ops[i].kind == TN_OP_DELTA) recurrent += o.macs;
    }
    if (j->r->float_on_npu || (recurrent > 0 && c->device_attention)) t->lane = TN_LANE_NPU;
    return most * c->elem_ns * (j->r->float_on_npu ? c->float_slower : 1) + recurrent * c->vector_mac_ns;
}

static void fill(void *user, const tn_step *step, tn_task *t) {
    job *j = user;
    const tn_sim_request *r = j->r;
    const tn_soc *c = j->c;
    const tn_step_work *w = &j->steps.work[step - j->steps.at];
    j->n_step_tasks++;
    if (r->measured) {
        fill_measured(j, step, t);
        return;
    }
    double rows = r->n_chunk, ns = 0;
    t->can_steal = false; /* lanes are different processors: only products can run on both */
    switch (step->kind) {
    case TN_STEP_PRODUCT: ns = product_step(j, w, t); break;
    case TN_STEP_OUTLIERS: {
        double n = tn_program_linears(&j->program, w->site)->n_total;
        ns = c->outlier_channels * n * rows * c->attn_mac_ns + rows * n * c->sync_ns;
        break;
    }
    case TN_STEP_PLAN:
        t->lane = TN_LANE_NPU;
        ns = j->plan_us[t->chunk] * 1e3;
        break;
    case TN_STEP_ATTENTION:
        if (c->device_attention) t->lane = TN_LANE_NPU;
        ns = r->attention == TN_SIM_FULL ? attention_ns(j, t->chunk) : j->attn_us[t->chunk] * 1e3;
        break;
    default: ns = rows_step(j, w, t);
    }
    t->est_us[t->lane] = (float)(ns / 1e3);
    /* linears of one site share a place, so that Q, K and V of a chunk come together */
    if (r->stage_major) t->plan = t->layer * PLACES + t->subgraph - (w->alone ? w->alone - 1 : 0);
}

/* ---- weights in the file --------------------------------------------------------------------------- */

static double unit_bytes(const job *j, int32_t unit) {
    const tn_prefill_unit *u = &j->units[unit];
    if (j->r->load != TN_SIM_STREAM && j->r->load != TN_SIM_OVERLAP)
        return layer_weights(&j->program) / j->m->n_layers;
    return u->weights == TN_NO_WEIGHTS
               ? 4.0 * 2 * j->m->n_embd
               : site_weights(&j->program, tn_program_site_index(&j->program, u->layer, (tn_site)u->weights));
}

static void fill_load(void *user, int32_t unit, tn_load_step step, tn_task *t) {
    const job *j = user;
    const tn_soc *c = j->c;
    bool packed = j->r->load == TN_SIM_STREAM || j->r->load == TN_SIM_OVERLAP,
         small = j->units[unit].weights == TN_NO_WEIGHTS;
    double bytes = unit_bytes(j, unit), bits = j->r->bits > 0 ? j->r->bits : 8, ns = 0;
    if (step == TN_LD_READ) {
        if (j->n_turns) ns = bytes * c->flash_byte_ns; /* runtime and memory are there, as for switching */
        else if (!packed)
            ns = bytes * c->graph_byte_ns; /* the vendor's runtime reads and loads in one call */
        else ns = bytes * (small ? 1 : bits / 8) * c->flash_byte_ns;
        if (unit == 0 && !j->n_turns)
            ns += tn_sim_weight_bytes(j->m) *
                  (c->setup_byte_ns + (j->r->load == TN_SIM_BUILD ? c->optimise_byte_ns : 0));
    } else if (step == TN_LD_UNPACK && packed && !small) {
        ns = bytes * c->unpack_ns;
    }
    t->can_steal = false;
    t->est_us[t->lane] = (float)(ns / 1e3);
    if (j->r->stage_major) t->plan = t->layer * PLACES + t->subgraph - 1;
}

/* Lets a layer's exchange begin when all chunks are through the layer whose place it takes. */
static void take_turns(const job *j, tn_graph *g) {
    for (int32_t u = 2; u < j->n_units; u++)
        for (int32_t t = 0; t < j->n_step_tasks; t++)
            if (g->tasks[t].layer == j->units[u - 2].layer)
                tn_graph_depend(g, t, j->n_step_tasks + TN_N_LOAD_STEPS * u + TN_LD_READ);
}

/* Adds what the steps wait for: exchanges, views, and where computing begins, in every chunk, when the last
 * unit is loaded, that. */
static void wait_for_all(void *user, tn_graph *g) {
    const job *j = user;
    if (j->n_turns) take_turns(j, g);
    if (j->r->n_views) tn_sim_add_views(j->r, j->apart, j->n_step_tasks / j->steps.n, j->steps.n, g);
    if (j->r->load != TN_SIM_OVERLAP && j->r->load != TN_SIM_SEQUENTIAL && j->r->load != TN_SIM_BUILD) return;
    for (int32_t t = 0; t < j->n_step_tasks; t++)
        if (g->tasks[t].layer == 0 && g->tasks[t].subgraph == 0)
            tn_graph_depend(g, j->n_step_tasks + TN_N_LOAD_STEPS * j->n_units - 1, t);
}

/* Plans the device's window: layers that stay, and two places in which the others, evenly between them, take turns. */
static tern_status plan_turns(job *j, tern_error *err) {
    double layer = layer_weights(&j->program) / j->m->n_layers;
    int32_t n = j->m->n_layers, fit = (int32_t)fmin(j->r->npu_memory / layer, n);
    if (!j->r->staged || fit == n) return TERN_OK;
    TN_FAIL_IF(fit < 2, err, TERN_E_INVALID, "%.0f bytes hold no two layers of %.0f", j->r->npu_memory,
               layer);
    j->n_turns = n - (fit - 2);
    for (int32_t i = 0; i < n; i++)
        if (spread((double)j->n_turns / n, i))
            j->units[j->n_units++] = (tn_prefill_unit){.layer = i, .weights = TN_NO_WEIGHTS, .after = -1};
    return TERN_OK;
}

static void make_units(job *j) {
    bool by_site = j->r->load == TN_SIM_STREAM || j->r->load == TN_SIM_OVERLAP;
    for (int32_t layer = 0; j->r->load != TN_SIM_WARM && layer < j->m->n_layers; layer++) {
        int32_t first, n = tn_program_layer_sites(&j->program, layer, &first);
        j->units[j->n_units++] = (tn_prefill_unit){.layer = layer, .weights = TN_NO_WEIGHTS, .after = -1};
        for (int32_t i = first; by_site && i < first + n; i++)
            j->units[j->n_units++] =
                (tn_prefill_unit){.layer = layer, .weights = (int32_t)j->program.sites[i].kind, .after = -1};
    }
}

/* ---- decoding, energy, memory ---------------------------------------------------------------------- */

/* A step reads every weight, and exchanges the layers that take turns. One that verifies a draft also multiplies by the rows of its graph, which takes longer
 * than a row's reading and is not hidden by it. */
static double step_ns(const job *j) {
    const tn_sim_request *r = j->r;
    const tn_soc *c = r->soc;
    const tn_sim_model *m = r->model;
    double head = (double)m->n_vocab * m->n_embd,
           bytes = tn_sim_weight_bytes(m) * c->step_weight_bits / 8 + head +
                   2.0 * n_attending(m) * m->n_kv_heads * m->d_head * c->step_context * c->step_kv_bytes +
                   8.0 * (m->n_layers - n_attending(m)) * m->delta_heads * m->delta_d * m->delta_d,
           macs = r->accepted > 1 ? VERIFY_ROWS * (tn_sim_weight_bytes(m) + head) : 0;
    double turns = j->n_turns * layer_weights(&j->program) / m->n_layers * c->flash_byte_ns;
    return fmax(m->n_layers * c->step_layer_ns + bytes * c->step_byte_ns + macs * c->mac_ns, turns);
}

/* Computes what exchanging prefill for decode graphs adds, from the start of the prefill on. The runtime and its
 * memory are there, so an exchange takes what reading the graph's weights from flash takes, unlike a cold start. */
static tern_status switching(const job *j, double prefill_us, int32_t n_chunks, double *exposed_us,
                             tern_error *err) {
    const tn_sim_request *r = j->r;
    const tn_soc *c = r->soc;
    double chunk = 0, sub = 0;
    int32_t first, n = tn_program_layer_sites(&j->program, 0, &first);
    for (int32_t i = first; i < first + n; i++) {
        double w = site_weights(&j->program, i), values = site_values(&j->program, i);
        chunk += tn_sim_product_ns(c, w, values, r->n_chunk);
        sub += tn_sim_product_ns(c, w, values, (double)r->n_chunk / DECODE_SHARE) * DECODE_SHARE;
    }
    tn_switch_costs costs = {.n_blocks = r->switch_blocks ? r->switch_blocks : 2, .n_chunks = n_chunks};
    TN_FAIL_IF(costs.n_blocks < 1 || costs.n_blocks > TN_SWITCH_MAX_BLOCKS ||
                   costs.n_blocks > r->model->n_layers,
               err, TERN_E_INVALID, "%d blocks of graphs are out of range", costs.n_blocks);
    for (int32_t b = 0; b < costs.n_blocks; b++) {
        costs.load_us[b] = tn_sim_weight_bytes(r->model) * c->flash_byte_ns / 1e3 / costs.n_blocks;
        costs.g1_us[b] = prefill_us / n_chunks / costs.n_blocks;
        costs.g2_us[b] = costs.g1_us[b] + (sub - chunk) * r->model->n_layers / 1e3 / costs.n_blocks;
        if (costs.g2_us[b] < costs.g1_us[b]) costs.g2_us[b] = costs.g1_us[b];
    }
    tn_switch_plan plan;
    TN_TRY(tn_switch_plan_make(&costs, r->switching, &plan, err));
    *exposed_us = plan.total_us - prefill_us;
    return TERN_OK;
}

/* Counts the outputs of a layer's operators for one token: both norms and residuals, quantised copies,
 * projections, rope, gate, up, activation. */
static double layer_outputs(const tn_sim_model *m) {
    double q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head;
    return 6.0 * m->n_embd + 3 * q + 3 * kv + 4.0 * m->n_ff;
}

double tn_sim_graph_bytes(const tn_sim_model *m, int32_t n_chunk) {
    return tn_sim_weight_bytes(m) + 4.0 * n_chunk * layer_outputs(m) * m->n_layers;
}

/* Sums weights and embedding in INT8, the KV cache in 16 bits, one layer's buffers, and an encoder. */
static double memory_bytes_of(const tn_sim_request *r) {
    const tn_sim_model *m = r->model;
    double kv = (double)m->n_kv_heads * m->d_head, ctx = r->n_tokens + r->n_gen;
    return tn_sim_weight_bytes(m) + (double)m->n_vocab * m->n_embd + 4 * kv * ctx * n_attending(m) +
           4.0 * r->n_chunk * layer_outputs(m) + (r->n_views ? tn_sim_encoder_bytes(&r->encoder) : 0);
}

/* ---- the request ----------------------------------------------------------------------------------- */

static tern_status check(const tn_sim_request *r, tern_error *err) {
    TN_FAIL_IF(r->n_tokens < 1 || r->n_tokens > 131072 || r->n_chunk < 32 || r->n_chunk > 1024 ||
                   r->n_gen < 0 || r->n_gen > 131072,
               err, TERN_E_INVALID, "%d tokens in chunks of %d and %d more are out of range", r->n_tokens,
               r->n_chunk, r->n_gen);
    TN_FAIL_IF(r->bits != 0 && !(r->bits >= 1 && r->bits <= 8), err, TERN_E_INVALID,
               "%g bits are out of range", r->bits);
    TN_FAIL_IF(r->ratio != 0 && !(r->ratio > 0 && r->ratio <= 1), err, TERN_E_INVALID,
               "a ratio of %g is out of range", r->ratio);
    TN_FAIL_IF(r->accepted != 0 && !(r->accepted >= 1 && r->accepted <= 1000), err, TERN_E_INVALID,
               "%g accepted tokens are out of range", r->accepted);
    TN_FAIL_IF(r->staged && (r->npu_memory <= 0 || r->load != TN_SIM_WARM || r->measured), err,
               TERN_E_INVALID, "staging is of a warm prefill on a device with a limit of memory");
    TN_FAIL_IF(r->measured && (r->load != TN_SIM_WARM || r->attention != TN_SIM_FULL), err, TERN_E_INVALID,
               "measured times are those of a warm prefill with its own attention");
    TN_FAIL_IF(r->n_views && (r->measured || r->load != TN_SIM_WARM), err, TERN_E_INVALID,
               "views are encoded in a warm prefill on a SoC");
    TN_FAIL_IF(r->n_views < 0 || r->n_before < 0 ||
                   (int64_t)r->n_before + (int64_t)r->n_views * r->encoder.rows > r->n_tokens,
               err, TERN_E_INVALID,
               "a prompt of %d tokens has no room for %d views of %d rows after %d tokens", r->n_tokens,
               r->n_views, r->encoder.rows, r->n_before);
    return TERN_OK;
}

/* Runs chunks first .. first + n - 1, all in flight together. */
static tern_status run_wave(tn_sim *s, job *j, int32_t first, int32_t n, tn_timeline *tl, tn_sim_result *out,
                            tn_virtual_result *run, tern_error *err) {
    static const int32_t one_each[TN_N_LANES] = {1, 1, 1};
    const tn_sim_request *r = j->r;
    tn_prefill_spec spec = {.n_chunks = n,
                            .n_steps = j->steps.n,
                            .steps = j->steps.at,
                            .user = j,
                            .fill = fill,
                            .n_units = j->n_units,
                            .units = j->units,
                            .fill_load = fill_load,
                            .finish = wait_for_all};
    j->first_chunk = first;
    j->n_step_tasks = 0;
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
    if (r->load != TN_SIM_WARM &&
        !r->no_exposure) { /* how long with all in memory: the rest was waiting for the storage */
        tn_sim_request warm = *r;
        warm.load = TN_SIM_WARM;
        j->r = &warm;
        TN_TRY(run_prefill(s, j, NULL, out, err));
        warm_ms = (double)out->run.makespan_ns / 1e6;
        j->r = r;
    }
    make_units(j);
    TN_TRY(plan_turns(j, err));
    double apart_ms = 0;
    if (r->n_views) {
        j->apart = true;
        TN_TRY(run_prefill(s, j, NULL, out, err));
        apart_ms = (double)out->run.makespan_ns / 1e6;
        j->apart = false;
    }
    TN_TRY(run_prefill(s, j, tl, out, err));
    out->apart_ms = apart_ms;
    out->ttft_ms = (double)out->run.makespan_ns / 1e6;
    out->exposed_io_ms = r->load == TN_SIM_WARM || r->no_exposure ? 0 : out->ttft_ms - warm_ms;
    out->tokens_per_second = r->n_tokens / (out->ttft_ms / 1e3);
    if (!r->soc) return TERN_OK;
    const tn_soc *c = r->soc;
    double steps = r->n_gen / (r->accepted > 1 ? r->accepted : 1), exposed_us = 0;
    if (r->one_form) TN_TRY(switching(j, out->ttft_ms * 1e3, out->n_chunks, &exposed_us, err));
    out->exposed_switch_ms = exposed_us / 1e3;
    out->step_ms = step_ns(j) / 1e6;
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

static void drop_steps(const tn_sim *s) {
    tn_steps_free(&s->job->steps);
    tn_program_free(&s->job->program);
    tn_free(s->ctx, s->job->units);
    s->job->units = NULL;
}

void tn_sim_close(tn_sim *s) {
    if (!s->ctx) return;
    drop_steps(s);
    tn_sched_close(&s->sched);
    tn_graph_close(&s->graph);
    tn_free(s->ctx, s->job);
    *s = (tn_sim){0};
}

tern_status tn_sim_run(tn_sim *s, const tn_sim_request *r, tn_timeline *tl, tn_sim_result *out,
                       tern_error *err) {
    TN_TRY(check(r, err));
    job *j = s->job;
    drop_steps(s);
    j->r = r, j->m = r->model, j->c = r->soc, j->n_units = j->n_turns = 0, j->apart = false;
    TN_TRY(make_program(s->ctx, r->model, &j->program, err));
    const tn_steps_options o = {.plan = r->measured || r->attention == TN_SIM_SHADOW,
                                .operators = r->operators || r->policy.steal_above >= 0,
                                .has_outliers = has_outliers,
                                .has = has,
                                .user = j};
    TN_TRY(tn_steps_make(s->ctx, &j->program, &o, &j->steps, err));
    j->units =
        tn_alloc(s->ctx, TN_MEM_OTHER, (size_t)(j->program.n_sites + j->m->n_layers), sizeof *j->units);
    TN_FAIL_IF(!j->units, err, TERN_E_MEMORY, "no memory for a simulated request");
    return run_request(s, j, tl, out, err);
}

bool tn_sim_task_is_dynamic(const tn_sim *s, int32_t task) {
    const tn_steps *steps = &s->job->steps;
    return steps->at[task % steps->n].positional;
}

const char *tn_sim_bottleneck(const tn_sim_result *r) {
    static const char *const names[TN_N_LANES] = {"cpu", "npu", "flash"};
    int lane = 0;
    for (int l = 1; l < TN_N_LANES; l++) lane = r->work_ns[l] > r->work_ns[lane] ? l : lane;
    bool chain = r->critical_ns > r->work_ns[lane] + r->work_ns[lane] / 10;
    int64_t bound = chain ? r->critical_ns : r->work_ns[lane];
    return r->run.makespan_ns > bound + bound / 4 ? "schedule" : chain ? "dependencies" : names[lane];
}
