#include "base/aio.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/syscall.h>
#define HAVE_URING
#endif

/* The part of a read that one request covers. `got` bytes of it have arrived; short reads are continued. */
typedef struct piece {
    tn_aio_read *r;
    uint64_t at, n, got;
    bool buffered; /* the direct descriptor refused it */
    ssize_t faked; /* outcome that a fault hook chose; 0: none */
} piece;

typedef struct ring ring;

enum { MAX_RINGS = 2 };

struct tn_aio {
    tn_ctx *ctx;
    char *path;
    int fd, direct_fd; /* direct_fd: -1 unless reads are direct */
    tn_aio_options o;
    pthread_t threads[TN_AIO_MAX_THREADS];
    int32_t n_threads;
    ring
        *rings[MAX_RINGS]; /* one thread each: one checks while the other submits; NULL: threads with pread */
    /* Guards everything below and the reads' own fields. */
    pthread_mutex_t mu;
    pthread_cond_t work, done;
    tn_aio_read *head, *tail; /* reads with pieces still to hand out */
    int32_t n_flying;         /* pieces */
    int64_t flying_since_ns;
    tn_aio_stats stats;
    bool quit;
};

void tn_aio_defaults(tn_aio_options *o) { *o = (tn_aio_options){.n_parallel = 4, .piece_bytes = 1 << 20}; }

bool tn_aio_method_parse(const char *name, tn_aio_options *o) {
    static const struct {
        const char *name;
        bool uring, direct;
        int32_t n_parallel;
    } methods[] = {{"threads", false, false, 4},
                   {"threads-direct", false, true, 8},
                   {"uring", true, false, 8},
                   {"uring-direct", true, true, 16}};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(name, methods[i].name)) continue;
        o->uring = methods[i].uring;
        o->direct = methods[i].direct;
        o->n_parallel = methods[i].n_parallel;
        return true;
    }
    return false;
}

const char *tn_aio_method(const tn_aio *a) {
    if (a->direct_fd >= 0) return a->rings[0] ? "uring-direct" : "threads-direct";
    return a->rings[0] ? "uring" : "threads";
}

/* ---- the queue: all under mu ------------------------------------------------------------------------ */

static bool take_piece(tn_aio *a, piece *p) {
    tn_aio_read *r = a->head;
    if (!r || a->quit) return false;
    uint64_t n = r->n_bytes - r->next_piece;
    *p = (piece){.r = r, .at = r->next_piece, .n = n < a->o.piece_bytes ? n : a->o.piece_bytes};
    r->next_piece += p->n;
    if (r->next_piece == r->n_bytes) {
        a->head = r->next;
        if (!a->head) a->tail = NULL;
    }
    int64_t now = tn_now_ns();
    if (!r->start_ns) r->start_ns = now;
    if (a->n_flying++ == 0) a->flying_since_ns = now;
    return true;
}

static void end_piece(tn_aio *a, const piece *p, tern_status st, const tern_error *error) {
    tn_aio_read *r = p->r;
    int64_t now = tn_now_ns();
    if (--a->n_flying == 0) a->stats.busy_ns += now - a->flying_since_ns;
    a->stats.n_bytes += p->got;
    if (st != TERN_OK && r->status == TERN_OK) {
        r->status = st;
        r->error = *error;
    }
    r->n_left -= p->n;
    if (r->n_left) return;
    r->end_ns = now;
    r->done = true;
    pthread_cond_broadcast(&a->done);
}

/* ---- one piece --------------------------------------------------------------------------------------- */

static bool can_be_direct(const tn_aio *a, const piece *p) {
    return a->direct_fd >= 0 && !p->buffered &&
           ((p->r->off_bytes + p->at + p->got) | (p->n - p->got) |
            (uintptr_t)((char *)p->r->dst + p->at + p->got)) %
                   TN_AIO_ALIGN ==
               0;
}

static ssize_t ask_fault(const tn_aio *a, const piece *p) {
    return a->o.fault ? a->o.fault(a->o.fault_user, p->r->off_bytes + p->at + p->got, p->n - p->got) : 0;
}

