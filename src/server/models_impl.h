/* server/models_impl.h - what server/models.c and server/models_tell.c share. */
#ifndef TN_SERVER_MODELS_IMPL_H
#define TN_SERVER_MODELS_IMPL_H

#include "params/options.h"
#include "server/models.h"
#include "server/turns.h"

#include <stdatomic.h>

typedef enum tn_served_state {
    TN_SERVED_AWAY,
    TN_SERVED_LOADING,
    TN_SERVED_READY,
    TN_SERVED_N
} tn_served_state;

struct tn_served {
    tn_models *all;
    _Atomic(tn_served *) next;
    char *name, *path;
    uint64_t n_bytes; /* of its files */
    int64_t made_s;   /* when that was changed last, since 1970 */
    tn_live *live;
    /* guarded by all->mu */
    tn_served_state state;
    int n_users;
    int64_t used_ns;                 /* when it was left last */
    int64_t idle_ns;                 /* so long after that it leaves memory; -1: never */
    uint64_t held_bytes, need_bytes; /* counted against the limit; at least needed (0: never loaded) */
    tern_error why;                  /* the last loading failed; code TERN_OK: it did not */
    uint64_t n_loads, n_unloads;
    double load_s,
        first_s; /* of the last loading; from the request that asked for it to its first token, 0: none yet */
    bool told_first;
    tn_queue_counts before; /* of its queues that are closed */
    /* the keeper's; others read them while they use the model, or with the lock while it is ready */
    char *opened; /* the file that e is read from: path, or its package */
    tern_engine *e;
    tn_queue *q;
};

typedef struct tn_waiter { /* on the stack of who asks */
    tn_served *model;
    struct tn_waiter *next;
    bool granted;
    tern_error err; /* code: it is refused */
} tn_waiter;

struct tn_models {
    tn_models_options o;
    tn_ctx ctx;
    tn_turns turns;
    _Atomic(tn_served *)
        first; /* the list grows at its end and never shrinks: whoever reads it needs no lock */
    tn_served *last;
    pthread_mutex_t adding; /* who looks for models and adds them; last and looked_ns are theirs */
    int64_t looked_ns;
    const tn_served *deflt;
    pthread_t keeper;
    pthread_mutex_t mu;
    pthread_cond_t changed; /* for those who wait, and for the keeper */
    /* guarded */
    tn_waiter *waiting; /* in the order of coming */
    int n_waiting;
    bool closing, no_room; /* no_room: the first who waits needs others to leave */
    uint64_t held_bytes;   /* of all */
};

int64_t tn_models_now(const tn_models *m);
/* Adds models that came since, where the options have a way to look for them; at most once a second. */
void tn_models_look_again(tn_models *m);
/* By its name, or the last part of it where one model alone has that; NULL: none. */
tn_served *tn_models_find(const tn_models *m, const char *name);
void tn_counts_add(tn_queue_counts *to, const tn_queue_counts *more);

#endif
