/* tern bench limits - peaks, memory bandwidth and cold reads of this machine. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "kernels/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMP_MIB = 256, BLOCK = 1 << 20, MAX_READERS = 4 };

static char temp_path[512]; /* removed on Ctrl-C too */

static void remove_temp(int sig) {
    if (temp_path[0]) unlink(temp_path);
    _exit(128 + sig);
}

/* Writes a file of pseudo-random bytes on disk. Returns false with a message printed when that fails. */
static bool write_temp(void) {
    const char *dir = getenv("TMPDIR");
    snprintf(temp_path, sizeof temp_path, "%s/tern-limits.%ld", dir ? dir : ".", (long)getpid());
    int fd = open(temp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint64_t *block = malloc(BLOCK);
    bool ok = fd >= 0 && block;
    for (int i = 0; i < TEMP_MIB && ok; i++) {
        uint64_t x = (uint64_t)i + 88172645463325252u;
        for (int w = 0; w < BLOCK / 8; w++) block[w] = x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        ok = write(fd, block, BLOCK) == BLOCK;
    }
    ok = ok && !fsync(fd);
    if (!ok)
        cli_failed_text("%s: cannot write %d MiB to read back: %s", temp_path, TEMP_MIB, strerror(errno));
    if (fd >= 0) close(fd);
    free(block);
    return ok;
}

typedef struct reader {
    int fd, n_readers, i;
    uint64_t size;
    bool ok;
} reader;

static void *read_stripe(void *arg) {
    reader *r = arg;
    void *buf = NULL;
    r->ok = !posix_memalign(&buf, 4096, BLOCK);
    for (uint64_t off = (uint64_t)r->i * BLOCK; r->ok && off + BLOCK <= r->size;
         off += (uint64_t)r->n_readers * BLOCK)
        r->ok = pread(r->fd, buf, BLOCK, (off_t)off) == BLOCK;
    free(buf);
    return NULL;
}

/* Returns the bytes per second of one cold pass, or 0 where the way is not possible here. */
static double cold_read(const char *path, bool direct, int n_readers) {
    int flags = O_RDONLY | O_CLOEXEC;
#ifdef O_DIRECT
    if (direct) flags |= O_DIRECT;
#else
    if (direct) return 0;
#endif
    int fd = open(path, flags);
    struct stat sb;
    if (fd < 0) return 0;
    if (fstat(fd, &sb) || sb.st_size < BLOCK || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) {
        close(fd);
        return 0;
    }
    reader r[MAX_READERS];
    pthread_t t[MAX_READERS];
    int64_t t0 = tn_now_ns();
    bool ok = true;
    for (int i = 0; i < n_readers; i++) {
        r[i] = (reader){.fd = fd, .n_readers = n_readers, .i = i, .size = (uint64_t)sb.st_size};
        if (pthread_create(&t[i], NULL, read_stripe, &r[i])) {
            n_readers = i;
            ok = false;
        }
    }
    for (int i = 0; i < n_readers; i++) {
        pthread_join(t[i], NULL);
        ok = ok && r[i].ok;
    }
    double s = (double)(tn_now_ns() - t0) * 1e-9;
    close(fd);
    return ok ? (double)(sb.st_size / BLOCK * BLOCK) / s : 0;
}

int cli_bench_limits(int32_t n_threads, const char *file, bool json) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err;
    tn_limits l;
    if (tn_pool_open(&ctx, n_threads ? n_threads : tn_cpu_count(), &pool, &err) != TERN_OK)
        return cli_failed(&err);
    int n = tn_pool_size(pool);
    tern_status st = tn_limits_measure(&ctx, pool, tn_cpu_flags(NULL), &l, &err);
    tn_pool_close(&pool);
    if (st != TERN_OK) return cli_failed(&err);
    signal(SIGINT, remove_temp);
    signal(SIGTERM, remove_temp);
    if (file && access(file, R_OK)) return cli_failed_text("%s: cannot read: %s", file, strerror(errno));
    if (!file && !write_temp()) {
        unlink(temp_path);
        return EXIT_FAILED;
    }
    const char *path = file ? file : temp_path;
    const struct {
        const char *key, *name;
        bool direct;
        int n_readers;
    } ways[] = {{"direct_1", "O_DIRECT, 1 reader", true, 1},
                {"direct_4", "O_DIRECT, 4 readers", true, 4},
                {"buffered_1", "buffered, 1 reader", false, 1},
                {"buffered_4", "buffered, 4 readers", false, 4}};
    double disk[4];
    for (int i = 0; i < 4; i++) disk[i] = cold_read(path, ways[i].direct, ways[i].n_readers);
    if (!file) unlink(temp_path);
    temp_path[0] = 0;
    if (json) {
        json_t *d = json_object();
        for (int i = 0; i < 4; i++) tn_json_set(&d, ways[i].key, tn_json_real(disk[i]));
        json_t *j =
            tn_json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "threads", n, "int8_ops",
                         l.int8_ops, "bf16_flops", l.bf16_flops, "fp32_flops", l.fp32_flops,
                         "memory_read_bytes_per_second", l.read_bytes_per_s, "thread_int8_ops",
                         l.thread_int8_ops, "thread_bf16_flops", l.thread_bf16_flops, "thread_fp32_flops",
                         l.thread_fp32_flops, "thread_memory_read_bytes_per_second",
                         l.thread_read_bytes_per_s, "cold_read_bytes_per_second", d);
        return cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    }
    printf("%-22s %14s %14d threads\n", "", "1 thread", n);
    printf("%-22s %9.0f GOPS %9.0f GOPS\n", "INT8 multiply-add", l.thread_int8_ops * 1e-9, l.int8_ops * 1e-9);
    printf("%-22s %8.0f GFLOPS %7.0f GFLOPS\n", "bf16 multiply-add", l.thread_bf16_flops * 1e-9,
           l.bf16_flops * 1e-9);
    printf("%-22s %8.0f GFLOPS %7.0f GFLOPS\n", "fp32 multiply-add", l.thread_fp32_flops * 1e-9,
           l.fp32_flops * 1e-9);
    printf("%-22s %9.1f GB/s %9.1f GB/s\n\n", "memory read", l.thread_read_bytes_per_s * 1e-9,
           l.read_bytes_per_s * 1e-9);
    for (int i = 0; i < 4; i++) printf("cold read, %-22s %6.2f GB/s\n", ways[i].name, disk[i] * 1e-9);
    return EXIT_OK;
}
