#include "base/file.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int tn_file_open_regular(const char *path, struct stat *sb, tern_error *err) {
    int fd; /* without waiting: opening a pipe that nobody writes to would not return */
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        (void)tn_fail(err, TERN_E_IO, "%s: cannot open: %s", path, strerror(errno));
        return -1;
    }
    int failed = fstat(fd, sb) ? errno : 0;
    if (!failed && S_ISREG(sb->st_mode)) return fd;
    (void)tn_fail(err, TERN_E_IO, "%s: %s", path, failed ? strerror(failed) : "not a regular file");
    close(fd);
    return -1;
}

tern_status tn_file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off_bytes,
                            tern_error *err) {
    for (uint64_t done = 0; done < n;) {
        uint64_t ask = n - done < (1u << 30) ? n - done : 1u << 30;
        ssize_t got = pread(fd, (char *)dst + done, ask, (off_t)(off_bytes + done));
        if (got < 0 && errno == EINTR) continue;
        TN_FAIL_IF(got < 0, err, TERN_E_IO, "%s: cannot read at offset %" PRIu64 ": %s", path,
                   off_bytes + done, strerror(errno));
        TN_FAIL_IF(!got, err, TERN_E_FORMAT, "%s: ends at offset %" PRIu64 ", %" PRIu64 " bytes too early",
                   path, off_bytes + done, n - done);
        done += (uint64_t)got;
    }
    return TERN_OK;
}

tern_status tn_file_slurp(const char *path, uint64_t max_bytes, char **out, size_t *n, tern_error *err) {
    *out = NULL;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    uint64_t size = (uint64_t)sb.st_size;
    tern_status st = TERN_OK;
    char *text = NULL;
    if (size > max_bytes)
        st = tn_fail(err, TERN_E_LIMIT, "%s: has %" PRIu64 " bytes, more than the %" PRIu64 " that are read",
                     path, size, max_bytes);
    else if (!(text = malloc(size + 1))) st = tn_fail(err, TERN_E_MEMORY, "no memory to read %s", path);
    else st = tn_file_read_at(fd, path, text, size, 0, err);
    close(fd);
    if (st != TERN_OK) {
        free(text);
        return st;
    }
    text[size] = 0;
    *out = text;
    *n = size;
    return TERN_OK;
}

tern_status tn_file_open(tn_ctx *ctx, const char *path, tn_file **out, tern_error *err) {
    static const uint8_t empty[1];
    *out = NULL;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    tern_status st = TERN_OK;
    tn_file *f = st == TERN_OK ? tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *f) : NULL;
    if (st == TERN_OK && (!f || !(f->path = tn_strdup(ctx, TN_MEM_OTHER, path))))
        st = tn_fail(err, TERN_E_MEMORY, "no memory to open %s", path);
    if (st == TERN_OK) {
        f->ctx = ctx;
        f->size_bytes = (uint64_t)sb.st_size;
        void *p = sb.st_size ? mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0) : (void *)empty;
        if (p == MAP_FAILED) st = tn_fail(err, TERN_E_IO, "%s: cannot map: %s", path, strerror(errno));
        else f->data = p;
    }
    close(fd);
    if (st == TERN_OK) {
        *out = f;
    } else if (f) {
        tn_free(ctx, f->path);
        tn_free(ctx, f);
    }
    return st;
}

void tn_file_close(tn_file **pf) {
    tn_file *f = *pf;
    if (!f) return;
    *pf = NULL;
    if (f->size_bytes) munmap((void *)f->data, f->size_bytes);
    tn_free(f->ctx, f->path);
    tn_free(f->ctx, f);
}

tern_status tn_file_may_replace(const char *path, tern_error *err) {
    struct stat sb;
    if (!stat(path, &sb)) {
        TN_FAIL_IF(!S_ISREG(sb.st_mode), err, TERN_E_IO, "%s: cannot write: not a regular file", path);
        return TERN_OK;
    }
    TN_FAIL_IF(errno != ENOENT, err, TERN_E_IO, "%s: cannot write: %s", path, strerror(errno));
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    size_t n = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    TN_FAIL_IF(n >= sizeof folder, err, TERN_E_INVALID, "%s: path too long", path);
    if (n) {
        memcpy(folder, path, n);
        folder[n] = 0;
    }
    TN_FAIL_IF(access(folder, W_OK | X_OK), err, TERN_E_IO, "%s: cannot write: %s", path, strerror(errno));
    return TERN_OK;
}

void tn_file_release(const void *p, uint64_t n_bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)p + page - 1) / page * page,
              to = ((uintptr_t)p + n_bytes) / page * page;
    if (from < to) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}
