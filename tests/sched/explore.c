/* tests/sched/explore.c - every interleaving of the executor's threads that matters, under a scheduler that the test controls.
 *
 * The executor's source is compiled here with other mutexes, conditions, threads, atomics and another clock: only one thread
 * runs at a time, and at every operation that others can see the test says which one goes on. So a schedule is a list of
 * choices that can be repeated, a lost wake-up is a state in which nobody can go on, and it needs no luck with times.
 *
 *   search    all schedules of small graphs with at most BOUND preemptions (a switch away from a thread that could go on)
 *   PCT       random priorities that change at random steps, for larger graphs; the seed is printed
 *
 * TERN_EXPLORE=N looks at N times as many schedules. That the explorer finds anything is shown by faults planted in the
 * conditions: see `planted`. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "base/status.h"
#include "sched/executor.h"
#include "sched/shapes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the world ------------------------------------------------------------------------------------- */

enum { MAX_THREADS = 8, MAX_STEPS = 20000, MAX_CHOICES = 4096 };

typedef struct ctl_mutex {
    bool locked;
} ctl_mutex;
typedef struct ctl_cond {
    int n_waiting;
} ctl_cond;

typedef enum state {
    GOES,   /* can go on */
    LOCKS,  /* waits for `mutex` */
    SLEEPS, /* waits for a signal of `cond` */
    JOINS,  /* waits for the end of `joins` */
    OVER
} state;

typedef struct actor {
    state s;
    ctl_mutex *mutex;
    ctl_cond *cond;
    int joins, priority;
    sem_t turn;
    pthread_t thread;
    void *(*main)(void *);
    void *arg;
} actor;

typedef enum planted_fault {
    SOUND,
    LATE_SLEEPER, /* a wait gives the mutex up before it counts as waiting: a signal in between is lost */
    NO_LAST_CALL  /* the broadcast at a run's end does not happen */
} planted_fault;

typedef enum strategy { SEARCH, PCT } strategy;

static struct world {
    actor actors[MAX_THREADS];
    int n, now; /* now: whose turn it is */
    int64_t clock_ns;
    int n_steps;
    planted_fault planted;
    strategy how;
    /* SEARCH: choices[0..n_forced) are repeated; after them the first is taken, which is to go on where
     * that is possible */
    int choices[MAX_CHOICES], options[MAX_CHOICES], n_choices, n_forced, n_preempted, bound;
    /* PCT */
    tn_rng rng;
    int change_at[8], n_changes;
    char what[160]; /* for the message of a failure */
} w;

static _Thread_local int me;

__attribute__((noreturn)) static void finding(const char *what) {
    fprintf(stderr, "%s after %d steps: %s; choices:", what, w.n_steps, w.what);
    for (int i = 0; i < w.n_choices; i++) fprintf(stderr, " %d", w.choices[i]);
    fputs("\n", stderr);
    _exit(3); /* threads are blocked for good */
}

static bool can_go(const actor *a) {
    switch (a->s) {
    case GOES: return true;
    case LOCKS: return !a->mutex->locked;
    case JOINS: return w.actors[a->joins].s == OVER;
    case SLEEPS:
    case OVER: return false;
    }
    return false;
}

/* One of n, as the strategy wants it; 0 is the first to be tried. */
static int choose(int n) {
    if (n <= 1) return 0;
    if (w.how == PCT) return (int)tn_rng_below(&w.rng, (uint64_t)n);
    if (w.n_choices == MAX_CHOICES) finding("too many choices");
    int i = w.n_choices++;
    if (i >= w.n_forced) w.choices[i] = 0;
    w.options[i] = n;
    return w.choices[i];
}

static int next_actor(void) {
    int able[MAX_THREADS], n = 0;
    bool mine = can_go(&w.actors[me]);
    if (mine) able[n++] = me; /* going on comes first */
    for (int i = 0; i < w.n; i++)
        if (i != me && can_go(&w.actors[i])) able[n++] = i;
    if (!n) finding("nobody can go on");
    if (w.how == PCT) {
        for (int i = 0; i < w.n_changes; i++)
            if (w.change_at[i] == w.n_steps) w.actors[me].priority = -1 - i;
        int best = able[0];
        for (int i = 1; i < n; i++)
            if (w.actors[able[i]].priority > w.actors[best].priority) best = able[i];
        return best;
    }
    if (mine && w.n_preempted >= w.bound) return me;
    int k = choose(n);
    w.n_preempted += mine && k > 0;
    return able[k];
}

