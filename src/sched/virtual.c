#include "sched/virtual.h"

#include <assert.h>
#include <string.h>

void tn_virtual_run(tn_sched *s, const tn_policy *policy, const int32_t n_workers[TN_N_LANES],
                    tn_timeline *tl, tn_virtual_result *out) {
    const tn_graph *g = tn_sched_graph(s);
    struct {
        tn_pick pick;
        tn_lane lane;
        int64_t start;
    } worker[TN_VIRTUAL_MAX_WORKERS];
    int64_t end[TN_VIRTUAL_MAX_WORKERS]; /* INT64_MAX = idle */
    int32_t track[TN_VIRTUAL_MAX_WORKERS];
    int n = 0;
    for (int l = 0; l < TN_N_LANES; l++) {
        for (int32_t i = 0; i < n_workers[l]; i++) {
            assert(n < TN_VIRTUAL_MAX_WORKERS);
            worker[n].lane = (tn_lane)l;
            end[n] = INT64_MAX;
            track[n] = tl ? tn_timeline_first_track(tl, (tn_lane)l) + i : 0;
            n++;
        }
    }
    *out = (tn_virtual_result){0};
    int32_t run = tl ? tn_timeline_begin_run(tl) : 0;
    int64_t now = 0;
    tn_sched_start(s, policy, n_workers);
    for (;;) {
        int64_t next = INT64_MAX;
        for (int w = 0; w < n; w++) {
            if (end[w] == INT64_MAX && tn_sched_pick(s, worker[w].lane, &worker[w].pick)) {
                int64_t dur = tn_graph_part_ns(g, worker[w].pick.task, worker[w].lane, worker[w].pick.part);
                worker[w].start = now;
                end[w] = now + dur;
                out->busy_ns[worker[w].lane] += dur;
                out->n_stolen += g->tasks[worker[w].pick.task].lane != worker[w].lane;
            }
            if (end[w] < next) next = end[w];
        }
        if (next == INT64_MAX) break;
        now = next;
        for (int w = 0; w < n; w++) {
            if (end[w] != now) continue;
            end[w] = INT64_MAX;
            if (tl) tn_timeline_add_task(tl, track[w], run, g, &worker[w].pick, worker[w].start, now);
            tn_sched_done(s, worker[w].pick.task);
        }
    }
    assert(tn_sched_finished(s));
    out->makespan_ns = now;
    out->counts = *tn_sched_counted(s);
    for (int l = 0; l < TN_N_LANES; l++)
        if (n_workers[l] && now) out->bubble[l] = 1 - (double)out->busy_ns[l] / ((double)now * n_workers[l]);
}
