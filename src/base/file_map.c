/* base/file_map.c - mapped files. For Windows there is base/windows/file_map.c in its place. */
#include "base/file.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_WATCHED = 4096 };

/* The signal handler knows these mappings. A slot is taken under mu, published by its base, and emptied
 * before the mapping goes. The handler reads without locks. */
static struct {
    pthread_mutex_t mu;
    struct sigaction before;
    atomic_uintptr_t passed_on; /* the address of the last signal outside our mappings */
    atomic_int n;               /* slots ever used */
    struct {
        atomic_uintptr_t base; /* 0: free */
        atomic_size_t n_bytes;
        atomic_bool shrank;
    } slots[MAX_WATCHED];
} watched = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void on_bus_error(int sig, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < atomic_load(&watched.n); i++) {
        uintptr_t base = atomic_load(&watched.slots[i].base);
        size_t n = atomic_load(&watched.slots[i].n_bytes);
        if (!base || at < base || at - base >= (n + page - 1) / page * page) continue;
        /* the file has ended before this point: zeros from here to the end */
        uintptr_t from = at / page * page;
        if (mmap((void *)from, base + n - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            break;
        atomic_store(&watched.slots[i].shrank, true);
        return;
    }
    bool again = atomic_exchange(&watched.passed_on, at) ==
                 at; /* handlers that call each other would recurse for ever */
    struct sigaction plain = {.sa_handler = SIG_DFL};
    if (again) {
        (void)sigaction(sig, &plain, NULL);
    } else if (watched.before.sa_flags & SA_SIGINFO) {
        watched.before.sa_sigaction(sig, info, context);
    } else if (watched.before.sa_handler != SIG_DFL && watched.before.sa_handler != SIG_IGN) {
        watched.before.sa_handler(sig);
    } else {
        (void)sigaction(sig, &plain, NULL); /* the access is tried again and ends the process */
    }
}

static int watch(uintptr_t base, size_t n_bytes) {
    int slot = -1;
    pthread_mutex_lock(&watched.mu);
    struct sigaction now, a = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    a.sa_sigaction = on_bus_error;
    sigemptyset(&a.sa_mask);
    bool ok = !sigaction(SIGBUS, NULL, &now);
    if (ok && !(now.sa_flags & SA_SIGINFO &&
                now.sa_sigaction == on_bus_error)) { /* others may have installed theirs since */
        watched.before = now;
        ok = !sigaction(SIGBUS, &a, NULL);
    }
    for (int i = 0; ok && i < MAX_WATCHED && slot < 0; i++) {
        if (atomic_load(&watched.slots[i].base)) continue;
        slot = i;
        atomic_store(&watched.slots[i].shrank, false);
        atomic_store(&watched.slots[i].n_bytes, n_bytes);
        atomic_store(&watched.slots[i].base, base);
        if (i >= atomic_load(&watched.n)) atomic_store(&watched.n, i + 1);
    }
    pthread_mutex_unlock(&watched.mu);
    return slot;
}

bool tn_file_shrank(const tn_file *f) {
    return f && f->slot >= 0 && atomic_load_explicit(&watched.slots[f->slot].shrank, memory_order_acquire);
}

tern_status tn_file_map(tn_ctx *ctx, int fd, const char *path, tn_file **out, tern_error *err) {
    static const uint8_t empty[1];
    *out = NULL;
    struct stat sb;
    TN_FAIL_IF(fstat(fd, &sb), err, TERN_E_IO, "%s: %s", path, strerror(errno));
    tn_file *f = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *f);
    if (!f || !(f->path = tn_strdup(ctx, TN_MEM_OTHER, path))) {
        tn_free(ctx, f);
        return tn_fail(err, TERN_E_MEMORY, "no memory to open %s", path);
    }
    f->ctx = ctx;
    tn_file_note(f, &sb);
    f->slot = -1;
    f->data = empty;
    void *p = sb.st_size ? mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0) : (void *)empty;
    if (p != MAP_FAILED) {
        f->data = p;
        f->size_bytes = (uint64_t)sb.st_size;
        if (sb.st_size) f->slot = watch((uintptr_t)p, (size_t)sb.st_size);
    }
    *out = f;
    if (p != MAP_FAILED && (!sb.st_size || f->slot >= 0)) return TERN_OK;
    tn_file_close(out);
    return tn_fail(err, p == MAP_FAILED ? TERN_E_IO : TERN_E_LIMIT, "%s: cannot map: %s", path,
                   p == MAP_FAILED ? strerror(errno) : "too many files are");
}

void tn_file_close(tn_file **pf) {
    tn_file *f = *pf;
    if (!f) return;
    *pf = NULL;
    if (f->slot >= 0) atomic_store(&watched.slots[f->slot].base, 0);
    if (f->size_bytes) munmap((void *)f->data, f->size_bytes);
    tn_free(f->ctx, f->path);
    tn_free(f->ctx, f);
}

void tn_file_flush(int fd, uint64_t off_bytes, uint64_t n_bytes) {
#if defined(__linux__)
    (void)sync_file_range(fd, (off_t)off_bytes, (off_t)n_bytes, SYNC_FILE_RANGE_WRITE);
#else
    (void)fd, (void)off_bytes, (void)n_bytes;
#endif
}

void tn_file_release(const void *p, uint64_t n_bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)p + page - 1) / page * page,
              to = ((uintptr_t)p + n_bytes) / page * page;
    if (from < to) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}
