/* sched/timeline.h - what ran when and where: events of real or virtual runs, and three views of them.
 *
 * A timeline has one track per worker, plus named extra tracks. One thread at a time writes a track, into a
 * ring of fixed size; when it is full the oldest events are overwritten and counted. Nothing is locked, so
 * call reading functions when nobody writes. No timeline (NULL) costs nothing.
 *
 * A live timeline is read while it is written: one reader takes events away (tn_timeline_take); events
 * without room are dropped and counted. It keeps no dependencies. */
#ifndef TN_SCHED_TIMELINE_H
#define TN_SCHED_TIMELINE_H

#include "sched/policy.h"

#include <stdio.h>

typedef struct tn_event {
    int64_t start_ns, end_ns;
    const char *name;     /* borrowed until the timeline is closed */
    int32_t run;          /* from tn_timeline_begin_run */
    int32_t task;         /* id in its graph, -1 for events that are not tasks */
    int32_t seq;          /* start number in its run */
    int32_t chunk, layer; /* -1 = none */
    int32_t part, n_parts;
    tn_lane lane; /* the task's home lane */
} tn_event;

/* The value of a counter from a time on. */
typedef struct tn_counter {
    const char *name; /* static */
    int64_t ns;
    double value;
} tn_counter;

typedef struct tn_timeline tn_timeline;

typedef struct tn_timeline_options {
    int32_t n_workers[TN_N_LANES]; /* tracks of the workers, CPU first */
    const char *const *extra;      /* names of further tracks (borrowed), may be NULL */
    int32_t n_extra;
    int32_t cap_events; /* per track, > 0 */
    int32_t cap_flows;  /* dependencies per track, > 0 */
    bool live;          /* read only by tn_timeline_take */
} tn_timeline_options;

tern_status tn_timeline_open(tn_ctx *ctx, const tn_timeline_options *opt, tn_timeline **out, tern_error *err);
void tn_timeline_close(tn_timeline **t);
void tn_timeline_clear(tn_timeline *t);

/* Returns the first track of a lane's workers. Extra track i is tn_timeline_n_workers + i. */
int32_t tn_timeline_first_track(const tn_timeline *t, tn_lane lane);
int32_t tn_timeline_n_workers(const tn_timeline *t);

/* Returns a number for the events of one run (0, 1, 2, ...). One caller at a time may ask. */
int32_t tn_timeline_begin_run(tn_timeline *t);
void tn_timeline_add(tn_timeline *t, int32_t track, const tn_event *e);
/* Adds work of the calling thread between scheduled runs, to the track after the workers'. t may be NULL;
 * name is a string constant. */
void tn_timeline_note(tn_timeline *t, const char *name, int64_t start_ns, int64_t end_ns);
/* Adds a finished part of g's task. With part 0 its dependencies are recorded too. */
void tn_timeline_add_task(tn_timeline *t, int32_t track, int32_t run, const tn_graph *g, const tn_pick *pick,
                          int64_t start_ns, int64_t end_ns);

/* Moves at most cap events of a live timeline's track to out, oldest first, while others write. Returns how
 * many; *n_lost gets the number of the track's events ever dropped. One reader at a time. */
int32_t tn_timeline_take(tn_timeline *t, int32_t track, tn_event *out, int32_t cap, int64_t *n_lost);

/* Both read the kept events of a track, oldest first. */
int32_t tn_timeline_n_events(const tn_timeline *t, int32_t track);
const tn_event *tn_timeline_event(const tn_timeline *t, int32_t track, int32_t i);

typedef struct tn_timeline_summary {
    int64_t start_ns, end_ns; /* first start and last end of the workers' events */
    int64_t busy_ns[TN_N_LANES];
    double bubble[TN_N_LANES]; /* idle share of the lane's workers between start and end */
    int32_t n_workers[TN_N_LANES];
    int64_t n_events[TN_N_LANES]; /* parts run by the lane's workers */
    int64_t n_stolen[TN_N_LANES]; /* of those, parts that belong to another lane */
    int64_t critical_ns; /* longest chain of dependent tasks, at the times they took, summed over runs */
    int64_t n_lost;      /* events and dependencies overwritten: the figures cover only the rest */
} tn_timeline_summary;

/* In the following functions run >= 0 selects one run, and -1 all. */
tern_status tn_timeline_summarise(const tn_timeline *t, int32_t run, tn_timeline_summary *out,
                                  tern_error *err);

/* Both write Chrome trace event JSON (for Perfetto and chrome://tracing): tracks as named threads, events,
 * dependencies as arrows. */
/* Writes a file, which replaces only another trace and has mode 0600. */
tern_status tn_timeline_save_trace(const tn_timeline *t, tn_ctx *ctx, const char *path, tern_error *err);
/* Copies counters to be written beside the events; replaces earlier ones. */
tern_status tn_timeline_counters(tn_timeline *t, const tn_counter *c, size_t n, tern_error *err);
tern_status tn_timeline_write_trace(const tn_timeline *t, FILE *f, tern_error *err);
/* Draws every track as a row of `width` columns (20 to 1000): how busy it was, and below that the chunk it
 * worked on most. colour adds ANSI colours by chunk. */
tern_status tn_timeline_write_gantt(const tn_timeline *t, int32_t run, int32_t width, bool colour, FILE *f,
                                    tern_error *err);
/* Writes the summary in a few lines of text. */
tern_status tn_timeline_write_summary(const tn_timeline *t, int32_t run, FILE *f, tern_error *err);

#endif
