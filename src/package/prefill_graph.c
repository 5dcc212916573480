#include "package/prefill_graph.h"

#include "base/status.h"

#include <assert.h>

enum { TN_MAX_BESIDE = 8 }; /* siblings of a product and its outlier path */

const char *tn_head_step_name(tn_step_kind k) {
    static const char *const names[] = {"estimate", "select", "attend"};
    return names[k - TN_STEP_ESTIMATE];
}

static tn_lane head_step_lane(tn_step_kind k) { return k == TN_STEP_ESTIMATE ? TN_LANE_NPU : TN_LANE_CPU; }

static const struct load_info {
    const char *name;
    tn_lane lane;
} loads[TN_N_LOAD_STEPS] = {[TN_LD_READ] = {"read", TN_LANE_IO},
                            [TN_LD_UNPACK] = {"unpack", TN_LANE_CPU},
                            [TN_LD_LOAD] = {"load", TN_LANE_NPU}};

static bool is_first(const tn_prefill_spec *spec, int32_t step) {
    return !step || spec->steps[step - 1].layer != spec->steps[step].layer;
}

/* Position of a step in its layer: the task's `subgraph`. Every other number is left free, because the
 * pipeline of heads takes the number after its plan. */
static int32_t place_of(const tn_prefill_spec *spec, int32_t step) {
    int32_t place = 0;
    for (; !is_first(spec, step); step--) place += 2;
    return place;
}

typedef struct builder {
    const tn_prefill_spec *spec;
    tn_graph *g;
    int32_t *task; /* [n_chunks][n_steps] */
} builder;

static int32_t task_of(const builder *b, int32_t chunk, int32_t step) {
    return b->task[chunk * b->spec->n_steps + step];
}

static bool needs(const tn_prefill_spec *spec, int32_t step, const tn_prefill_unit *u) {
    const tn_step *s = &spec->steps[step];
    if (s->layer != u->layer) return false;
    return u->weights == TN_NO_WEIGHTS ? is_first(spec, step) : s->weights == u->weights;
}

static void add_loads(const builder *b) {
    const tn_prefill_spec *spec = b->spec;
    tn_graph *g = b->g;
    int32_t first = g->n_tasks;
    for (int32_t u = 0; u < spec->n_units; u++) {
        const tn_prefill_unit *unit = &spec->units[u];
        int32_t id = first + u * TN_N_LOAD_STEPS, step = 0;
        while (step < spec->n_steps && !needs(spec, step, unit)) step++;
        for (int s = 0; s < TN_N_LOAD_STEPS; s++) {
            tn_task t = {.name = loads[s].name,
                         .layer = unit->layer,
                         .subgraph = step < spec->n_steps ? place_of(spec, step) : 0,
                         .lane = loads[s].lane,
                         .n_parts = 1,
                         .can_steal = s != TN_LD_READ};
            spec->fill_load(spec->user, u, (tn_load_step)s, &t);
            tn_graph_add(g, &t);
            if (s) tn_graph_depend(g, id + s - 1, id + s);
        }
        /* reads end in order; a unit is read when the units whose memory it reuses are loaded */
        if (u) tn_graph_depend(g, id - TN_N_LOAD_STEPS, id);
        for (int32_t v = u ? spec->units[u - 1].after + 1 : 0; v <= unit->after; v++)
            tn_graph_depend(g, first + v * TN_N_LOAD_STEPS + TN_LD_LOAD, id);
        for (; step < spec->n_steps && spec->steps[step].layer == unit->layer; step++) {
            if (!needs(spec, step, unit)) continue;
            for (int32_t c = 0; c < spec->n_chunks; c++)
                tn_graph_depend(g, id + TN_LD_LOAD, task_of(b, c, step));
        }
    }
}

/* Adds the pipeline of heads after the task `plan`. Returns its first task. The three tasks of slot i in
 * block b begin 3 * (b * n_head_slots + i) ids later. */
