/* What POSIX declares here: Windows has no limit of descriptors that a program could raise. */
#ifndef TN_BASE_WINDOWS_RESOURCE_H
#define TN_BASE_WINDOWS_RESOURCE_H

#include <errno.h>

typedef unsigned long long rlim_t;
struct rlimit {
    rlim_t rlim_cur, rlim_max;
};
#define RLIMIT_NOFILE 7

static inline int getrlimit(int what, struct rlimit *l) {
    (void)what;
    *l = (struct rlimit){0};
    errno = ENOSYS;
    return -1;
}

static inline int setrlimit(int what, const struct rlimit *l) {
    (void)what, (void)l;
    errno = ENOSYS;
    return -1;
}

#endif
