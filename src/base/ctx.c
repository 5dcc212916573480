#include "base/ctx.h"

#include "base/sized.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_WIN32) || defined(__GLIBC__)
#include <malloc.h>
#endif

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25 /* which older headers do not name */
#endif

enum { ALIGN = 64, HUGE_MIN = 4 << 20 };

/* A header occupies the 64 bytes before every block. */
typedef struct block_head {
    void *base; /* address that the hook returned */
    size_t n_bytes;
    tn_mem_cat cat;
} block_head;
_Static_assert(sizeof(block_head) <= ALIGN, "the head must fit in front of an aligned block");

#if defined(_WIN32) /* aligned memory has its own function for freeing there */
static void *default_alloc(void *user, size_t n_bytes, size_t align) {
    (void)user;
    return _aligned_malloc(n_bytes, align);
}

static void default_release(void *user, void *p) {
    (void)user;
    _aligned_free(p);
}
#else
static void *default_alloc(void *user, size_t n_bytes, size_t align) {
    (void)user;
    void *p = NULL;
    return posix_memalign(&p, align, n_bytes) ? NULL : p;
}

static void default_release(void *user, void *p) {
    (void)user;
    free(p);
}
#endif

tern_status tern_hooks_init(tern_hooks *h, size_t size_bytes) {
    const tern_hooks d = {.size_bytes = size_bytes};
    return tn_sized_out(h, size_bytes, &d, sizeof d, TN_SIZE_UP_TO(tern_hooks, user));
}

void tn_ctx_init(tn_ctx *ctx, const tern_hooks *hooks) {
    memset(ctx, 0, sizeof *ctx);
    tern_hooks_defaults(&ctx->hooks);
    if (hooks) ctx->hooks = *hooks;
    if (!ctx->hooks.alloc || !ctx->hooks.release) {
        ctx->hooks.alloc = default_alloc;
        ctx->hooks.release = default_release;
    }
}

static void count(tn_ctx *ctx, tn_mem_cat cat, size_t n_bytes, bool add) {
    if (!add) {
        atomic_fetch_sub_explicit(&ctx->live_bytes[cat], n_bytes, memory_order_relaxed);
        return;
    }
    atomic_fetch_add_explicit(&ctx->live_bytes[cat], n_bytes, memory_order_relaxed);
    uint64_t total = 0;
    for (int i = 0; i < TN_MEM_N_CATS; i++)
        total += atomic_load_explicit(&ctx->live_bytes[i], memory_order_relaxed);
    uint64_t peak = atomic_load_explicit(&ctx->peak_bytes, memory_order_relaxed);
    while (total > peak && !atomic_compare_exchange_weak_explicit(
                               &ctx->peak_bytes, &peak, total, memory_order_relaxed, memory_order_relaxed)) {
    }
}

static block_head *head_of(void *p) { return (block_head *)((char *)p - ALIGN); }

/* For blocks of the default allocator. Before p only the header is ever touched, so that page stays out of huge
 * pages. */
static void advise(char *base, char *p, size_t n_bytes, bool huge) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    (void)madvise(base, TN_HUGE_PAGE, MADV_NOHUGEPAGE);
    if (huge) (void)madvise(p, n_bytes, MADV_HUGEPAGE);
#else
    (void)base, (void)p, (void)n_bytes, (void)huge;
#endif
}

void *tn_alloc(tn_ctx *ctx, tn_mem_cat cat, size_t n, size_t size) {
    size_t n_bytes, total;
    if (__builtin_mul_overflow(n, size, &n_bytes)) return NULL;
    /* Keys and values fill up slowly and in many places; with huge pages the first position of each layer
     * would clear a whole page. They are aligned to one all the same, so that tn_mem_fuse can move whole
     * pages later. */
    bool ours = ctx->hooks.alloc == default_alloc, huge = n_bytes >= HUGE_MIN && (ours || cat != TN_MEM_KV);
    size_t align = huge ? (size_t)TN_HUGE_PAGE : (size_t)ALIGN;
    /* A header at the beginning of a huge page would clear the page here, on the thread that opens a
     * model, instead of on the threads that fill the block. So a block begins at a huge page, with its
     * header before it. Untouched addresses cost nothing with the default allocator; a host's may differ. */
    size_t front = huge && ours ? (size_t)TN_HUGE_PAGE : (size_t)ALIGN;
    if (__builtin_add_overflow(n_bytes, front, &total)) return NULL;
    char *base = ctx->hooks.alloc(ctx->hooks.user, total, align);
    if (!base) return NULL;
    char *p = base + front;
    if (huge && ours) advise(base, p, n_bytes, cat != TN_MEM_KV);
    *head_of(p) = (block_head){.base = base, .n_bytes = n_bytes, .cat = cat};
    count(ctx, cat, n_bytes, true);
    return p;
}

void *tn_calloc(tn_ctx *ctx, tn_mem_cat cat, size_t n, size_t size) {
    void *p = tn_alloc(ctx, cat, n, size);
    if (p) memset(p, 0, n * size);
    return p;
}

void tn_free(tn_ctx *ctx, void *p) {
    if (!p) return;
    block_head *h = head_of(p);
    count(ctx, h->cat, h->n_bytes, false);
    ctx->hooks.release(ctx->hooks.user, h->base);
}

void *tn_realloc(tn_ctx *ctx, tn_mem_cat cat, void *p, size_t n, size_t size) {
    void *q = tn_alloc(ctx, cat, n, size);
    if (!q) return NULL;
    if (p) {
        size_t old = head_of(p)->n_bytes, now = n * size;
        memcpy(q, p, old < now ? old : now);
        tn_free(ctx, p);
    }
    return q;
}

char *tn_strndup(tn_ctx *ctx, tn_mem_cat cat, const char *s, size_t n) {
    if (n == SIZE_MAX) return NULL;
    char *p = tn_alloc(ctx, cat, n + 1, 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *tn_strdup(tn_ctx *ctx, tn_mem_cat cat, const char *s) { return tn_strndup(ctx, cat, s, strlen(s)); }

void tn_mem_fuse(tn_ctx *ctx, void *p, size_t n) {
#if defined(__linux__)
    /* Memory of a host's own allocator is the host's to arrange. */
    if (ctx->hooks.alloc == default_alloc) (void)madvise(p, n, MADV_COLLAPSE);
#else
    (void)ctx, (void)p, (void)n;
#endif
}

void tn_mem_trim(void) {
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

void tn_log(tn_ctx *ctx, tern_log_level level, const char *fmt, ...) {
    if (!ctx->hooks.log) return;
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ctx->hooks.log(ctx->hooks.user, level, line);
}

bool tn_progress(tn_ctx *ctx, const char *stage, double fraction) {
    return !ctx->hooks.progress || ctx->hooks.progress(ctx->hooks.user, stage, fraction);
}
