#include "sched/executor.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "base/status.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

/* An idle worker spins for a number of pauses of some 10 ns before it sleeps. Waking a sleeper takes about 20
 * us and a prefill hands over hundreds of times, so during a run a worker spins for about a task's length.
 * But on a busy machine a spinner takes a core from its own team: with two busy processes on two cores a
 * hand-over was measured at 700 us instead of 60. So a spinner that finds itself preempted shortens the
 * spins, and every run lengthens them a little. */
enum { SPIN_MIN = 4000, SPIN_MAX = 40000, SPIN_STEP = 1000, SPIN_LOOK = 64, PREEMPTED_NS = 100000 };

typedef struct member {
    tn_executor *executor;
    tn_worker self;
    int32_t i_in_lane;
    pthread_t thread;
    tern_error error; /* of the part it runs */
} member;

/* Lock order: run_mu before mu. run_mu is recursive: a pause runs graphs within a run. A task's function is called without mu. */
struct tn_executor {
    tn_ctx *ctx;
    int32_t n_workers[TN_N_LANES], n_all;
    int32_t n_started;      /* threads made, and the caller */
    bool spin;              /* every computing worker has a core; those of the IO lane only wait */
    pthread_mutex_t run_mu; /* held for the whole of a run by its caller, who alone has the next two */
    tn_sched *spare;        /* of runs within a pause; NULL until the first */
    bool paused;
    pthread_mutex_t mu; /* guards all that follows */
    pthread_cond_t wake[TN_N_LANES];
    int32_t n_sleeping[TN_N_LANES];
    atomic_uint epoch; /* written under mu whenever idle workers might find something new. Spinners read it
                          without mu, relaxed, and take mu before they look at anything else */
    bool quit;
    tn_sched *sched;
    const tn_run *run;  /* NULL between runs */
    int32_t run_no;     /* its number on the timeline */
    int32_t n_running;  /* parts being run */
    int32_t n_spins;    /* of an idle worker during a run: SPIN_MIN to SPIN_MAX */
    bool told;          /* the caller has been woken because the run is over */
    bool pausing;       /* no part begins; the run goes on when the caller has run the pause */
    bool resumed;       /* from a pause: a part comes before the next one, or nothing would get done */
    tern_status status; /* first failure or cancel of this run */
    tern_error error;
    tn_run_stats stats;
    member members[];
};

/* Makes spinning workers look again. The caller holds mu. */
static void new_epoch(tn_executor *e) { atomic_fetch_add_explicit(&e->epoch, 1, memory_order_relaxed); }

/* Tells whether nothing is left to start for now and nothing runs. The caller holds mu. */
static bool run_over(const tn_executor *e) {
    return e->run && e->n_running == 0 && (e->status != TERN_OK || e->pausing || tn_sched_finished(e->sched));
}

/* Waits until there is a new epoch or the worker is woken. The caller holds mu, which is released
 * meanwhile. */
static void idle(tn_executor *e, tn_lane lane) {
    unsigned seen = atomic_load_explicit(&e->epoch, memory_order_relaxed);
    if (e->spin && lane != TN_LANE_IO) {
        int32_t n_spins = e->run ? e->n_spins : SPIN_MIN;
        bool preempted = false;
        pthread_mutex_unlock(&e->mu);
        int64_t then = tn_now_ns();
        for (int32_t i = 0; i < n_spins && atomic_load_explicit(&e->epoch, memory_order_relaxed) == seen;
             i++) {
            tn_cpu_relax();
            if (i % SPIN_LOOK) continue;
            int64_t now = tn_now_ns();
            if (now - then > PREEMPTED_NS) {
                preempted = true;
                break;
            }
            then = now;
        }
        pthread_mutex_lock(&e->mu);
        if (preempted) e->n_spins = SPIN_MIN;
        if (atomic_load_explicit(&e->epoch, memory_order_relaxed) != seen) return;
    }
    e->n_sleeping[lane]++;
    pthread_cond_wait(&e->wake[lane], &e->mu);
    e->n_sleeping[lane]--;
}