/* Takes the result of a request for the rest of a piece. Returns true if the piece is done, with its
 * status in *st, and false if another request is needed. */
static bool received(const tn_aio *a, piece *p, ssize_t rc, tern_status *st, tern_error *err) {
    uint64_t off = p->r->off_bytes + p->at + p->got;
    *st = TERN_OK;
    if (rc == -EINTR || rc == -EAGAIN) return false;
    if (rc == -EINVAL && can_be_direct(a, p)) { /* this file system needs another alignment */
        p->buffered = true;
        return false;
    }
    if (rc < 0)
        *st = tn_fail(err, TERN_E_IO, "%s: cannot read at offset %" PRIu64 ": %s", a->path, off,
                      strerror((int)-rc));
    else if (rc == 0)
        *st = tn_fail(err, TERN_E_FORMAT,
                      "%s: ends at offset %" PRIu64 ", %" PRIu64 " bytes before the end of a read", a->path,
                      off, p->n - p->got);
    if (*st != TERN_OK) return true;
    p->got += (uint64_t)rc;
    if (p->got < p->n) {
        p->buffered = true; /* a short direct read leaves an odd rest */
        return false;
    }
    if (p->r->check) *st = p->r->check(p->r->user, p->r, p->at, p->n, err);
    return true;
}

/* ---- threads ------------------------------------------------------------------------------------------ */

static void *reader_main(void *arg) {
    tn_aio *a = arg;
    piece p;
    pthread_mutex_lock(&a->mu);
    while (!a->quit) {
        if (!take_piece(a, &p)) {
            pthread_cond_wait(&a->work, &a->mu);
            continue;
        }
        pthread_mutex_unlock(&a->mu);
        tern_status st;
        tern_error err = {0};
        for (bool over = false; !over;) {
            ssize_t rc = ask_fault(a, &p);
            size_t n = rc > 0 && (uint64_t)rc < p.n - p.got ? (size_t)rc : (size_t)(p.n - p.got);
            if (rc >= 0) {
                rc = pread(rc == 0 && can_be_direct(a, &p) ? a->direct_fd : a->fd,
                           (char *)p.r->dst + p.at + p.got, n, (off_t)(p.r->off_bytes + p.at + p.got));
                if (rc < 0) rc = -errno;
            }
            over = received(a, &p, rc, &st, &err);
        }
        pthread_mutex_lock(&a->mu);
        end_piece(a, &p, st, &err);
    }
    pthread_mutex_unlock(&a->mu);
    return NULL;
}

/* ---- io_uring: the three system calls, no library ------------------------------------------------------ */

#ifdef HAVE_URING

struct ring {
    tn_aio *a;
    int fd, depth;
    void *sq_map, *cq_map, *sqe_map;
    size_t sq_bytes, cq_bytes, sqe_bytes;
    uint32_t *sq_tail, *sq_array, sq_mask, *cq_head, *cq_tail, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    piece flying[TN_AIO_MAX_DEPTH];
    bool used[TN_AIO_MAX_DEPTH];
    int32_t n_used;
    uint32_t n_new; /* entries not yet announced to the kernel */
};

static void ring_close(tn_ctx *ctx, ring *r) {
    if (!r) return;
    if (r->sqe_map) munmap(r->sqe_map, r->sqe_bytes);
    if (r->cq_map) munmap(r->cq_map, r->cq_bytes);
    if (r->sq_map) munmap(r->sq_map, r->sq_bytes);
    close(r->fd);
    tn_free(ctx, r);
}

static void *ring_map(int fd, size_t n, off_t what) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    return p == MAP_FAILED ? NULL : p;
}

