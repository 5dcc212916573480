#include "sched/timeline.h"

#include "base/status.h"

#include <assert.h>
#include <string.h>

typedef struct flow {
    int32_t run, from, to; /* tasks: `to` waited for `from` */
} flow;

typedef struct track {
    tn_event *events;
    flow *flows;
    int64_t n_events, n_flows; /* ever added; the ring holds the last cap of them */
    char pad[32];              /* a track per cache line: workers write side by side */
} track;

struct tn_timeline {
    tn_ctx *ctx;
    tn_timeline_options opt;
    int32_t n_tracks, n_runs;
    track *tracks;
    tn_event *events;
    flow *flows;
};

tern_status tn_timeline_open(tn_ctx *ctx, const tn_timeline_options *opt, tn_timeline **out, tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(opt->cap_events < 1 || opt->cap_flows < 1 || opt->n_extra < 0, err, TERN_E_INVALID,
               "a timeline of %" PRId32 " events, %" PRId32 " dependencies and %" PRId32 " extra tracks is not possible", opt->cap_events,
               opt->cap_flows, opt->n_extra);
    tn_timeline *t = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for a timeline");
    t->ctx = ctx;
    t->opt = *opt;
    t->n_tracks = opt->n_extra;
    for (int l = 0; l < TN_N_LANES; l++) t->n_tracks += opt->n_workers[l];
    size_t n = (size_t)t->n_tracks, cap_events = (size_t)opt->cap_events, cap_flows = (size_t)opt->cap_flows;
    t->tracks = tn_calloc(ctx, TN_MEM_OTHER, n, sizeof *t->tracks);
    t->events = tn_alloc(ctx, TN_MEM_OTHER, n * cap_events, sizeof *t->events);
    t->flows = tn_alloc(ctx, TN_MEM_OTHER, n * cap_flows, sizeof *t->flows);
    if (!t->tracks || !t->events || !t->flows) {
        tn_timeline_close(&t);
        return tn_fail(err, TERN_E_MEMORY, "no memory for a timeline of %zu tracks of %zu events", n, cap_events);
    }
    for (size_t i = 0; i < n; i++) {
        t->tracks[i].events = t->events + i * cap_events;
        t->tracks[i].flows = t->flows + i * cap_flows;
    }
    *out = t;
    return TERN_OK;
}

void tn_timeline_close(tn_timeline **pt) {
    tn_timeline *t = *pt;
    if (!t) return;
    *pt = NULL;
    tn_free(t->ctx, t->tracks);
    tn_free(t->ctx, t->events);
    tn_free(t->ctx, t->flows);
    tn_free(t->ctx, t);
}

void tn_timeline_clear(tn_timeline *t) {
    t->n_runs = 0;
    for (int32_t i = 0; i < t->n_tracks; i++) t->tracks[i].n_events = t->tracks[i].n_flows = 0;
}

int32_t tn_timeline_first_track(const tn_timeline *t, tn_lane lane) {
    int32_t first = 0;
    for (int l = 0; l < (int)lane; l++) first += t->opt.n_workers[l];
    return first;
}

int32_t tn_timeline_n_workers(const tn_timeline *t) { return t->n_tracks - t->opt.n_extra; }

int32_t tn_timeline_begin_run(tn_timeline *t) { return t->n_runs++; }

void tn_timeline_add(tn_timeline *t, int32_t i_track, const tn_event *e) {
    assert(i_track >= 0 && i_track < t->n_tracks);
    track *tr = &t->tracks[i_track];
    tr->events[tr->n_events++ % t->opt.cap_events] = *e;
}

void tn_timeline_add_task(tn_timeline *t, int32_t i_track, int32_t run, const tn_graph *g, const tn_pick *pick, int64_t start_ns, int64_t end_ns) {
    const tn_task *k = &g->tasks[pick->task];
    tn_timeline_add(t, i_track,
                    &(tn_event){.start_ns = start_ns, .end_ns = end_ns, .name = k->name, .run = run, .task = pick->task, .seq = pick->seq,
                                .chunk = k->chunk, .layer = k->layer, .part = pick->part, .n_parts = k->n_parts, .lane = k->lane});
    if (pick->part) return;
    track *tr = &t->tracks[i_track];
    for (int32_t e = g->pred_off[pick->task]; e < g->pred_off[pick->task + 1]; e++)
        tr->flows[tr->n_flows++ % t->opt.cap_flows] = (flow){.run = run, .from = g->pred[e], .to = pick->task};
}
