/* tests/torture/faults.c - preloaded into a program, it makes the Nth call of a kind fail, in libraries too.
 *
 *   TORTURE_KIND   alloc, open, read, write, sync, rename, map, thread, or interrupt: an open, read
 *                  or write that a signal interrupts (EINTR), and that works when it is tried again; or full: from
 *                  that call on no file can be written, and nothing else fails
 *   TORTURE_AT     which call fails, from 1; 0 or unset: none
 *   TORTURE_FROM   only calls that come straight from a module whose path contains this (default: any but
 * this one) TORTURE_PLACES file that gets, at the end of the process, the number of every call that came from
 * a place in the program (a chain of return addresses) from which none came before, one a line
 *
 * A failed call sets errno as the kernel would. The functions are glibc's names; no other C library has them
 * all. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum kind { NONE, ALLOC, OPEN, READ, WRITE, SYNC, RENAME, MAP, THREAD, INTERRUPT, FULL } kind;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

enum { DEPTH = 10, MAX_PLACES = 1 << 16 };

static kind wanted;
static long fail_at;
static const char *from, *places_path;
static atomic_long n_calls;
static _Thread_local int inside; /* our own calls are not counted */
static struct {
    pthread_mutex_t mu;
    uint64_t seen[2 * MAX_PLACES]; /* hashes; 0: free */
    long first[MAX_PLACES];
    int n;
} places = {.mu = PTHREAD_MUTEX_INITIALIZER};

/* Is this the first call from here? Addresses are hashed as they are: one process compares only its own. */
static void note_place(long number) {
    void *chain[DEPTH];
    int n = backtrace(chain, DEPTH);
    uint64_t h = 1469598103934665603u;
    for (int i = 2; i < n; i++) h = (h ^ (uint64_t)(uintptr_t)chain[i]) * 1099511628211u;
    if (!h) h = 1;
    pthread_mutex_lock(&places.mu);
    size_t at = h % (2 * MAX_PLACES);
    while (places.seen[at] && places.seen[at] != h) at = (at + 1) % (2 * MAX_PLACES);
    if (!places.seen[at] && places.n < MAX_PLACES) {
        places.seen[at] = h;
        places.first[places.n++] = number;
    }
    pthread_mutex_unlock(&places.mu);
}

/* Should this call fail? caller: where it returns to. */
static int fails(kind k, void *caller) {
    if (k != wanted || inside) return 0;
    inside = 1;
    int yes = 0;
    Dl_info info;
    if (!from || (dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, from))) {
        long number = atomic_fetch_add(&n_calls, 1) + 1;
        if (places_path) note_place(number);
        yes = k == FULL ? fail_at && number >= fail_at : number == fail_at;
    }
    inside = 0;
    return yes;
}

__attribute__((constructor)) static void begin(void) {
    static const char *const names[] = {"",       "alloc", "open",   "read",      "write", "sync",
                                        "rename", "map",   "thread", "interrupt", "full"};
    const char *k = getenv("TORTURE_KIND"), *at = getenv("TORTURE_AT");
    from = getenv("TORTURE_FROM");
    places_path = getenv("TORTURE_PLACES");
    fail_at = at ? atol(at) : 0;
    void *chain[2];
    inside = 1;
    (void)backtrace(chain, 2); /* loads what it needs before anything is counted */
    inside = 0;
    for (size_t i = 1; k && i < sizeof names / sizeof names[0]; i++) {
        if (!strcmp(k, names[i])) wanted = (kind)i;
    }
}

__attribute__((destructor)) static void end(void) {
    inside = 1;
    wanted = NONE;
    FILE *f = places_path ? fopen(places_path, "w") : NULL;
    for (int i = 0; f && i < places.n; i++) fprintf(f, "%ld\n", places.first[i]);
    if (f) fclose(f);
}

/* The error of a call that may also be interrupted, or 0: it works. */
static int error_of(kind k, int error, void *caller) {
    return fails(INTERRUPT, caller) ? EINTR : fails(k, caller) ? error : 0;
}

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* A function that fails with what it returns and an errno, or goes on to the real one. */
#define REFUSE(k, result, error)                                                                             \
    do {                                                                                                     \
        if (fails(k, CALLER)) {                                                                              \
            errno = error;                                                                                   \
            return result;                                                                                   \
        }                                                                                                    \
    } while (0)

#define REFUSE_OR_INTERRUPT(k, error)                                                                        \
    do {                                                                                                     \
        int e = error_of(k, error, CALLER);                                                                  \
        if (e) {                                                                                             \
            errno = e;                                                                                       \
            return -1;                                                                                       \
        }                                                                                                    \
    } while (0)

EXPORT void *malloc(size_t n) {
    REFUSE(ALLOC, NULL, ENOMEM);
    return __libc_malloc(n);
}

EXPORT void *calloc(size_t n, size_t size) {
    REFUSE(ALLOC, NULL, ENOMEM);
    return __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t n) {
    REFUSE(ALLOC, NULL, ENOMEM);
    return __libc_realloc(p, n);
}

