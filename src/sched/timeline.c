#include "sched/timeline.h"

#include "base/outfile.h"
#include "base/status.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef struct flow {
    int32_t run, from, to; /* tasks: `to` waited for `from` */
} flow;

typedef struct track {
    tn_event *events;
    flow *flows;
    _Atomic int64_t n_events; /* events ever added; the ring holds the last cap of them */
    int64_t n_flows;          /* likewise */
    /* live: events the reader took, events that found no room */
    _Atomic int64_t n_taken, n_refused;
    char pad[16]; /* a track per cache line: workers write side by side */
} track;

struct tn_timeline {
    tn_ctx *ctx;
    tn_timeline_options opt;
    int32_t n_tracks, n_runs;
    track *tracks;
    tn_event *events;
    flow *flows;
    tn_counter *counters;
    size_t n_counters;
};

tern_status tn_timeline_open(tn_ctx *ctx, const tn_timeline_options *opt, tn_timeline **out,
                             tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(opt->cap_events < 1 || opt->cap_flows < 1 || opt->n_extra < 0, err, TERN_E_INVALID,
               "a timeline of %" PRId32 " events, %" PRId32 " dependencies and %" PRId32
               " extra tracks is not possible",
               opt->cap_events, opt->cap_flows, opt->n_extra);
    tn_timeline *t = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for a timeline");
    t->ctx = ctx;
    t->opt = *opt;
    t->n_tracks = opt->n_extra;
    for (int l = 0; l < TN_N_LANES; l++) t->n_tracks += opt->n_workers[l];
    if (t->n_tracks < 1 || opt->cap_flows > INT32_MAX / t->n_tracks) {
        int32_t n_tracks = t->n_tracks;
        tn_timeline_close(&t);
        return tn_fail(err, TERN_E_INVALID,
                       "a timeline of %" PRId32 " tracks of %" PRId32 " dependencies is not possible",
                       n_tracks, opt->cap_flows);
    }
    size_t n = (size_t)t->n_tracks, cap_events = (size_t)opt->cap_events, cap_flows = (size_t)opt->cap_flows;
    t->tracks = tn_calloc(ctx, TN_MEM_OTHER, n, sizeof *t->tracks);
    t->events = tn_alloc(ctx, TN_MEM_OTHER, n * cap_events, sizeof *t->events);
    t->flows = tn_alloc(ctx, TN_MEM_OTHER, n * cap_flows, sizeof *t->flows);
    if (!t->tracks || !t->events || !t->flows) {
        tn_timeline_close(&t);
        return tn_fail(err, TERN_E_MEMORY, "no memory for a timeline of %zu tracks of %zu events", n,
                       cap_events);
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
    tn_free(t->ctx, t->counters);
    tn_free(t->ctx, t);
}

void tn_timeline_clear(tn_timeline *t) {
    t->n_runs = 0;
    for (int32_t i = 0; i < t->n_tracks; i++) {
        atomic_store(&t->tracks[i].n_events, 0);
        atomic_store(&t->tracks[i].n_taken, 0);
        t->tracks[i].n_flows = 0;
    }
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
    int64_t n = atomic_load_explicit(&tr->n_events, memory_order_relaxed); /* this thread alone changes it */
    /* acquire: the reader has read what it took, so its place may be overwritten */
    if (t->opt.live && n - atomic_load_explicit(&tr->n_taken, memory_order_acquire) >= t->opt.cap_events) {
        atomic_fetch_add_explicit(&tr->n_refused, 1, memory_order_relaxed);
        return;
    }
    tr->events[n % t->opt.cap_events] = *e;
    atomic_store_explicit(&tr->n_events, n + 1,
                          memory_order_release); /* the event is visible before its number */
}

int32_t tn_timeline_take(tn_timeline *t, int32_t i_track, tn_event *out, int32_t cap, int64_t *n_lost) {
    assert(t->opt.live && i_track >= 0 && i_track < t->n_tracks);
    track *tr = &t->tracks[i_track];
    int64_t n = atomic_load_explicit(&tr->n_events, memory_order_acquire),
            from = atomic_load_explicit(&tr->n_taken, memory_order_relaxed), i = from;
    for (; i < n && i - from < cap; i++) out[i - from] = tr->events[i % t->opt.cap_events];
    atomic_store_explicit(&tr->n_taken, i, memory_order_release);
    *n_lost = atomic_load_explicit(&tr->n_refused, memory_order_relaxed);
    return (int32_t)(i - from);
}

void tn_timeline_note(tn_timeline *t, const char *name, int64_t start_ns, int64_t end_ns) {
    if (!t) return;
    tn_event e = {.start_ns = start_ns,
                  .end_ns = end_ns,
                  .name = name,
                  .run = -1,
                  .task = -1,
                  .chunk = -1,
                  .layer = -1,
                  .n_parts = 1,
                  .lane = TN_LANE_CPU};
    tn_timeline_add(t, tn_timeline_n_workers(t), &e);
}

void tn_timeline_add_task(tn_timeline *t, int32_t i_track, int32_t run, const tn_graph *g,
                          const tn_pick *pick, int64_t start_ns, int64_t end_ns) {
    const tn_task *k = &g->tasks[pick->task];
    tn_timeline_add(t, i_track,
                    &(tn_event){.start_ns = start_ns,
                                .end_ns = end_ns,
                                .name = k->name,
                                .run = run,
                                .task = pick->task,
                                .seq = pick->seq,
                                .chunk = k->chunk,
                                .layer = k->layer,
                                .part = pick->part,
                                .n_parts = k->n_parts,
                                .lane = k->lane});
    if (pick->part || t->opt.live) return;
    track *tr = &t->tracks[i_track];
    for (int32_t e = g->pred_off[pick->task]; e < g->pred_off[pick->task + 1]; e++)
        tr->flows[tr->n_flows++ % t->opt.cap_flows] =
            (flow){.run = run, .from = g->pred[e], .to = pick->task};
}

static int32_t kept(int64_t n, int32_t cap) { return n < cap ? (int32_t)n : cap; }

int32_t tn_timeline_n_events(const tn_timeline *t, int32_t i_track) {
    return kept(t->tracks[i_track].n_events, t->opt.cap_events);
}

const tn_event *tn_timeline_event(const tn_timeline *t, int32_t i_track, int32_t i) {
    const track *tr = &t->tracks[i_track];
    assert(i >= 0 && i < tn_timeline_n_events(t, i_track));
    return &tr->events[tr->n_events <= t->opt.cap_events ? i : (tr->n_events + i) % t->opt.cap_events];
}

static tn_lane lane_of_track(const tn_timeline *t, int32_t i_track) {
    int l = 0;
    for (int32_t end = t->opt.n_workers[0]; i_track >= end && l < TN_N_LANES - 1; end += t->opt.n_workers[l])
        l++;
    return (tn_lane)l;
}

/* ---- reading: tasks assembled from their parts ---------------------------------------------------- */

typedef struct node {
    int64_t start_ns, end_ns;        /* first start, last end; end < start: no event kept */
    int32_t first_track, last_track; /* where that was */
    int64_t last_start_ns;           /* of the part that ended last */
    int64_t path_ns;                 /* longest chain up to its end */
    int32_t flow;                    /* first dependency: index of a kept flow, -1 = none */
    int32_t next_by_seq;             /* at place `seq`: the task with that start number, -1 = none */
} node;

/* Tasks of run r lie at nodes[run_off[r] + task]. Flows are numbered track by track. */
typedef struct task_index {
    tn_ctx *ctx;
    int64_t *run_off; /* [n_runs + 1] */
    node *nodes;
    int32_t *next_flow; /* of the same task, -1 = last */
} task_index;

static void index_close(task_index *x) {
    tn_free(x->ctx, x->run_off);
    tn_free(x->ctx, x->nodes);
    tn_free(x->ctx, x->next_flow);
}

static node *node_of(const tn_timeline *t, const task_index *x, int32_t run, int32_t task) {
    if (run < 0 || run >= t->n_runs || task < 0 || task >= x->run_off[run + 1] - x->run_off[run]) return NULL;
    return &x->nodes[x->run_off[run] + task];
}

static const flow *flow_at(const tn_timeline *t, int32_t i) {
    return &t->tracks[i / t->opt.cap_flows].flows[i % t->opt.cap_flows];
}

static tern_status index_open(const tn_timeline *t, task_index *x, tern_error *err) {
    *x = (task_index){.ctx = t->ctx};
    int32_t n_runs = t->n_runs;
    x->run_off = tn_calloc(t->ctx, TN_MEM_OTHER, (size_t)n_runs + 1, sizeof *x->run_off);
    if (!x->run_off) goto no_memory;
    for (int32_t k = 0; k < t->n_tracks; k++) {
        for (int32_t i = 0; i < tn_timeline_n_events(t, k); i++) {
            const tn_event *e = tn_timeline_event(t, k, i);
            if (e->task < 0 || e->run < 0 || e->run >= n_runs) continue;
            int64_t size = (e->task > e->seq ? e->task : e->seq) + 1;
            if (size > x->run_off[e->run + 1]) x->run_off[e->run + 1] = size;
        }
    }
    for (int32_t r = 0; r < n_runs; r++) x->run_off[r + 1] += x->run_off[r];
    int64_t n = x->run_off[n_runs];
    x->nodes = tn_alloc(t->ctx, TN_MEM_OTHER, (size_t)n, sizeof *x->nodes);
    x->next_flow =
        tn_alloc(t->ctx, TN_MEM_OTHER, (size_t)t->n_tracks * (size_t)t->opt.cap_flows, sizeof *x->next_flow);
    if (!x->nodes || !x->next_flow) goto no_memory;
    for (int64_t i = 0; i < n; i++)
        x->nodes[i] = (node){.start_ns = INT64_MAX, .end_ns = INT64_MIN, .flow = -1, .next_by_seq = -1};

    for (int32_t k = 0; k < t->n_tracks; k++) {
        for (int32_t i = 0; i < tn_timeline_n_events(t, k); i++) {
            const tn_event *e = tn_timeline_event(t, k, i);
            node *d = node_of(t, x, e->run, e->task);
            if (!d) continue;
            if (e->start_ns < d->start_ns) d->start_ns = e->start_ns, d->first_track = k;
            if (e->end_ns > d->end_ns)
                d->end_ns = e->end_ns, d->last_track = k, d->last_start_ns = e->start_ns;
            node_of(t, x, e->run, e->seq)->next_by_seq = e->task;
        }
        for (int32_t i = 0; i < kept(t->tracks[k].n_flows, t->opt.cap_flows); i++) {
            int32_t at = k * t->opt.cap_flows + i;
            node *d = node_of(t, x, flow_at(t, at)->run, flow_at(t, at)->to);
            if (!d) continue; /* its event was overwritten */
            x->next_flow[at] = d->flow;
            d->flow = at;
        }
    }
    return TERN_OK;
no_memory:
    index_close(x);
    return tn_fail(err, TERN_E_MEMORY, "no memory to read the timeline");
}

/* Finds the longest chain. Start numbers follow the dependencies, so one pass in their order is enough. */
static int64_t critical_ns(const tn_timeline *t, const task_index *x, int32_t run) {
    int64_t longest = 0;
    for (int64_t seq = 0; seq < x->run_off[run + 1] - x->run_off[run]; seq++) {
        node *d = node_of(t, x, run, x->nodes[x->run_off[run] + seq].next_by_seq);
        if (!d) continue;
        int64_t before = 0;
        for (int32_t f = d->flow; f >= 0; f = x->next_flow[f]) {
            const node *p = node_of(t, x, run, flow_at(t, f)->from);
            if (p && p->end_ns >= p->start_ns && p->path_ns > before) before = p->path_ns;
        }
        d->path_ns = before + d->end_ns - d->start_ns;
        if (d->path_ns > longest) longest = d->path_ns;
    }
    return longest;
}

tern_status tn_timeline_summarise(const tn_timeline *t, int32_t run, tn_timeline_summary *out,
                                  tern_error *err) {
    *out = (tn_timeline_summary){.start_ns = INT64_MAX, .end_ns = INT64_MIN};
    memcpy(out->n_workers, t->opt.n_workers, sizeof out->n_workers);
    for (int32_t k = 0; k < t->n_tracks; k++) {
        out->n_lost += t->tracks[k].n_events - tn_timeline_n_events(t, k);
        out->n_lost += t->tracks[k].n_flows - kept(t->tracks[k].n_flows, t->opt.cap_flows);
        tn_lane lane = lane_of_track(t, k);
        for (int32_t i = 0; i < tn_timeline_n_events(t, k) && k < tn_timeline_n_workers(t); i++) {
            const tn_event *e = tn_timeline_event(t, k, i);
            if (run >= 0 && e->run != run) continue;
            if (e->start_ns < out->start_ns) out->start_ns = e->start_ns;
            if (e->end_ns > out->end_ns) out->end_ns = e->end_ns;
            out->busy_ns[lane] += e->end_ns - e->start_ns;
            out->n_events[lane]++;
            out->n_stolen[lane] += e->lane != lane;
        }
    }
    if (out->start_ns > out->end_ns) out->start_ns = out->end_ns = 0;
    int64_t window = out->end_ns - out->start_ns;
    for (int l = 0; l < TN_N_LANES; l++)
        if (t->opt.n_workers[l] && window)
            out->bubble[l] = 1 - (double)out->busy_ns[l] / ((double)window * t->opt.n_workers[l]);
    task_index x;
    TN_TRY(index_open(t, &x, err));
    for (int32_t r = 0; r < t->n_runs; r++)
        if (run < 0 || r == run) out->critical_ns += critical_ns(t, &x, r);
    index_close(&x);
    return TERN_OK;
}

/* ---- writing --------------------------------------------------------------------------------------- */

static tern_status written(FILE *f, tern_error *err) {
    TN_FAIL_IF(fflush(f) || ferror(f), err, TERN_E_IO, "cannot write the timeline");
    return TERN_OK;
}

static void track_name(const tn_timeline *t, int32_t k, char *buf, size_t cap) {
    if (k >= tn_timeline_n_workers(t)) snprintf(buf, cap, "%s", t->opt.extra[k - tn_timeline_n_workers(t)]);
    else
        snprintf(buf, cap, "%s %" PRId32, tn_lane_name(lane_of_track(t, k)),
                 k - tn_timeline_first_track(t, lane_of_track(t, k)));
}

static void put_string(FILE *f, const char *s) {
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        if ((unsigned char)*s < 0x20) fprintf(f, "\\u%04x", (unsigned)*s);
        else fputc(*s, f);
    }
    fputc('"', f);
}

