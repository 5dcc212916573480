#include "kernels/limits.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/status.h"
#include "kernels/limits_loop.h"

#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_THREADS = 256, DISK_BLOCK = 1 << 20, SLICES = 5 };
static const double slice_s = 0.04, disk_s = 0.3;

/* ---- one measurement by several threads ----------------------------------------------------------- */

typedef struct gate {
    pthread_mutex_t mu;
    pthread_cond_t moved;
    int open; /* guarded by mu: 1 go, -1 give up */
} gate;

typedef struct worker {
    pthread_t thread;
    gate *gate;
    void (*work)(struct worker *w);
    const void *arg; /* of the measurement, read only */
    int index, n_workers;
    double begin_s, end_s, amount; /* filled by work */
} worker;

static void *run_worker(void *arg) {
    worker *w = arg;
    pthread_mutex_lock(&w->gate->mu);
    while (!w->gate->open) pthread_cond_wait(&w->gate->moved, &w->gate->mu);
    int go = w->gate->open;
    pthread_mutex_unlock(&w->gate->mu);
    if (go > 0) w->work(w);
    return NULL;
}

/* Amount per second from the first begin to the last end; 0 when a thread cannot be started. Worker 0 is the caller. */
static double run_workers(int n, void (*work)(worker *), const void *arg) {
    worker w[MAX_THREADS];
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    if (n < 1 || n > MAX_THREADS) return 0;
    for (int i = 0; i < n; i++) w[i] = (worker){.gate = &g, .work = work, .arg = arg, .index = i, .n_workers = n};
    int started = 1;
    while (started < n && !pthread_create(&w[started].thread, NULL, run_worker, &w[started])) started++;
    pthread_mutex_lock(&g.mu);
    g.open = started == n ? 1 : -1;
    pthread_cond_broadcast(&g.moved);
    pthread_mutex_unlock(&g.mu);
    run_worker(&w[0]);
    double begin = w[0].begin_s, end = w[0].end_s, amount = w[0].amount;
    for (int i = 1; i < started; i++) {
        pthread_join(w[i].thread, NULL);
        begin = w[i].begin_s < begin ? w[i].begin_s : begin;
        end = w[i].end_s > end ? w[i].end_s : end;
        amount += w[i].amount;
    }
    pthread_cond_destroy(&g.moved);
    pthread_mutex_destroy(&g.mu);
    return started == n && end > begin ? amount / (end - begin) : 0;
}

static double best_slice(int n, void (*work)(worker *), const void *arg) {
    double best = 0;
    for (int i = 0; i < SLICES; i++) {
        double x = run_workers(n, work, arg);
        best = x > best ? x : best;
    }
    return best;
}

/* ---- arithmetic -------------------------------------------------------------------------------------- */

static tn_limit_loop_fn loop_of(tn_limit_op op, uint32_t cpu) {
    tn_limit_loop_fn f[TN_LIMIT_N_OPS] = {NULL};
    (void)cpu;
#if defined(__x86_64__)
    if (cpu & TN_CPU_AVX2) {
        f[TN_LIMIT_FP32] = tn_limit_fp32_avx2;
        f[TN_LIMIT_INT8] = tn_limit_int8_avx2;
    }
    if (cpu & TN_CPU_AVXVNNI) f[TN_LIMIT_INT8] = tn_limit_int8_avxvnni;
    if (cpu & TN_CPU_AVX512) f[TN_LIMIT_FP32] = tn_limit_fp32_avx512;
    if (cpu & TN_CPU_AVX512VNNI) f[TN_LIMIT_INT8] = tn_limit_int8_avx512vnni;
    if (cpu & TN_CPU_AVX512BF16) f[TN_LIMIT_BF16] = tn_limit_bf16_avx512bf16;
#elif defined(__aarch64__)
    if (cpu & TN_CPU_NEON) {
        f[TN_LIMIT_FP32] = tn_limit_fp32_neon;
        f[TN_LIMIT_INT8] = tn_limit_int8_neon;
    }
    if (cpu & TN_CPU_DOTPROD) f[TN_LIMIT_INT8] = tn_limit_int8_dotprod;
    if (cpu & TN_CPU_I8MM) f[TN_LIMIT_INT8] = tn_limit_int8_i8mm;
    if ((cpu & TN_CPU_I8MM) && (cpu & TN_CPU_BF16)) f[TN_LIMIT_BF16] = tn_limit_bf16_i8mm;
#endif
    return f[op];
}

static void compute(worker *w) {
    const tn_limit_loop_fn *loop = w->arg;
    (*loop)(1000); /* wide units and clocks awake */
    w->begin_s = tn_now_s();
    do {
        w->amount += (*loop)(2000);
        w->end_s = tn_now_s();
    } while (w->end_s - w->begin_s < slice_s);
}

