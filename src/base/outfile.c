#include "base/outfile.h"

#include "base/file.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct tn_outfile {
    tn_ctx *ctx;
    const tn_outkind *kind;
    char *given, *path, *tmp; /* as the caller named it; with links followed; "" while the file has no name */
    int fd;
};

/* Finds the folder of a path: the first bytes of "FOLDER", at least 1 of them ("." and "/" are written
 * out). */
static bool folder_of(const char *path, char *folder, size_t cap) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (n + 2 > cap) return false;
    memcpy(folder, slash ? path : ".", n);
    folder[n] = 0;
    if (!n) memcpy(folder, "/", 2);
    return true;
}

static bool begins_like(const tn_outkind *k, int fd) {
    char head[64] = {0};
    ssize_t n;
    do n = pread(fd, head, sizeof head, 0);
    while (n < 0 && errno == EINTR);
    bool is = n == 0;
    for (int i = 0; i < 2 && k->begins[i]; i++)
        is = is || (n >= (ssize_t)strlen(k->begins[i]) && !memcmp(head, k->begins[i], strlen(k->begins[i])));
    return is;
}

/* *there: a file of the kind has this name. */
static tern_status check(const char *path, const char *given, const tn_outkind *k, bool *there,
                         tern_error *err) {
    struct stat sb;
    *there = false;
    if (stat(path, &sb)) {
        TN_FAIL_IF(errno != ENOENT, err, TERN_E_IO, "%s: cannot write: %s", given, strerror(errno));
        return TERN_OK;
    }
    TN_FAIL_IF(!S_ISREG(sb.st_mode), err, TERN_E_IO, "%s: cannot write: not a regular file", given);
    int fd = tn_file_open_regular(path, &sb, NULL);
    bool is = fd >= 0 && begins_like(k, fd);
    if (fd >= 0) close(fd);
    TN_FAIL_IF(!is, err, TERN_E_IO, "%s: exists and is not %s; remove it first, or choose another name",
               given, k->what);
    *there = true;
    return TERN_OK;
}

/* Follows the last link of a path, also to a file that does not exist. The caller frees *out with free. */
static tern_status resolve(const char *path, char **out, tern_error *err) {
    *out = realpath(path, NULL);
    if (!*out && errno == ENOENT) {
        struct stat sb;
        TN_FAIL_IF(!lstat(path, &sb), err, TERN_E_IO, "%s: cannot write: a link to nothing", path);
        *out = strdup(path);
        if (!*out) errno = ENOMEM;
    }
    TN_FAIL_IF(!*out, err, errno == ENOMEM ? TERN_E_MEMORY : TERN_E_IO, "%s: cannot write: %s", path,
               strerror(errno));
    return TERN_OK;
}

tern_status tn_outfile_may(const char *path, const tn_outkind *kind, tern_error *err) {
    char *real, folder[4096];
    bool there;
    TN_TRY(resolve(path, &real, err));
    tern_status st = check(real, path, kind, &there, err);
    if (st == TERN_OK && !folder_of(real, folder, sizeof folder))
        st = tn_fail(err, TERN_E_INVALID, "%s: path too long", path);
    else if (st == TERN_OK && access(folder, W_OK | X_OK))
        st = tn_fail(err, TERN_E_IO, "%s: cannot write: %s", path, strerror(errno));
    free(real);
    return st;
}

/* Makes an unguessable name beside the file. */
static bool name_tmp(tn_outfile *o, size_t cap) {
    uint64_t r;
    if (getrandom(&r, sizeof r, 0) != sizeof r) return false;
    snprintf(o->tmp, cap, "%s.%016" PRIx64 ".tmp", o->path, r);
    return true;
}

static size_t tmp_cap(const tn_outfile *o) { return strlen(o->path) + 32; }

tern_status tn_outfile_open(tn_ctx *ctx, const char *path, const tn_outkind *kind, tn_outfile **out,
                            tern_error *err) {
    char *real, folder[4096];
    *out = NULL;
    TN_TRY(tn_outfile_may(path, kind, err));
    TN_TRY(resolve(path, &real, err));
    tn_outfile *o = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *o);
    if (o) {
        *o = (tn_outfile){.ctx = ctx, .kind = kind, .fd = -1};
        o->given = tn_strdup(ctx, TN_MEM_OTHER, path);
        o->path = tn_strdup(ctx, TN_MEM_OTHER, real);
        if (o->path) o->tmp = tn_calloc(ctx, TN_MEM_OTHER, tmp_cap(o), 1);
    }
    free(real);
    mode_t mode = kind->is_private ? 0600 : 0666;
    tern_status st = TERN_OK;
    TN_BAIL_IF(!o || !o->given || !o->path || !o->tmp, err, TERN_E_MEMORY, "no memory to write %s", path);
    TN_BAIL_IF(!folder_of(o->path, folder, sizeof folder), err, TERN_E_INVALID, "%s: path too long", path);