/* Others may go on here. Returns when it is this thread's turn again. */
static void point(void) {
    if (++w.n_steps > MAX_STEPS) finding("no end");
    int next = next_actor(), self = me;
    if (next == self) return;
    bool over = w.actors[self].s == OVER; /* from the post on, the world is the other's */
    w.now = next;
    sem_post(&w.actors[next].turn);
    if (over) return;
    while (sem_wait(&w.actors[self].turn)) {
    }
}

static void ctl_lock(ctl_mutex *m) {
    w.actors[me].mutex = m;
    w.actors[me].s = LOCKS;
    point();
    assert(!m->locked);
    m->locked = true;
    w.actors[me].s = GOES;
}

static void ctl_unlock(ctl_mutex *m) {
    assert(m->locked);
    m->locked = false;
    point();
}

static void ctl_wait(ctl_cond *c, ctl_mutex *m) {
    actor *a = &w.actors[me];
    assert(m->locked);
    m->locked = false;
    if (w.planted == LATE_SLEEPER) point();
    a->cond = c;
    a->s = SLEEPS;
    c->n_waiting++;
    point();
    assert(!m->locked); /* woken: the signal made it wait for the mutex */
    m->locked = true;
    a->s = GOES;
}

static void wake_one(ctl_cond *c, ctl_mutex *m) {
    int waiting[MAX_THREADS], n = 0;
    for (int i = 0; i < w.n; i++)
        if (w.actors[i].s == SLEEPS && w.actors[i].cond == c) waiting[n++] = i;
    if (!n) return;
    actor *a = &w.actors[waiting[choose(n)]];
    a->s = LOCKS;
    a->mutex = m;
    c->n_waiting--;
}

static ctl_mutex *mutex_of_conds; /* the executor waits with one mutex alone */

static void ctl_signal(ctl_cond *c) {
    point();
    wake_one(c, mutex_of_conds);
}

static void ctl_broadcast(ctl_cond *c, bool last_call) {
    if (w.planted == NO_LAST_CALL && last_call) return;
    while (c->n_waiting) wake_one(c, mutex_of_conds);
}

static void *life(void *arg) {
    me = (int)((actor *)arg - w.actors);
    while (sem_wait(&w.actors[me].turn)) {
    }
    void *r = w.actors[me].main(w.actors[me].arg);
    w.actors[me].s = OVER;
    point();
    return r;
}

static int ctl_create(pthread_t *out, void *(*fn)(void *), void *arg) {
    actor *a = &w.actors[w.n];
    assert(w.n < MAX_THREADS);
    *a = (actor){.s = GOES, .main = fn, .arg = arg, .priority = (int)tn_rng_below(&w.rng, 1000)};
    sem_init(&a->turn, 0, 0);
    w.n++;
    int rc = pthread_create(&a->thread, NULL, life, a);
    *out = a->thread;
    return rc;
}

static void ctl_join(pthread_t t) {
    actor *self = &w.actors[me];
    for (int i = 1; i < w.n; i++)
        if (pthread_equal(w.actors[i].thread, t) && w.actors[i].main) {
            self->joins = i;
            self->s = JOINS;
            point();
            self->s = GOES;
            pthread_join(t, NULL);
            sem_destroy(&w.actors[i].turn);
            w.actors[i].main = NULL;
            return;
        }
    abort();
}

/* A spinner finds itself preempted at once: it looks a single time, then sleeps. */
static int64_t ctl_now(void) { return w.clock_ns += 200000; }

#define pthread_mutex_t ctl_mutex
#define pthread_cond_t ctl_cond
#define pthread_mutex_init(m, a) (*(m) = (ctl_mutex){false})
#define pthread_mutex_destroy(m) ((void)(m))
#define pthread_mutex_lock(m) ctl_lock(m)
#define pthread_mutex_unlock(m) ctl_unlock(m)
#define pthread_cond_init(c, a) (mutex_of_conds = &e->mu, *(c) = (ctl_cond){0})
#define pthread_cond_destroy(c) ((void)(c))
#define pthread_cond_wait(c, m) ctl_wait(c, m)
#define pthread_cond_signal(c) ctl_signal(c)
#define pthread_cond_broadcast(c) ctl_broadcast(c, !e->quit)
#define pthread_create(t, a, f, x) ctl_create(t, f, x)
#define pthread_join(t, r) ctl_join(t)
#define tn_now_ns ctl_now
#define tn_cpu_count() 64
#undef atomic_load_explicit
#define atomic_load_explicit(p, order) (point(), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#include "../../src/sched/executor.c"
#undef pthread_create
#undef pthread_join

