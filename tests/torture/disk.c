/* tests/torture/disk.c - preloaded into a program, it writes down what the program does to the files of a
 * folder, in order: what power.py needs to say what a disk may hold after the power went.
 *
 *   DISK_FOLDER   the folder (no symbolic links in its path)
 *   DISK_LOG      the file that gets the record
 *
 * A record is a line, for W followed by that many bytes and a newline:
 *   O ino created path    a file was opened for writing (path "-": it has no name)
 *   W ino offset n        T ino size (truncated)      S ino (synced)
 *   D folder (synced)     R from to (renamed)         L ino to (linked)      U path (unlinked)
 * Streams made by fdopen write through here too: the C library's own writes cannot be seen. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { MAX_FD = 4096 };

static const char *folder;
static size_t n_folder;
static int log_fd = -1;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned long long
    ino_of[MAX_FD]; /* of files of the folder that are open for writing; 0: another */
static atomic_bool is_folder[MAX_FD];

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("DISK_LOG");
    folder = getenv("DISK_FOLDER");
    n_folder = folder ? strlen(folder) : 0;
    if (folder && log) log_fd = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void say(const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t done = NEXT(write)(log_fd, p, n);
        if (done <= 0) abort(); /* a record with a gap would prove nothing */
        p += done;
        n -= (size_t)done;
    }
}

static void note(const void *data, size_t n, const char *fmt, ...) {
    if (log_fd < 0) return;
    char line[9000];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int e = errno;
    say(line, (size_t)len);
    if (n) {
        say(data, n);
        say("\n", 1);
    }
    errno = e;
}

static int inside(const char *path) {
    return log_fd >= 0 && !strncmp(path, folder, n_folder) && (path[n_folder] == '/' || !path[n_folder]);
}

static void opened(int fd, const char *path, int flags, int existed) {
    struct stat sb;
    if (fd < 0 || fd >= MAX_FD) return;
    ino_of[fd] = 0;
    is_folder[fd] = 0;
    if (!inside(path) || fstat(fd, &sb)) return;
    if (S_ISDIR(sb.st_mode)) is_folder[fd] = 1;
    if (!S_ISREG(sb.st_mode) || (flags & O_ACCMODE) == O_RDONLY) return;
    ino_of[fd] = sb.st_ino;
    int nameless = (flags & __O_TMPFILE) == __O_TMPFILE;
    note(NULL, 0, "O %llu %d %s\n", (unsigned long long)sb.st_ino, nameless || !existed,
         nameless ? "-" : path);
    if (flags & O_TRUNC && existed) note(NULL, 0, "T %llu 0\n", (unsigned long long)sb.st_ino);
}

#define OPEN(name)                                                                                           \
    EXPORT int name(const char *path, int flags, ...) {                                                      \
        va_list ap;                                                                                          \
        va_start(ap, flags);                                                                                 \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;                              \
        va_end(ap);                                                                                          \
        pthread_mutex_lock(&mu);                                                                             \
        int existed = !access(path, F_OK), fd = NEXT(name)(path, flags, mode), e = errno;                    \
        opened(fd, path, flags, existed);                                                                    \
        pthread_mutex_unlock(&mu);                                                                           \
        errno = e;                                                                                           \
        return fd;                                                                                           \
    }
OPEN(open)
OPEN(open64)

EXPORT int close(int fd) {
    if (fd >= 0 && fd < MAX_FD) {
        ino_of[fd] = 0;
        is_folder[fd] = 0;
    }
    return NEXT(close)(fd);
}

EXPORT int dup(int fd) {
    int to = NEXT(dup)(fd);
    if (fd >= 0 && fd < MAX_FD && to >= 0 && to < MAX_FD) ino_of[to] = ino_of[fd];
    return to;
}

static unsigned long long known(int fd) { return log_fd >= 0 && fd >= 0 && fd < MAX_FD ? ino_of[fd] : 0; }

static void wrote(int fd, const void *data, ssize_t n, off_t at) {
    if (n > 0) note(data, (size_t)n, "W %llu %lld %zd\n", known(fd), (long long)at, n);
}

EXPORT ssize_t write(int fd, const void *data, size_t n) {
    if (!known(fd)) return NEXT(write)(fd, data, n);
    pthread_mutex_lock(&mu);
    ssize_t done = NEXT(write)(fd, data, n);
    wrote(fd, data, done, lseek(fd, 0, SEEK_CUR) - (done > 0 ? done : 0));
    pthread_mutex_unlock(&mu);
    return done;
}

