/* Exchanging graphs while waves run (sd.npu 3.1), on devices that keep one form of a graph. */
#include "base/status.h"
#include "prefill/impl.h"

tern_status tn_pipeline_begin(tn_pipeline *p, int32_t n_tok, int32_t pos0, tern_error *err) {
    p->switching.next_wave = -1;
    p->said_from = pos0;
    p->said_end = pos0 + n_tok;
    if (!p->switching.switcher || n_tok <= TN_DECODE_M) return TERN_OK;
    const tn_switch_plan *plan;
    tn_switcher_lock(p->switching.switcher);
    if (!tn_switcher_has_times(p->switching.switcher)) { /* the profile of earlier processes, or guesses */
        double product, other;
        tn_wave_layer_us(p, &product, &other);
        tn_switcher_measured(p->switching.switcher, TN_FORM_CHUNK, product / p->n_workers,
                             other / p->n_workers);
    }
    /* waves as the session will make them; the last may be so short that it runs in the decode form */
    int32_t n_rows = tn_skipped_rows(pos0) + n_tok, wave_rows = p->n_chunks_open * p->n_rows,
            tail = n_rows % wave_rows;
    if (tail && tail <= TN_DECODE_M && tail < n_rows) n_rows -= tail;
    int32_t n_waves = (n_rows + wave_rows - 1) / wave_rows;
    double last_wave = (double)(n_rows - (n_waves - 1) * wave_rows) / wave_rows;
    tern_status rc =
        tn_switcher_plan(p->switching.switcher, n_waves, p->n_chunks_open, last_wave, &plan, err);
    if (rc == TERN_OK && plan) {
        p->switching.plan = *plan;
        p->switching.next_wave = 0;
    }
    tn_switcher_unlock(p->switching.switcher);
    return rc;
}

/* Tells whether the plan begins the load of block b in the next wave. */
static bool loads_now(const tn_pipeline *p, int32_t b) {
    const tn_switch_plan *plan = &p->switching.plan;
    return p->switching.next_wave >= 0 && p->switching.next_wave < plan->n_chunks &&
           plan->start[b] / plan->n_blocks == p->switching.next_wave;
}

static tern_status run_load(void *arg, int part, const tn_worker *w, tern_error *err) {
    (void)part;
    (void)w;
    const load_arg *a = arg;
    return tn_switcher_load(a->p->switching.switcher, a->layer0, a->layer1, TN_FORM_DECODE, err);
}

/* Adds the loads that the plan begins in this wave, as tasks beside its chunks, either before the first
 * product of a block's layers or after the last. Each kind is in the plan's order, because a load that can
 * begin never waits for one of the other kind that cannot. */
static void add_loads(void *user, tn_graph *g) {
    tn_wave_filler *f = user;
    tn_pipeline *p = f->p;
    const tn_switch_plan *plan = &p->switching.plan;
    int32_t before[2] = {-1, -1};
    for (int32_t i = 0; i < plan->n_blocks; i++) {
        int32_t b = plan->order[i];
        if (!loads_now(p, b)) continue;
        bool first = tn_switch_chunk(plan, b) == p->switching.next_wave;
        load_arg *a = &p->switching.args[b];
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
    for (int32_t b = 0; b < p->switching.plan.n_blocks; b++) any = any || loads_now(p, b);
    return any;
}

tern_status tn_switching_open(tn_pipeline *p, tern_error *err) {
    p->switching.next_wave = -1;
    if (!p->switching.switcher) return TERN_OK;
    p->switching.args = tn_alloc(p->ctx, TN_MEM_GRAPHS, TN_SWITCH_MAX_BLOCKS, sizeof *p->switching.args);
    TN_FAIL_IF(!p->switching.args, err, TERN_E_MEMORY, "no memory for graph switching");
    return tn_wave_open(p, &p->switching.wave, tn_wave_most_tasks(p, p->n_chunks_open) + TN_SWITCH_MAX_BLOCKS,
                        err);
}

tern_status tn_wave_build_switching(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    tn_graph_clear(p->switching.wave.graph);
    return tn_wave_fill(p, &p->switching.wave, n_chunks, &(tn_prefill_spec){.finish = add_loads}, err);
}

/* Learns from the tasks of a wave; layers that changed form in it count for neither form. */
void tn_wave_learn_forms(tn_pipeline *p, const wave *w, const tn_form *form_before, int32_t n_chunks,
                         int64_t wall_ns) {
    double product_us[TN_N_FORMS] = {0}, other_us = 0, sum_us = 0;
    int32_t n_layers[TN_N_FORMS] = {0};
    for (int32_t i = 0; i < p->m->n_layers; i++) {
        if (form_before[i] == tn_switcher_form(p->switching.switcher, i) && form_before[i] < TN_N_FORMS)
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
        else if (form_before[layer] == tn_switcher_form(p->switching.switcher, layer) &&
                 form_before[layer] < TN_N_FORMS)
            product_us[form_before[layer]] += us;
    }
    /* shares of wall time: lanes overlap, and wait for each other */
    double share = sum_us > 0 ? (double)wall_ns * 1e-3 / sum_us / n_chunks : 0;
    for (int f = 0; f < TN_N_FORMS; f++) {
        if (n_layers[f])
            tn_switcher_measured(p->switching.switcher, (tn_form)f, product_us[f] * share / n_layers[f],
                                 other_us * share / p->m->n_layers);
    }
}