/* Writes microseconds with the digits of nanoseconds, whatever the locale. */
static void put_us(FILE *f, int64_t ns) { fprintf(f, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000)); }

/* Finds the first start and the last end of all tracks' events. Returns false when there are none. */
static bool window_of(const tn_timeline *t, int32_t run, int64_t *start, int64_t *end) {
    *start = INT64_MAX;
    *end = INT64_MIN;
    for (int32_t k = 0; k < t->n_tracks; k++) {
        for (int32_t i = 0; i < tn_timeline_n_events(t, k); i++) {
            const tn_event *e = tn_timeline_event(t, k, i);
            if (run >= 0 && e->run != run) continue;
            if (e->start_ns < *start) *start = e->start_ns;
            if (e->end_ns > *end) *end = e->end_ns;
        }
    }
    return *start <= *end;
}

tern_status tn_timeline_counters(tn_timeline *t, const tn_counter *c, size_t n, tern_error *err) {
    tn_free(t->ctx, t->counters);
    t->n_counters = 0;
    t->counters = tn_alloc(t->ctx, TN_MEM_OTHER, n + 1, sizeof *c);
    TN_FAIL_IF(!t->counters, err, TERN_E_MEMORY, "no memory for the counters of a timeline");
    memcpy(t->counters, c, n * sizeof *c);
    t->n_counters = n;
    return TERN_OK;
}

