/* attention/headplan.h - plans the order in which heads pass through sparse attention's three stages, and
 * which of them share a launch (shadowAttn 3.4, Algorithm 1). No threads, no clocks.
 *
 *   estimate   on the device, launch after launch; heads of one bucket (the same frozen scales) may share a
 *              launch
 *   top-k      on the CPU, after the estimate of its head
 *   attend     on the CPU, after the top-k of its head
 *
 * Every stage takes its heads one at a time, in the plan's order. With workers of their own, top-k of a
 * head runs beside attend of another (the paper's recurrence); else one CPU lane does both.
 *
 * The paper's greedy makes a plan for every limit on fusion. Annealing improves the best of them (heads
 * moved and swapped, launches split and merged) until it meets a lower bound or a fixed number of steps is
 * spent. The same costs give the same plan. This search misses no better plan: for any order of heads,
 * launching in the order of first need and filling a bucket's launches in that order is never worse
 * (exchange neighbours).
 *
 * The engine's attention and the simulator both use this planner. */
#ifndef TN_ATTENTION_HEADPLAN_H
#define TN_ATTENTION_HEADPLAN_H

#include "base/status.h"

enum { TN_HEADPLAN_MAX_HEADS = 128, TN_HEADPLAN_MAX_WIDTHS = 8 };

typedef struct tn_headplan_costs {
    int32_t n_heads; /* 1..TN_HEADPLAN_MAX_HEADS; a "head" is a unit that is estimated and selected
                        together, so also a group of heads */
    int32_t bucket[TN_HEADPLAN_MAX_HEADS]; /* any numbers; equal ones may share a launch */
    double topk_us[TN_HEADPLAN_MAX_HEADS], attend_us[TN_HEADPLAN_MAX_HEADS];
    int32_t n_widths;                         /* 1..TN_HEADPLAN_MAX_WIDTHS */
    int32_t width[TN_HEADPLAN_MAX_WIDTHS];    /* possible numbers of heads in a launch, ascending, the
                                                 first is 1 */
    double launch_us[TN_HEADPLAN_MAX_WIDTHS]; /* such a launch's time */
    bool topk_apart;                          /* top-k and attend have workers of their own */
} tn_headplan_costs;

typedef struct tn_headplan_switches {
    bool in_order;   /* heads as they are numbered */
    bool no_fusion;  /* one head a launch */
    bool no_overlap; /* one stage at a time; each launch's heads are finished before the next launch */
    bool as_printed; /* Algorithm 1 alone: heads are fused as far as possible, then the greedy runs once */
} tn_headplan_switches;

typedef struct tn_headplan {
    int32_t n_heads, n_launches;
    int32_t order[TN_HEADPLAN_MAX_HEADS];  /* heads in the order of top-k and attend */
    int32_t launch[TN_HEADPLAN_MAX_HEADS]; /* [head] number of its launch; launches run in this order */
    int32_t width[TN_HEADPLAN_MAX_HEADS];  /* [launch] */
    double total_us;                       /* from the costs: end of the last attend */
    double device_us, cpu_us;              /* sums of the launches' and of the other stages' times */
} tn_headplan;

tern_status tn_headplan_make(const tn_headplan_costs *c, tn_headplan_switches switches, tn_headplan *out,
                             tern_error *err);

/* Returns when the last attend of a given plan ends. The plan (n_heads, n_launches, order, launch, width)
 * must be valid for these costs. */
double tn_headplan_simulate(const tn_headplan_costs *c, bool no_overlap, const tn_headplan *p);

#endif
