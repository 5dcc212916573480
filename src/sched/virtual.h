/* sched/virtual.h - runs a graph under a policy on a virtual clock, with the tasks' estimated times.
 *
 * The decisions are those of the executor (policy.h); only time is virtual. It is deterministic: at one
 * instant all finished parts are reported first, in worker order, then idle workers pick in worker order. */
#ifndef TN_SCHED_VIRTUAL_H
#define TN_SCHED_VIRTUAL_H

#include "sched/policy.h"
#include "sched/timeline.h"

enum { TN_VIRTUAL_MAX_WORKERS = 64 };

typedef struct tn_virtual_result {
    int64_t makespan_ns;
    int64_t busy_ns[TN_N_LANES]; /* sum over the lane's workers */
    double bubble[TN_N_LANES];   /* idle share of the lane's workers from 0 to makespan; 0 for a lane without
                                    workers */
    int32_t n_stolen;            /* parts run by another lane's worker */
    tn_sched_counts counts;
} tn_virtual_result;

/* Runs the graph bound to s, with n_workers for each lane, 1 to TN_VIRTUAL_MAX_WORKERS in all. tl may be
 * NULL. A task's parts take equal shares of its time on any worker. It allocates nothing. */
void tn_virtual_run(tn_sched *s, const tn_policy *policy, const int32_t n_workers[TN_N_LANES],
                    tn_timeline *tl, tn_virtual_result *out);

#endif
