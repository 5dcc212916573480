/* server/tls.h - clients that speak TLS, in front of the gate (gate.h).
 *
 *   accepted -> handshake -> one end of a pair of sockets is the gate's, and the plain text goes through it -> closed
 *
 * One thread accepts connections, shakes hands and carries bytes both ways: the gate and the server read plain HTTP
 * from the pair, as from a connection of their own. Nobody waits for another: a slow handshake costs a descriptor and
 * has 10 s in all, a client that does not read stops its own answer. Where all links are taken, the oldest handshake
 * gives way, of the newcomer's address where that has three quarters of them. */
#ifndef TN_SERVER_TLS_H
#define TN_SERVER_TLS_H

#include "base/status.h"

#include <sys/socket.h>
#include <sys/types.h>

enum {
    TN_TLS_LINKS = 384,
    TN_TLS_HELLO_S = 10,          /* a handshake, in all */
    TN_TLS_REST_S = 10,           /* what the server has said is read by the client, after its end */
    TN_TLS_LINGER_S = 2,          /* what a client sends after the end is read and dropped */
    TN_TLS_PAIR_BYTES = 64 << 10, /* of an answer, between the server and the link */
    TN_TLS_DROP_BYTES = 16 << 20, /* dropped at most */
};

typedef struct tn_tls tn_tls;

typedef struct tn_tls_options {
    int fd;                 /* listens; taken on success */
    const char *cert, *key; /* PEM texts: the certificate with those that signed it, its private key */
    /* Gives the server the plain end of a connection: takes fd. a is the client's address. false: it cannot, and has
     * closed it. wire is the connection itself, borrowed. */
    bool (*take)(void *user, int fd, int wire, const struct sockaddr *a, socklen_t n);
    void *user;
} tn_tls_options;

/* TERN_E_UNSUPPORTED: this build has no TLS. TERN_E_INVALID: the texts are no certificate and its key. */
tern_status tn_tls_check(const char *cert, const char *key, tern_error *err);
tern_status tn_tls_open(const tn_tls_options *o, tn_tls **out, tern_error *err);
/* Nobody is accepted before. */
tern_status tn_tls_begin(tn_tls *t, tern_error *err);
/* Nobody new is accepted; the other connections go on. NULL-safe, as is the next. */
void tn_tls_stop(tn_tls *t);
/* After the server has closed its ends: sends what is left, for TN_TLS_LINGER_S at most. */
void tn_tls_close(tn_tls **t);

#endif