/* The samples within the time of the events, and the last one before it, so that every counter has a value
 * from the start. */
static void put_counters(const tn_timeline *t, FILE *f, int64_t base, int64_t end) {
    for (size_t i = 0; i < t->n_counters; i++) {
        const tn_counter *c = &t->counters[i];
        if (c->ns > end) continue;
        fputs(",\n{\"ph\":\"C\",\"pid\":1,\"name\":", f);
        put_string(f, c->name);
        fputs(",\"ts\":", f);
        put_us(f, c->ns > base ? c->ns - base : 0);
        fprintf(f, ",\"args\":{\"value\":%.4g}}", c->value);
    }
}

tern_status tn_timeline_write_trace(const tn_timeline *t, FILE *f, tern_error *err) {
    task_index x;
    TN_TRY(index_open(t, &x, err));
    int64_t base, end;
    window_of(t, -1, &base, &end);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
          "\"args\":{\"name\":\"tern\"}}",
          f);
    for (int32_t k = 0; k < t->n_tracks; k++) {
        char name[64];
        track_name(t, k, name, sizeof name);
        fprintf(f,
                ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%" PRId32 ",\"name\":\"thread_name\",\"args\":{\"name\":",
                k + 1);
        put_string(f, name);
        fprintf(f,
                "}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":%" PRId32
                ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRId32 "}}",
                k + 1, k);
    }
    for (int32_t k = 0; k < t->n_tracks; k++) {
        tn_lane lane = lane_of_track(t, k);
        bool worker = k < tn_timeline_n_workers(t);
        for (int32_t i = 0; i < tn_timeline_n_events(t, k); i++) {
            const tn_event *e = tn_timeline_event(t, k, i);
            fprintf(f, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%" PRId32 ",\"cat\":\"%s\",\"name\":", k + 1,
                    tn_lane_name(e->lane));
            put_string(f, e->name);
            fputs(",\"ts\":", f);
            put_us(f, e->start_ns - base);
            fputs(",\"dur\":", f);
            put_us(f, e->end_ns - e->start_ns);
            fprintf(f,
                    ",\"args\":{\"chunk\":%" PRId32 ",\"layer\":%" PRId32 ",\"run\":%" PRId32
                    ",\"task\":%" PRId32,
                    e->chunk, e->layer, e->run, e->task);
            if (e->n_parts > 1) fprintf(f, ",\"part\":%" PRId32 ",\"parts\":%" PRId32, e->part, e->n_parts);
            if (worker && e->lane != lane) fprintf(f, ",\"stolen\":true");
            fputs("}}", f);
        }
    }
    put_counters(t, f, base, end);
    /* An arrow leaves the slice of the part that ended last, a nanosecond before its end, so that it lies
     * inside. */
    int64_t id = 0;
    for (int32_t k = 0; k < t->n_tracks; k++) {
        for (int32_t i = 0; i < kept(t->tracks[k].n_flows, t->opt.cap_flows); i++) {
            const flow *w = &t->tracks[k].flows[i];
            const node *a = node_of(t, &x, w->run, w->from), *b = node_of(t, &x, w->run, w->to);
            if (!a || !b || a->end_ns < a->start_ns || b->end_ns < b->start_ns) continue;
            int64_t leave = a->end_ns > a->last_start_ns ? a->end_ns - 1 : a->end_ns;
            fprintf(f,
                    ",\n{\"ph\":\"s\",\"pid\":1,\"tid\":%" PRId32 ",\"id\":%" PRId64
                    ",\"cat\":\"dep\",\"name\":\"dep\",\"ts\":",
                    a->last_track + 1, id);
            put_us(f, leave - base);
            fprintf(f,
                    "},\n{\"ph\":\"f\",\"bp\":\"e\",\"pid\":1,\"tid\":%" PRId32 ",\"id\":%" PRId64
                    ",\"cat\":\"dep\",\"name\":\"dep\",\"ts\":",
                    b->first_track + 1, id);
            put_us(f, b->start_ns - base);
            fputs("}", f);
            id++;
        }
    }
    fputs("\n]}\n", f);
    index_close(&x);
    return written(f, err);
}