/* Returns NULL if the kernel or a sandbox refuses io_uring. */
static ring *ring_open(tn_aio *a, uint32_t depth) {
    tn_ctx *ctx = a->ctx;
    struct io_uring_params par = {0};
    int fd = (int)syscall(SYS_io_uring_setup, depth, &par);
    if (fd < 0) return NULL;
    ring *r = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *r);
    if (!r) {
        close(fd);
        return NULL;
    }
    r->a = a;
    r->depth = (int)depth;
    r->fd = fd;
    r->sq_bytes = par.sq_off.array + par.sq_entries * sizeof(uint32_t);
    r->cq_bytes = par.cq_off.cqes + par.cq_entries * sizeof(struct io_uring_cqe);
    r->sqe_bytes = par.sq_entries * sizeof(struct io_uring_sqe);
    r->sq_map = ring_map(fd, r->sq_bytes, IORING_OFF_SQ_RING);
    r->cq_map = ring_map(fd, r->cq_bytes, IORING_OFF_CQ_RING);
    r->sqe_map = ring_map(fd, r->sqe_bytes, IORING_OFF_SQES);
    if (!r->sq_map || !r->cq_map || !r->sqe_map) {
        ring_close(ctx, r);
        return NULL;
    }
    char *sq = r->sq_map, *cq = r->cq_map;
    r->sq_tail = (uint32_t *)(sq + par.sq_off.tail);
    r->sq_mask = *(uint32_t *)(sq + par.sq_off.ring_mask);
    r->sq_array = (uint32_t *)(sq + par.sq_off.array);
    r->cq_head = (uint32_t *)(cq + par.cq_off.head);
    r->cq_tail = (uint32_t *)(cq + par.cq_off.tail);
    r->cq_mask = *(uint32_t *)(cq + par.cq_off.ring_mask);
    r->cqes = (struct io_uring_cqe *)(cq + par.cq_off.cqes);
    r->sqes = r->sqe_map;
    return r;
}

/* Only this thread writes the submission queue's tail and the completion queue's head. Release and acquire
 * pair with the kernel. */
static void ring_push(ring *r, int32_t slot) {
    const tn_aio *a = r->a;
    piece *p = &r->flying[slot];
    uint32_t tail = *r->sq_tail, i = tail & r->sq_mask;
    uint64_t n = p->n - p->got;
    ssize_t fault = ask_fault(a, p);
    if (fault > 0 && (uint64_t)fault < n) n = (uint64_t)fault;
    struct io_uring_sqe *e = &r->sqes[i];
    memset(e, 0, sizeof *e);
    p->faked = fault < 0 ? fault : 0;
    e->opcode = p->faked ? IORING_OP_NOP : IORING_OP_READ;
    e->fd = p->faked ? -1 : fault == 0 && can_be_direct(a, p) ? a->direct_fd : a->fd;
    e->addr = p->faked ? 0 : (uint64_t)(uintptr_t)((char *)p->r->dst + p->at + p->got);
    e->len = p->faked ? 0 : (uint32_t)n;
    e->off = p->faked ? 0 : p->r->off_bytes + p->at + p->got;
    e->user_data = (uint64_t)slot;
    r->sq_array[i] = i;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
    r->n_new++;
}

static void *ring_main(void *arg) {
    ring *r = arg;
    tn_aio *a = r->a;
    pthread_mutex_lock(&a->mu);
    for (;;) {
        for (int32_t slot = 0; slot < r->depth; slot++) {
            if (r->used[slot] || !take_piece(a, &r->flying[slot])) continue;
            r->used[slot] = true;
            r->n_used++;
            ring_push(r, slot);
        }
        if (!r->n_used) {
            if (a->quit) break;
            pthread_cond_wait(&a->work, &a->mu);
            continue;
        }
        pthread_mutex_unlock(&a->mu);
        long rc = syscall(SYS_io_uring_enter, r->fd, r->n_new, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (rc > 0) r->n_new -= (uint32_t)rc; /* entries that were not taken are offered again */
        uint32_t head = *r->cq_head, tail = __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE);
        for (; head != tail; head++) {
            const struct io_uring_cqe *c = &r->cqes[head & r->cq_mask];
            int32_t slot = (int32_t)c->user_data;
            ssize_t res = c->res;
            __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
            piece *p = &r->flying[slot];
            tern_status st;
            tern_error err = {0};
            if (!received(a, p, p->faked ? p->faked : res, &st, &err)) {
                ring_push(r, slot);
                continue;
            }
            pthread_mutex_lock(&a->mu);
            end_piece(a, p, st, &err);
            pthread_mutex_unlock(&a->mu);
            r->used[slot] = false;
            r->n_used--;
        }
        pthread_mutex_lock(&a->mu);
    }
    pthread_mutex_unlock(&a->mu);
    return NULL;
}