double tn_limit_compute(tn_limit_op op, uint32_t cpu, int n_threads) {
    tn_limit_loop_fn loop = loop_of(op, cpu);
    return loop ? best_slice(n_threads, compute, &loop) : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

typedef struct sweep {
    const uint64_t *words;
    size_t n_words;
} sweep;

/* Four streams, prefetched: more than one stream is what it takes to fill a core's miss queue. */
static void read_share(worker *w) {
    typedef uint64_t v2 __attribute__((vector_size(16)));
    enum { STREAMS = 4, CHUNK = 1024, AHEAD = 256 }; /* words */
    const sweep *s = w->arg;
    size_t stream = s->n_words / (size_t)w->n_workers / STREAMS / CHUNK * CHUNK, at = 0;
    const uint64_t *p = s->words + stream * STREAMS * (size_t)w->index;
    v2 sum[STREAMS] = {{0}};
    w->begin_s = tn_now_s();
    do {
        for (size_t i = at; i < at + CHUNK; i += 8) {
            _Pragma("GCC unroll 4") for (size_t j = 0; j < STREAMS; j++) {
                const v2 *line = (const v2 *)(p + j * stream + i);
                __builtin_prefetch(p + j * stream + i + AHEAD);
                sum[j] ^= line[0] ^ line[1] ^ line[2] ^ line[3];
            }
        }
        at = at + CHUNK < stream ? at + CHUNK : 0;
        w->amount += (double)(STREAMS * CHUNK * sizeof *p);
        w->end_s = tn_now_s();
    } while (w->end_s - w->begin_s < slice_s);
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    __asm__ volatile("" : : "m"(sum));
}

double tn_limit_memory(tn_ctx *ctx, int n_threads, size_t n_bytes) {
    size_t least = (size_t)1 << 20; /* per thread: a share must hold a chunk */
    if (n_threads < 1 || n_bytes / (size_t)n_threads < least) return 0;
    void *block = tn_alloc(ctx, TN_MEM_OTHER, n_bytes, 1);
    if (!block) return 0;
    memset(block, 1, n_bytes); /* its own pages, not the one zero page */
    sweep s = {block, n_bytes / 8};
    double best = best_slice(n_threads, read_share, &s);
    tn_free(ctx, block);
    return best;
}

/* ---- disk ----------------------------------------------------------------------------------------------- */

typedef struct disk {
    int fd;
    uint64_t n_blocks;
    uint8_t *buffers; /* one block per reader */
    _Atomic uint64_t *next;
    _Atomic int *error; /* errno of a failed read */
} disk;

static void read_blocks(worker *w) {
    const disk *d = w->arg;
    uint8_t *buf = d->buffers + (size_t)w->index * DISK_BLOCK;
    w->begin_s = w->end_s = tn_now_s();
    for (;;) {
        uint64_t i = atomic_fetch_add(d->next, 1);
        if (i >= d->n_blocks || w->end_s - w->begin_s > disk_s) return;
        ssize_t n = pread(d->fd, buf, DISK_BLOCK, (off_t)(i * DISK_BLOCK));
        if (n < 0) {
            if (errno == EINTR) continue;
            atomic_store(d->error, errno);
            return;
        }
        w->amount += (double)n;
        w->end_s = tn_now_s();
    }
}

tern_status tn_limit_disk(tn_ctx *ctx, const char *path, bool direct, int n_readers, uint64_t max_bytes, double *bytes_per_s,
                          tern_error *err) {
    *bytes_per_s = 0;
    TN_FAIL_IF(n_readers < 1 || n_readers > MAX_THREADS, err, TERN_E_INVALID, "%d readers: 1 to %d", n_readers, MAX_THREADS);
    tern_status st = TERN_OK;
    uint8_t *buffers = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (fd < 0 && direct && errno == EINVAL) return tn_fail(err, TERN_E_UNSUPPORTED, "%s: no O_DIRECT on this file system", path);
    TN_FAIL_IF(fd < 0, err, TERN_E_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat sb;
    TN_BAIL_IF(fstat(fd, &sb), err, TERN_E_IO, "%s: %s", path, strerror(errno));
    uint64_t size = (uint64_t)sb.st_size < max_bytes ? (uint64_t)sb.st_size : max_bytes;
    TN_BAIL_IF(size < DISK_BLOCK, err, TERN_E_INVALID, "%s: %" PRIu64 " bytes to read, need %d at least", path, size, DISK_BLOCK);
    buffers = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n_readers + 1, DISK_BLOCK);
    TN_BAIL_IF(!buffers, err, TERN_E_MEMORY, "no memory for %d read buffers", n_readers);
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (!direct) posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    _Atomic uint64_t next = 0;
    _Atomic int error = 0;
    uintptr_t at = ((uintptr_t)buffers + 4095) & ~(uintptr_t)4095; /* O_DIRECT wants page alignment */
    disk d = {fd, size / DISK_BLOCK, (uint8_t *)at, &next, &error};
    *bytes_per_s = run_workers(n_readers, read_blocks, &d);
    int e = atomic_load(&error);
    TN_BAIL_IF(e, err, direct && e == EINVAL ? TERN_E_UNSUPPORTED : TERN_E_IO, "%s: cannot read: %s", path, strerror(e));
    TN_BAIL_IF(*bytes_per_s <= 0, err, TERN_E_LIMIT, "%s: cannot start %d readers", path, n_readers);
out:
    tn_free(ctx, buffers);
    close(fd);
    return st;
}