tern_status tn_timeline_save_trace(const tn_timeline *t, tn_ctx *ctx, const char *path, tern_error *err) {
    static const tn_outkind kind = {
        .what = "a trace", .begins = {"{\"displayTimeUnit\":\"ms\",\"traceEvents\""}, .is_private = true};
    tn_outfile *file;
    TN_TRY(tn_outfile_open(ctx, path, &kind, &file, err));
    int fd = dup(tn_outfile_fd(file));
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f && fd >= 0) close(fd);
    tern_status st = f ? tn_timeline_write_trace(t, f, err)
                       : tn_fail(err, TERN_E_IO, "%s: cannot write: %s", path, strerror(errno));
    if (f && (ferror(f) | fclose(f)) && st == TERN_OK)
        st = tn_fail(err, TERN_E_IO, "%s: cannot write: %s", path, strerror(errno));
    if (st == TERN_OK) st = tn_outfile_commit(&file, err);
    tn_outfile_abort(&file);
    return st;
}

typedef struct cell {
    double busy_ns, most_ns;
    int32_t chunk; /* of the event with most_ns */
} cell;

static void put_row(FILE *f, const cell *row, int32_t width, double cell_ns, bool colour, bool blocks) {
    static const char *const BLOCKS[] = {"░", "▒", "▓", "█"};
    static const char DIGITS[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    int last = 0;
    for (int32_t c = 0; c < width; c++) {
        int hue = row[c].most_ns > 0 && row[c].chunk >= 0 ? 31 + row[c].chunk % 6 : 0;
        if (colour && hue != last) fprintf(f, "\x1b[%dm", hue);
        last = hue;
        int quarter = (int)(row[c].busy_ns / cell_ns * 4 - 1e-9);
        if (row[c].most_ns <= 0) fputc(' ', f);
        else if (blocks) fputs(BLOCKS[quarter < 0 ? 0 : quarter > 3 ? 3 : quarter], f);
        else fputc(row[c].chunk < 0 ? '.' : DIGITS[row[c].chunk % 36], f);
    }
    if (colour && last) fputs("\x1b[0m", f);
}

tern_status tn_timeline_write_gantt(const tn_timeline *t, int32_t run, int32_t width, bool colour, FILE *f,
                                    tern_error *err) {
    TN_FAIL_IF(width < 20 || width > 1000, err, TERN_E_INVALID,
               "a Gantt chart of %" PRId32 " columns is not possible, 20 to 1000 are", width);
    int64_t start, end;
    if (!window_of(t, run, &start, &end)) {
        fputs("nothing ran\n", f);
        return written(f, err);
    }
    cell *row = tn_alloc(t->ctx, TN_MEM_OTHER, (size_t)width, sizeof *row);
    TN_FAIL_IF(!row, err, TERN_E_MEMORY, "no memory for a Gantt chart of %" PRId32 " columns", width);
    double total = end > start ? (double)(end - start) : 1, cell_ns = total / width;
    char name[64];
    size_t margin = 0;
    for (int32_t k = 0; k < t->n_tracks; k++) {
        track_name(t, k, name, sizeof name);
        margin = strlen(name) > margin ? strlen(name) : margin;
    }
    for (int32_t k = 0; k < t->n_tracks; k++) {
        double busy = 0;
        for (int32_t c = 0; c < width; c++) row[c] = (cell){0};
        for (int32_t i = 0; i < tn_timeline_n_events(t, k); i++) {
            const tn_event *e = tn_timeline_event(t, k, i);
            if (run >= 0 && e->run != run) continue;
            double a = (double)(e->start_ns - start), b = (double)(e->end_ns - start);
            busy += b - a;
            for (int32_t c = (int32_t)(a / cell_ns); c < width && c * cell_ns < b; c++) {
                double from = a > c * cell_ns ? a : c * cell_ns,
                       to = b < (c + 1) * cell_ns ? b : (c + 1) * cell_ns;
                if (to <= from) continue;
                row[c].busy_ns += to - from;
                if (to - from > row[c].most_ns) row[c].most_ns = to - from, row[c].chunk = e->chunk;
            }
        }
        track_name(t, k, name, sizeof name);
        fprintf(f, "%*s ┃", (int)margin, name);
        put_row(f, row, width, cell_ns, colour, true);
        fprintf(f, "┃ %5.1f %% busy\n%*s ┃", 100 * busy / total, (int)margin, "");
        put_row(f, row, width, cell_ns, colour, false);
        fputs("┃\n", f);
    }
    fprintf(f, "%*s 0%*.3f ms\n", (int)margin, "", width, (double)(end - start) * 1e-6);
    fputs("█ over 3/4 busy, ▓ over 1/2, ▒ over 1/4, ░ less; below, the chunk: 0-9, a-z, then again from 0; . "
          "= none\n",
          f);
    tn_free(t->ctx, row);
    return written(f, err);
}

tern_status tn_timeline_write_summary(const tn_timeline *t, int32_t run, FILE *f, tern_error *err) {
    tn_timeline_summary s;
    TN_TRY(tn_timeline_summarise(t, run, &s, err));
    double window = (double)(s.end_ns - s.start_ns);
    fprintf(f, "%.3f ms, critical path %.3f ms (%.1f %%)\n", window * 1e-6, (double)s.critical_ns * 1e-6,
            window > 0 ? 100 * (double)s.critical_ns / window : 0.0);
    for (int l = 0; l < TN_N_LANES; l++) {
        if (!s.n_workers[l]) continue;
        fprintf(f,
                "%s: %" PRId32 " worker%s, %" PRId64 " parts (%" PRId64
                " from other lanes), busy %.3f ms, bubbles %.1f %%\n",
                tn_lane_name((tn_lane)l), s.n_workers[l], s.n_workers[l] == 1 ? "" : "s", s.n_events[l],
                s.n_stolen[l], (double)s.busy_ns[l] * 1e-6, 100 * s.bubble[l]);
    }
    if (s.n_lost) fprintf(f, "%" PRId64 " older events and dependencies were overwritten\n", s.n_lost);
    return written(f, err);
}
