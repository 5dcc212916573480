/* tests/sched/faults.h - a context whose allocations are counted and can be made to fail. */
#ifndef TN_TESTS_SCHED_FAULTS_H
#define TN_TESTS_SCHED_FAULTS_H

#include "base/ctx.h"

#include <stdlib.h>

/* Allocation number `fail_at` fails, counted from 0; -1: none does. */
typedef struct faults {
    int n_allocs, fail_at;
} faults;

static inline void *counting_alloc(void *user, size_t n_bytes, size_t align) {
    faults *f = user;
    if (f->n_allocs++ == f->fail_at) return NULL;
    return aligned_alloc(align, (n_bytes + align - 1) / align * align);
}

static inline void counting_release(void *user, void *p) {
    (void)user;
    free(p);
}

static inline void faults_ctx(tn_ctx *ctx, faults *f) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.alloc = counting_alloc, hooks.release = counting_release, hooks.user = f;
    tn_ctx_init(ctx, &hooks);
}

#endif
