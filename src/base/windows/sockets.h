/* base/windows/sockets.h - sockets as descriptors, as tern's server uses them; <sys/socket.h> and its kin bring it.
 *
 * A socket of Windows is no file of the C runtime. Its descriptor is its handle with a bit that no file's number has
 * (TN_WIN_SOCKET), so close, read, write, poll and fcntl of posix.h know which they have. epoll is a list that WSAPoll
 * goes through: what was reported at an edge is left alone until more comes, somebody reads, or the other end goes.
 * eventfd is a datagram socket that is connected to itself. errno holds what POSIX has for Winsock's errors. */
#ifndef TN_BASE_WINDOWS_SOCKETS_H
#define TN_BASE_WINDOWS_SOCKETS_H

#undef pollfd                /* Winsock has one of its own */
#define LINGER tn_win_LINGER /* and names that others have, too */
#include <winsock2.h>
#include <ws2tcpip.h>
#undef LINGER

/* What windows.h takes of everybody's names. */
#undef IN
#undef OUT
#undef ERROR
#undef near
#undef far
#undef small
#undef interface
#undef min
#undef max
/* Its own poll has another struct and other numbers. */
#define pollfd tn_win_pollfd
enum { TN_WSA_ERR = POLLERR, TN_WSA_HUP = POLLHUP, TN_WSA_NVAL = POLLNVAL };
#undef POLLIN
#undef POLLOUT
#undef POLLERR
#undef POLLHUP
#define POLLIN 1
#define POLLOUT 4
#define POLLERR 8
#define POLLHUP 16

enum { TN_WIN_SOCKET = 0x40000000, TN_WIN_EPOLL = 0x20000000 };

typedef uint16_t in_port_t;

#define SOCK_CLOEXEC 0x80000 /* no socket is handed down here */
#define SOCK_NONBLOCK 0x800
#define MSG_NOSIGNAL 0       /* there is no such signal */
#define MSG_DONTWAIT 0x40000 /* the socket does not wait as it is: every one that is accepted here */
#define SHUT_WR SD_SEND
#define SHUT_RDWR SD_BOTH

int tn_win_socket(int family, int type, int protocol);
int tn_win_bind(int fd, const struct sockaddr *a, socklen_t n);
int tn_win_listen(int fd, int backlog);
int tn_win_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags);
int tn_win_getsockname(int fd, struct sockaddr *a, socklen_t *n);
int tn_win_getsockopt(int fd, int level, int name, void *value, socklen_t *n);
int tn_win_setsockopt(int fd, int level, int name, const void *value, socklen_t n);
ssize_t tn_win_recv(int fd, void *to, size_t n, int flags);
ssize_t tn_win_send(int fd, const void *from, size_t n, int flags);
int tn_win_shutdown(int fd, int how);

#define socket tn_win_socket
#define bind tn_win_bind
#define listen tn_win_listen
#define accept4 tn_win_accept4
#define getsockname tn_win_getsockname
#define getsockopt tn_win_getsockopt
#define setsockopt tn_win_setsockopt
#define recv tn_win_recv
#define send tn_win_send
#define shutdown tn_win_shutdown

struct epoll_event {
    uint32_t events;
    union {
        uint64_t u64;
    } data;
};
#define EPOLL_CLOEXEC 0
#define EPOLL_CTL_ADD 1
#define EPOLL_CTL_DEL 2
#define EPOLLIN 1u
#define EPOLLERR 8u
#define EPOLLHUP 16u
#define EPOLLRDHUP 0x2000u
#define EPOLLET 0x80000000u
int tn_win_epoll_create1(int flags);
int tn_win_epoll_ctl(int epoll, int what, int fd, const struct epoll_event *e);
int tn_win_epoll_wait(int epoll, struct epoll_event *e, int max, int ms);
#define epoll_create1 tn_win_epoll_create1
#define epoll_ctl tn_win_epoll_ctl
#define epoll_wait tn_win_epoll_wait

#define EFD_CLOEXEC 0
#define EFD_NONBLOCK 0
int tn_win_eventfd(unsigned value, int flags);
#define eventfd tn_win_eventfd

/* Where Windows does not tell how much of an answer was not sent: getsockopt fails. */
#define TCP_INFO 11
struct tcp_info {
    uint32_t tcpi_notsent_bytes;
};
#define SIOCOUTQ 0x5411
/* How wide a console is is not asked either. */
#define TIOCGWINSZ 0x5413
struct winsize {
    unsigned short ws_row, ws_col;
};
static inline int tn_win_ioctl(int fd, int what, void *out) {
    (void)fd, (void)what, (void)out;
    errno = EINVAL;
    return -1;
}
#define ioctl tn_win_ioctl

#endif
