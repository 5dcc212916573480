/* sched/graph.h - the work of a stage as tasks with dependencies.
 *
 * Open a graph, add tasks, add dependencies, seal it. Then run it any number of times, on real threads
 * (executor.h) or on a virtual clock (virtual.h). Running does not change a sealed graph, because the
 * counters of a run live in tn_sched (policy.h). tn_graph_clear keeps the memory for the next graph.
 *
 * Adding remembers the first failure and seal reports it, so builders need no checks in between. */
#ifndef TN_SCHED_GRAPH_H
#define TN_SCHED_GRAPH_H

#include "base/ctx.h"

/* A lane is a processor. IO is the storage device; its tasks are never stolen. */
typedef enum tn_lane { TN_LANE_CPU, TN_LANE_NPU, TN_LANE_IO, TN_N_LANES } tn_lane;

const char *tn_lane_name(tn_lane lane); /* "cpu", "npu", "io" */

/* The worker that runs a task. */
typedef struct tn_worker {
    tn_lane lane; /* lane of the thread, not of the task */
    int i_worker; /* 0 .. number of workers of all lanes - 1; selects a scratch area for the running task */
} tn_worker;

/* A task function runs part i_part of a task. It may not start another run on the same executor. */
typedef tern_status (*tn_task_fn)(void *arg, int i_part, const tn_worker *w, tern_error *err);

typedef struct tn_task {
    tn_task_fn fn;                  /* NULL only in graphs for the virtual clock */
    void *arg;                      /* borrowed */
    const char *name;               /* borrowed; must outlive the timelines that record it */
    float est_us[TN_N_LANES];       /* estimated time of the whole task on that lane by one worker; 0 on a
                                 foreign lane: the same as at home */
    int32_t chunk, layer, subgraph; /* position in the prompt and in the model: orders tasks, in this order */
    int32_t plan;                   /* order under TN_POLICY_PLAN, lowest first */
    int32_t n_parts; /* >= 1 (0 counts as 1). Parts are independent: several workers may run them at once */
    tn_lane lane;    /* where it belongs */
    bool can_steal;  /* the other lane of CPU and NPU may run it too */
} tn_task;

enum { TN_GRAPH_MAX_TASKS = 1 << 24 };

typedef struct tn_graph {
    tn_ctx *ctx;
    tn_task *tasks; /* fn, arg, name, n_parts may be changed between runs; est_us only by tn_graph_set_est */
    int32_t n_tasks, cap_tasks;
    int32_t *edges; /* pairs (before, after) as added */
    int32_t n_edges, cap_edges;
    tern_status failed; /* first failure of add/depend */
    bool sealed;

    /* Made by seal, then only read. Duplicate dependencies are merged. */
    void *block; /* holds all that follows */
    size_t block_bytes;
    int64_t *est_ns[TN_N_LANES]; /* [n_tasks] each */
    int32_t *succ_off, *succ;    /* successors of t: succ[succ_off[t] .. succ_off[t+1]) */
    int32_t *pred_off, *pred;    /* the same for predecessors */
    int32_t *n_preds,
        *pred_xor; /* count and XOR of the predecessors' ids; when one is left, the XOR is its id */
    int32_t *rank,
        *by_rank; /* chunk-major order (chunk, layer, subgraph, id), adjusted to respect dependencies */
    int32_t *plan_rank, *by_plan_rank; /* the same for (plan, chunk, layer, subgraph, id) */
} tn_graph;

tern_status tn_graph_open(tn_ctx *ctx, tn_graph **out, tern_error *err);
void tn_graph_close(tn_graph **g);
void tn_graph_clear(tn_graph *g);

/* Adds a copy of *t. Returns its id (0, 1, 2, ...), or -1 on failure. */
int32_t tn_graph_add(tn_graph *g, const tn_task *t);
/* Makes `after` start only when `before` is finished. */
void tn_graph_depend(tn_graph *g, int32_t before, int32_t after);
/* Completes the graph. A cycle or a malformed task is TERN_E_INVALID; it may also fail with TERN_E_MEMORY. */
tern_status tn_graph_seal(tn_graph *g, tern_error *err);

/* Replaces an estimate by a measured time, between runs. us >= 0. */
void tn_graph_set_est(tn_graph *g, int32_t id, tn_lane lane, double us);

/* Two lower bounds on any schedule, from home-lane estimates: the longest chain, where a task with parts
 * counts as its longest part, and the work of each lane. */
tern_status tn_graph_critical_path_ns(const tn_graph *g, int64_t *out, tern_error *err);
int64_t tn_graph_work_ns(const tn_graph *g, tn_lane lane);

/* Returns the time of one part. The parts of a task add up exactly to its time. */
static inline int64_t tn_graph_part_ns(const tn_graph *g, int32_t id, tn_lane lane, int32_t part) {
    int64_t t = g->est_ns[lane][id];
    int32_t n = g->tasks[id].n_parts;
    return n == 1 ? t : t / n + (part < t % n);
}

#endif
