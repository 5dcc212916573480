#include "base/pool.h"

#include "base/cpu.h"
#include "base/status.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

/* Each thread begins with an equal, contiguous share of a loop's items, so that what it prefetches after one
 * item is what it reads next, and takes half of what another thread has left when its own share is done.
 *
 * Workers spin briefly between loops, because a decode step is hundreds of loops of tens of microseconds.
 * Then they sleep. A loop waits only for workers inside it, so a worker that is not scheduled causes no
 * delay. A joining worker raises `inside` and then reads `generation`; the closing caller advances
 * `generation` and then reads `inside`. Both are sequentially consistent, so either the worker sees the
 * loop closed or the caller sees the worker inside. Lock order: run_mu before mu. */
enum { SPIN_ITERATIONS = 4000 };

void tn_mutex_init_spinning(pthread_mutex_t *mu) {
#ifdef __GLIBC__
    pthread_mutexattr_t adaptive;
    pthread_mutexattr_init(&adaptive);
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(mu, &adaptive);
    pthread_mutexattr_destroy(&adaptive);
#else
    pthread_mutex_init(mu, NULL);
#endif
}

struct tn_pool {
    tn_ctx *ctx;
    int n_threads;
    pthread_mutex_t run_mu; /* held for the whole of a loop by its caller */
    pthread_mutex_t mu;
    pthread_cond_t wake;
    atomic_int n_sleeping;  /* changed under mu */
    atomic_uint generation; /* odd while a loop is open; publishes the fields below */
    atomic_int inside;      /* workers that may touch the open loop */
    _Atomic uint64_t moves; /* this loop's shares that threads began to move (low half), have moved (high) */
    atomic_bool quit;
    void (*fn)(void *, int, int);
    void *arg;
    struct worker {
        tn_pool *pool;
        int i_thread;
        pthread_t thread;
        /* Items [low half, high half) that it has not begun. A cache line of its own: its owner changes it for
         * every item. `generation` publishes a new loop's shares; items carry no order. */
        _Alignas(64) _Atomic uint64_t share;
    } workers[];
};

static uint64_t share_of(uint32_t from, uint32_t to) { return (uint64_t)to << 32 | from; }
static uint32_t share_from(uint64_t s) { return (uint32_t)s; }
static uint32_t share_to(uint64_t s) { return (uint32_t)(s >> 32); }

/* Released, so that who sees a share shortened also sees the move that `moves` began to count before it. */
static bool replace(_Atomic uint64_t *share, uint64_t *old, uint64_t new) {
    return atomic_compare_exchange_weak_explicit(share, old, new, memory_order_release, memory_order_acquire);
}

/* Runs what is left of the thread's own share, from its front. */
static void work_own(tn_pool *p, int i_thread) {
    _Atomic uint64_t *share = &p->workers[i_thread].share;
    uint64_t s = atomic_load_explicit(share, memory_order_relaxed);
    while (share_from(s) < share_to(s))
        if (replace(share, &s, share_of(share_from(s) + 1, share_to(s)))) {
            p->fn(p->arg, (int)share_from(s), i_thread);
            s = atomic_load_explicit(share, memory_order_relaxed);
        }
}

/* Moves the second half of another thread's share, at least one item, to this thread's, which is empty and so
 * is changed by nobody else. Returns false when the other has nothing left. */
static bool take_half(tn_pool *p, int i_thread, int i_other) {
    _Atomic uint64_t *other = &p->workers[i_other].share;
    uint64_t s = atomic_load_explicit(other, memory_order_acquire);
    if (share_from(s) >= share_to(s)) return false;
    bool taken = false;
    atomic_fetch_add(&p->moves, 1);
    while (!taken && share_from(s) < share_to(s)) {
        uint32_t mid = share_to(s) - (share_to(s) - share_from(s) + 1) / 2;
        taken = replace(other, &s, share_of(share_from(s), mid));
        if (taken)
            atomic_store_explicit(&p->workers[i_thread].share, share_of(mid, share_to(s)),
                                  memory_order_release);
    }
    atomic_fetch_add(&p->moves, (uint64_t)1 << 32);
    return taken;
}

/* Runs its own share, then what it takes from others. It leaves when it found every share empty while none was
 * on its way: items between two shares would otherwise be left to the thread that moves them alone. */