#ifdef O_TMPFILE
    if (!access("/proc/self/fd", X_OK)) o->fd = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, mode);
#endif
    for (int i = 0; i < 8 && o->fd < 0; i++) {
        TN_BAIL_IF(!name_tmp(o, tmp_cap(o)), err, TERN_E_IO, "%s: no random name for it", path);
        o->fd = open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (o->fd >= 0) break;
        o->tmp[0] = 0;
        TN_BAIL_IF(errno != EEXIST, err, TERN_E_IO, "%s: cannot create: %s", path, strerror(errno));
    }
    TN_BAIL_IF(o->fd < 0, err, TERN_E_IO, "%s: cannot create: %s", path, strerror(errno));
    *out = o;
    return TERN_OK;
out:
    tn_outfile_abort(&o);
    return st;
}

int tn_outfile_fd(const tn_outfile *o) { return o->fd; }

tern_status tn_outfile_write(tn_outfile *o, const void *data, uint64_t n, tern_error *err) {
    for (const char *p = data; n;) {
        ssize_t done = write(o->fd, p, n < (1u << 30) ? n : (1u << 30));
        if (done < 0 && errno == EINTR) continue;
        TN_FAIL_IF(done <= 0, err, TERN_E_IO, "%s: cannot write: %s", o->given,
                   done ? strerror(errno) : "no room");
        p += done;
        n -= (uint64_t)done;
    }
    return TERN_OK;
}

static int rename_new(const char *from, const char *to) {
#ifdef RENAME_NOREPLACE
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
#else /* musl has neither the function nor the flag */
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 1);
#endif
}

/* Gives a nameless file a name beside its final one. */
#ifdef O_TMPFILE
static tern_status name_nameless(tn_outfile *o, tern_error *err) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
    TN_FAIL_IF(!name_tmp(o, tmp_cap(o)), err, TERN_E_IO, "%s: no random name for it", o->given);
    int rc = linkat(AT_FDCWD, self, AT_FDCWD, o->tmp, AT_SYMLINK_FOLLOW), why = errno;
    if (rc) o->tmp[0] = 0;
    TN_FAIL_IF(rc, err, TERN_E_IO, "%s: cannot create: %s", o->given, strerror(why));
    return TERN_OK;
}
#else
static tern_status name_nameless(tn_outfile *o, tern_error *err) {
    return tn_fail(err, TERN_E_IO, "%s: has no name", o->given); /* every file has a name on such systems */
}
#endif

static tern_status give_name(tn_outfile *o, tern_error *err) {
    TN_FAIL_IF(fsync(o->fd), err, TERN_E_IO, "%s: cannot sync: %s", o->given, strerror(errno));
    if (!*o->tmp) TN_TRY(name_nameless(o, err));
    for (int i = 0; i < 8; i++) { /* another file may be there than at opening */
        bool there;
        TN_TRY(check(o->path, o->given, o->kind, &there, err));
        int rc = there ? rename(o->tmp, o->path) : rename_new(o->tmp, o->path);
        if (rc && !there && (errno == EINVAL || errno == ENOSYS)) rc = rename(o->tmp, o->path);
        if (!rc) {
            o->tmp[0] = 0;
            return TERN_OK;
        }
        if (there || errno != EEXIST) break;
    }
    return tn_fail(err, TERN_E_IO, "%s: cannot rename: %s", o->given, strerror(errno));
}

static void sync_folder(const char *path) {
    char folder[4096];
    if (!folder_of(path, folder, sizeof folder)) return;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems refuse this; the rename itself is atomic anyway */
        close(fd);
    }
}

tern_status tn_outfile_commit(tn_outfile **po, tern_error *err) {
    tern_status st = give_name(*po, err);
    if (st == TERN_OK) sync_folder((*po)->path);
    tn_outfile_abort(po);
    return st;
}

void tn_outfile_abort(tn_outfile **po) {
    tn_outfile *o = *po;
    if (!o) return;
    *po = NULL;
    if (o->tmp && *o->tmp) (void)unlink(o->tmp);
    if (o->fd >= 0) close(o->fd);
    tn_free(o->ctx, o->given);
    tn_free(o->ctx, o->path);
    tn_free(o->ctx, o->tmp);
    tn_free(o->ctx, o);
}