static int32_t add_heads(const builder *x, const tn_step *step, int32_t chunk, int32_t place, int32_t plan) {
    enum { EST, SELECT, ATTEND, N };
    const tn_prefill_spec *spec = x->spec;
    tn_graph *g = x->g;
    int32_t first = g->n_tasks, n = spec->n_head_slots;
    for (int32_t b = 0; b < spec->n_head_blocks; b++) {
        int32_t at = first + N * b * n, last = at + N * (n - 1),
                free_at = at - N * n * (spec->no_head_overlap ? 1 : 2);
        for (int32_t i = 0; i < n; i++) {
            int32_t id = at + N * i;
            for (int s = 0; s < N; s++) {
                tn_step_kind head = (tn_step_kind)(TN_STEP_ESTIMATE + s);
                tn_task t = {.name = tn_head_step_name(head),
                             .chunk = chunk,
                             .layer = step->layer,
                             .subgraph = place + 1,
                             .lane = head_step_lane(head),
                             .n_parts = 1,
                             .can_steal = true};
                spec->fill_head(spec->user, step, head, b, i, &t);
                tn_graph_add(g, &t);
                if (s) tn_graph_depend(g, id + s - 1, id + s);
            }
            tn_graph_depend(g, b + i ? id - N : plan, id);
        }
        /* the places for scores and lists that this block reuses */
        for (int32_t i = 0; free_at >= first && i < n; i++) tn_graph_depend(g, free_at + N * i + ATTEND, at);
        for (int32_t i = 0; spec->no_head_overlap && i < n; i++) {
            tn_graph_depend(g, last + EST, at + N * i + SELECT);
            if (i) tn_graph_depend(g, at + N * (i - 1) + SELECT, at + N * i + SELECT);
            tn_graph_depend(g, last + SELECT, at + N * i + ATTEND);
        }
    }
    return first;
}

/* Makes a step that recalls a state wait for the steps of earlier chunks that remember it. */
static void wait_for_memory(const builder *b, int32_t chunk, int32_t step, int32_t id) {
    const tn_step *steps = b->spec->steps;
    int32_t last = step; /* a step that remembers may come after one that recalls */
    while (last + 1 < b->spec->n_steps && steps[last + 1].layer == steps[step].layer) last++;
    for (int32_t s = last; s >= 0 && steps[s].layer == steps[step].layer; s--) {
        if (!(steps[s].remembers & steps[step].recalls)) continue;
        for (int32_t c = 0; c < chunk; c++) tn_graph_depend(b->g, task_of(b, c, s), id);
    }
}

static void add_chunk(const builder *b, int32_t c) {
    const tn_prefill_spec *spec = b->spec;
    tn_graph *g = b->g;
    int32_t last = -1, before_last = -1;
    int32_t beside[TN_MAX_BESIDE],
        n_beside = 0; /* the next step waits for the last one, its siblings and its outlier path */
    int32_t waits[TN_MAX_BESIDE], n_waits = 0; /* further dependencies of the last step */
    int32_t heads = -1, place = 0;             /* and for the pipeline of heads */
    for (int32_t s = 0; s < spec->n_steps; s++) {
        const tn_step *step = &spec->steps[s];
        place = is_first(spec, s) ? 0 : place + 2;
        tn_task t = {.name = step->name,
                     .chunk = c,
                     .layer = step->layer,
                     .subgraph = place,
                     .lane = step->lane,
                     .n_parts = 1,
                     .can_steal = true};
        spec->fill(spec->user, step, &t);
        int32_t id = b->task[c * spec->n_steps + s] = tn_graph_add(g, &t);
        if (step->kind == TN_STEP_OUTLIERS || step->sibling) {
            assert(n_beside < TN_MAX_BESIDE);
            beside[n_beside++] = id;
            if (before_last >= 0) tn_graph_depend(g, before_last, id);
            for (int32_t i = 0; i < n_waits; i++) tn_graph_depend(g, waits[i], id);
            continue;
        }
        if (last >= 0) tn_graph_depend(g, last, id);
        n_waits = n_beside;
        for (int32_t i = 0; i < n_beside; i++) tn_graph_depend(g, waits[i] = beside[i], id);
        n_beside = 0;
        for (int32_t h = 0; heads >= 0 && h < spec->n_head_blocks * spec->n_head_slots; h++)
            tn_graph_depend(g, heads + 3 * h + 2, id);
        heads = -1;
        if (step->kind == TN_STEP_PLAN && c) tn_graph_depend(g, task_of(b, c - 1, s + 1), id);
        wait_for_memory(b, c, s, id);
        if (step->kind == TN_STEP_PLAN && spec->n_head_slots) heads = add_heads(b, step, c, place, id);
        before_last = last;
        last = id;
    }
}

tern_status tn_prefill_graph_build(const tn_prefill_spec *spec, tn_graph *g, tern_error *err) {
    builder b = {.spec = spec, .g = g};
    b.task = tn_alloc(g->ctx, TN_MEM_GRAPHS, (size_t)spec->n_chunks * (size_t)spec->n_steps, sizeof *b.task);
    TN_FAIL_IF(!b.task, err, TERN_E_MEMORY, "no memory for a task graph");
    for (int32_t c = 0; c < spec->n_chunks; c++) add_chunk(&b, c);
    add_loads(&b);
    tn_free(g->ctx, b.task);
    if (spec->finish) spec->finish(spec->user, g);
    return tn_graph_seal(g, err);
}
