#include "base/file.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* sb: of the same file, or of another. */
static bool is_same(const tn_file *f, const struct stat *sb) {
    return (uint64_t)sb->st_dev == f->device && (uint64_t)sb->st_ino == f->inode;
}

static bool was_written(const tn_file *f, const struct stat *sb) {
    return tn_file_written_ns(sb) != f->written_ns || (uint64_t)sb->st_size != f->size_bytes;
}

bool tn_file_was_written(const tn_file *f, int fd) {
    struct stat sb;
    return f && !fstat(fd, &sb) && was_written(f, &sb);
}

bool tn_file_is(const tn_file *f, int fd) {
    struct stat sb;
    return !fstat(fd, &sb) && is_same(f, &sb) && !was_written(f, &sb);
}

bool tn_file_changed(const tn_file *f) {
    struct stat sb;
    if (!f || tn_file_shrank(f)) return f != NULL;
    return !stat(f->path, &sb) && is_same(f, &sb) && was_written(f, &sb);
}

int tn_file_open_regular(const char *path, struct stat *sb, tern_error *err) {
    int fd; /* without blocking: opening a pipe without a writer would not return */
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
    *out = NULL;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    tern_status st = tn_file_map(ctx, fd, path, out, err);
    close(fd);
    return st;
}

bool tn_file_is_absolute(const char *path) {
#if defined(_WIN32) /* the letter of a drive, or a machine's name */
    if (path[0] && path[1] == ':') return path[2] == '/' || path[2] == '\\';
    if (path[0] == '\\') return path[1] == '\\';
#endif
    return path[0] == '/';
}

tern_status tn_file_make_parents(char *path, tern_error *err) {
    tern_status st = TERN_OK;
    for (char *p = path + 1; *path && (p = strchr(p, '/')) && st == TERN_OK; *p++ = '/') {
        *p = 0;
        if (mkdir(path, 0700) && errno != EEXIST && errno != EISDIR)
            st = tn_fail(err, TERN_E_IO, "%s: cannot make this folder: %s", path, strerror(errno));
    }
    return st;
}

tern_status tn_file_private_folder(char *path, tern_error *err) {
    struct stat sb;
    TN_TRY(tn_file_make_parents(path, err));
    TN_FAIL_IF(mkdir(path, 0700) && errno != EEXIST, err, TERN_E_IO, "%s: cannot make this folder: %s", path,
               strerror(errno));
    TN_FAIL_IF(lstat(path, &sb), err, TERN_E_IO, "%s: %s", path, strerror(errno));
    TN_FAIL_IF(!S_ISDIR(sb.st_mode) || sb.st_uid != geteuid(), err, TERN_E_IO,
               "%s: not a folder of this user", path);
    TN_FAIL_IF(sb.st_mode & 077 && chmod(path, 0700), err, TERN_E_IO, "%s: others can look into it: %s", path,
               strerror(errno));
    return TERN_OK;
}