/* Finds the lanes with a sleeper that would find work. The caller holds mu. It runs after every pick that
 * follows a finished task, even a pick that found nothing; a sleeper woken by it then looks for the next
 * sleeper. */
static unsigned lanes_to_wake(const tn_executor *e) {
    unsigned lanes = 0;
    if (!e->run || e->status != TERN_OK || e->pausing) return lanes;
    for (int l = 0; l < TN_N_LANES; l++)
        if (e->n_sleeping[l] && tn_sched_can_pick(e->sched, (tn_lane)l)) lanes |= 1u << l;
    return lanes;
}

static void wake(tn_executor *e, unsigned lanes) {
    for (int l = 0; l < TN_N_LANES; l++)
        if (lanes >> l & 1) pthread_cond_signal(&e->wake[l]);
}

static bool pick_next(tn_executor *e, const member *m, tn_pick *pick) {
    if (!e->run || e->status != TERN_OK || e->pausing) return false;
    if (e->run->cancel &&
        atomic_load_explicit(e->run->cancel, memory_order_relaxed)) { /* no data follows the flag */
        e->status = tn_fail(&e->error, TERN_E_CANCELLED, "cancelled");
        return false;
    }
    if (e->run->pause && !e->resumed && e->run->pause->wanted(e->run->pause->user)) {
        e->pausing = true;
        return false;
    }
    const bool any = tn_sched_pick(e->sched, m->self.lane, pick);
    e->resumed &= !any;
    return any;
}

/* Adds a finished part to the run's statistics. The caller holds mu. */
static void account(tn_executor *e, member *m, const tn_pick *pick, tern_status st, int64_t ns) {
    const tn_run *run = e->run;
    const tn_task *t = &run->graph->tasks[pick->task];
    e->n_running--;
    e->stats.busy_ns[m->self.lane] += ns;
    e->stats.n_stolen += t->lane != m->self.lane;
    if (run->task_ns) run->task_ns[pick->task] += ns;
    if (run->stolen_ns && t->lane != m->self.lane) run->stolen_ns[pick->task] += ns;
    if (st == TERN_OK) {
        if (tn_sched_done(e->sched, pick->task)) new_epoch(e);
    } else if (e->status == TERN_OK) {
        e->status = st;
        e->error = m->error;
        e->error.code = st;
        if (!e->error.message[0])
            tn_fail(&e->error, st, "task %s (chunk %" PRId32 ", layer %" PRId32 ") failed: %s", t->name,
                    t->chunk, t->layer, tern_status_text(st));
    }
}

/* Works until there is nothing left: for the caller until the run is over, for a thread until it has to
 * quit. */
static void work(tn_executor *e, member *m) {
    bool caller = m->self.i_worker == 0;
    pthread_mutex_lock(&e->mu);
    int64_t decide_ns = tn_now_ns();
    for (;;) {
        tn_pick pick;
        if (!pick_next(e, m, &pick)) {
            if (caller ? run_over(e) : e->quit) break;
            if (!e->told && run_over(e)) {
                /* the caller sleeps with the workers of its lane */
                e->told = true;
                new_epoch(e);
                pthread_cond_broadcast(&e->wake[e->members[0].self.lane]);
            }
            wake(e, lanes_to_wake(e));
            idle(e, m->self.lane);
            decide_ns = tn_now_ns();
            continue;
        }
        e->n_running++;
        const tn_run *run = e->run;
        int32_t run_no = e->run_no;
        unsigned lanes = lanes_to_wake(e);
        int64_t start = tn_now_ns(), took = start - decide_ns;
        e->stats.n_decisions++;
        e->stats.decide_ns += took;
        if (took > e->stats.decide_max_ns) e->stats.decide_max_ns = took;
        pthread_mutex_unlock(&e->mu);
        wake(e, lanes);

        const tn_task *t = &run->graph->tasks[pick.task];
        m->error.message[0] = 0;
        tern_status st = t->fn(t->arg, pick.part, &m->self, &m->error);
        int64_t end = tn_now_ns();
        if (run->timeline)
            tn_timeline_add_task(run->timeline,
                                 tn_timeline_first_track(run->timeline, m->self.lane) + m->i_in_lane, run_no,
                                 run->graph, &pick, start, end);

        pthread_mutex_lock(&e->mu);
        decide_ns = tn_now_ns();
        account(e, m, &pick, st, end - start);
    }
    pthread_mutex_unlock(&e->mu);
}

