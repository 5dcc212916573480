/* lab/growth_buf.h - what the inputs of lab/growth.c are made in. */
#ifndef TN_TESTS_LAB_GROWTH_BUF_H
#define TN_TESTS_LAB_GROWTH_BUF_H

#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_ctx ctx;
static const char *program;
static char folder[200], package[256], profile[300], saved[256];
static tern_engine *engine;

typedef struct buf {
    char *p;
    size_t n, cap;
} buf;

static void put(buf *b, const void *data, size_t n) {
    if (b->cap - b->n < n) {
        b->cap = 2 * b->cap + n;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}
static void puts_(buf *b, const char *s) { put(b, s, strlen(s)); }
static void put_number(buf *b, uint64_t v, size_t n) { put(b, &v, n); } /* little-endian hosts only */
static void repeat(buf *b, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) puts_(b, s);
}

#endif
