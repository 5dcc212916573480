/* sim/prefill.c - a prefill's graph filled with a SoC's times instead of work. */
#include "sim/sim.h"

#include "base/status.h"
#include "sched/prefill_graph.h"

#include <math.h>
#include <string.h>

/* Shapes of the models' own configuration files. */
static const tn_sim_model models[] = {
    {"qwen1.5-1.8b", 24, 2048, 16, 16, 128, 5504},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960},
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072},
    {"gemma-2b", 18, 2048, 8, 1, 256, 16384},
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008},
};

const tn_sim_model *tn_sim_model_at(int32_t i) { return i >= 0 && i < (int32_t)(sizeof models / sizeof *models) ? &models[i] : NULL; }

const tn_sim_model *tn_sim_model_find(const char *name) {
    const tn_sim_model *m;
    for (int32_t i = 0; (m = tn_sim_model_at(i)) && strcmp(m->name, name);) i++;
    return m;
}

static double stage_weights(const tn_sim_model *m, tn_stage s) {
    double embd = m->n_embd, q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head;
    switch (s) {
    case TN_ST_QKV: case TN_ST_QKV_SHADOW: return embd * (q + 2 * kv);
    case TN_ST_O: case TN_ST_O_SHADOW: return q * embd;
    case TN_ST_FFN: case TN_ST_FFN_SHADOW: return 2 * embd * m->n_ff;
    case TN_ST_DOWN: case TN_ST_DOWN_SHADOW: return embd * m->n_ff;
    default: return 0;
    }
}

double tn_sim_weight_bytes(const tn_sim_model *m) {
    double sum = 0;
    for (int st = 0; st < TN_N_STAGES; st++) sum += tn_stage_is_product((tn_stage)st) ? stage_weights(m, (tn_stage)st) : 0;
    return sum * m->n_layers;
}

static double stage_inputs(const tn_sim_model *m, tn_stage s) {
    return s == TN_ST_O_SHADOW ? (double)m->n_heads * m->d_head : s == TN_ST_DOWN_SHADOW ? m->n_ff : m->n_embd;
}

/* Kept paths lie evenly over the layers: the papers do not say where. */
static bool has(void *user, tn_stage stage, int32_t layer) {
    const tn_sim_request *r = user;
    if (stage == TN_ST_PLAN) return false;
    if (!tn_stage_is_shadow(stage)) return true;
    double kept = r->soc->shadow_kept;
    return floor((layer + 1) * kept) > floor(layer * kept);
}

static void fill(void *user, tn_stage stage, tn_task *t) {
    const tn_sim_request *r = user;
    const tn_sim_model *m = r->model;
    const tn_soc *c = r->soc;
    double rows = r->n_chunk, w = stage_weights(m, stage), ns = 0;
    double q = (double)m->n_heads * m->d_head, kv = (double)m->n_kv_heads * m->d_head;
    if (tn_stage_is_product(stage)) ns = c->launch_ns + fmax(w * c->byte_ns, w * rows * c->mac_ns);
    else if (tn_stage_is_shadow(stage)) ns = c->shadow_channels / stage_inputs(m, stage) * w * rows * c->attn_mac_ns;
    else if (stage == TN_ST_ATTN) ns = 2 * rows * (t->chunk + 1) * rows * q * c->attn_mac_ns;
    else if (stage == TN_ST_ROPE) ns = rows * (q + 2 * kv) * c->elem_ns;
    else if (stage == TN_ST_GLU) ns = rows * m->n_ff * c->elem_ns;
    else ns = rows * m->n_embd * c->elem_ns;
    t->est_us[t->lane] = (float)(ns / 1e3);
    t->can_steal = false; /* lanes are different processors */
}

tern_status tn_sim_prefill(const tn_sim_request *r, tn_graph *g, tn_sched *s, tn_timeline *tl, tn_sim_result *out, tern_error *err) {
    TN_FAIL_IF(r->n_tokens < 1 || r->n_tokens > 131072 || r->n_chunk < 32 || r->n_chunk > 1024, err, TERN_E_INVALID,
               "%d tokens in chunks of %d are out of range", r->n_tokens, r->n_chunk);
    static const int32_t one_each[TN_N_LANES] = {1, 1, 0};
    tn_sim_request mine = *r;
    tn_prefill_spec spec = {.n_chunks = (r->n_tokens + r->n_chunk - 1) / r->n_chunk, .n_layers = r->model->n_layers, .user = &mine, .has = has, .fill = fill};
    *out = (tn_sim_result){.n_chunks = spec.n_chunks};
    tn_graph_clear(g);
    TN_TRY(tn_prefill_graph_build(&spec, g, err));
    TN_TRY(tn_graph_critical_path_ns(g, &out->critical_ns, err));
    TN_TRY(tn_sched_bind(s, g, err));
    tn_virtual_run(s, &r->policy, one_each, tl, &out->run);
    out->n_tasks = g->n_tasks;
    for (int lane = 0; lane < TN_N_LANES; lane++) out->work_ns[lane] = tn_graph_work_ns(g, (tn_lane)lane);
    out->ttft_ms = (double)out->run.makespan_ns / 1e6;
    out->tokens_per_second = r->n_tokens / (out->ttft_ms / 1e3);
    return TERN_OK;
}

const char *tn_sim_bottleneck(const tn_sim_result *r) {
    int64_t npu = r->work_ns[TN_LANE_NPU], cpu = r->work_ns[TN_LANE_CPU], bound = npu > cpu ? npu : cpu;
    if (r->critical_ns > bound) bound = r->critical_ns;
    if (r->run.makespan_ns > bound + bound / 4) return "schedule";
    return bound == npu ? "npu" : bound == cpu ? "cpu" : "dependencies";
}