/* ---- what is run ----------------------------------------------------------------------------------- */

static tn_ctx ctx;
static tn_graph *graph;

typedef struct probe {
    int n_runs, n_parts_done, id;
} probe;
enum { MAX_TASKS = 40 };
static probe probes[MAX_TASKS];
static atomic_bool cancel;
static int fails_at, cancels_at; /* task, or -1 */

static tern_status probe_run(void *arg, int i_part, const tn_worker *worker, tern_error *err) {
    probe *p = arg;
    (void)i_part, (void)worker;
    p->n_runs++;
    point(); /* others go on while this works */
    for (int32_t k = graph->pred_off[p->id]; k < graph->pred_off[p->id + 1]; k++) {
        int32_t before = graph->pred[k];
        if (probes[before].n_parts_done != graph->tasks[before].n_parts)
            finding("a task runs before one it needs");
    }
    p->n_parts_done++;
    if (p->id == cancels_at) atomic_store(&cancel, true);
    if (p->id == fails_at) return tn_fail(err, TERN_E_IO, "task %d cannot", p->id);
    return TERN_OK;
}

typedef struct scene {
    int32_t crew[TN_N_LANES];
    tn_policy policy;
    int fails_at, cancels_at;
} scene;

/* Open, two runs, close: one schedule. */
static void play(const scene *sc) {
    w.n = 1;
    w.now = me = 0;
    w.n_steps = w.n_choices = w.n_preempted = 0;
    w.actors[0].s = GOES;
    w.actors[0].priority = 500;
    cancel = false;
    tn_executor *ex;
    if (tn_executor_open(&ctx, sc->crew, &ex, NULL) != TERN_OK) finding("no executor");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < graph->n_tasks; i++) probes[i] = (probe){.id = i};
        fails_at = round ? -1 : sc->fails_at;
        cancels_at = round ? -1 : sc->cancels_at;
        tn_run run = {.graph = graph, .policy = sc->policy, .cancel = &cancel};
        tern_error err = {0};
        tern_status st = tn_executor_run(ex, &run, NULL, &err);
        bool broken = fails_at >= 0 || cancels_at >= 0;
        if (!broken && st != TERN_OK) finding("a sound run fails");
        if (fails_at >= 0 && st != TERN_E_IO) finding("a failed run is no failure");
        for (int i = 0; i < graph->n_tasks; i++) {
            int parts = graph->tasks[i].n_parts;
            if (probes[i].n_runs > parts || probes[i].n_runs != probes[i].n_parts_done)
                finding("a part ran twice, or runs on");
            if (st == TERN_OK && probes[i].n_runs != parts) finding("a part did not run");
        }
        cancel = false;
    }
    tn_executor_close(&ex);
}

/* The next list of choices in order; false: there is none. */
static bool next_choices(void) {
    int i = w.n_choices - 1;
    while (i >= 0 && w.choices[i] + 1 >= w.options[i]) i--;
    if (i < 0) return false;
    w.choices[i]++;
    w.n_forced = i + 1;
    return true;
}

/* Returns how many schedules were looked at; *all: there are no others within the bound. */
static long search(const scene *sc, int bound, long limit, bool *all) {
    w.how = SEARCH;
    w.bound = bound;
    w.n_forced = 0;
    long n = 0;
    *all = false;
    do {
        play(sc);
        n++;
        *all = !next_choices();
    } while (!*all && n < limit);
    return n;
}

static void pct(const scene *sc, uint64_t seed) {
    w.how = PCT;
    w.rng = (tn_rng){.s = seed};
    w.n_changes = (int)tn_rng_below(&w.rng, 6);
    for (int i = 0; i < w.n_changes; i++) w.change_at[i] = (int)tn_rng_below(&w.rng, 400);
    snprintf(w.what, sizeof w.what, "seed %llu", (unsigned long long)seed);
    play(sc);
}

static long factor(void) {
    const char *f = getenv("TERN_EXPLORE");
    return f ? atol(f) : 1;
}

static bool quick(void) { return getenv("TERN_TEST_QUICK") != NULL; }

/* ---- tests ----------------------------------------------------------------------------------------- */

/* Three tasks: a NPU task between two of the CPU, or a fork of two lanes; one with parts. */
static void small_graph(int which) {
    tn_graph_clear(graph);
    for (int i = 0; i < 3; i++) {
        tn_task t = {.fn = probe_run,
                     .arg = &probes[i],
                     .name = "t",
                     .chunk = i,
                     .lane = i == 1 ? TN_LANE_NPU : TN_LANE_CPU,
                     .can_steal = which == 2,
                     .est_us = {1, 1, 1},
                     .n_parts = which == 2 && i == 1 ? 2 : 1};
        tn_graph_add(graph, &t);
    }
    tn_graph_depend(graph, 0, 1);
    tn_graph_depend(graph, which == 1 ? 0 : 1, 2);
    assert_int_equal(tn_graph_seal(graph, NULL), TERN_OK);
}