#define PWRITE(name, type)                                                                                   \
    EXPORT ssize_t name(int fd, const void *data, size_t n, type off) {                                      \
        if (!known(fd)) return NEXT(name)(fd, data, n, off);                                                 \
        pthread_mutex_lock(&mu);                                                                             \
        ssize_t done = NEXT(name)(fd, data, n, off);                                                         \
        wrote(fd, data, done, (off_t)off);                                                                   \
        pthread_mutex_unlock(&mu);                                                                           \
        return done;                                                                                         \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define TRUNCATE(name, type)                                                                                 \
    EXPORT int name(int fd, type n) {                                                                        \
        pthread_mutex_lock(&mu);                                                                             \
        int rc = NEXT(name)(fd, n);                                                                          \
        if (!rc && known(fd)) note(NULL, 0, "T %llu %lld\n", known(fd), (long long)n);                       \
        pthread_mutex_unlock(&mu);                                                                           \
        return rc;                                                                                           \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

static void synced(int fd) {
    char self[64], path[4096];
    if (known(fd)) note(NULL, 0, "S %llu\n", known(fd));
    else if (fd >= 0 && fd < MAX_FD && is_folder[fd]) {
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(self, path, sizeof path - 1);
        if (n > 0) note(NULL, 0, "D %.*s\n", (int)n, path);
    }
}

#define SYNC(name)                                                                                           \
    EXPORT int name(int fd) {                                                                                \
        pthread_mutex_lock(&mu);                                                                             \
        int rc = NEXT(name)(fd);                                                                             \
        if (!rc) synced(fd);                                                                                 \
        pthread_mutex_unlock(&mu);                                                                           \
        return rc;                                                                                           \
    }
SYNC(fsync)
SYNC(fdatasync)

static void renamed(const char *a, const char *b) {
    if (inside(a) && inside(b)) note(NULL, 0, "R %s %s\n", a, b);
}

EXPORT int rename(const char *a, const char *b) {
    pthread_mutex_lock(&mu);
    int rc = NEXT(rename)(a, b);
    if (!rc) renamed(a, b);
    pthread_mutex_unlock(&mu);
    return rc;
}

EXPORT int renameat2(int da, const char *a, int db, const char *b, unsigned flags) {
    pthread_mutex_lock(&mu);
    int rc = NEXT(renameat2)(da, a, db, b, flags);
    if (!rc) renamed(a, b);
    pthread_mutex_unlock(&mu);
    return rc;
}

EXPORT int linkat(int da, const char *a, int db, const char *b, int flags) {
    struct stat sb;
    pthread_mutex_lock(&mu);
    int rc = NEXT(linkat)(da, a, db, b, flags);
    if (!rc && inside(b) && !stat(b, &sb)) note(NULL, 0, "L %llu %s\n", (unsigned long long)sb.st_ino, b);
    pthread_mutex_unlock(&mu);
    return rc;
}

EXPORT int unlink(const char *path) {
    pthread_mutex_lock(&mu);
    int rc = NEXT(unlink)(path);
    if (!rc && inside(path)) note(NULL, 0, "U %s\n", path);
    pthread_mutex_unlock(&mu);
    return rc;
}

/* A stream whose writes are ours. */
static ssize_t to_fd(void *user, const char *data, size_t n) {
    size_t done = 0;
    while (done < n) {
        ssize_t k = write((int)(long)user, data + done, n - done);
        if (k <= 0) return done ? (ssize_t)done : 0;
        done += (size_t)k;
    }
    return (ssize_t)done;
}
static int seek_fd(void *user, off64_t *off, int whence) {
    off64_t at = lseek64((int)(long)user, *off, whence);
    if (at < 0) return -1;
    *off = at;
    return 0;
}
static int close_fd(void *user) { return close((int)(long)user); }

EXPORT FILE *fdopen(int fd, const char *mode) {
    if (!known(fd) || *mode == 'r') return NEXT(fdopen)(fd, mode);
    const cookie_io_functions_t io = {.write = to_fd, .seek = seek_fd, .close = close_fd};
    return fopencookie((void *)(long)fd, mode, io);
}
