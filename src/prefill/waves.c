/* Waves: the task graphs of chunks in flight together, and measured times for the policies. */
#include "base/status.h"
#include "prefill/impl.h"

/* ---- estimates ------------------------------------------------------------------------------------- */

/* Guesses before anything is measured: multiply-adds at a round rate, right in order of magnitude. */
static double guess_us(const tn_pipeline *p, int32_t step, tn_step_kind kind) {
    double rows = p->n_rows;
    if (tn_step_is_head(kind)) rows /= p->heads.n_slots * p->heads.n_blocks;
    if (kind == TN_STEP_PRODUCT) {
        const tn_site_ops *o = &tn_step_site(p, step)->ops;
        int32_t linear = tn_step_linear(p, step);
        return rows * (linear < 0 ? tn_site_macs(o) : (double)o->k * o->n[linear]) / 4e5;
    }
    return rows * (double)p->model->h.n_embd / 1e3;
}

static bool is_attention(tn_step_kind k) { return k == TN_STEP_ATTENTION || tn_step_is_head(k); }

/* Returns the measured time of attention of a layer at position 0. */
static double attention_us(const tn_pipeline *p) {
    const tn_step_types *t = &p->steps.types;
    double us = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (!is_attention(t->at[i].kind)) continue;
        us += p->profile->us[i] * (tn_step_is_head(t->at[i].kind) ? p->heads.n_slots * p->heads.n_blocks : 1);
    }
    return us;
}

static int32_t type_of(const tn_pipeline *p, const task_arg *a) {
    return tn_step_is_head(a->kind) ? tn_step_type_find(&p->steps.types, tn_head_step_name(a->kind))
                                    : p->steps.at[a->step].type;
}

/* Tells whether the CPU lane computes this product differently from the device, and so in another time. */
static bool stolen_apart(const tn_pipeline *p, int32_t step) {
    const tn_npu_site *s = tn_step_site(p, step);
    return tn_product_can_be_stolen(p, step) && !tn_site_has_parts(p, s) && !s->ops.n_experts;
}

static void set_estimates(const tn_pipeline *p, wave *w, int32_t n_tasks) {
    for (int32_t i = 0; i < n_tasks; i++) {
        const task_arg *a = &w->args[i];
        double us = guess_us(p, a->step, a->kind);
        if (p->profile->measured) {
            us = p->profile->us[type_of(p, a)];
            /* attention is one task, or the tasks of the heads, which grow in proportion */
            double grows = p->profile->attn_us_per_pos * a->i_chunk * p->n_rows, first = attention_us(p);
            if (p->heads.n_slots) us *= tn_step_is_head(a->kind) && first > 0 ? 1 + grows / first : 1;
            else if (a->kind == TN_STEP_ATTENTION) us += grows;
        }
        double cpu_us = a->kind == TN_STEP_PRODUCT ? p->profile->cpu_us[type_of(p, a)] : 0;
        bool apart = p->profile->measured && cpu_us > 0 && w->graph->tasks[i].lane == TN_LANE_NPU;
        tn_graph_set_est(w->graph, i, TN_LANE_NPU, us);
        tn_graph_set_est(w->graph, i, TN_LANE_CPU, apart ? cpu_us : us);
    }
}

void tn_wave_layer_us(const tn_pipeline *p, double *product, double *other) {
    *product = *other = 0;
    for (int32_t i = 0; i < p->steps.n; i++) {
        const tn_step *s = &p->steps.at[i];
        double us = !p->profile->measured          ? guess_us(p, i, s->kind)
                    : s->kind == TN_STEP_ATTENTION ? attention_us(p)
                                                   : p->profile->us[s->type];
        *(s->kind == TN_STEP_PRODUCT ? product : other) += us / p->m->n_layers;
    }
}

/* ---- graphs ---------------------------------------------------------------------------------------- */

typedef struct wave_filler {
    tn_pipeline *p;
    wave *w;
    int32_t n; /* tasks filled */
} wave_filler;

static void fill_task(wave_filler *f, const tn_step *step, tn_step_kind kind, tn_task *t) {
    int32_t i = (int32_t)(step - f->p->steps.at);
    task_arg *a = &f->w->args[f->n++];
    *a = (task_arg){.p = f->p, .i_chunk = t->chunk, .step = i, .kind = kind};
    t->fn = tn_task_run;
    t->arg = a;
    t->n_parts = tn_step_parts(f->p, i, kind, f->p->n_rows);
    /* the CPU lane computes products of sites beyond the device's memory */
    if (kind == TN_STEP_PRODUCT && tn_step_site(f->p, i)->on_cpu) t->lane = TN_LANE_CPU;
    if (kind == TN_STEP_PRODUCT) t->can_steal = tn_product_can_be_stolen(f->p, i);
    if (kind == TN_STEP_ESTIMATE) t->can_steal = tn_npu_device_caps(f->p->m->dev)->has_parts;
}