EXPORT int posix_memalign(void **out, size_t align, size_t n) {
    if (fails(ALLOC, CALLER)) return ENOMEM;
    *out = __libc_memalign(align, n);
    return *out ? 0 : ENOMEM;
}

EXPORT void *aligned_alloc(size_t align, size_t n) {
    REFUSE(ALLOC, NULL, ENOMEM);
    return __libc_memalign(align, n);
}

EXPORT int open(const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    REFUSE_OR_INTERRUPT(OPEN, EMFILE);
    return NEXT(open)(path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    REFUSE_OR_INTERRUPT(OPEN, EMFILE);
    return NEXT(open64)(path, flags, mode);
}

EXPORT int openat(int fd, const char *path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    REFUSE_OR_INTERRUPT(OPEN, EMFILE);
    return NEXT(openat)(fd, path, flags, mode);
}

EXPORT FILE *fopen(const char *path, const char *mode) {
    REFUSE(OPEN, NULL, EMFILE);
    return NEXT(fopen)(path, mode);
}

EXPORT FILE *fopen64(const char *path, const char *mode) {
    REFUSE(OPEN, NULL, EMFILE);
    return NEXT(fopen64)(path, mode);
}

EXPORT ssize_t read(int fd, void *to, size_t n) {
    REFUSE_OR_INTERRUPT(READ, EIO);
    return NEXT(read)(fd, to, n);
}

EXPORT ssize_t pread(int fd, void *to, size_t n, off_t off) {
    REFUSE_OR_INTERRUPT(READ, EIO);
    return NEXT(pread)(fd, to, n, off);
}

EXPORT ssize_t pread64(int fd, void *to, size_t n, off64_t off) {
    REFUSE_OR_INTERRUPT(READ, EIO);
    return NEXT(pread64)(fd, to, n, off);
}

EXPORT size_t fread(void *to, size_t size, size_t n, FILE *f) {
    REFUSE(READ, 0, EIO);
    return NEXT(fread)(to, size, n, f);
}

/* A counter that wakes a thread (eventfd) has no disk that could be full. */
static bool is_bell(int fd) {
    struct stat sb;
    return !fstat(fd, &sb) && !(sb.st_mode & S_IFMT);
}

static bool is_file(int fd) {
    struct stat sb;
    return wanted == FULL && !fstat(fd, &sb) && S_ISREG(sb.st_mode);
}

#define REFUSE_FULL(fd)                                                                                      \
    do {                                                                                                     \
        if (is_file(fd)) REFUSE(FULL, -1, ENOSPC);                                                           \
    } while (0)

EXPORT ssize_t write(int fd, const void *data, size_t n) {
    if (is_bell(fd)) return NEXT(write)(fd, data, n);
    REFUSE_FULL(fd);
    REFUSE_OR_INTERRUPT(WRITE, ENOSPC);
    return NEXT(write)(fd, data, n);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t n, off_t off) {
    REFUSE_FULL(fd);
    REFUSE_OR_INTERRUPT(WRITE, ENOSPC);
    return NEXT(pwrite)(fd, data, n, off);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t n, off64_t off) {
    REFUSE_FULL(fd);
    REFUSE_OR_INTERRUPT(WRITE, ENOSPC);
    return NEXT(pwrite64)(fd, data, n, off);
}

EXPORT int ftruncate(int fd, off_t n) {
    REFUSE(WRITE, -1, EIO);
    return NEXT(ftruncate)(fd, n);
}

EXPORT int ftruncate64(int fd, off64_t n) {
    REFUSE(WRITE, -1, EIO);
    return NEXT(ftruncate64)(fd, n);
}

EXPORT int fsync(int fd) {
    REFUSE(SYNC, -1, EIO);
    return NEXT(fsync)(fd);
}

EXPORT int fdatasync(int fd) {
    REFUSE(SYNC, -1, EIO);
    return NEXT(fdatasync)(fd);
}

EXPORT int rename(const char *a, const char *b) {
    REFUSE(RENAME, -1, EIO);
    return NEXT(rename)(a, b);
}

EXPORT int renameat2(int da, const char *a, int db, const char *b, unsigned flags) {
    REFUSE(RENAME, -1, EIO);
    return NEXT(renameat2)(da, a, db, b, flags);
}

EXPORT int linkat(int da, const char *a, int db, const char *b, int flags) {
    REFUSE(RENAME, -1, EIO);
    return NEXT(linkat)(da, a, db, b, flags);
}

EXPORT void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off) {
    REFUSE(MAP, MAP_FAILED, ENOMEM);
    return NEXT(mmap)(at, n, prot, flags, fd, off);
}

EXPORT void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t off) {
    REFUSE(MAP, MAP_FAILED, ENOMEM);
    return NEXT(mmap64)(at, n, prot, flags, fd, off);
}

EXPORT int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*main)(void *), void *arg) {
    if (fails(THREAD, CALLER)) return EAGAIN;
    return NEXT(pthread_create)(out, attr, main, arg);
}