static scene scene_of(int crew, int policy) {
    static const int32_t crews[][TN_N_LANES] = {{1, 1, 0}, {2, 0, 0}, {1, 0, 1}, {0, 2, 0},
                                                {2, 1, 0}, {2, 2, 0}, {1, 1, 1}};
    scene sc = {.policy = tn_policy_defaults((tn_policy_kind)policy), .fails_at = -1, .cancels_at = -1};
    memcpy(sc.crew, crews[crew], sizeof sc.crew);
    sc.policy.keep_busy = policy % 2;
    return sc;
}

static void every_interleaving(void **unused) {
    (void)unused;
    long limit = (quick() ? 300 : 3000) * factor(), total = 0, n_whole = 0, n_scenes = 0;
    for (int which = 0; which < 3; which++)
        for (int crew = 0; crew < 4; crew++)
            for (int how = 0; how < 3; how++) { /* sound; a task fails; a task cancels */
                small_graph(which);
                scene sc = scene_of(crew, (which + crew + how) % TN_N_POLICIES);
                sc.fails_at = how == 1 ? which : -1;
                sc.cancels_at = how == 2 ? which : -1;
                snprintf(w.what, sizeof w.what, "graph %d, crew %d, %s", which, crew,
                         how == 0   ? "sound"
                         : how == 1 ? "failing"
                                    : "cancelled");
                bool all;
                total += search(&sc, factor() > 1 ? 3 : 2, limit, &all);
                n_whole += all;
                n_scenes++;
            }
    print_message("%ld schedules, %ld of %ld scenes to the end within the bound on preemptions\n", total,
                  n_whole, n_scenes);
    assert_true(total > n_scenes * 20);
    if (!quick()) assert_true(n_whole > 0);
}

static void random_priorities(void **unused) {
    (void)unused;
    long n = (quick() ? 60 : 2000) * factor();
    for (long seed = 1; seed <= n; seed++) {
        tn_rng rng = {.s = (uint64_t)seed};
        assert_int_equal(shape_random(graph, &rng, 2 + (int)tn_rng_below(&rng, MAX_TASKS / 2), probe_run,
                                      probes, sizeof probes[0], NULL),
                         TERN_OK);
        scene sc = scene_of((int)tn_rng_below(&rng, 7), (int)tn_rng_below(&rng, TN_N_POLICIES));
        int how = (int)tn_rng_below(&rng, 4), task = (int)tn_rng_below(&rng, (uint64_t)graph->n_tasks);
        sc.fails_at = how == 1 ? task : -1;
        sc.cancels_at = how == 2 ? task : -1;
        pct(&sc, (uint64_t)seed);
    }
    print_message("%ld schedules with random priorities\n", n);
}

/* In a child, as a finding ends the process: with status 3. */
static int child(planted_fault f, strategy how) {
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        w.planted = f;
        for (int crew = 0; crew < 4; crew++) {
            bool all;
            small_graph(0);
            scene sc = scene_of(crew, TN_POLICY_OVERLAP);
            if (how == SEARCH) (void)search(&sc, 2, 20000, &all);
            else
                for (uint64_t seed = 1; seed <= 3000; seed++) {
                    small_graph((int)(seed % 3));
                    pct(&sc, seed);
                }
        }
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void planted(void **unused) {
    (void)unused;
    assert_int_equal(child(SOUND, SEARCH), 0);
    assert_int_equal(child(LATE_SLEEPER, SEARCH), 3);
    assert_int_equal(child(LATE_SLEEPER, PCT), 3);
    assert_int_equal(child(NO_LAST_CALL, SEARCH), 3);
    assert_int_equal(child(NO_LAST_CALL, PCT), 3);
}

static int setup(void **unused) {
    (void)unused;
    tn_ctx_init(&ctx, NULL);
    sem_init(&w.actors[0].turn, 0, 0);
    w.rng = (tn_rng){.s = 1};
    return tn_graph_open(&ctx, &graph, NULL);
}

static int teardown(void **unused) {
    (void)unused;
    tn_graph_close(&graph);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted), /* first: its children start where nothing else runs */
        cmocka_unit_test(every_interleaving),
        cmocka_unit_test(random_priorities),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
