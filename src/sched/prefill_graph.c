#include "sched/prefill_graph.h"

#include "base/status.h"

static const struct stage_info {
    const char *name;
    tn_lane lane;
    bool shadow;
} stages[TN_N_STAGES] = {
    [TN_ST_NORM] = {"norm", TN_LANE_CPU, false},
    [TN_ST_QKV] = {"qkv", TN_LANE_NPU, false},
    [TN_ST_QKV_SHADOW] = {"qkv shadow", TN_LANE_CPU, true},
    [TN_ST_ROPE] = {"rope", TN_LANE_CPU, false},
    [TN_ST_PLAN] = {"plan", TN_LANE_CPU, false},
    [TN_ST_ESTIMATE] = {"estimate", TN_LANE_NPU, false},
    [TN_ST_SELECT] = {"select", TN_LANE_CPU, false},
    [TN_ST_ATTEND] = {"attend", TN_LANE_CPU, false},
    [TN_ST_ATTN] = {"attention", TN_LANE_CPU, false},
    [TN_ST_O] = {"o", TN_LANE_NPU, false},
    [TN_ST_O_SHADOW] = {"o shadow", TN_LANE_CPU, true},
    [TN_ST_NORM2] = {"norm2", TN_LANE_CPU, false},
    [TN_ST_FFN] = {"ffn", TN_LANE_NPU, false},
    [TN_ST_FFN_SHADOW] = {"ffn shadow", TN_LANE_CPU, true},
    [TN_ST_GLU] = {"glu", TN_LANE_CPU, false},
    [TN_ST_DOWN] = {"down", TN_LANE_NPU, false},
    [TN_ST_DOWN_SHADOW] = {"down shadow", TN_LANE_CPU, true},
    [TN_ST_FINAL] = {"final", TN_LANE_CPU, false},
};

const char *tn_stage_name(tn_stage s) { return stages[s].name; }
tn_lane tn_stage_lane(tn_stage s) { return stages[s].lane; }
bool tn_stage_is_shadow(tn_stage s) { return stages[s].shadow; }

bool tn_prefill_has(const tn_prefill_spec *spec, tn_stage s, int32_t layer) {
    if (s == TN_ST_FINAL) return layer == spec->n_layers - 1;
    if (tn_stage_is_head(s)) return spec->n_head_slots && spec->has(spec->user, TN_ST_PLAN, layer);
    return tn_stage_is_product(s) || tn_stage_is_shadow(s) || s == TN_ST_PLAN
               ? spec->has(spec->user, s, layer)
               : true;
}

static const struct load_info {
    const char *name;
    tn_lane lane;
} loads[TN_N_LOAD_STEPS] = {[TN_LD_READ] = {"read", TN_LANE_IO},
                            [TN_LD_UNPACK] = {"unpack", TN_LANE_CPU},
                            [TN_LD_LOAD] = {"load", TN_LANE_NPU}};

const char *tn_load_step_name(tn_load_step s) { return loads[s].name; }

/* Does a task of the prefill use what this unit brings? The shadow of a product is the stage after it. */
static bool needs(const tn_task *t, const tn_prefill_unit *u) {
    if (t->layer != u->layer) return false;
    return t->subgraph == (int32_t)u->stage ||
           (tn_stage_is_product(u->stage) && t->subgraph == (int32_t)u->stage + 1 &&
            tn_stage_is_shadow((tn_stage)t->subgraph));
}

static void add_loads(const tn_prefill_spec *spec, tn_graph *g) {
    int32_t first = g->n_tasks, per_chunk = first / spec->n_chunks; /* every chunk has the same tasks */
    for (int32_t u = 0; u < spec->n_units; u++) {
        const tn_prefill_unit *unit = &spec->units[u];
        int32_t id = first + u * TN_N_LOAD_STEPS;
        for (int s = 0; s < TN_N_LOAD_STEPS; s++) {
            tn_task t = {.name = loads[s].name,
                         .layer = unit->layer,
                         .subgraph = (int32_t)unit->stage,
                         .lane = loads[s].lane,
                         .n_parts = 1,
                         .can_steal = s != TN_LD_READ};
            spec->fill_load(spec->user, u, (tn_load_step)s, &t);
            tn_graph_add(g, &t);
            if (s) tn_graph_depend(g, id + s - 1, id + s);
        }
        /* reads end in order; a unit is read when those whose memory it takes are loaded */
        if (u) tn_graph_depend(g, id - TN_N_LOAD_STEPS, id);
        for (int32_t v = u ? spec->units[u - 1].after + 1 : 0; v <= unit->after; v++)
            tn_graph_depend(g, first + v * TN_N_LOAD_STEPS + TN_LD_LOAD, id);
        for (int32_t t = 0; t < per_chunk; t++) {
            if (!needs(&g->tasks[t], unit)) continue;
            for (int32_t c = 0; c < spec->n_chunks; c++)
                tn_graph_depend(g, id + TN_LD_LOAD, c * per_chunk + t);
        }
    }
}

