/* server/turns.h - one at a time, in the order of asking: the queues of several models take turns at the
 * processor, a step or a chunk each. Two that compute at once on the same cores would both be slower than
 * one after the other. */
#ifndef TN_SERVER_TURNS_H
#define TN_SERVER_TURNS_H

#include "server/priority.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

typedef struct tn_turns {
    pthread_mutex_t mu;
    pthread_cond_t next;
    uint64_t n_asked, n_given;           /* guarded by mu */
    atomic_int n_waiting[TN_PRIORITIES]; /* relaxed: a number that is looked at, and no data with it */
} tn_turns;

void tn_turns_init(tn_turns *t);
void tn_turns_destroy(tn_turns *t);
/* Waits until all who asked before have given their turn back; for work of that priority (priority.h). NULL: nobody
 * else is there. */
void tn_turns_take(tn_turns *t, int priority);
/* Whether somebody waits whose work goes before this. */
bool tn_turns_above(tn_turns *t, int priority);
void tn_turns_give(tn_turns *t);

#endif
