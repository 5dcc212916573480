/* Waves: the task graphs of chunks in flight together. */
#include "base/status.h"
#include "prefill/impl.h"

static void fill_task(tn_wave_filler *f, const tn_step *step, tn_step_kind kind, tn_task *t) {
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
    tn_wave_filler *f = user;
    fill_task(f, plan, head, t);
    f->w->args[f->n - 1].i_block = i_block;
    f->w->args[f->n - 1].slot = slot;
}

static tn_prefill_spec wave_spec(tn_wave_filler *f, int32_t n_chunks) {
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

tern_status tn_wave_open(tn_pipeline *p, wave *w, size_t n_tasks, tern_error *err) {
    TN_TRY(tn_graph_open(p->ctx, &w->graph, err));
    w->args = tn_alloc(p->ctx, TN_MEM_GRAPHS, n_tasks, sizeof *w->args);
    w->task_ns = tn_alloc(p->ctx, TN_MEM_GRAPHS, 2 * n_tasks, sizeof *w->task_ns);
    if (!w->args || !w->task_ns) {
        tn_wave_close(p, w);
        return tn_fail(err, TERN_E_MEMORY, "no memory for a task graph");
    }
    w->stolen_ns = w->task_ns + n_tasks;
    return TERN_OK;
}

void tn_wave_close(tn_pipeline *p, wave *w) {
    tn_graph_close(&w->graph);
    tn_free(p->ctx, w->args);
    tn_free(p->ctx, w->task_ns);
    *w = (wave){0};
}

tern_status tn_wave_fill(tn_pipeline *p, wave *w, int32_t n_chunks, const tn_prefill_spec *with,
                         tern_error *err) {
    tn_wave_filler f = {.p = p, .w = w};
    tn_prefill_spec spec = wave_spec(&f, n_chunks);
    spec.finish = with->finish;
    spec.n_units = with->n_units;
    spec.units = with->units;
    spec.fill_load = with->fill_load;
    TN_TRY(tn_prefill_graph_build(&spec, w->graph, err));
    tn_wave_estimate(p, w, f.n);
    return TERN_OK;
}

tern_status tn_wave_build(tn_pipeline *p, int32_t n_chunks, tern_error *err) {
    wave *w = &p->waves[n_chunks];
    if (w->graph) return TERN_OK;
    TN_TRY(tn_wave_open(p, w, tn_wave_most_tasks(p, n_chunks), err));
    return tn_wave_fill(p, w, n_chunks, &(tn_prefill_spec){0}, err);
}

void tn_wave_fit(tn_pipeline *p, wave *w) {
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        tn_task *t = &w->graph->tasks[i];
        if (t->fn != tn_task_run) continue;
        const task_arg *a = t->arg;
        t->n_parts = tn_step_parts(p, a->step, a->kind, p->chunks[a->i_chunk].r.n_rows);
    }
}
