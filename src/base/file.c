#include "base/file.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

tern_status tn_file_open(tn_ctx *ctx, const char *path, tn_file **out, tern_error *err) {
    static const uint8_t empty[1];
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    TN_FAIL_IF(fd < 0, err, TERN_E_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat sb;
    tern_status st = TERN_OK;
    if (fstat(fd, &sb)) st = tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(sb.st_mode)) st = tn_fail(err, TERN_E_IO, "%s: not a regular file", path);
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
