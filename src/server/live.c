#include "server/live.h"

#include "base/clock.h"
#include "session/session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES = 64, NAMES_MAX = 1024, TAKEN = 512, TASKS_MAX = 6000 /* of a piece */ };
static const int64_t PIECE_NS = 90000000;

typedef struct piece {
    char *text;
    size_t n;
} piece;

struct tn_live {
    pthread_mutex_t mu;
    /* guarded */
    tern_engine *e;     /* NULL: the model is away */
    uint64_t n_changes; /* it came or went */
    int n_readers;
    tn_timeline *timeline; /* while there are readers, and an engine that can note what it does */
    uint64_t n_pieces;     /* ever made; the ring holds the last */
    piece pieces[PIECES];
    int64_t made_ns;
    const char *names[NAMES_MAX]; /* borrowed from the engine; a name's number is its place */
    int n_names;
    tn_event taken[TAKEN];
};

struct tn_live_reader {
    tn_live *l;
    uint64_t next;    /* piece */
    uint64_t changes; /* of which it was told */
    tn_bytes out;
    size_t n_sent;
};

tern_status tn_live_open(tn_live **out, tern_error *err) {
    tn_live *l = *out = calloc(1, sizeof *l);
    TN_FAIL_IF(!l, err, TERN_E_MEMORY, "no memory for the timeline");
    pthread_mutex_init(&l->mu, NULL);
    return TERN_OK;
}

void tn_live_close(tn_live **pl) {
    tn_live *l = *pl;
    *pl = NULL;
    if (!l) return;
    for (int i = 0; i < PIECES; i++) free(l->pieces[i].text);
    pthread_mutex_destroy(&l->mu);
    free(l);
}

/* ---- an engine that comes and goes --------------------------------------------------------------------- */

/* Somebody reads: the engine notes what it does from now on. With the lock. */
static void watch(tn_live *l) {
    int64_t lost;
    if (!l->e || tn_engine_watch(l->e, &l->timeline, NULL) != TERN_OK) {
        l->timeline = NULL;
        return;
    }
    /* what was noted before nobody looked is old */
    for (int32_t k = 0; k <= tn_timeline_n_workers(l->timeline); k++)
        while (tn_timeline_take(l->timeline, k, l->taken, TAKEN, &lost)) {
        }
}

static void unwatch(tn_live *l) {
    if (l->timeline) tn_engine_unwatch(l->e);
    l->timeline = NULL;
}

void tn_live_attach(tn_live *l, tern_engine *e) {
    pthread_mutex_lock(&l->mu);
    l->e = e;
    l->n_changes++;
    l->n_names = 0; /* they were the other engine's */
    if (l->n_readers) watch(l);
    pthread_mutex_unlock(&l->mu);
}

void tn_live_detach(tn_live *l) {
    pthread_mutex_lock(&l->mu);
    unwatch(l);
    l->e = NULL;
    l->n_changes++;
    l->n_names = 0;
    pthread_mutex_unlock(&l->mu);
}

/* ---- making a piece ------------------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 3))) static bool put(tn_bytes *b, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return n >= 0 && (size_t)n < sizeof text && tn_bytes_add(b, text, (size_t)n);
}

/* The number of a name. A new one is added to `told`, the names that the piece tells. */
static int number_of(tn_live *l, const char *name, tn_bytes *told) {
    for (int i = 0; i < l->n_names; i++)
        if (l->names[i] == name) return i;
    if (l->n_names == NAMES_MAX) return -1;
    l->names[l->n_names] = name;
    /* names are the engine's own words, without quotes */
    (void)put(told, "%s\"%d\":\"%.80s\"", told->n ? "," : "", l->n_names, name);
    return l->n_names++;
}

/* Tasks of a piece: neighbours of one name and track become one where there are too many to draw. */
typedef struct gathering {
    tn_bytes tasks, names;
    int n_tasks;
    int64_t n_lost, n_seen;
    tn_event last;
    int32_t last_track;
    bool has_last, ok;
} gathering;

static void put_last(tn_live *l, gathering *g) {
    if (!g->has_last) return;
    const tn_event *e = &g->last;
    int name = number_of(l, e->name, &g->names);
    g->ok = g->ok &&
            put(&g->tasks, "%s%d,%lld,%lld,%d,%d,%d,%d", g->n_tasks ? "," : "", (int)g->last_track,
                (long long)(e->start_ns / 1000),
                (long long)((e->end_ns - e->start_ns) / 1000 + ((e->end_ns - e->start_ns) % 1000 >= 500)),
                name, (int)e->chunk, (int)e->layer, (int)e->lane);
    g->n_tasks++;
    g->has_last = false;
}

static void gather(tn_live *l, gathering *g, int32_t track, const tn_event *e) {
    g->n_seen++;
    bool joins = g->has_last && g->last_track == track && g->n_tasks > TASKS_MAX / 2 &&
                 e->start_ns - g->last.end_ns < 20000 && e->end_ns - g->last.start_ns < 2000000;
    if (joins) {
        g->last.end_ns = e->end_ns;
        return;
    }
    put_last(l, g);
    if (g->n_tasks >= TASKS_MAX) {
        g->n_lost++;
        return;
    }
    g->last = *e;
    g->last_track = track;
    g->has_last = true;
}

