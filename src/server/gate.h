/* server/gate.h - who comes in: connections before, between and after their requests.
 *
 *   accepted -> hall: its first request's head comes -> a place: read, answered, idle, read... -> left -> closed
 *
 * One thread accepts connections and keeps them in the hall, where a connection costs a descriptor and no more,
 * until the head of a request is whole. Only then does it get a place, of which there are 64: first those whose
 * request is whole already, so that who drips bytes keeps nobody out. Where no place is left, an idle
 * connection is closed for the new one, or one whose body has been coming for two seconds, or one that does not
 * read its answer. 24 further places are for clients with a key and for /health, and no address has more than
 * three quarters of what there is. Every part of a request has its time, however often a byte comes. Who is not
 * let in reads 503 with Retry-After, who was too slow 408; what it still sends is read and dropped for a while,
 * because closing at once would reset the connection and take the reply with it. */
#ifndef TN_SERVER_GATE_H
#define TN_SERVER_GATE_H

#include "base/status.h"

#include <sys/socket.h>

enum {
    TN_GATE_PLACES = 64,
    TN_GATE_BODIES = 24, /* of them: requests whose bodies have not come yet */
    TN_GATE_KEYS = 16,   /* further places for clients with a key */
    TN_GATE_HEALTH = 8,  /* and for /health */
    TN_GATE_HALL = 256,
    TN_GATE_HEAD = 32 << 10,         /* bytes */
    TN_GATE_KERNEL_BYTES = 32 << 10, /* of an answer that is not read; the kernel takes twice that */
};
/* Seconds: until a head is whole, a request, an idle connection closes, a body gives way to others, an
 * answer that is not read does, somebody waits for a place, what a client sends in vain is read. */
enum {
    TN_GATE_HEAD_S = 10,
    TN_GATE_REQUEST_S = 60,
    TN_GATE_IDLE_S = 30,
    TN_GATE_PRESSED_S = 2,
    TN_GATE_UNREAD_S = 5,
    TN_GATE_WAIT_S = 10,
    TN_GATE_LINGER_S = 2
};

typedef struct tn_gate tn_gate;
typedef struct tn_guest tn_guest; /* a connection that has a place */

typedef struct tn_gate_options {
    int fd;        /* listens; taken. -1: connections come by tn_gate_take alone */
    size_t n_hall; /* 0: TN_GATE_HALL */
    /* Gives the connection a place: takes fd. Soon somebody calls tn_gate_began with it, and tn_gate_left when it
     * is closed. false: it cannot, and has closed it. Called by the gate's thread. */
    bool (*enter)(void *user, int fd, const struct sockaddr *a, socklen_t n);
    /* Tells whether the head of a request, n bytes, shows one of the server's keys. NULL: it has none. */
    bool (*is_known)(void *user, const char *head, size_t n);
    void *user;
    int64_t (*now_ns)(void *user); /* NULL: the monotonic clock */
} tn_gate_options;

/* Nobody is let in before tn_gate_begin. */
tern_status tn_gate_open(const tn_gate_options *o, tn_gate **out, tern_error *err);
tern_status tn_gate_begin(tn_gate *g, tern_error *err);
/* A connection that somebody else accepted: takes fd, which may be one end of a pair of sockets. a is the client's
 * address, uid whose program it is; -1: the kernel tells it of fd. false: there is no room, and fd is closed. Any
 * thread. */
bool tn_gate_take(tn_gate *g, int fd, const struct sockaddr *a, socklen_t n, int64_t uid);
/* Nobody new is accepted; whole requests of the hall are let in. */
void tn_gate_stop(tn_gate *g);
/* How many requests are whole and not answered; how many connections are in the hall, and how many of them wait
 * for a place. */
typedef struct tn_gate_counts {
    int busy, hall, waiting;
} tn_gate_counts;
tn_gate_counts tn_gate_count(tn_gate *g);
/* Nobody is let in any more. */
void tn_gate_end(tn_gate *g);
/* After everybody who was let in has left, and the gate has ended: closes all connections. */
void tn_gate_empty(tn_gate *g);
void tn_gate_close(tn_gate **g);
/* For tests with a clock of their own: looks at everybody again. */
void tn_gate_wake(tn_gate *g);

/* Any thread. The connection of enter's fd has begun; NULL: it was given up before. */
tn_guest *tn_gate_began(tn_gate *g, int fd);
/* What tn_gate_take was told of it; -1: nothing. */
int64_t tn_gate_uid(const tn_guest *g);
/* Of a request's life. A head has come, and its body comes. */
void tn_gate_reading(tn_guest *g);
/* The request is whole. false: it was too slow and has been refused, so it is not to be answered. */
bool tn_gate_answering(tn_guest *g);
/* It is answered, and the connection waits for another. */
void tn_gate_idle(tn_guest *g);
/* The connection is closed; the guest is no more. */
void tn_gate_left(tn_guest *g);

/* The value of a header in a request's head, where it has it: what stands between the colon and the line's end,
 * without spaces. Returns NULL or its beginning, with *n bytes. */
const char *tn_gate_header(const char *head, size_t n_head, const char *name, size_t *n);

#endif
