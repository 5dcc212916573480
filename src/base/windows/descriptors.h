/* base/windows/descriptors.h - what posix.c asks of sockets.c, where a descriptor is no file's. */
#ifndef TN_BASE_WINDOWS_DESCRIPTORS_H
#define TN_BASE_WINDOWS_DESCRIPTORS_H

#include "base/windows/posix.h"

enum {
    TN_WIN_SOCKETS_FROM = 0x40000000,
    TN_WIN_EPOLLS_FROM = 0x20000000,
    TN_WIN_POLLIN = 1,
    TN_WIN_POLLERR = 8,
    TN_WIN_POLLHUP = 16,
    TN_WIN_POLLRDHUP = 0x2000
};

int tn_win_socket_close(int fd);
void tn_win_epoll_close(int epoll);
ssize_t tn_win_socket_read(int fd, void *to, size_t n);
ssize_t tn_win_socket_write(int fd, const void *from, size_t n);
int tn_win_socket_copy(int fd);
int tn_win_socket_flags(int fd); /* from now on nobody waits for it */
int tn_win_socket_poll(struct tn_win_pollfd *p, int ms);

#endif