static void *thread_main(void *arg) {
    member *m = arg;
    work(m->executor, m);
    return NULL;
}

/* Lets what is urgent go first, with no part running. The caller holds mu, which is released meanwhile. Returns how
 * long it took. */
static int64_t let_go_first(tn_executor *e, const tn_run *run) {
    const tn_run_stats stats = e->stats;
    const int32_t run_no = e->run_no;
    const int64_t begin = tn_now_ns();
    tn_sched *mine = e->sched;
    e->run = NULL;
    e->sched = e->spare;
    e->paused = true;
    pthread_mutex_unlock(&e->mu);
    run->pause->run(run->pause->user);
    pthread_mutex_lock(&e->mu);
    e->paused = e->pausing = e->told = false;
    e->sched = mine;
    e->status = TERN_OK;
    e->stats = stats;
    e->run_no = run_no;
    e->run = run;
    e->resumed = true;
    new_epoch(e);
    return tn_now_ns() - begin;
}

/* The caller works until all is done, but for pauses. */
static void work_through(tn_executor *e, const tn_run *run, int64_t *paused_ns) {
    for (;;) {
        work(e, &e->members[0]);
        pthread_mutex_lock(&e->mu);
        const bool over = e->status != TERN_OK || !e->pausing || tn_sched_finished(e->sched);
        if (!over) *paused_ns += let_go_first(e, run);
        pthread_mutex_unlock(&e->mu);
        if (over) return;
    }
}

tern_status tn_executor_run(tn_executor *e, const tn_run *given, tn_run_stats *stats, tern_error *err) {
    tn_run with = *given;
    const tn_run *run = &with;
    const tn_graph *g = run->graph;
    int64_t paused_ns = 0;
    pthread_mutex_lock(&e->run_mu);
    tern_status st = TERN_OK;
    for (int l = 0; run->timeline && l < TN_N_LANES; l++) {
        int32_t next = l + 1 < TN_N_LANES ? tn_timeline_first_track(run->timeline, (tn_lane)(l + 1))
                                          : tn_timeline_n_workers(run->timeline);
        TN_BAIL_IF(next - tn_timeline_first_track(run->timeline, (tn_lane)l) < e->n_workers[l], err,
                   TERN_E_INVALID, "the timeline has too few %s tracks for %" PRId32 " workers",
                   tn_lane_name((tn_lane)l), e->n_workers[l]);
    }
    if (e->paused) with.pause = NULL;
    if (with.pause && !e->spare) st = tn_sched_open(e->ctx, &e->spare, err);
    if (!st) st = tn_sched_bind(e->sched, g, err);
    if (st) goto out;
    if (run->task_ns) memset(run->task_ns, 0, (size_t)g->n_tasks * sizeof *run->task_ns);
    if (run->stolen_ns) memset(run->stolen_ns, 0, (size_t)g->n_tasks * sizeof *run->stolen_ns);

    int64_t begin = tn_now_ns();
    pthread_mutex_lock(&e->mu);
    tn_sched_start(e->sched, &run->policy, e->n_workers);
    e->run_no = run->timeline ? tn_timeline_begin_run(run->timeline) : 0;
    e->status = TERN_OK;
    e->told = e->pausing = e->resumed = false;
    if (e->n_spins < SPIN_MAX) e->n_spins += SPIN_STEP;
    e->stats = (tn_run_stats){0};
    e->run = run;
    new_epoch(e);
    pthread_mutex_unlock(&e->mu);
    work_through(e, run, &paused_ns);
    pthread_mutex_lock(&e->mu);
    e->run = NULL;
    e->stats.wall_ns = tn_now_ns() - begin - paused_ns;
    e->stats.counts = *tn_sched_counted(e->sched);
    if (stats) *stats = e->stats;
    st = e->status;
    if (st && err) *err = e->error;
    pthread_mutex_unlock(&e->mu);
out:
    pthread_mutex_unlock(&e->run_mu);
    return st;
}

