/* base/aio.h - background reads of one file.
 *
 * A reader owns the file's descriptors and its threads. Reads are cut into pieces and served in the order of
 * submission, several pieces at a time: by threads with pread, or by one thread that drives io_uring. The
 * thread that receives a piece checks it (checksums) while it is in that core's cache.
 *
 * A read belongs to the caller and stays in place until it is done. No memory is allocated after opening. */
#ifndef TN_BASE_AIO_H
#define TN_BASE_AIO_H

#include "base/ctx.h"

#include <sys/types.h>

typedef struct tn_aio tn_aio;
typedef struct tn_aio_read tn_aio_read;

enum { TN_AIO_ALIGN = 4096, TN_AIO_MAX_DEPTH = 64, TN_AIO_MAX_THREADS = 16 };

struct tn_aio_read {
    /* Direct reads need offset, length and memory aligned to TN_AIO_ALIGN. Other reads go through the page
     * cache. */
    uint64_t off_bytes;
    uint64_t n_bytes; /* > 0. The read fails unless all of them arrive: the file is too short */
    void *dst;
    /* check is called for every piece [at, at + n) of the read; `at` is a multiple of the piece size. It may
     * be NULL. */
    tern_status (*check)(void *user, const tn_aio_read *r, uint64_t at, uint64_t n, tern_error *err);
    void *user;

    /* These fields belong to the reader, which guards them. */
    tn_aio_read *next;
    uint64_t next_piece, n_left; /* bytes handed out; not finished */
    int64_t start_ns, end_ns;
    tern_status status;
    tern_error error;
    bool submitted, done;
};

typedef struct tn_aio_options {
    bool uring;  /* false = threads (default); threads are also used where the kernel has no io_uring */
    bool direct; /* bypass the page cache where file system and alignment allow it (default false) */
    int32_t n_parallel;   /* threads, at most TN_AIO_MAX_THREADS, or requests in flight, at most
                             TN_AIO_MAX_DEPTH (default 4) */
    uint32_t piece_bytes; /* a multiple of TN_AIO_ALIGN (default 1 MiB) */
    /* For tests. Called before every request of n bytes at off: 0 lets the request pass, -errno fails it, m >
     * 0 lets only the first m bytes arrive. */
    ssize_t (*fault)(void *user, uint64_t off_bytes, uint64_t n_bytes);
    void *fault_user;
} tn_aio_options;

void tn_aio_defaults(tn_aio_options *o);

/* Opens a reader of a file. opt may be NULL. */
tern_status tn_aio_open(tn_ctx *ctx, const char *path, const tn_aio_options *opt, tn_aio **out,
                        tern_error *err);
/* Opens a reader on an open descriptor, which stays the caller's; path is only for messages. If another file
 * has taken the path since, it is not read. */
tern_status tn_aio_open_fd(tn_ctx *ctx, int fd, const char *path, const tn_aio_options *opt, tn_aio **out,
                           tern_error *err);
/* Drops the reads that have not begun and waits for those that have. */
void tn_aio_close(tn_aio **a);
const char *
tn_aio_method(const tn_aio *a); /* method in use: "threads", "threads-direct", "uring", "uring-direct" */
bool tn_aio_method_parse(const char *name,
                         tn_aio_options *o); /* sets uring, direct and a suitable n_parallel */

/* Queues a read that is not in the queue. An urgent read goes before all reads that have not begun. */
void tn_aio_submit(tn_aio *a, tn_aio_read *r, bool urgent);
/* Waits until a submitted read is done and returns its status: TERN_E_IO, TERN_E_FORMAT for a file that ends
 * too early, or the result of check. */
tern_status tn_aio_wait(tn_aio *a, tn_aio_read *r, tern_error *err);
/* Whether a submitted read is done. */
bool tn_aio_done(tn_aio *a, const tn_aio_read *r);

typedef struct tn_aio_stats {
    uint64_t n_bytes;
    int64_t busy_ns; /* time with something in flight */
} tn_aio_stats;

void tn_aio_stats_get(tn_aio *a, tn_aio_stats *out);

/* Drops a file from the page cache. *stays: the share that stays because others use it. */
tern_status tn_aio_drop_cache(const char *path, double *stays, tern_error *err);
/* Estimates, from samples, how much of a file is in the page cache. 0 if the system does not report it. */
double tn_aio_cached_share(int fd);
/* Reads [from, to) of a file, discards the bytes and returns the time that it took. */
tern_status tn_aio_measure(tn_ctx *ctx, const char *path, const tn_aio_options *opt, uint64_t from,
                           uint64_t to, double *seconds, tern_error *err);

#endif