#else

static ring *ring_open(tn_aio *a, uint32_t depth) {
    (void)a, (void)depth;
    return NULL;
}
static void ring_close(tn_ctx *ctx, ring *r) { (void)ctx, (void)r; }
static void *ring_main(void *arg) { return arg; }

#endif

/* ---- life ---------------------------------------------------------------------------------------------- */

tern_status tn_aio_open(tn_ctx *ctx, const char *path, const tn_aio_options *opt, tn_aio **out,
                        tern_error *err) {
    *out = NULL;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    tern_status st = tn_aio_open_fd(ctx, fd, path, opt, out, err);
    close(fd);
    return st;
}

#ifdef O_DIRECT
/* Opens the file of fd once more, for direct reads. Returns -1 where the file system refuses, or where its
 * name now belongs to another file. */
static int reopen_direct(int fd, const char *path) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int direct = open(self, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (direct < 0) direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT | O_NONBLOCK);
    struct stat a, b;
    if (direct < 0 || (!fstat(fd, &a) && !fstat(direct, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino))
        return direct;
    close(direct);
    return -1;
}
#endif

tern_status tn_aio_open_fd(tn_ctx *ctx, int fd, const char *path, const tn_aio_options *opt, tn_aio **out,
                           tern_error *err) {
    *out = NULL;
    tn_aio *a = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *a);
    TN_FAIL_IF(!a, err, TERN_E_MEMORY, "no memory to read %s", path);
    a->ctx = ctx;
    a->direct_fd = -1;
    if (opt) a->o = *opt;
    else tn_aio_defaults(&a->o);
    assert(a->o.n_parallel > 0 && a->o.n_parallel <= (a->o.uring ? TN_AIO_MAX_DEPTH : TN_AIO_MAX_THREADS));
    assert(a->o.piece_bytes && a->o.piece_bytes % TN_AIO_ALIGN == 0);
    pthread_mutex_init(&a->mu, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->done, NULL);
    tern_status st = TERN_OK;
    a->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    TN_BAIL_IF(!a->path, err, TERN_E_MEMORY, "no memory to read %s", path);
    TN_BAIL_IF(a->fd < 0, err, TERN_E_IO, "%s: cannot open: %s", path, strerror(errno));
#ifdef O_DIRECT
    if (a->o.direct) a->direct_fd = reopen_direct(a->fd, path);
#endif
    if (a->o.uring) {
        uint32_t n_rings = a->o.n_parallel > 1 ? MAX_RINGS : 1;
        for (uint32_t i = 0; i < n_rings; i++)
            a->rings[i] = ring_open(a, ((uint32_t)a->o.n_parallel + n_rings - 1) / n_rings);
        if (!a->rings[0]) {
            tn_log(ctx, TERN_LOG_DEBUG, "%s: no io_uring here; reading with threads", path);
            if (a->o.n_parallel > 8) a->o.n_parallel = 8;
        }
    }
    int32_t n = a->rings[0] ? (a->rings[1] ? 2 : 1) : a->o.n_parallel;
    for (int32_t i = 0; i < n; i++) {
        int rc = pthread_create(&a->threads[i], NULL, a->rings[0] ? ring_main : reader_main,
                                a->rings[0] ? (void *)a->rings[i] : a);
        TN_BAIL_IF(rc, err, TERN_E_MEMORY,
                   "cannot start reading thread %" PRId32 " of %" PRId32 " (error %d)", i + 1, n, rc);
        a->n_threads++;
    }
    *out = a;
    return TERN_OK;
out:
    tn_aio_close(&a);
    return st;
}