tern_status tn_executor_open(tn_ctx *ctx, const int32_t n_workers[TN_N_LANES], tn_executor **out,
                             tern_error *err) {
    *out = NULL;
    int32_t n = 0;
    for (int l = 0; l < TN_N_LANES; l++) {
        TN_FAIL_IF(n_workers[l] < 0 || n_workers[l] > TN_EXECUTOR_MAX_WORKERS, err, TERN_E_INVALID,
                   "%" PRId32 " %s workers asked for, 0 to %d are possible", n_workers[l],
                   tn_lane_name((tn_lane)l), TN_EXECUTOR_MAX_WORKERS);
        n += n_workers[l];
    }
    TN_FAIL_IF(n < 1 || n > TN_EXECUTOR_MAX_WORKERS, err, TERN_E_INVALID,
               "%" PRId32 " workers asked for, 1 to %d are possible", n, TN_EXECUTOR_MAX_WORKERS);
    tn_executor *e = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *e + (size_t)n * sizeof e->members[0]);
    TN_FAIL_IF(!e, err, TERN_E_MEMORY, "no memory for an executor of %" PRId32 " workers", n);
    e->ctx = ctx;
    e->n_all = n;
    memcpy(e->n_workers, n_workers, sizeof e->n_workers);
    e->spin = n - n_workers[TN_LANE_IO] <= tn_cpu_count();
    e->n_spins = SPIN_MAX;
    pthread_mutexattr_t again;
    pthread_mutexattr_init(&again);
    pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&e->run_mu, &again);
    pthread_mutexattr_destroy(&again);
    tn_mutex_init_spinning(&e->mu);
    for (int l = 0; l < TN_N_LANES; l++) pthread_cond_init(&e->wake[l], NULL);
    e->n_started = 1;
    tern_status st = tn_sched_open(ctx, &e->sched, err);
    if (st) {
        tn_executor_close(&e);
        return st;
    }
    int32_t i = 0;
    for (int l = 0; l < TN_N_LANES; l++)
        for (int32_t k = 0; k < n_workers[l]; k++, i++)
            e->members[i] =
                (member){.executor = e, .self = {.lane = (tn_lane)l, .i_worker = i}, .i_in_lane = k};
    for (i = 1; i < n; i++) {
        int rc = pthread_create(&e->members[i].thread, NULL, thread_main, &e->members[i]);
        if (rc) {
            tn_executor_close(&e);
            return tn_fail(err, TERN_E_MEMORY, "cannot start worker %" PRId32 " of %" PRId32 " (error %d)",
                           i + 1, n, rc);
        }
        e->n_started++;
    }
    *out = e;
    return TERN_OK;
}

void tn_executor_close(tn_executor **pe) {
    tn_executor *e = *pe;
    if (!e) return;
    *pe = NULL;
    pthread_mutex_lock(&e->mu);
    assert(!e->run);
    e->quit = true;
    new_epoch(e);
    for (int l = 0; l < TN_N_LANES; l++) pthread_cond_broadcast(&e->wake[l]);
    pthread_mutex_unlock(&e->mu);
    for (int32_t i = 1; i < e->n_started; i++) pthread_join(e->members[i].thread, NULL);
    for (int l = 0; l < TN_N_LANES; l++) pthread_cond_destroy(&e->wake[l]);
    pthread_mutex_destroy(&e->mu);
    pthread_mutex_destroy(&e->run_mu);
    tn_sched_close(&e->sched);
    tn_sched_close(&e->spare);
    tn_free(e->ctx, e);
}

int32_t tn_executor_n_workers(const tn_executor *e) { return e->n_all; }
int32_t tn_executor_lane_workers(const tn_executor *e, tn_lane lane) { return e->n_workers[lane]; }
