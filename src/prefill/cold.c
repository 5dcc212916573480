/* Cold start (EdgeFlow 4.3): weights are loaded while the first wave runs. */
#include "base/status.h"
#include "prefill/impl.h"

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
    tn_wave_filler *f = user;
    cold_arg *a = &f->p->start.args[unit * TN_N_LOAD_STEPS + (int32_t)step];
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
    cold_start *s = &p->start;
    const tn_loader *l = p->m->loader;
    if (!s->wave.graph) TN_TRY(tn_wave_open(p, &s->wave, tn_wave_most_tasks(p, p->n_chunks_open), err));
    if (!s->args)
        s->args =
            tn_alloc(p->ctx, TN_MEM_GRAPHS, (size_t)tn_loader_n_units(l) * TN_N_LOAD_STEPS, sizeof *s->args);
    TN_FAIL_IF(!s->args, err, TERN_E_MEMORY, "no memory for a task graph");
    tn_graph_clear(s->wave.graph);
    const tn_prefill_spec loads = {
        .n_units = tn_loader_n_units(l), .units = tn_loader_units(l), .fill_load = filler_fill_load};
    return tn_wave_fill(p, &s->wave, n_chunks, &loads, err);
}

/* Everything this wave's own graph was needed for is loaded, so the graph is dropped. */
void tn_wave_drop_cold(tn_pipeline *p) {
    tn_wave_close(p, &p->start.wave);
    tn_free(p->ctx, p->start.args);
    p->start.args = NULL;
}