static void work(tn_pool *p, int i_thread) {
    work_own(p, i_thread);
    uint32_t moved = (uint32_t)(atomic_load(&p->moves) >> 32);
    for (int i = 1; i <= p->n_threads;) {
        if (i == p->n_threads) {
            uint64_t moves = atomic_load(&p->moves);
            if ((uint32_t)moves == moved) return;
            moved = (uint32_t)(moves >> 32);
            sched_yield();
            i = 1;
        } else if (take_half(p, i_thread, (i_thread + i) % p->n_threads)) {
            work_own(p, i_thread);
            moved = (uint32_t)(atomic_load(&p->moves) >> 32);
            i = 1;
        } else {
            i++;
        }
    }
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    tn_pool *p = w->pool;
    unsigned seen = 0; /* the last open generation that it worked on */
    for (;;) {
        for (int spins = 0;; spins++) {
            unsigned gen = atomic_load_explicit(&p->generation, memory_order_relaxed);
            if (atomic_load_explicit(&p->quit, memory_order_acquire)) return NULL;
            if (gen % 2 && gen != seen) break;
            if (spins < SPIN_ITERATIONS) {
                tn_cpu_relax();
                continue;
            }
            pthread_mutex_lock(&p->mu);
            atomic_fetch_add(&p->n_sleeping, 1);
            while (!atomic_load(&p->quit)) {
                gen = atomic_load(&p->generation);
                if (gen % 2 && gen != seen) break;
                pthread_cond_wait(&p->wake, &p->mu);
            }
            atomic_fetch_sub(&p->n_sleeping, 1);
            pthread_mutex_unlock(&p->mu);
        }
        atomic_fetch_add(&p->inside, 1);
        unsigned gen = atomic_load(&p->generation);
        if (gen % 2) {
            seen = gen;
            work(p, w->i_thread);
        }
        atomic_fetch_sub(&p->inside, 1);
    }
}

/* Advances the generation and wakes sleepers. A worker counts itself as asleep and then reads `generation`;
 * this advances `generation` and then reads the count. Both are sequentially consistent, so one of them sees
 * the other, and a loop that finds all workers awake takes no lock. */
static void publish(tn_pool *p) {
    atomic_fetch_add(&p->generation, 1);
    if (!atomic_load(&p->n_sleeping)) return;
    pthread_mutex_lock(&p->mu);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
}

void tn_pool_for(tn_pool *p, int n_items, void (*fn)(void *, int, int), void *arg) {
    if (n_items <= 0) return;
    if (p->n_threads == 1 || n_items == 1) {
        for (int i = 0; i < n_items; i++) fn(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&p->run_mu);
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->moves, 0, memory_order_relaxed);
    for (int i = 0; i < p->n_threads; i++)
        atomic_store_explicit(&p->workers[i].share,
                              share_of((uint32_t)((int64_t)n_items * i / p->n_threads),
                                       (uint32_t)((int64_t)n_items * (i + 1) / p->n_threads)),
                              memory_order_relaxed);
    publish(p);
    work(p, 0);
    atomic_fetch_add(&p->generation, 1); /* closed: no worker joins from here on */
    for (int spins = 0; atomic_load(&p->inside) > 0; spins++) {
        if (spins < SPIN_ITERATIONS) tn_cpu_relax();
        else sched_yield();
    }
    pthread_mutex_unlock(&p->run_mu);
}

tern_status tn_pool_open(tn_ctx *ctx, int n_threads, tn_pool **out, tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(n_threads < 1 || n_threads > 1024, err, TERN_E_INVALID,
               "%d threads asked for, 1 to 1024 are possible", n_threads);
    tn_pool *p = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p + (size_t)n_threads * sizeof p->workers[0]);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for a pool of %d threads", n_threads);
    p->ctx = ctx;
    p->n_threads = 1;
    pthread_mutex_init(&p->run_mu, NULL);
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 1; i < n_threads; i++) {
        p->workers[i] = (struct worker){.pool = p, .i_thread = i};
        int rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (rc) {
            tn_pool_close(&p);
            return tn_fail(err, TERN_E_MEMORY, "cannot start thread %d of %d (error %d)", i + 1, n_threads,
                           rc);
        }
        p->n_threads++;
    }
    *out = p;
    return TERN_OK;
}

void tn_pool_close(tn_pool **pp) {
    tn_pool *p = *pp;
    if (!p) return;
    *pp = NULL;
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->quit, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
    for (int i = 1; i < p->n_threads; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mu);
    pthread_mutex_destroy(&p->run_mu);
    tn_free(p->ctx, p);
}

int tn_pool_size(const tn_pool *p) { return p->n_threads; }
