/* base/wait.h - conditions that are waited for by the monotonic clock. */
#ifndef TN_BASE_WAIT_H
#define TN_BASE_WAIT_H

#include "base/clock.h"

#include <pthread.h>

static inline void tn_cond_init(pthread_cond_t *c) {
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

/* With mu: until c is signalled, or for so long. */
static inline void tn_cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *mu, int64_t ns) {
    const int64_t until = tn_now_ns() + ns;
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
    pthread_cond_timedwait(c, mu, &t);
}

#endif
