#include "sched/graph.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const char *tn_lane_name(tn_lane lane) {
    static const char *const names[TN_N_LANES] = {"cpu", "npu", "io"};
    return names[lane];
}

tern_status tn_graph_open(tn_ctx *ctx, tn_graph **out, tern_error *err) {
    *out = tn_calloc(ctx, TN_MEM_GRAPHS, 1, sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a task graph");
    (*out)->ctx = ctx;
    return TERN_OK;
}

void tn_graph_close(tn_graph **pg) {
    tn_graph *g = *pg;
    if (!g) return;
    *pg = NULL;
    tn_free(g->ctx, g->tasks);
    tn_free(g->ctx, g->edges);
    tn_free(g->ctx, g->block);
    tn_free(g->ctx, g);
}

void tn_graph_clear(tn_graph *g) {
    g->n_tasks = g->n_edges = 0;
    g->failed = TERN_OK;
    g->sealed = false;
}

static bool task_ok(const tn_task *t) {
    if ((unsigned)t->lane >= TN_N_LANES || t->n_parts < 0 || !t->name) return false;
    if (t->lane == TN_LANE_IO && t->can_steal) return false;
    for (int l = 0; l < TN_N_LANES; l++)
        if (!(t->est_us[l] >= 0) || t->est_us[l] > 1e12f) return false; /* refuses NaN too */
    return true;
}

/* Grows p to hold n elements. Returns NULL when memory runs out; p is then unchanged. */
static void *grown(tn_graph *g, void *p, int32_t *cap, int32_t n, size_t size) {
    if (n <= *cap) return p;
    int32_t want = *cap ? *cap * 2 : 256;
    void *q = tn_realloc(g->ctx, TN_MEM_GRAPHS, p, (size_t)want, size);
    if (q) *cap = want;
    return q;
}

static int32_t fail(tn_graph *g, tern_status st) {
    if (!g->failed) g->failed = st;
    return -1;
}

int32_t tn_graph_add(tn_graph *g, const tn_task *t) {
    assert(!g->sealed);
    if (g->failed) return -1;
    if (!task_ok(t)) return fail(g, TERN_E_INVALID);
    if (g->n_tasks == TN_GRAPH_MAX_TASKS) return fail(g, TERN_E_LIMIT);
    tn_task *tasks = grown(g, g->tasks, &g->cap_tasks, g->n_tasks + 1, sizeof *tasks);
    if (!tasks) return fail(g, TERN_E_MEMORY);
    g->tasks = tasks;
    tn_task *d = &tasks[g->n_tasks];
    *d = *t;
    if (!d->n_parts) d->n_parts = 1;
    for (int l = 0; l < TN_N_LANES; l++)
        if (d->est_us[l] == 0) d->est_us[l] = d->est_us[d->lane];
    return g->n_tasks++;
}

void tn_graph_depend(tn_graph *g, int32_t before, int32_t after) {
    assert(!g->sealed);
    if (g->failed) return;
    if (before < 0 || after < 0 || before >= g->n_tasks || after >= g->n_tasks || before == after) {
        fail(g, TERN_E_INVALID);
        return;
    }
    if (g->n_edges == INT32_MAX / 4) {
        fail(g, TERN_E_LIMIT);
        return;
    }
    int32_t *edges = grown(g, g->edges, &g->cap_edges, g->n_edges + 1, 2 * sizeof *edges);
    if (!edges) {
        fail(g, TERN_E_MEMORY);
        return;
    }
    g->edges = edges;
    edges[2 * g->n_edges] = before;
    edges[2 * g->n_edges + 1] = after;
    g->n_edges++;
}

static bool before_in(const tn_graph *g, bool by_plan, int32_t a, int32_t b) {
    const tn_task *x = &g->tasks[a], *y = &g->tasks[b];
    if (by_plan && x->plan != y->plan) return x->plan < y->plan;
    if (x->chunk != y->chunk) return x->chunk < y->chunk;
    if (x->layer != y->layer) return x->layer < y->layer;
    if (x->subgraph != y->subgraph) return x->subgraph < y->subgraph;
    return a < b;
}

static void push(const tn_graph *g, bool by_plan, int32_t *heap, int32_t n_heap, int32_t t) {
    int32_t i = n_heap;
    for (; i && before_in(g, by_plan, t, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = t;
}

static int32_t pop(const tn_graph *g, bool by_plan, int32_t *heap, int32_t n_heap) {
    int32_t first = heap[0], last = heap[--n_heap], i = 0;
    for (int32_t c; (c = 2 * i + 1) < n_heap; i = c) {
        if (c + 1 < n_heap && before_in(g, by_plan, heap[c + 1], heap[c])) c++;
        if (!before_in(g, by_plan, heap[c], last)) break;
        heap[i] = heap[c];
    }
    heap[i] = last;
    return first;
}

/* Makes a topological order that always takes the first task by position whose predecessors are placed.
 * Returns how many tasks were placed: fewer than n_tasks if there is a cycle. heap and left are scratch of
 * [n_tasks]. */
static int32_t order(const tn_graph *g, bool by_plan, int32_t *heap, int32_t *left, int32_t *rank,
                     int32_t *by_rank) {
    int32_t n_heap = 0, n = 0;
    memcpy(left, g->n_preds, (size_t)g->n_tasks * sizeof *left);
    for (int32_t t = 0; t < g->n_tasks; t++)
        if (!left[t]) push(g, by_plan, heap, n_heap++, t);
    while (n_heap) {
        int32_t t = pop(g, by_plan, heap, n_heap--);
        rank[t] = n;
        by_rank[n++] = t;
        for (int32_t e = g->succ_off[t]; e < g->succ_off[t + 1]; e++)
            if (!--left[g->succ[e]]) push(g, by_plan, heap, n_heap++, g->succ[e]);
    }
    return n;
}

/* Turns the counts in off[1..n] into exclusive prefix sums, shifted so that off[t] is where list t begins.
 * off[0] is 0. */
static void offsets(int32_t *off, int32_t n) {
    off[0] = 0;
    for (int32_t t = 0; t < n; t++) off[t + 1] += off[t];
}

/* Makes the succ and pred lists of the edges, ascending and without duplicates. cursor is scratch of
 * [n_tasks]. */
static void link_tasks(tn_graph *g, int32_t *cursor) {
    int32_t n = g->n_tasks;
    size_t off_bytes = (size_t)(n + 1) * sizeof(int32_t), n_bytes = (size_t)n * sizeof(int32_t);

    /* Predecessor lists first, in any order: walking them by task gives successors in ascending order. */
    memset(g->pred_off, 0, off_bytes);
    memset(g->succ_off, 0, off_bytes);
    for (int32_t e = 0; e < g->n_edges; e++) {
        g->succ_off[g->edges[2 * e] + 1]++;
        g->pred_off[g->edges[2 * e + 1] + 1]++;
    }
    offsets(g->succ_off, n);
    offsets(g->pred_off, n);
    memcpy(cursor, g->pred_off, n_bytes);
    for (int32_t e = 0; e < g->n_edges; e++) g->pred[cursor[g->edges[2 * e + 1]]++] = g->edges[2 * e];
    memcpy(cursor, g->succ_off, n_bytes);
    for (int32_t t = 0; t < n; t++)
        for (int32_t e = g->pred_off[t]; e < g->pred_off[t + 1]; e++) g->succ[cursor[g->pred[e]]++] = t;

    int32_t kept = 0, from = 0;
    for (int32_t t = 0; t < n; t++) {
        int32_t end = g->succ_off[t + 1], last = -1;
        g->succ_off[t] = kept;
        for (; from < end; from++)
            if (g->succ[from] != last) last = g->succ[kept++] = g->succ[from];
    }
    g->succ_off[n] = kept;

    memset(g->n_preds, 0, n_bytes);
    memset(g->pred_xor, 0, n_bytes);
    for (int32_t t = 0; t < n; t++) {
        for (int32_t e = g->succ_off[t]; e < g->succ_off[t + 1]; e++) {
            g->n_preds[g->succ[e]]++;
            g->pred_xor[g->succ[e]] ^= t;
        }
    }
    memcpy(g->pred_off + 1, g->n_preds, n_bytes);
    offsets(g->pred_off, n);
    memcpy(cursor, g->pred_off, n_bytes);
    for (int32_t t = 0; t < n; t++)
        for (int32_t e = g->succ_off[t]; e < g->succ_off[t + 1]; e++) g->pred[cursor[g->succ[e]]++] = t;
}

tern_status tn_graph_seal(tn_graph *g, tern_error *err) {
    assert(!g->sealed);
    TN_FAIL_IF(g->failed == TERN_E_MEMORY, err, TERN_E_MEMORY,
               "no memory for a graph of more than %" PRId32 " tasks, %" PRId32 " dependencies", g->n_tasks,
               g->n_edges);
    TN_FAIL_IF(g->failed, err, g->failed,
               "task graph: bad task or dependency after %" PRId32 " tasks, %" PRId32 " dependencies",
               g->n_tasks, g->n_edges);

    /* One block: est_ns | offsets | lists | counters and orders | scratch of this function. */
    size_t n = (size_t)g->n_tasks, n_edges = (size_t)g->n_edges;
    size_t need =
        TN_N_LANES * n * sizeof(int64_t) + (2 * (n + 1) + 2 * n_edges + 6 * n + 2 * n) * sizeof(int32_t);
    if (need > g->block_bytes) {
        tn_free(g->ctx, g->block);
        g->block_bytes = 0;
        g->block = tn_alloc(g->ctx, TN_MEM_GRAPHS, need, 1);
        TN_FAIL_IF(!g->block, err, TERN_E_MEMORY,
                   "no memory for a graph of %" PRId32 " tasks, %" PRId32 " dependencies", g->n_tasks,
                   g->n_edges);
        g->block_bytes = need;
    }
    int64_t *p64 = g->block;
    for (int l = 0; l < TN_N_LANES; l++, p64 += n) g->est_ns[l] = p64;
    int32_t *p = (int32_t *)p64;
    g->succ_off = p, p += n + 1;
    g->pred_off = p, p += n + 1;
    g->succ = p, p += n_edges;
    g->pred = p, p += n_edges;
    g->n_preds = p, p += n;
    g->pred_xor = p, p += n;
    g->rank = p, p += n;
    g->by_rank = p, p += n;
    g->plan_rank = p, p += n;
    g->by_plan_rank = p, p += n;
    int32_t *heap = p, *left = p + n;

    for (int32_t t = 0; t < g->n_tasks; t++)
        for (int l = 0; l < TN_N_LANES; l++) g->est_ns[l][t] = llrint((double)g->tasks[t].est_us[l] * 1e3);

    link_tasks(g, heap);

    int32_t placed = order(g, false, heap, left, g->rank, g->by_rank);
    TN_FAIL_IF(placed < g->n_tasks, err, TERN_E_INVALID,
               "task graph: %" PRId32 " of %" PRId32 " tasks wait for each other in a circle",
               g->n_tasks - placed, g->n_tasks);
    order(g, true, heap, left, g->plan_rank, g->by_plan_rank);
    g->sealed = true;
    return TERN_OK;
}

void tn_graph_set_est(tn_graph *g, int32_t id, tn_lane lane, double us) {
    assert(g->sealed && id >= 0 && id < g->n_tasks && us >= 0);
    g->tasks[id].est_us[lane] = (float)us;
    g->est_ns[lane][id] = llrint(us * 1e3);
}

tern_status tn_graph_critical_path_ns(const tn_graph *g, int64_t *out, tern_error *err) {
    assert(g->sealed);
    *out = 0;
    int64_t *end = tn_calloc(g->ctx, TN_MEM_GRAPHS, (size_t)g->n_tasks, sizeof *end);
    TN_FAIL_IF(!end, err, TERN_E_MEMORY, "no memory for the critical path of %" PRId32 " tasks", g->n_tasks);
    for (int32_t i = 0; i < g->n_tasks; i++) {
        int32_t t = g->by_rank[i];
        int64_t start = 0;
        for (int32_t e = g->pred_off[t]; e < g->pred_off[t + 1]; e++)
            if (end[g->pred[e]] > start) start = end[g->pred[e]];
        end[t] = start + tn_graph_part_ns(g, t, g->tasks[t].lane, 0);
        if (end[t] > *out) *out = end[t];
    }
    tn_free(g->ctx, end);
    return TERN_OK;
}

int64_t tn_graph_work_ns(const tn_graph *g, tn_lane lane) {
    assert(g->sealed);
    int64_t sum = 0;
    for (int32_t t = 0; t < g->n_tasks; t++)
        if (g->tasks[t].lane == lane) sum += g->est_ns[lane][t];
    return sum;
}