static void filler_fill(void *user, const tn_step *step, tn_task *t) { fill_task(user, step, step->kind, t); }

static void filler_fill_head(void *user, const tn_step *plan, tn_step_kind head, int32_t i_block,
                             int32_t slot, tn_task *t) {
    wave_filler *f = user;
    fill_task(f, plan, head, t);
    f->w->args[f->n - 1].i_block = i_block;
    f->w->args[f->n - 1].slot = slot;
}

static tn_prefill_spec wave_spec(wave_filler *f, int32_t n_chunks) {
    const tn_attn_shape *h = &f->p->heads;
    return (tn_prefill_spec){.n_chunks = n_chunks,
                             .n_steps = f->p->steps.n,
                             .steps = f->p->steps.at,
                             .user = f,
                             .fill = filler_fill,
                             .n_head_slots = h->n_slots,
                             .n_head_blocks = h->n_blocks,
                             .no_head_overlap = h->no_overlap,
                             .fill_head = filler_fill_head};
}

size_t tn_wave_most_tasks(const tn_pipeline *p, int32_t n_chunks) {
    return (size_t)n_chunks * ((size_t)p->steps.n + (size_t)p->m->n_layers * 3 * (size_t)p->heads.n_slots *
                                                        (size_t)p->heads.n_blocks);
}

tern_status tn_wave_build(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->waves[n_chunks];
    if (w->graph) return TERN_OK;
    size_t max_tasks = tn_wave_most_tasks(p, n_chunks);
    TN_TRY(tn_graph_open(p->ctx, &w->graph, err));
    w->args = tn_alloc(p->ctx, TN_MEM_GRAPHS, max_tasks, sizeof *w->args);
    w->task_ns = tn_alloc(p->ctx, TN_MEM_GRAPHS, 2 * max_tasks, sizeof *w->task_ns);
    TN_FAIL_IF(!w->args || !w->task_ns, err, TERN_E_MEMORY, "no memory for a task graph");
    w->stolen_ns = w->task_ns + max_tasks;
    wave_filler f = {.p = p, .w = w};
    const tn_prefill_spec spec = wave_spec(&f, n_chunks);
    TN_TRY(tn_prefill_graph_build(&spec, w->graph, err));
    set_estimates(p, w, f.n);
    return TERN_OK;
}

/* ---- switching graphs ------------------------------------------------------------------------------ */

/* Tells whether the plan begins the load of block b in the next wave. */
static bool loads_now(const tn_pipeline *p, int32_t b) {
    const tn_switch_plan *plan = &p->switch_plan;
    return p->plan_wave >= 0 && p->plan_wave < plan->n_chunks &&
           plan->start[b] / plan->n_blocks == p->plan_wave;
}

static tern_status run_load(void *arg, int part, const tn_worker *w, tern_error *err) {
    (void)part;
    (void)w;
    const load_arg *a = arg;
    return tn_switcher_load(a->p->switcher, a->layer0, a->layer1, TN_FORM_DECODE, err);
}

/* Adds the loads that the plan begins in this wave, as tasks beside its chunks, either before the first
 * product of a block's layers or after the last. Each kind is in the plan's order, because a load that can
 * begin never waits for one of the other kind that cannot. */
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
                     .subgraph = 2 * p->steps.n, /* after the layer's steps */
                     .n_parts = 1,
                     .lane = TN_LANE_IO};
        int32_t id = tn_graph_add(g, &t);
        for (int32_t task = 0; task < f->n; task++) {
            const task_arg *c = &f->w->args[task];
            int32_t layer = p->steps.at[c->step].layer;
            if (layer < a->layer0 || layer >= a->layer1 || c->kind != TN_STEP_PRODUCT) continue;
            if (first) tn_graph_depend(g, id, task);
            else tn_graph_depend(g, task, id);
        }
        if (before[first] >= 0) tn_graph_depend(g, before[first], id);
        before[first] = id;
    }
}

bool tn_wave_switches(const tn_pipeline *p) {
    bool any = false;
    for (int32_t b = 0; b < p->switch_plan.n_blocks; b++) any = any || loads_now(p, b);
    return any;
}

tern_status tn_wave_build_switching(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->switch_wave;
    tn_graph_clear(w->graph);
    wave_filler f = {.p = p, .w = w};
    tn_prefill_spec spec = wave_spec(&f, n_chunks);
    spec.finish = add_loads;
    TN_TRY(tn_prefill_graph_build(&spec, w->graph, err));
    set_estimates(p, w, f.n);
    return TERN_OK;
}

