/* base/pool.h - a fixed team of threads for data-parallel loops. The caller is member 0 and works too. A pool
 * runs one loop at a time; a second caller waits. Any thread may run any item, so an item's result must not
 * depend on the thread. */
#ifndef TN_BASE_POOL_H
#define TN_BASE_POOL_H

#include "base/ctx.h"

#include <pthread.h>

typedef struct tn_pool tn_pool;

/* Opens a pool. n_threads >= 1 counts the caller. */
tern_status tn_pool_open(tn_ctx *ctx, int n_threads, tn_pool **out, tern_error *err);
void tn_pool_close(tn_pool **p);
int tn_pool_size(const tn_pool *p);

/* Calls fn(arg, i_item, i_thread) for every i_item in [0, n_items), with i_thread in [0, pool size). It
 * returns when all calls are done. A thread's items follow each other, except where it helps another. */
void tn_pool_for(tn_pool *p, int n_items, void (*fn)(void *arg, int i_item, int i_thread), void *arg);

/* For a lock that is held for less than a microsecond: waiters spin briefly, if the C library supports it. */
void tn_mutex_init_spinning(pthread_mutex_t *mu);

#endif
