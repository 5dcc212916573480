/* Zeros, or the end of the benchmark. */
#ifndef BENCH_MUST_ALLOC_H
#define BENCH_MUST_ALLOC_H

#include "base/ctx.h"

#include <stdio.h>
#include <stdlib.h>

static inline void *must_alloc(tn_ctx *ctx, size_t n) {
    void *p = tn_calloc(ctx, TN_MEM_OTHER, n, 1);
    if (!p) {
        fprintf(stderr, "out of memory (%zu bytes)\n", n);
        exit(1);
    }
    return p;
}

#endif