/* ---- cold start (EdgeFlow 4.3): weights are loaded while the first wave runs --------------------------- */

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

tern_status tn_wave_build_cold(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->cold_wave;
    const tn_loader *l = p->m->loader;
    if (!w->graph) {
        size_t max_tasks = tn_wave_most_tasks(p, p->n_chunks_open);
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

/* Everything this wave's own graph was needed for is loaded, so the graph is dropped. */
void tn_wave_drop_cold(tn_pipeline *p) {
    tn_graph_close(&p->cold_wave.graph);
    tn_free(p->ctx, p->cold_wave.args);
    tn_free(p->ctx, p->cold_args);
    p->cold_wave.args = NULL;
    p->cold_args = NULL;
}

/* A graph is made for full chunks; a short one has fewer parts of rows. */
void tn_wave_fit(tn_pipeline *p, wave *w) {
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        tn_task *t = &w->graph->tasks[i];
        if (t->fn != tn_task_run) continue;
        const task_arg *a = t->arg;
        t->n_parts = tn_step_parts(p, a->step, a->kind, p->chunks[a->i_chunk].r.n_rows);
    }
}

/* ---- measurements of a run ------------------------------------------------------------------------- */

/* Returns the time of attention of a layer, all its tasks, in chunk i_chunk of a wave. */
static double attention_of(const tn_pipeline *p, const wave *w, int32_t i_chunk) {
    double us = 0;
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        const task_arg *a = &w->args[i];
        if (a->i_chunk == i_chunk && is_attention(a->kind)) us += (double)w->task_ns[i] * 1e-3;
    }
    return us / p->m->n_layers;
}

/* Merges the times of another wave of the same steps: the minimum of both, because disturbance only adds
 * time. The faster wave decides the growth of attention. */
static void take_least(const tn_pipeline *p, const tn_step_profile *before) {
    double was = 0, is = 0;
    for (int t = 0; t < p->steps.types.n; t++) was += before->us[t], is += p->profile->us[t];
    if (was < is) p->profile->attn_us_per_pos = before->attn_us_per_pos;
    for (int t = 0; t < p->steps.types.n; t++)
        if (before->us[t] > 0 && (before->us[t] < p->profile->us[t] || p->profile->us[t] <= 0))
            p->profile->us[t] = before->us[t];
}

/* Learns the mean time of each type of step over the layers and the first n_chunks chunks, all full, of a
 * wave that begins at position pos0. The time of attention is extrapolated back to position 0 along its
 * growth. */
void tn_wave_learn(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0) {
    double sum[TN_MAX_STEP_TYPES] = {0};
    int64_t count[TN_MAX_STEP_TYPES] = {0};
    const tn_step_profile before = *p->profile;
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        const task_arg *a = &w->args[i];
        if (a->i_chunk >= n_chunks || (is_attention(a->kind) && a->i_chunk > 0)) continue;
        int32_t type = type_of(p, a);
        if (w->stolen_ns[i] && a->kind == TN_STEP_PRODUCT && stolen_apart(p, a->step))
            continue; /* not the device's time */
        sum[type] += (double)w->task_ns[i] * 1e-3;
        count[type]++;
    }
    for (int t = 0; t < TN_MAX_STEP_TYPES; t++) p->profile->us[t] = count[t] ? sum[t] / (double)count[t] : 0;
    double first = attention_us(p),
           per_pos = first / (pos0 + p->n_rows / 2.0); /* on average a row sees half its chunk */
    if (n_chunks > 1) {
        per_pos = (attention_of(p, w, n_chunks - 1) - first) / ((double)(n_chunks - 1) * p->n_rows);
        if (per_pos < 0) per_pos = 0;
    }
    p->profile->attn_us_per_pos = per_pos;
    double share = first > 0 ? 1 - per_pos * pos0 / first : 1; /* share of its time that it took at
                                                                  position 0 */
    if (share < 0.01) share = 0.01;                            /* times are noisy, and must not be zero */
    for (int t = 0; t < p->steps.types.n && pos0; t++)
        if (is_attention(p->steps.types.at[t].kind)) p->profile->us[t] *= share;
    if (before.measured) take_least(p, &before);
    p->profile->measured = true;
    p->profile->n_waves++;
    for (int i = 1; i <= p->n_chunks_open; i++) set_estimates(p, &p->waves[i], p->waves[i].graph->n_tasks);
}

