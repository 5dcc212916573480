/* Packages: the pipeline evaluates. */
#include "base/status.h"
#include "session/evaluator.h"

static int32_t max_rows(const tn_evaluator *v, int32_t pos0) {
    return tn_pipeline_wave_rows(v->pipeline, pos0);
}

static int32_t chunk_rows(const tn_evaluator *v, int32_t pos0) {
    return tn_pipeline_chunk_rows(v->pipeline, pos0);
}

static tern_status begin(tn_evaluator *v, int32_t n, int32_t pos0, tern_error *err) {
    return tn_pipeline_begin(v->pipeline, n, pos0, err);
}

static tn_pipeline_text text_of(const tn_evaluator_text *t) {
    return (tn_pipeline_text){t->self->pipeline, t->ids, t->n, t->pos0, t->tree, t->rope_long, t->next};
}

static tern_status evaluate(const tn_evaluator_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                            tern_error *err) {
    const tn_pipeline_text text = text_of(t);
    return tn_pipeline_forward(&text, cancel, timeline, err);
}

static tern_status together(const tn_evaluator_text *t, int32_t n, tn_timeline *timeline, tern_error *err) {
    tn_pipeline_text texts[TN_MAX_TEXTS];
    for (int32_t i = 0; i < n; i++) texts[i] = text_of(&t[i]);
    return tn_pipeline_forward_texts(t[0].self->pipeline, texts, n, timeline, err);
}

static bool shares(const tn_evaluator *v) { return tn_pipeline_can_share(v->pipeline); }
static int32_t room(const tn_evaluator *v) { return tn_pipeline_room(v->pipeline); }
static const float *row(const tn_evaluator *v, tn_buffer b, int32_t i) {
    return tn_pipeline_row(v->pipeline, b, i);
}

static tern_status logits(tn_evaluator *v, int32_t row0, int32_t n, float *out, tern_error *err) {
    return tn_pipeline_logits(v->pipeline, row0, n, out, err);
}

static tern_status head(tn_evaluator *v, const float *states, int32_t n, float *out, tern_error *err) {
    return tn_pipeline_head(v->pipeline, states, n, out, err);
}

static void adapt(tn_evaluator *v, const tn_lora_mix *mix) {
    tn_pipeline_adapt(v->pipeline, mix->n ? mix : NULL);
}

static void see(tn_evaluator *v, const tn_extra_rows *extra) { tn_pipeline_see(v->pipeline, extra); }

static void pauses(tn_evaluator *v, const tn_pause *pause) { tn_pipeline_pauses(v->pipeline, pause); }

static void attention(const tn_evaluator *v, tn_attn_stats *out) {
    *out = tn_pipeline_stats_get(v->pipeline)->attention;
}

static void forget(tn_evaluator *v) { tn_pipeline_forget(v->pipeline); }

static void close_packed(tn_evaluator *v) {
    tn_pipeline_close(&v->pipeline);
    tn_free(v->ctx, v);
}

static const tn_evaluator_ops packed_ops = {.max_rows = max_rows,
                                            .chunk_rows = chunk_rows,
                                            .begin = begin,
                                            .evaluate = evaluate,
                                            .together = together,
                                            .shares = shares,
                                            .room = room,
                                            .row = row,
                                            .logits = logits,
                                            .head = head,
                                            .adapt = adapt,
                                            .see = see,
                                            .pauses = pauses,
                                            .attention = attention,
                                            .forget = forget,
                                            .close = close_packed};

tern_status tn_evaluator_open_packed(tern_engine *e, tn_state *state, tn_step_profile *profile,
                                     const tn_lora_mix *mix, tn_evaluator **out, tern_error *err) {
    tn_evaluator *v = tn_calloc(&e->ctx, TN_MEM_OTHER, 1, sizeof *v);
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory for a session");
    *v = (tn_evaluator){.ops = &packed_ops, .ctx = &e->ctx};
    tern_status st = tn_pipeline_open(&e->ctx, e->npu, e->model, &e->kern, &state->kv, e->pool, e->exec,
                                      e->policy, &e->attention, profile, &v->pipeline, err);
    if (st != TERN_OK) {
        close_packed(v);
        return st;
    }
    tn_pipeline_remembers(v->pipeline, tn_state_conv(state), tn_state_delta(state));
    adapt(v, mix);
    *out = v;
    return TERN_OK;
}
