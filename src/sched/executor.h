/* sched/executor.h - runs a graph under a policy on real threads.
 *
 * The threads are made once and sleep between runs. The caller of a run is worker 0 and works too. All
 * decisions are made under one mutex, because a decision takes well under a microsecond and a task some
 * milliseconds. Idle workers spin for a few tens of microseconds, then sleep until their lane has work.
 *
 * Every task runs exactly once; after the first failure or a cancel, remaining tasks do not run. */
#ifndef TN_SCHED_EXECUTOR_H
#define TN_SCHED_EXECUTOR_H

#include "base/pause.h"
#include "sched/policy.h"
#include "sched/timeline.h"

typedef struct tn_executor tn_executor;

enum { TN_EXECUTOR_MAX_WORKERS = 256 };

/* Opens an executor with n_workers for each lane, 1 to TN_EXECUTOR_MAX_WORKERS in all. Other workers serve a
 * lane that has none (policy.h), so {1, 0, 0} is one thread, the caller's, for everything. */
tern_status tn_executor_open(tn_ctx *ctx, const int32_t n_workers[TN_N_LANES], tn_executor **out,
                             tern_error *err);
void tn_executor_close(tn_executor **e);
int32_t tn_executor_n_workers(const tn_executor *e); /* of all lanes */
int32_t tn_executor_lane_workers(const tn_executor *e, tn_lane lane);

typedef struct tn_run {
    const tn_graph *graph; /* sealed */
    tn_policy policy;
    const atomic_bool *cancel; /* polled before every part; may be NULL */
    const tn_pause
        *pause; /* asked before every part; then no part begins until it has run, which may use this
                                  executor. NULL: never */
    tn_timeline *timeline; /* with (at least) this executor's workers, or NULL */
    int64_t *task_ns;   /* [n_tasks] gets the time of every task that ran, summed over parts (0: did not run),
                         or NULL */
    int64_t *stolen_ns; /* [n_tasks] gets the share of that time that workers of other lanes spent, or NULL */
} tn_run;

typedef struct tn_run_stats {
    int64_t wall_ns;
    int64_t n_decisions;              /* each reports a finished part and chooses the next */
    int64_t decide_ns, decide_max_ns; /* time of all decisions, and of the longest */
    int64_t busy_ns[TN_N_LANES];
    int64_t n_stolen; /* parts run by another lane's worker */
    tn_sched_counts counts;
} tn_run_stats;

/* Runs a graph. Returns when all tasks are finished, or, after the first failure (with its status and
 * message) or a cancel (TERN_E_CANCELLED), once no task runs any more. There is one run at a time, and those of its
 * pauses: a second caller waits. Times are without pauses. stats may be NULL. */
tern_status tn_executor_run(tn_executor *e, const tn_run *run, tn_run_stats *stats, tern_error *err);

#endif