#ifndef TERN_MINIMAL /* its device works on the CPU's own cores */
tern_status tn_wave_learn_stolen(tn_pipeline *p, tern_error *err) {
    bool known[TN_MAX_STEP_TYPES] = {false}, any = false;
    size_t widest = 0;
    for (int32_t i = 0; i < p->steps.n; i++) {
        const tn_step *s = &p->steps.at[i];
        known[s->type] = known[s->type] || s->kind != TN_STEP_PRODUCT || p->profile->cpu_us[s->type] > 0 ||
                         !stolen_apart(p, i);
        if (known[s->type]) continue;
        size_t n = (size_t)tn_step_site(p, i)->ops.n_total;
        widest = n > widest ? n : widest;
        any = true;
    }
    if (!any) return TERN_OK;
    float *out = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, widest * (size_t)p->n_rows, sizeof *out);
    TN_FAIL_IF(!out, err, TERN_E_MEMORY, "no memory to measure products on the CPU");
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < p->steps.n && st == TERN_OK; i++) {
        int32_t type = p->steps.at[i].type;
        if (known[type]) continue;
        double us[3] = {0}; /* the median of three: the first brings the weights into cache */
        for (int k = 0; k < 3 && st == TERN_OK; k++) st = tn_product_time_here(p, i, out, &us[k], err);
        double low = us[0] < us[1] ? us[0] : us[1], high = us[0] < us[1] ? us[1] : us[0];
        p->profile->cpu_us[type] = us[2] < low ? low : us[2] > high ? high : us[2];
        known[type] = true;
    }
    tn_free(p->ctx, out);
    for (int i = 1; i <= p->n_chunks_open; i++) set_estimates(p, &p->waves[i], p->waves[i].graph->n_tasks);
    return st;
}
#endif

void tn_wave_learn_growth(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0) {
    double per_pos =
        (attention_of(p, w, n_chunks - 1) - attention_us(p)) / (pos0 + (double)(n_chunks - 1) * p->n_rows);
    if (per_pos > 0) p->profile->attn_us_per_pos = per_pos;
}

/* Learns from the tasks of a wave; layers that changed form in it count for neither form. */
void tn_wave_learn_forms(tn_pipeline *p, const wave *w, const tn_form *form_before, int32_t n_chunks,
                         int64_t wall_ns) {
    double product_us[TN_N_FORMS] = {0}, other_us = 0, sum_us = 0;
    int32_t n_layers[TN_N_FORMS] = {0};
    for (int32_t i = 0; i < p->m->n_layers; i++) {
        if (form_before[i] == tn_switcher_form(p->switcher, i) && form_before[i] < TN_N_FORMS)
            n_layers[form_before[i]]++;
    }
    int32_t n_tasks = p->waves[n_chunks].graph->n_tasks; /* number of the steps' tasks: loads come after
                                                            them */
    for (int32_t i = 0; i < n_tasks; i++) {
        const task_arg *a = &w->args[i];
        int32_t layer = p->steps.at[a->step].layer;
        double us = (double)w->task_ns[i] * 1e-3;
        sum_us += us;
        if (a->kind != TN_STEP_PRODUCT) other_us += us;
        else if (form_before[layer] == tn_switcher_form(p->switcher, layer) &&
                 form_before[layer] < TN_N_FORMS)
            product_us[form_before[layer]] += us;
    }
    /* shares of wall time: lanes overlap, and wait for each other */
    double share = sum_us > 0 ? (double)wall_ns * 1e-3 / sum_us / n_chunks : 0;
    for (int f = 0; f < TN_N_FORMS; f++) {
        if (n_layers[f])
            tn_switcher_measured(p->switcher, (tn_form)f, product_us[f] * share / n_layers[f],
                                 other_us * share / p->m->n_layers);
    }
}

void tn_pipeline_measured(const tn_pipeline *p, tn_measured_steps *out) {
    *out = (tn_measured_steps){.attn_us_per_pos = p->profile->attn_us_per_pos,
                               .rest_us = p->profile->rest_us,
                               .whole_us = p->profile->whole_us,
                               .whole_tok = p->profile->whole_tok,
                               .wave_chunks = TN_WAVE_CHUNKS};
    for (int32_t i = 0; i < p->steps.n; i++) {
        const tn_step *s = &p->steps.at[i];
        int32_t alone =
            p->steps.work[i].alone; /* single linears are reported as the product they belong to */
        const char *name = alone ? p->steps.work[i].ops->name : s->name;
        int32_t type = alone ? tn_step_type_find(&p->steps.types, name) : s->type;
        tn_measured_step *m = &out->step[type];
        out->n = type + 1 > out->n ? type + 1 : out->n;
        m->name = name;
        m->us = (alone > 1 ? m->us : 0) +
                (s->kind == TN_STEP_ATTENTION ? attention_us(p) : p->profile->us[s->type]);
        m->n_parts = tn_step_parts(p, i, s->kind, p->n_rows);
        m->kept += alone <= 1;
    }
    for (int32_t t = 0; t < out->n; t++) out->step[t].kept /= p->m->n_layers;
}
