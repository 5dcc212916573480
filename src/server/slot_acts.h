/* server/slot_acts.h - what clients do to sessions by their numbers: the conversation of one is saved into a file, read
 * from it again, or erased, as llama.cpp's server does at /slots/N?action=.
 *
 * A connection puts an act into the queue's list and waits; the queue's worker, to whom the sessions belong, does it
 * between two rounds, once the session answers nobody. Nobody else is answered meanwhile: that is the time of a copy to
 * or from a file. Lock: that of the queue guards the list. */
#ifndef TN_SERVER_SLOT_ACTS_H
#define TN_SERVER_SLOT_ACTS_H

#include "server/slots.h"

#include <pthread.h>

typedef enum tn_slot_do { TN_SLOT_SAVE, TN_SLOT_RESTORE, TN_SLOT_ERASE } tn_slot_do;

typedef struct tn_slot_act {
    tn_slot_do what;
    int32_t slot;
    const char *path,
        *name;       /* of the file, borrowed; clients are told the name. An act that erases has none */
    tn_lora_mix mix; /* the adapters that a restored session has */
    /* what came of it */
    int64_t n_tokens, n_bytes;
    double ms;
    tern_error err; /* err.code */
    /* guarded */
    struct tn_slot_act *next;
    bool begun, done;
} tn_slot_act;

typedef struct tn_slot_acts {
    tn_slot_act *first; /* guarded */
    pthread_cond_t changed;
} tn_slot_acts;

/* Whether there is a session of this number; below 0: any will do. */
tern_status tn_slot_known(int32_t slot, int32_t n_sessions, tern_error *err);

void tn_slot_acts_open(tn_slot_acts *l);
/* All acts must have ended. */
void tn_slot_acts_close(tn_slot_acts *l);
/* The connection's: puts it and waits until it is done. With the lock, which it gives away while it waits; the worker
 * is woken by `work`. gone(user) is asked now and then whether anybody still waits: TERN_E_CANCELLED, unless it has begun. */
tern_status tn_slot_acts_wait(tn_slot_acts *l, tn_slot_act *act, pthread_mutex_t *mu, pthread_cond_t *work,
                              bool (*gone)(void *user), void *user, tern_error *err);
/* The worker's: does those whose sessions are idle. With the lock, which it gives away while it does one. */
void tn_slot_acts_run(tn_slot_acts *l, pthread_mutex_t *mu, tn_slots *s);
/* The worker's, when all is over: those that wait fail with TN_E_CLOSING. Without the lock. */
void tn_slot_acts_end(tn_slot_acts *l, pthread_mutex_t *mu);

#endif
