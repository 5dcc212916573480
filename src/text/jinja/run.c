/* text/jinja/run.c - a run's memory, limits and failure. */
#include "text/jinja/impl.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

enum { CHUNK_BYTES = 64 << 10 };

typedef struct tn_jchunk {
    struct tn_jchunk *next;
    size_t used, size;
    _Alignas(max_align_t) char bytes[];
} tn_jchunk;

_Noreturn void tn_jfail(tn_jinja *j, tern_status code, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = 0;
    for (char *c = text; *c; c++) /* one line, whatever the template says */
        if ((uint8_t)*c < ' ' || *c == 0x7f) *c = ' ';
    j->status = tn_fail(j->err, code, "chat template, line %d: %s", j->line, text);
    longjmp(j->fail, 1);
}

void *tn_jalloc(tn_jinja *j, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > j->max_bytes || j->n_bytes > j->max_bytes - bytes)
        tn_jfail(j, TERN_E_LIMIT, "the template takes more than %" PRIu64 " bytes of memory", j->max_bytes);
    j->n_bytes += bytes;
    bytes = (bytes + 15) & ~(size_t)15;
    tn_jchunk *c = j->chunks;
    if (!c || bytes > c->size - c->used) {
        size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        c = tn_alloc(j->ctx, TN_MEM_TEXT, sizeof *c + room, 1);
        if (!c) tn_jfail(j, TERN_E_MEMORY, "out of memory for the conversation");
        *c = (tn_jchunk){.next = j->chunks, .size = room};
        j->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += bytes;
    memset(p, 0, bytes);
    return p;
}

void tn_jsteps(tn_jinja *j, uint64_t n) {
    j->n_steps += n;
    if (j->n_steps > j->max_steps)
        tn_jfail(j, TERN_E_LIMIT, "the template takes more than %" PRIu64 " steps", j->max_steps);
}

void tn_jenter(tn_jinja *j) {
    if (++j->depth > TN_J_MAX_DEPTH)
        tn_jfail(j, TERN_E_LIMIT, "the template nests deeper than %d", TN_J_MAX_DEPTH);
}
void tn_jleave(tn_jinja *j) { j->depth--; }

void tn_jrelease(tn_jinja *j) {
    for (tn_jchunk *c = j->chunks, *next; c; c = next) {
        next = c->next;
        tn_free(j->ctx, c);
    }
}