void tn_aio_close(tn_aio **pa) {
    tn_aio *a = *pa;
    if (!a) return;
    *pa = NULL;
    pthread_mutex_lock(&a->mu);
    a->quit = true;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mu);
    for (int32_t i = 0; i < a->n_threads; i++) pthread_join(a->threads[i], NULL);
    for (int i = 0; i < MAX_RINGS; i++) ring_close(a->ctx, a->rings[i]);
    if (a->fd >= 0) close(a->fd);
    if (a->direct_fd >= 0) close(a->direct_fd);
    pthread_cond_destroy(&a->done);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->mu);
    tn_free(a->ctx, a->path);
    tn_free(a->ctx, a);
}

void tn_aio_submit(tn_aio *a, tn_aio_read *r, bool urgent) {
    assert(r->n_bytes > 0);
    pthread_mutex_lock(&a->mu);
    r->next = NULL;
    r->next_piece = 0;
    r->n_left = r->n_bytes;
    r->start_ns = r->end_ns = 0;
    r->status = TERN_OK;
    r->done = false;
    r->submitted = true;
    if (!a->head) {
        a->head = a->tail = r;
    } else if (urgent) {
        r->next = a->head;
        a->head = r;
    } else {
        a->tail->next = r;
        a->tail = r;
    }
    if (r->n_bytes > a->o.piece_bytes) pthread_cond_broadcast(&a->work);
    else pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->mu);
}

tern_status tn_aio_wait(tn_aio *a, tn_aio_read *r, tern_error *err) {
    pthread_mutex_lock(&a->mu);
    assert(r->submitted);
    while (!r->done) pthread_cond_wait(&a->done, &a->mu);
    tern_status st = r->status;
    if (st != TERN_OK && err) *err = r->error;
    pthread_mutex_unlock(&a->mu);
    return st;
}

bool tn_aio_done(tn_aio *a, const tn_aio_read *r) {
    pthread_mutex_lock(&a->mu);
    assert(r->submitted);
    const bool done = r->done;
    pthread_mutex_unlock(&a->mu);
    return done;
}

void tn_aio_stats_get(tn_aio *a, tn_aio_stats *out) {
    pthread_mutex_lock(&a->mu);
    *out = a->stats;
    if (a->n_flying) out->busy_ns += tn_now_ns() - a->flying_since_ns;
    pthread_mutex_unlock(&a->mu);
}

/* ---- how fast a file is read --------------------------------------------------------------------------- */

tern_status tn_aio_measure(tn_ctx *ctx, const char *path, const tn_aio_options *opt, uint64_t from,
                           uint64_t to, double *seconds, tern_error *err) {
    enum { SLOTS = 8 };
    const size_t slot = 8 << 20;
    tn_aio *a;
    *seconds = 0;
    TN_TRY(tn_aio_open(ctx, path, opt, &a, err));
    char *block = tn_alloc(ctx, TN_MEM_OTHER, SLOTS * slot + TN_AIO_ALIGN, 1);
    tern_status st = block ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to read %s", path);
    if (block) {
        memset(block, 1, SLOTS * slot); /* touched first: its page faults must not be measured */
        char *buf = block + (TN_AIO_ALIGN - (uintptr_t)block % TN_AIO_ALIGN) % TN_AIO_ALIGN;
        tn_aio_read r[SLOTS] = {0};
        int64_t t0 = tn_now_ns();
        int k = 0;
        for (uint64_t at = from; at < to && st == TERN_OK; at += slot, k = (k + 1) % SLOTS) {
            if (r[k].submitted) st = tn_aio_wait(a, &r[k], err);
            r[k] = (tn_aio_read){
                .off_bytes = at, .n_bytes = to - at < slot ? to - at : slot, .dst = buf + (size_t)k * slot};
            tn_aio_submit(a, &r[k], false);
        }
        for (k = 0; k < SLOTS; k++) {
            tern_status rc = r[k].submitted ? tn_aio_wait(a, &r[k], st == TERN_OK ? err : NULL) : TERN_OK;
            if (st == TERN_OK) st = rc;
        }
        *seconds = (double)(tn_now_ns() - t0) * 1e-9;
    }
    tn_aio_close(&a);
    tn_free(ctx, block);
    return st;
}