/* The pipeline of heads behind the task `plan`. Returns its first task; the three of slot i in block b begin
 * 3 * (b * n_head_slots + i) later. */
static int32_t add_heads(const tn_prefill_spec *spec, tn_graph *g, int32_t chunk, int32_t layer,
                         int32_t plan) {
    enum { EST, SELECT, ATTEND, N };
    int32_t first = g->n_tasks, n = spec->n_head_slots;
    for (int32_t b = 0; b < spec->n_head_blocks; b++) {
        int32_t at = first + N * b * n, last = at + N * (n - 1),
                free_at = at - N * n * (spec->no_head_overlap ? 1 : 2);
        for (int32_t i = 0; i < n; i++) {
            int32_t id = at + N * i;
            for (int s = 0; s < N; s++) {
                tn_stage stage = (tn_stage)(TN_ST_ESTIMATE + s);
                tn_task t = {.name = stages[stage].name,
                             .chunk = chunk,
                             .layer = layer,
                             .subgraph = TN_ST_ESTIMATE,
                             .lane = stages[stage].lane,
                             .n_parts = 1,
                             .can_steal = true};
                spec->fill_head(spec->user, stage, b, i, &t);
                tn_graph_add(g, &t);
                if (s) tn_graph_depend(g, id + s - 1, id + s);
            }
            tn_graph_depend(g, b + i ? id - N : plan, id);
        }
        /* the places of scores and lists that this block takes */
        for (int32_t i = 0; free_at >= first && i < n; i++) tn_graph_depend(g, free_at + N * i + ATTEND, at);
        for (int32_t i = 0; spec->no_head_overlap && i < n; i++) {
            tn_graph_depend(g, last + EST, at + N * i + SELECT);
            if (i) tn_graph_depend(g, at + N * (i - 1) + SELECT, at + N * i + SELECT);
            tn_graph_depend(g, last + SELECT, at + N * i + ATTEND);
        }
    }
    return first;
}

tern_status tn_prefill_graph_build(const tn_prefill_spec *spec, tn_graph *g, tern_error *err) {
    int32_t *ropes = tn_alloc(g->ctx, TN_MEM_GRAPHS, 2 * (size_t)spec->n_chunks * (size_t)spec->n_layers,
                              sizeof *ropes),
            *attns = ropes + spec->n_chunks * spec->n_layers;
    TN_FAIL_IF(!ropes, err, TERN_E_MEMORY, "no memory for a task graph");
    for (int32_t c = 0; c < spec->n_chunks; c++) {
        int32_t last = -1, before_last = -1,
                shadow = -1; /* what the next stage waits for: the last stage and its shadow */
        int32_t heads = -1;  /* and the pipeline of heads */
        for (int32_t layer = 0; layer < spec->n_layers; layer++) {
            for (int s = 0; s < TN_N_STAGES; s++) {
                tn_stage stage = (tn_stage)s;
                if (tn_stage_is_head(stage) || !tn_prefill_has(spec, stage, layer)) continue;
                tn_task t = {.name = stages[s].name,
                             .chunk = c,
                             .layer = layer,
                             .subgraph = s,
                             .lane = stages[s].lane,
                             .n_parts = 1,
                             .can_steal = true};
                spec->fill(spec->user, stage, &t);
                int32_t id = tn_graph_add(g, &t);
                if (stages[s].shadow) { /* beside the product: waits for what the product waits for, the
                                           quantising stage */
                    shadow = id;
                    tn_graph_depend(g, before_last, id);
                    continue;
                }
                if (last >= 0) tn_graph_depend(g, last, id);
                if (shadow >= 0) tn_graph_depend(g, shadow, id);
                shadow = -1;
                if (stage == TN_ST_ROPE) ropes[c * spec->n_layers + layer] = id;
                if (stage == TN_ST_ATTN) attns[c * spec->n_layers + layer] = id;
                for (int32_t h = 0;
                     heads >= 0 && stage == TN_ST_ATTN && h < spec->n_head_blocks * spec->n_head_slots; h++)
                    tn_graph_depend(g, heads + 3 * h + 2, id);
                if (stage == TN_ST_PLAN && c) tn_graph_depend(g, attns[(c - 1) * spec->n_layers + layer], id);
                for (int32_t e = 0; stage == TN_ST_ATTN && e < c; e++)
                    tn_graph_depend(g, ropes[e * spec->n_layers + layer], id);
                heads = stage == TN_ST_PLAN && spec->n_head_slots ? add_heads(spec, g, c, layer, id) : -1;
                before_last = last;
                last = id;
            }
        }
    }
    tn_free(g->ctx, ropes);
    add_loads(spec, g);
    if (spec->finish) spec->finish(spec->user, g);
    return tn_graph_seal(g, err);
}
