/* base/windows/sockets.c - sockets, epoll and eventfd over Winsock, as base/windows/sockets.h tells. */
#include "base/windows/sockets.h"

#include "base/windows/descriptors.h"

#undef socket
#undef bind
#undef listen
#undef getsockname
#undef getsockopt
#undef setsockopt
#undef recv
#undef send
#undef shutdown
#undef poll
#undef pollfd

enum { MAX_SETS = 8, STALE_MS = 20 };

/* ---- sockets ------------------------------------------------------------------------------------------- */

static int errno_of(int e) {
    switch (e) {
    case WSAEWOULDBLOCK: return EWOULDBLOCK;
    case WSAEINTR: return EINTR;
    case WSAEADDRINUSE: return EADDRINUSE;
    case WSAEADDRNOTAVAIL: return EADDRNOTAVAIL;
    case WSAEACCES: return EACCES;
    case WSAEMFILE: return EMFILE;
    case WSAENOBUFS: return ENOBUFS;
    case WSAECONNABORTED: return ECONNABORTED;
    case WSAECONNRESET: return ECONNRESET;
    case WSAENOTCONN:
    case WSAESHUTDOWN: return EPIPE;
    case WSAENOTSOCK: return EBADF;
    case WSAEAFNOSUPPORT: return EAFNOSUPPORT;
    case WSAENOPROTOOPT:
    case WSAEINVAL:
    case WSAEFAULT: return EINVAL;
    }
    return EIO;
}

static int failed(void) {
    errno = errno_of(WSAGetLastError());
    return -1;
}

SOCKET tn_win_handle_of(int fd) { return (SOCKET)(fd & (TN_WIN_SOCKET - 1)); }

/* Handles are small numbers: Windows keeps them within 32 bits, and a process has not hundreds of millions. */
int tn_win_descriptor_of(uintptr_t s) {
    if (s == INVALID_SOCKET) return failed();
    if (s < TN_WIN_SOCKET) return (int)s | TN_WIN_SOCKET;
    closesocket((SOCKET)s);
    errno = EMFILE;
    return -1;
}

static void begin(void) {
    WSADATA about;
    (void)WSAStartup(MAKEWORD(2, 2), &about); /* where it fails, so does every socket */
}

int tn_win_socket(int family, int type, int protocol) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    const int kind = type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK);
    const DWORD flags = WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT;
    return tn_win_descriptor_of(WSASocketW(family, kind, protocol, NULL, 0, flags));
}

int tn_win_bind(int fd, const struct sockaddr *a, socklen_t n) {
    return bind(tn_win_handle_of(fd), a, n) ? failed() : 0;
}

int tn_win_listen(int fd, int backlog) { return listen(tn_win_handle_of(fd), backlog) ? failed() : 0; }

static int set_not_waiting(SOCKET s) {
    u_long on = 1;
    return ioctlsocket(s, (long)FIONBIO, &on) ? failed() : 0;
}

int tn_win_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags) {
    SOCKET s = accept(tn_win_handle_of(fd), a, n);
    if (s == INVALID_SOCKET) return failed();
    (void)SetHandleInformation((HANDLE)s, HANDLE_FLAG_INHERIT, 0);
    if (flags & SOCK_NONBLOCK && set_not_waiting(s)) {
        closesocket(s);
        return -1;
    }
    return tn_win_descriptor_of(s);
}

int tn_win_getsockname(int fd, struct sockaddr *a, socklen_t *n) {
    return getsockname(tn_win_handle_of(fd), a, n) ? failed() : 0;
}

int tn_win_getsockopt(int fd, int level, int name, void *value, socklen_t *n) {
    if (level == IPPROTO_TCP) { /* TCP_INFO, which Windows has not in this form */
        errno = EINVAL;
        return -1;
    }
    return getsockopt(tn_win_handle_of(fd), level, name, value, n) ? failed() : 0;
}

/* SO_REUSEADDR lets another program take the port away there; what it means elsewhere, an address that was in use a
 * moment ago, is always so. The port is ours alone instead. */
int tn_win_setsockopt(int fd, int level, int name, const void *value, socklen_t n) {
    const bool reuse = level == SOL_SOCKET && name == SO_REUSEADDR;
    const int rc = setsockopt(tn_win_handle_of(fd), level, reuse ? (int)SO_EXCLUSIVEADDRUSE : name, value, n);
    return rc && !reuse ? failed() : 0;
}

