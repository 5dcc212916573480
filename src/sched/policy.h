/* sched/policy.h - chooses the next task: policies over a graph and its ready queues, without threads or
 * clocks.
 *
 * tn_sched is the state of one run: counters, one ready queue per lane, running tasks. The executor and
 * the virtual clock drive the same functions: they pick a part for a worker and report a finished part,
 * until all is done. A tn_sched is not locked, because its driver owns it. After tn_sched_bind nothing
 * here allocates. A pick or a report costs O(log ready tasks + successors).
 *
 * A lane without workers is served by the CPU's workers, or by the NPU's if the CPU has none. A task with
 * several parts stays open until all its parts are handed out; its lane's workers take those before
 * anything new. It is finished when all its parts are. */
#ifndef TN_SCHED_POLICY_H
#define TN_SCHED_POLICY_H

#include "sched/graph.h"

typedef enum tn_policy_kind {
    TN_POLICY_IN_ORDER, /* one task at a time over all lanes, chunk-major: chunk i entirely before chunk i+1
                         */
    TN_POLICY_OVERLAP,  /* every lane runs its own tasks strictly chunk-major, the lanes overlap */
    TN_POLICY_OOE,     /* llm.npu 3.4: any ready task, largest C first. CPU: C(g) = NPU time of the tasks that
                          finishing g makes ready; NPU: C(g) = -time(g). Ties by chunk, then position */
    TN_POLICY_SYNERGY, /* EdgeFlow 4.3: any ready task, earliest position first; an idle CPU steals */
    TN_POLICY_PLAN,    /* every lane runs its own tasks strictly in the order of tn_task.plan */
    TN_N_POLICIES
} tn_policy_kind;

typedef struct tn_policy {
    tn_policy_kind kind;
    int32_t steal_above;   /* an idle CPU worker takes the head of the NPU's queue (the next part of the
                              begun task, else the next task) when more tasks than this wait there; -1 =
                              never. Default 5 for synergy (EdgeFlow's), -1 otherwise */
    bool steal_by_profile; /* that value holds only until times are measured; the driver then asks
                              tn_policy_steal_above (default false) */
    bool keep_busy; /* an idle CPU or NPU worker takes any stealable task of the other lane, or part of an
                       open one (default false). For machines where both lanes are cores of one kind */
} tn_policy;

tn_policy tn_policy_defaults(tn_policy_kind kind);
const char *tn_policy_name(tn_policy_kind kind);        /* "in-order", "overlap", "ooe", "synergy", "plan" */
bool tn_policy_parse(const char *name, tn_policy *out); /* false: unknown name */
/* Returns EdgeFlow's threshold from the profile: CPU time / NPU time of the NPU's stealable tasks, rounded
 * up, at least 1. With a longer queue the NPU does not run dry while the CPU computes a stolen task. */
int32_t tn_policy_steal_above(const tn_graph *g);

typedef struct tn_pick {
    int32_t task, part;
    int32_t seq; /* starts of tasks are numbered 0, 1, 2...: a dependency always has the smaller number */
} tn_pick;

typedef struct tn_sched tn_sched;

/* How far a run departed from chunk order, counted over the tasks of the CPU's and the device's lane. */
typedef struct tn_sched_counts {
    int32_t n_tasks; /* started */
    int32_t n_ahead; /* of those, started before an earlier task of their lane, against the order of chunks */
    int32_t n_beside; /* of those, started while a task of the other lane was unfinished */
} tn_sched_counts;

tern_status tn_sched_open(tn_ctx *ctx, tn_sched **out, tern_error *err);
void tn_sched_close(tn_sched **s);
/* Borrows the sealed graph until the next bind. It allocates only for a graph larger than all before. */
tern_status tn_sched_bind(tn_sched *s, const tn_graph *g, tern_error *err);
/* Begins a run of the bound graph, with n_workers for each lane and at least one in all. */
void tn_sched_start(tn_sched *s, const tn_policy *policy, const int32_t n_workers[TN_N_LANES]);

/* Picks the next part for an idle worker of `lane`. Returns false when there is none now. */
bool tn_sched_pick(tn_sched *s, tn_lane lane, tn_pick *out);
/* Whether tn_sched_pick would find a part. */
bool tn_sched_can_pick(const tn_sched *s, tn_lane lane);
/* Reports that a picked part is finished. Returns true when that finished its task. */
bool tn_sched_done(tn_sched *s, int32_t task);
bool tn_sched_finished(const tn_sched *s); /* every task is */
const tn_sched_counts *tn_sched_counted(const tn_sched *s);
const tn_graph *tn_sched_graph(const tn_sched *s); /* the bound one */

#endif
