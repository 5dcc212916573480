/* server/peer.h - whose program is at the other end of a connection within this machine.
 *
 * The kernel knows the user of every socket: it is asked by netlink (sock_diag(7)), or where that is not to be had
 * in /proc/self/net/tcp. A socket that its program has closed belongs to nobody. */
#ifndef TN_SERVER_PEER_H
#define TN_SERVER_PEER_H

#include "base/status.h"

#include <sys/types.h>

typedef struct tn_peers tn_peers;

enum { TN_PEERS_NETLINK = 1, TN_PEERS_FILES = 2, TN_PEERS_ANY = 3 };

/* Before the sandbox, which opens no sockets. The ways are tried with a connection of its own; TERN_E_UNSUPPORTED:
 * this kernel does not tell. */
tern_status tn_peers_open(int ways, tn_peers **out, tern_error *err);
void tn_peers_close(tn_peers **p);

/* The user at the other end of a connected socket. false: it is nobody's any more, or on another machine. Any
 * thread. */
bool tn_peers_uid(tn_peers *p, int fd, uid_t *uid);

#endif
