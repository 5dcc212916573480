#include "lab/this_machine.h"

#include "base/status.h"
#include "session/session.h"

#include <math.h>
#include <string.h>

/* The engine's model as the simulator sees it. */
static tn_sim_model shape_of(const tern_engine *e) {
    const tn_hparams *h = &e->model->h;
    return (tn_sim_model){.name = "package",
                          .n_layers = h->n_layers,
                          .n_embd = h->n_embd,
                          .n_heads = h->n_heads,
                          .n_kv_heads = h->n_kv_heads,
                          .d_head = h->d_head,
                          .n_ff = h->n_ff,
                          .n_vocab = h->n_vocab};
}

/* Finds what a part costs beyond its work: by how much the prefill took longer than its tasks' times allow,
 * shared out. */
static tern_status part_time(tern_engine *e, const tn_sim_model *shape, tn_measured_steps *m,
                             tern_error *err) {
    tn_sim_result o;
    tn_sim sim;
    tn_policy policy = tn_policy_defaults(TN_POLICY_OOE); /* as tern measures */
    policy.keep_busy = tn_npu_device_caps(e->npu->dev)->has_parts;
    TN_TRY(tn_sim_open(&e->ctx, &sim, err));
    tern_status st = tn_sim_run(&sim,
                                &(tn_sim_request){.measured = m,
                                                  .model = shape,
                                                  .n_tokens = m->whole_tok,
                                                  .n_chunk = e->npu->chunk,
                                                  .policy = policy},
                                NULL, &o, err);
    double n_parts = 0;
    for (int32_t t = 0; t < sim.graph->n_tasks; t++) n_parts += sim.graph->tasks[t].n_parts;
    int32_t n_workers = m->n_workers[TN_LANE_CPU] + m->n_workers[TN_LANE_NPU];
    if (st == TERN_OK) m->part_us = fmax(0, (m->whole_us - o.ttft_ms * 1e3) * n_workers / n_parts);
    tn_sim_close(&sim);
    return st;
}

tern_status tn_this_machine(tern_engine *e, tn_measured_steps *out, tn_sim_model *shape, tern_error *err) {
    TN_FAIL_IF(!e->npu, err, TERN_E_INVALID, "only packages have a profile of step times");
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = e->npu->chunk;
    tern_session *s = NULL;
    TN_TRY(tern_session_open(e, &so, &s, err));
    bool measured = s->profile.measured;
    tn_pipeline_measured(tn_session_pipeline(s), out);
    tern_session_close(&s);
    TN_FAIL_IF(!measured, err, TERN_E_INVALID,
               "%s has no step times for these settings: run tern bench --tune first", e->profile_path);
    memcpy(out->n_workers, e->n_lane_workers, sizeof out->n_workers);
    *shape = shape_of(e);
    return out->whole_tok ? part_time(e, shape, out, err) : TERN_OK;
}