ssize_t tn_win_send(int fd, const void *from, size_t n, int flags) {
    const int k = send(tn_win_handle_of(fd), from, n < 1u << 30 ? (int)n : 1 << 30, flags & ~MSG_DONTWAIT);
    return k < 0 ? failed() : k;
}

int tn_win_shutdown(int fd, int how) { return shutdown(tn_win_handle_of(fd), how) ? failed() : 0; }

/* A second descriptor of the same connection. */
int tn_win_socket_copy(int fd) {
    WSAPROTOCOL_INFOW about;
    if (WSADuplicateSocketW(tn_win_handle_of(fd), GetCurrentProcessId(), &about)) return failed();
    return tn_win_descriptor_of(WSASocketW(FROM_PROTOCOL_INFO, FROM_PROTOCOL_INFO, FROM_PROTOCOL_INFO, &about,
                                           0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT));
}

int tn_win_socket_flags(int fd) { return set_not_waiting(tn_win_handle_of(fd)); }

int tn_win_socket_poll(struct tn_win_pollfd *p, int ms) {
    WSAPOLLFD w = {.fd = tn_win_handle_of(p->fd), .events = POLLRDNORM};
    const int n = WSAPoll(&w, 1, ms);
    p->revents = 0;
    if (n <= 0) return n ? failed() : 0;
    if (w.revents & POLLRDNORM) p->revents |= TN_WIN_POLLIN;
    if (w.revents & TN_WSA_HUP) p->revents |= TN_WIN_POLLHUP | TN_WIN_POLLRDHUP;
    if (w.revents & (TN_WSA_ERR | TN_WSA_NVAL)) p->revents |= TN_WIN_POLLERR;
    return p->revents != 0;
}

int tn_win_eventfd(unsigned value, int flags) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    (void)value, (void)flags;
    const int fd = tn_win_socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0) return -1;
    const SOCKET s = tn_win_handle_of(fd);
    if (!bind(s, (struct sockaddr *)&a, n) && !getsockname(s, (struct sockaddr *)&a, &n) &&
        !connect(s, (struct sockaddr *)&a, n) && !set_not_waiting(s))
        return fd;
    failed();
    closesocket(s);
    return -1;
}

/* ---- epoll --------------------------------------------------------------------------------------------- */

typedef struct watched {
    int fd;
    struct epoll_event e;
    bool told; /* at its edge: with so many bytes, and whether the other end had gone */
    u_long n_bytes;
    bool gone;
} watched;

typedef struct set {
    bool used;
    watched *all;
    size_t n, cap;
} set;

static struct {
    pthread_mutex_t mu;
    set sets[MAX_SETS]; /* guarded by mu, as are their lists */
} ep = {.mu = PTHREAD_MUTEX_INITIALIZER};

int tn_win_epoll_create1(int flags) {
    int fd = -1;
    (void)flags;
    pthread_mutex_lock(&ep.mu);
    for (int i = 0; i < MAX_SETS && fd < 0; i++)
        if (!ep.sets[i].used) ep.sets[i] = (set){.used = true}, fd = TN_WIN_EPOLL | i;
    pthread_mutex_unlock(&ep.mu);
    if (fd < 0) errno = EMFILE;
    return fd;
}

static set *set_of(int epoll) { return &ep.sets[epoll & (MAX_SETS - 1)]; }

void tn_win_epoll_close(int epoll) {
    pthread_mutex_lock(&ep.mu);
    free(set_of(epoll)->all);
    *set_of(epoll) = (set){0};
    pthread_mutex_unlock(&ep.mu);
}

static bool take_out(set *s, int fd) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->all[i].fd != fd) continue;
        s->all[i] = s->all[--s->n];
        return true;
    }
    return false;
}

static bool put_in(set *s, int fd, const struct epoll_event *e) {
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 64;
        watched *all = realloc(s->all, cap * sizeof *all);
        if (!all) return false;
        s->all = all;
        s->cap = cap;
    }
    s->all[s->n++] = (watched){.fd = fd, .e = *e};
    return true;
}

int tn_win_epoll_ctl(int epoll, int what, int fd, const struct epoll_event *e) {
    pthread_mutex_lock(&ep.mu);
    set *s = set_of(epoll);
    const bool ok = what == EPOLL_CTL_ADD ? put_in(s, fd, e) : take_out(s, fd);
    pthread_mutex_unlock(&ep.mu);
    if (!ok) errno = what == EPOLL_CTL_ADD ? ENOMEM : ENOENT;
    return ok ? 0 : -1;
}