/* Takes what the engine has noted since the last piece. With the lock. */
static void make_piece(tn_live *l) {
    gathering g = {.ok = true};
    int32_t n_tracks = tn_timeline_n_workers(l->timeline) + 1;
    for (int32_t k = 0; k < n_tracks; k++) {
        int64_t lost = 0;
        for (int32_t n = TAKEN; n == TAKEN;) {
            n = tn_timeline_take(l->timeline, k, l->taken, TAKEN, &lost);
            for (int32_t i = 0; i < n; i++) gather(l, &g, k, &l->taken[i]);
        }
        g.n_lost += lost;
        put_last(l, &g);
    }
    int64_t now = tn_now_ns();
    l->made_ns = now;
    if (g.n_seen) {
        tn_bytes b = {0};
        bool ok = g.ok && put(&b, "data: {\"type\":\"tasks\",\"now_us\":%lld,\"lost\":%lld,\"names\":{",
                              (long long)(now / 1000), (long long)g.n_lost);
        ok = ok && tn_bytes_add(&b, g.names.p ? g.names.p : "", g.names.n) && put(&b, "},\"tasks\":[");
        ok = ok && tn_bytes_add(&b, g.tasks.p ? g.tasks.p : "", g.tasks.n) && put(&b, "]}\n\n");
        piece *p = &l->pieces[l->n_pieces % PIECES];
        free(p->text);
        *p = (piece){.text = ok ? b.p : NULL, .n = ok ? b.n : 0};
        if (!ok) free(b.p);
        l->n_pieces++;
    }
    free(g.tasks.p);
    free(g.names.p);
}

/* ---- readers ------------------------------------------------------------------------------------------- */

/* Lanes, their workers, and the names that others were told before. With the lock. */
static bool greet(tn_live *l, tn_bytes *b) {
    static const char *const lanes[TN_N_LANES] = {
        [TN_LANE_CPU] = "CPU", [TN_LANE_NPU] = "Device", [TN_LANE_IO] = "IO"};
    bool ok =
        put(b, "data: {\"type\":\"lanes\",\"now_us\":%lld,\"lanes\":[", (long long)(tn_now_ns() / 1000));
    for (int i = 0; l->e && i < TN_N_LANES; i++)
        ok = ok && put(b, "{\"name\":\"%s\",\"workers\":%d},", lanes[i], (int)l->e->n_lane_workers[i]);
    ok = ok && put(b, "%s],\"names\":{", l->e ? "{\"name\":\"Request\",\"workers\":1}" : "");
    for (int i = 0; i < l->n_names; i++)
        ok = ok && put(b, "%s\"%d\":\"%.80s\"", i ? "," : "", i, l->names[i]);
    return ok && put(b, "}}\n\n");
}

tern_status tn_live_reader_open(tn_live *l, tn_live_reader **out, tern_error *err) {
    tn_live_reader *r = *out = calloc(1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory for a reader of the timeline");
    r->l = l;
    pthread_mutex_lock(&l->mu);
    bool ok = greet(l, &r->out);
    if (ok && !l->n_readers++) watch(l);
    r->next = l->n_pieces;
    r->changes = l->n_changes;
    pthread_mutex_unlock(&l->mu);
    if (ok) return TERN_OK;
    free(r->out.p);
    free(r);
    *out = NULL;
    return tn_fail(err, TERN_E_MEMORY, "no memory for a reader of the timeline");
}

size_t tn_live_reader_read(tn_live_reader *r, char *buf, size_t cap) {
    tn_live *l = r->l;
    if (r->n_sent == r->out.n) {
        r->n_sent = r->out.n = 0;
        pthread_mutex_lock(&l->mu);
        if (r->changes != l->n_changes && greet(l, &r->out)) {
            r->changes = l->n_changes;
            r->next = l->n_pieces; /* what is older has other numbers for its names */
        }
        if (l->timeline && tn_now_ns() - l->made_ns > PIECE_NS) make_piece(l);
        if (l->n_pieces - r->next > PIECES) r->next = l->n_pieces - PIECES; /* a reader that is too slow */
        for (; r->next < l->n_pieces; r->next++) {
            const piece *p = &l->pieces[r->next % PIECES];
            if (p->text && !tn_bytes_add(&r->out, p->text, p->n)) break;
        }
        pthread_mutex_unlock(&l->mu);
    }
    size_t n = r->out.n - r->n_sent;
    if (n > cap) n = cap;
    if (n) memcpy(buf, r->out.p + r->n_sent, n);
    r->n_sent += n;
    return n;
}

void tn_live_reader_close(tn_live_reader **pr) {
    tn_live_reader *r = *pr;
    *pr = NULL;
    if (!r) return;
    pthread_mutex_lock(&r->l->mu);
    if (!--r->l->n_readers) unwatch(r->l);
    pthread_mutex_unlock(&r->l->mu);
    free(r->out.p);
    free(r);
}
