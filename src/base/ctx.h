/* base/ctx.h - the host's services for an engine: memory, log, progress. There is one tn_ctx per engine.
 * Every allocation goes through it with a category, so it is also the memory report and the place where
 * tests make allocation number N fail. */
#ifndef TN_BASE_CTX_H
#define TN_BASE_CTX_H

#include "tern.h"

#include <stdatomic.h>

typedef enum tn_mem_cat {
    TN_MEM_WEIGHTS,
    TN_MEM_KV,
    TN_MEM_ACTIVATIONS,
    TN_MEM_GRAPHS,
    TN_MEM_TEXT,
    TN_MEM_OTHER,
    TN_MEM_N_CATS
} tn_mem_cat;

typedef struct tn_ctx {
    tern_hooks hooks;
    _Atomic uint64_t live_bytes[TN_MEM_N_CATS]; /* relaxed: statistics only */
    _Atomic uint64_t peak_bytes;
} tn_ctx;

/* hooks may be NULL. They have this library's size of the struct. */
void tn_ctx_init(tn_ctx *ctx, const tern_hooks *hooks);

/* Allocates n * size bytes, 64-byte aligned and not cleared. Returns NULL when memory runs out or n * size
 * overflows. n * size == 0 gives a valid pointer. Blocks of 4 MiB and more are aligned and advised as huge
 * pages. */
void *tn_alloc(tn_ctx *ctx, tn_mem_cat cat, size_t n, size_t size);
void *tn_calloc(tn_ctx *ctx, tn_mem_cat cat, size_t n, size_t size);
/* Resizes a block and keeps its contents. On failure the old block stays valid. p may be NULL. */
void *tn_realloc(tn_ctx *ctx, tn_mem_cat cat, void *p, size_t n, size_t size);
char *tn_strdup(tn_ctx *ctx, tn_mem_cat cat, const char *s);
char *tn_strndup(tn_ctx *ctx, tn_mem_cat cat, const char *s, size_t n);
void tn_free(tn_ctx *ctx, void *p); /* NULL-safe */
enum { TN_HUGE_PAGE = 2 << 20 };    /* bytes */
/* Moves the n bytes at p, allocated with ctx, into huge pages where the system can (Linux 6.1). Their contents stay;
 * it costs about as much as copying them. A failure is ignored. */
void tn_mem_fuse(tn_ctx *ctx, void *p, size_t n);
void tn_mem_trim(void); /* what was freed goes back to the system, where the C library does that when asked */

void tn_log(tn_ctx *ctx, tern_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Returns false when the host wants to cancel. */
bool tn_progress(tn_ctx *ctx, const char *stage, double fraction);

#endif
