/* base/clock.h - a monotonic clock, and what this process has computed. */
#ifndef TN_BASE_CLOCK_H
#define TN_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t tn_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double tn_now_s(void) { return (double)tn_now_ns() * 1e-9; }

/* The seconds that all threads of this process have computed. Other work on the machine hardly changes them. */
static inline double tn_cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