/* A closed descriptor leaves every set: its number may be another connection's in a moment. */
int tn_win_socket_close(int fd) {
    pthread_mutex_lock(&ep.mu);
    for (int i = 0; i < MAX_SETS; i++) (void)take_out(&ep.sets[i], fd);
    pthread_mutex_unlock(&ep.mu);
    return closesocket(tn_win_handle_of(fd)) ? failed() : 0;
}

/* Who reads wants to hear of what comes after, however much it is. */
ssize_t tn_win_recv(int fd, void *to, size_t n, int flags) {
    if (!(flags & MSG_PEEK)) {
        pthread_mutex_lock(&ep.mu);
        for (int i = 0; i < MAX_SETS; i++)
            for (size_t k = 0; k < ep.sets[i].n; k++)
                if (ep.sets[i].all[k].fd == fd) ep.sets[i].all[k].told = false;
        pthread_mutex_unlock(&ep.mu);
    }
    const int k = recv(tn_win_handle_of(fd), to, n < 1u << 30 ? (int)n : 1 << 30, flags & ~MSG_DONTWAIT);
    return k < 0 ? failed() : k;
}

ssize_t tn_win_socket_read(int fd, void *to, size_t n) { return tn_win_recv(fd, to, n, 0); }
ssize_t tn_win_socket_write(int fd, const void *from, size_t n) { return tn_win_send(fd, from, n, 0); }

/* What a socket has to say now, or nothing where that was told. */
static uint32_t news_of(watched *w, short revents) {
    char first;
    if (!(revents & (POLLRDNORM | TN_WSA_HUP | TN_WSA_ERR))) {
        w->told = false;
        return 0;
    }
    if (!(w->e.events & EPOLLET)) return EPOLLIN;
    u_long n = 0;
    const SOCKET s = tn_win_handle_of(w->fd);
    bool gone = (revents & (TN_WSA_HUP | TN_WSA_ERR)) != 0;
    (void)ioctlsocket(s, FIONREAD, &n);
    if (!n && !gone) gone = recv(s, &first, 1, MSG_PEEK) == 0; /* readable, and nothing is there: the end */
    if (w->told && w->n_bytes == n && w->gone == gone) return 0;
    w->told = true;
    w->n_bytes = n;
    w->gone = gone;
    return EPOLLIN | (gone ? EPOLLRDHUP : 0);
}

/* One look at those that were not told yet (or at the others), for at most ms. Returns events, or -1. */
static int look(int epoll, bool stale, struct epoll_event *e, int max, int ms) {
    pthread_mutex_lock(&ep.mu);
    const set *s = set_of(epoll);
    WSAPOLLFD *p = malloc((s->n + 1) * sizeof *p);
    ULONG n = 0;
    for (size_t i = 0; p && i < s->n; i++)
        if (s->all[i].told == stale)
            p[n++] = (WSAPOLLFD){.fd = tn_win_handle_of(s->all[i].fd), .events = POLLRDNORM};
    pthread_mutex_unlock(&ep.mu);
    if (p && !n && ms > 0) Sleep((DWORD)ms);
    const int ready = p && n ? WSAPoll(p, n, ms) : 0;
    int out = 0;
    pthread_mutex_lock(&ep.mu);
    s = set_of(epoll);
    for (ULONG k = 0; ready > 0 && k < n; k++)
        for (size_t i = 0; i < s->n; i++) {
            if (tn_win_handle_of(s->all[i].fd) != p[k].fd || out == max) continue;
            const uint32_t news = news_of(&s->all[i], p[k].revents);
            if (news) e[out++] = (struct epoll_event){.events = news, .data = s->all[i].e.data};
        }
    pthread_mutex_unlock(&ep.mu);
    free(p);
    if (!p) errno = ENOMEM;
    return p && ready >= 0 ? out : p ? failed() : -1;
}

static bool any_stale(int epoll) {
    bool any = false;
    pthread_mutex_lock(&ep.mu);
    const set *s = set_of(epoll);
    for (size_t i = 0; i < s->n && !any; i++) any = s->all[i].told;
    pthread_mutex_unlock(&ep.mu);
    return any;
}

int tn_win_epoll_wait(int epoll, struct epoll_event *e, int max, int ms) {
    for (int64_t left = ms < 0 ? INT64_MAX : ms;;) {
        const int stale = any_stale(epoll) ? look(epoll, true, e, max, 0) : 0;
        if (stale) return stale;
        const int slice = any_stale(epoll) ? STALE_MS : 250; /* a bell that is rung is among the others */
        const int n = look(epoll, false, e, max, slice < left ? slice : (int)left);
        left -= slice;
        if (n || left <= 0) return n;
    }
}
