/* tests/sched/verify.h - what must hold for any run of any graph, read off its timeline. */
#ifndef TN_TESTS_SCHED_VERIFY_H
#define TN_TESTS_SCHED_VERIFY_H

#include "sched/timeline.h"

#include <stdlib.h>

static inline tn_lane verify_lane(const tn_timeline *tl, int32_t track) {
    tn_lane lane = TN_LANE_CPU;
    for (int l = 0; l < TN_N_LANES; l++)
        if (track >= tn_timeline_first_track(tl, (tn_lane)l)) lane = (tn_lane)l;
    return lane;
}

static inline int verify_by_start(const void *a, const void *b) {
    const tn_event *x = *(const tn_event *const *)a, *y = *(const tn_event *const *)b;
    return x->seq != y->seq ? (x->seq < y->seq ? -1 : 1) : (x->part > y->part) - (x->part < y->part);
}

/* Every part once; no dependency violated; one part at a time on a worker; lanes crossed only where allowed;
 * the order the policy promises. Lanes without workers must not have tracks: give n_workers as run. */
static inline void verify_run(const tn_graph *g, const tn_policy *p, const int32_t n_workers[TN_N_LANES],
                              const tn_timeline *tl) {
    int32_t n_tracks = tn_timeline_n_workers(tl), n_events = 0;
    int64_t *first = malloc(((size_t)g->n_tasks + 1) * sizeof *first),
            *last = malloc(((size_t)g->n_tasks + 1) * sizeof *last);
    int32_t *parts = calloc((size_t)g->n_tasks + 1, sizeof *parts);
    uint64_t *seen = calloc((size_t)g->n_tasks + 1, sizeof *seen);
    for (int32_t k = 0; k < n_tracks; k++) n_events += tn_timeline_n_events(tl, k);
    const tn_event **all = malloc(((size_t)n_events + 1) * sizeof *all);
    int32_t n = 0;
    for (int32_t t = 0; t < g->n_tasks; t++) first[t] = INT64_MAX, last[t] = INT64_MIN;
    for (int32_t k = 0; k < n_tracks; k++) {
        tn_lane lane = verify_lane(tl, k);
        for (int32_t i = 0; i < tn_timeline_n_events(tl, k); i++) {
            const tn_event *e = tn_timeline_event(tl, k, i);
            all[n++] = e;
            assert_true(e->task >= 0 && e->task < g->n_tasks && e->part >= 0 && e->part < 64 &&
                        e->part < g->tasks[e->task].n_parts);
            assert_false(seen[e->task] >> e->part & 1);
            seen[e->task] |= UINT64_C(1) << e->part;
            parts[e->task]++;
            if (e->start_ns < first[e->task]) first[e->task] = e->start_ns;
            if (e->end_ns > last[e->task]) last[e->task] = e->end_ns;
            assert_true(e->start_ns <= e->end_ns);
            if (i) assert_true(tn_timeline_event(tl, k, i - 1)->end_ns <= e->start_ns);
            if (e->lane != lane && n_workers[e->lane]) {
                assert_true(g->tasks[e->task].can_steal);
                assert_true(p->keep_busy || (p->steal_above >= 0 && lane == TN_LANE_CPU));
            }
        }
    }
    for (int32_t t = 0; t < g->n_tasks; t++) {
        assert_int_equal(parts[t], g->tasks[t].n_parts);
        for (int32_t e = g->pred_off[t]; e < g->pred_off[t + 1]; e++)
            assert_true(last[g->pred[e]] <= first[t]);
    }
    qsort(all, (size_t)n, sizeof *all, verify_by_start);
    int32_t rank[TN_N_LANES] = {-1, -1, -1}, previous = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t t = all[i]->task;
        if (all[i]->part) continue;
        if (p->kind == TN_POLICY_IN_ORDER) {
            assert_int_equal(g->rank[t], previous + 1);
            if (previous >= 0) assert_true(last[g->by_rank[previous]] <= first[t]);
            previous = g->rank[t];
        }
        if (p->kind == TN_POLICY_OVERLAP || p->kind == TN_POLICY_PLAN) {
            int32_t r = (p->kind == TN_POLICY_PLAN ? g->plan_rank : g->rank)[t];
            assert_true(r > rank[g->tasks[t].lane]);
            rank[g->tasks[t].lane] = r;
        }
    }
    free(first), free(last), free(parts), free(seen), free(all);
}

#endif
