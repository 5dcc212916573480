#include "documents/pipes.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TELLS_ERRORS = 1 }; /* what the sanitizer finds */
#else
enum { TELLS_ERRORS = 0 };
#endif

bool tn_pipe_write(int fd, const void *p, size_t n) {
    for (const char *at = p; n;) {
        ssize_t k = write(fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

bool tn_pipe_read_all(int fd, void *p, size_t n) {
    for (char *at = p; n;) {
        ssize_t k = read(fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

bool tn_pipe_read(int fd, void *p, size_t n, int64_t end_ns) {
    for (char *at = p; n;) {
        int64_t left_ms = (end_ns - tn_now_ns() + 999999) / 1000000; /* not before its time */
        if (left_ms <= 0) return false;
        int rc =
            poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, left_ms < 60000 ? (int)left_ms : 60000);
        if (rc < 0 && errno != EINTR) return false;
        if (rc <= 0) continue;
        ssize_t k = read(fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

static void close_all(unsigned from, unsigned to) {
    if (from > to || !syscall(SYS_close_range, from, to, 0)) return;
    long last = sysconf(_SC_OPEN_MAX); /* a kernel before 5.9 */
    for (long fd = from; fd <= (long)to && fd < last; fd++) close((int)fd);
}

void tn_pipe_keep(int *pa, int *pb) {
    const int a = *pa > 2 ? *pa
                          : (*pa = fcntl(*pa, F_DUPFD_CLOEXEC, 3)), /* who starts it without a terminal */
        b = pb == pa  ? a
            : *pb > 2 ? *pb
                      : (*pb = fcntl(*pb, F_DUPFD_CLOEXEC, 3));
    if (a < 0 || b < 0) _exit(1);
    const unsigned low = (unsigned)(a < b ? a : b), high = (unsigned)(a < b ? b : a);
    close_all(3, low - 1);
    close_all(low + 1, high - 1);
    close_all(high + 1, UINT_MAX);
    int none = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < (TELLS_ERRORS ? 2 : 3); fd++) {
        if (none >= 0) (void)dup2(none, fd);
        else close(fd);
    }
    if (none > 2) close(none);
}
