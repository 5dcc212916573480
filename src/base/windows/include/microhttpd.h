/* The library's own header, with sockets as descriptors (base/windows/sockets.h). */
#ifndef TN_BASE_WINDOWS_MICROHTTPD_H
#define TN_BASE_WINDOWS_MICROHTTPD_H

#include "base/windows/sockets.h"

#include_next <microhttpd.h>

SOCKET tn_win_handle_of(int fd);
int tn_win_descriptor_of(uintptr_t s);

#define MHD_USE_POLL 0 /* it has only select there, which is enough for a thread of each connection */

union tn_win_connection_info {
    int connect_fd;
    struct sockaddr *client_addr;
    void *socket_context;
};

/* Stays until the thread asks again. */
static inline const union tn_win_connection_info *tn_win_connection_info(struct MHD_Connection *c,
                                                                         enum MHD_ConnectionInfoType what) {
    static _Thread_local union tn_win_connection_info out;
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, what);
    if (!i) return NULL;
    if (what == MHD_CONNECTION_INFO_CONNECTION_FD) out.connect_fd = tn_win_descriptor_of(i->connect_fd);
    else if (what == MHD_CONNECTION_INFO_CLIENT_ADDRESS) out.client_addr = i->client_addr;
    else out.socket_context = i->socket_context;
    return &out;
}

static inline enum MHD_Result tn_win_add_connection(struct MHD_Daemon *d, int fd, const struct sockaddr *a,
                                                    socklen_t n) {
    return MHD_add_connection(d, tn_win_handle_of(fd), a, n);
}

#define MHD_ConnectionInfo tn_win_connection_info
#define MHD_get_connection_info tn_win_connection_info
#define MHD_add_connection tn_win_add_connection

#endif
