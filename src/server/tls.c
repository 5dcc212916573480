#include "server/tls.h"

#ifndef TERN_TLS

tern_status tn_tls_check(const char *cert, const char *key, tern_error *err) {
    (void)cert, (void)key;
    return tn_fail(
        err, TERN_E_UNSUPPORTED,
        "this tern was built without TLS: build it where GnuTLS is (libgnutls28-dev), or put a proxy "
        "in front");
}
tern_status tn_tls_open(const tn_tls_options *o, tn_tls **out, tern_error *err) {
    *out = NULL;
    return tn_tls_check(o->cert, o->key, err);
}
tern_status tn_tls_begin(tn_tls *t, tern_error *err) { return (void)t, (void)err, TERN_OK; }
void tn_tls_stop(tn_tls *t) { (void)t; }
void tn_tls_close(tn_tls **t) { *t = NULL; }

#else

#include "base/clock.h"
#include "libraries/library.h"
#include "server/gate.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BUFFER = 16 << 10, EVENTS = 64, TURNS = 16, LISTENER = -1, BELL = -2 };

/* HELLO: the handshake. OPEN: bytes go both ways. LINGER: all is sent, and the client may still be sending. */
typedef enum stage { FREE, HELLO, OPEN, LINGER } stage;

typedef struct half { /* bytes on their way in one direction */
    char *at;         /* [BUFFER] */
    size_t n, sent;
    bool ended; /* where they come from no more will */
    bool told;  /* and where they go knows it */
} half;

typedef struct line { /* a client's connection */
    int wire, plain;  /* the client's, the server's; -1: none */
    gnutls_session_t s;
    stage at;
    uint32_t life;
    bool first_seen; /* its first byte begins a handshake */
    bool again;      /* it had its turns, and has more to do */
    half in, out;    /* to the server, to the client */
    int64_t since;   /* of its stage, or the server has said all: */
    bool said_all;
    size_t dropped;
    struct sockaddr_storage a;
    socklen_t n_a;
} line;

/* All but stopping and closing is the thread's. */
struct tn_tls {
    tn_tls_options o;
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priority;
    int epoll, bell;
    pthread_t thread;
    bool begun, paused; /* paused: no descriptor was left, so nobody is accepted for a while */
    atomic_bool stopping, closing;
    int64_t closing_since;
    line lines[TN_TLS_LINKS];
};

/* ---- lines ------------------------------------------------------------------------------------------- */

static void drop_line(line *l) {
    if (l->s) gnutls_deinit(l->s);
    if (l->wire >= 0) close(l->wire); /* the poll set forgets them with their descriptors */
    if (l->plain >= 0) close(l->plain);
    free(l->in.at);
    *l = (line){.wire = -1, .plain = -1, .life = l->life + 1};
}

static void to_stage(line *l, stage at) {
    l->at = at;
    l->since = tn_now_ns();
}

static bool same_client(const line *a, const line *b) {
    if (a->a.ss_family != b->a.ss_family) return false;
    const void *x = &a->a, *y = &b->a;
    if (a->a.ss_family == AF_INET)
        return ((const struct sockaddr_in *)x)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)y)->sin_addr.s_addr;
    return a->a.ss_family != AF_INET6 || !memcmp(&((const struct sockaddr_in6 *)x)->sin6_addr,
                                                 &((const struct sockaddr_in6 *)y)->sin6_addr, 8);
}

/* A place for one who comes; NULL: everybody here has more right to theirs. */
static line *room_for(tn_tls *t, const line *newcomer) {
    line *oldest = NULL, *of_his = NULL, *gone = NULL;
    size_t n_his = 0;
    for (size_t i = 0; i < TN_TLS_LINKS; i++) {
        line *l = &t->lines[i];
        const bool his = l->at != FREE && same_client(l, newcomer);
        n_his += his;
        if (l->at == FREE) gone = l;
        if (l->at == LINGER || l->at == HELLO) {
            if (!oldest || l->since < oldest->since) oldest = l;
            if (his && (!of_his || l->since < of_his->since)) of_his = l;
        }
    }
    const bool crowded = n_his >= TN_TLS_LINKS * 3 / 4;
    if (gone && !crowded) return gone;
    line *give = crowded ? of_his : oldest;
    if (give) drop_line(give);
    return give;
}

static bool watch(const tn_tls *t, const line *l, int fd) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                            .data.u64 = (uint64_t)l->life << 32 | (uint64_t)(l - t->lines)};
    return !epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e);
}

static bool begin_session(tn_tls *t, line *l) {
    static const gnutls_datum_t http = {(unsigned char *)(uintptr_t) "http/1.1", 8};
    if (gnutls_init(&l->s, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0) {
        l->s = NULL;
        return false;
    }
    if (gnutls_priority_set(l->s, t->priority) < 0 ||
        gnutls_credentials_set(l->s, GNUTLS_CRD_CERTIFICATE, t->credentials) < 0)
        return false;
    (void)gnutls_alpn_set_protocols(l->s, &http, 1, 0);
    gnutls_transport_set_int(l->s, l->wire);
    return true;
}

static void come(tn_tls *t) {
    for (;;) {
        line n = {.plain = -1, .n_a = sizeof n.a};
        n.wire = accept4(t->o.fd, (struct sockaddr *)&n.a, &n.n_a, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (n.wire < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        t->paused = n.wire < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
        if (n.wire < 0) return;
        const int kernel_bytes = TN_GATE_KERNEL_BYTES;
        (void)setsockopt(n.wire, SOL_SOCKET, SO_SNDBUF, &kernel_bytes, sizeof kernel_bytes);
        line *l = room_for(t, &n);
        if (!l) {
            close(n.wire);
            continue;
        }
        n.life = l->life;
        *l = n;
        to_stage(l, HELLO);
        if (!begin_session(t, l) || !watch(t, l, l->wire)) drop_line(l);
    }
}

/* ---- the handshake ------------------------------------------------------------------------------------ */

/* Who speaks plain HTTP is told so in his own language. */
static void tell_plain(line *l) {
    static const char text[] =
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
        "121\r\n\r\n{\"error\":{\"message\":\"this server speaks TLS: ask https:// instead of "
        "http://\",\"type\":\"invalid_request_error\",\"code\":400}}";
    (void)!send(l->wire, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(l->wire, SHUT_WR);
    to_stage(l, LINGER);
}

/* false: no more will be done before the client sends more, or it was told what is wrong. */
static bool looks_like_tls(line *l) {
    unsigned char first;
    if (l->first_seen) return true;
    ssize_t n = recv(l->wire, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (n <= 0) {
        drop_line(l);
        return false;
    }
    if (first >= 'A' && first <= 'Z') {
        tell_plain(l);
        return false;
    }
    return l->first_seen = true;
}

/* The server gets its end. */
static bool open_line(tn_tls *t, line *l) {
    const int bytes = TN_TLS_PAIR_BYTES;
    int pair[2];
    if (!(l->in.at = malloc(2 * (size_t)BUFFER))) return false;
    l->out.at = l->in.at + BUFFER;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) return false;
    l->plain = pair[0];
    (void)setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (!watch(t, l, l->plain)) {
        close(pair[1]);
        return false;
    }
    to_stage(l, OPEN);
    return t->o.take(t->o.user, pair[1], l->wire, (const struct sockaddr *)&l->a, l->n_a);
}

static void shake_hands(tn_tls *t, line *l) {
    if (!looks_like_tls(l)) return;
    for (int i = 0; i < TURNS; i++) {
        int rc = gnutls_handshake(l->s);
        if (rc == GNUTLS_E_SUCCESS && !open_line(t, l)) drop_line(l);
        if (rc == GNUTLS_E_SUCCESS || rc == GNUTLS_E_AGAIN) return;
        if (!gnutls_error_is_fatal(rc)) continue; /* interrupted, or warned: once more */
        (void)gnutls_alert_send_appropriate(l->s, rc);
        shutdown(l->wire, SHUT_WR);
        to_stage(l, LINGER);
        return;
    }
    l->again = true;
}

/* ---- bytes -------------------------------------------------------------------------------------------- */

typedef enum went { NOTHING, SOME, BROKEN } went;

/* From the client to the server. */
static went inwards(line *l) {
    half *h = &l->in;
    went did = NOTHING;
    if (!h->n && !h->ended) {
        ssize_t n = gnutls_record_recv(l->s, h->at, BUFFER);
        if (n > 0) h->n = (size_t)n, h->sent = 0, did = SOME;
        else if (n == 0 || n == GNUTLS_E_PREMATURE_TERMINATION) h->ended = true, did = SOME;
        else if (n == GNUTLS_E_REHANDSHAKE)
            return BROKEN; /* nobody needs it, and it costs us more than them */
        else if (n != GNUTLS_E_AGAIN && n != GNUTLS_E_INTERRUPTED && gnutls_error_is_fatal((int)n))
            return BROKEN;
    }
    if (h->n) {
        ssize_t n = send(l->plain, h->at + h->sent, h->n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) h->n -= (size_t)n, h->sent += (size_t)n, did = SOME;
        else if (errno == EPIPE || errno == ECONNRESET)
            h->n = 0, did = SOME; /* the server reads no more of it */
    }
    if (h->ended && !h->n && !h->told) {
        shutdown(l->plain, SHUT_WR);
        h->told = true;
    }
    return did;
}

/* From the server to the client. What GnuTLS could not send it keeps, and wants to be asked with the same bytes. */
static went outwards(line *l) {
    half *h = &l->out;
    went did = NOTHING;
    if (!h->n && !h->ended) {
        ssize_t n = recv(l->plain, h->at, BUFFER, MSG_DONTWAIT);
        if (n > 0) h->n = (size_t)n, h->sent = 0, did = SOME;
        else if (n == 0 || errno == ECONNRESET) h->ended = true, did = SOME;
    }
    if (h->n) {
        ssize_t n = gnutls_record_send(l->s, h->at + h->sent, h->n);
        if (n > 0) h->n -= (size_t)n, h->sent += (size_t)n, did = SOME;
        else if (n != GNUTLS_E_AGAIN && n != GNUTLS_E_INTERRUPTED) return BROKEN;
    }
    if (h->ended && !h->n && !h->told) {
        int rc = gnutls_bye(l->s, GNUTLS_SHUT_WR);
        if (rc == GNUTLS_E_AGAIN || rc == GNUTLS_E_INTERRUPTED) return did;
        h->told = true;
        if (rc < 0) return BROKEN;
        shutdown(l->wire, SHUT_WR);
        close(l->plain);
        l->plain = -1;
        to_stage(l, LINGER);
    }
    return did;
}

/* Closing at once would reset the connection, and take what was sent with it. */
static void drop_rest(line *l) {
    char rest[4096];
    for (;;) {
        ssize_t n = recv(l->wire, rest, sizeof rest, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0 && errno == EINTR) continue;
        if (n > 0 && (l->dropped += (size_t)n) < TN_TLS_DROP_BYTES) continue;
        drop_line(l);
        return;
    }
}

/* Does what can be done for a line, and not for ever: others have their turns, too. */
static void serve(tn_tls *t, line *l) {
    l->again = false;
    if (l->at == HELLO) shake_hands(t, l);
    for (int i = 0; l->at == OPEN; i++) {
        if (i == TURNS) {
            l->again = true;
            return;
        }
        went a = inwards(l), b = a == BROKEN ? BROKEN : outwards(l);
        if (a == BROKEN || b == BROKEN) {
            drop_line(l);
            return;
        }
        if (a == NOTHING && b == NOTHING) return;
    }
    if (l->at == LINGER) drop_rest(l);
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* What waits may lie in front of the end: it is read when the client has read what is before it, if ever. */
static bool has_said_all(const line *l) {
    struct pollfd p = {.fd = l->plain, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

static void expire(tn_tls *t) {
    const int64_t now = tn_now_ns();
    for (size_t i = 0; i < TN_TLS_LINKS; i++) {
        line *l = &t->lines[i];
        if (l->at == OPEN && l->out.n && !l->said_all && has_said_all(l)) l->said_all = true, l->since = now;
        const int64_t limit = l->at == HELLO                 ? TN_TLS_HELLO_S
                              : l->at == LINGER              ? TN_TLS_LINGER_S
                              : l->at == OPEN && l->said_all ? TN_TLS_REST_S
                                                             : 0;
        if (limit && now - l->since >= limit * 1000000000ll) drop_line(l);
    }
}

/* Whether anybody has a limit, or waits for what no event will tell. Returns how long the thread may sleep, in ms. */
static int sleep_ms(const tn_tls *t) {
    int ms = t->paused || atomic_load(&t->closing) ? 250 : -1;
    for (size_t i = 0; i < TN_TLS_LINKS; i++) {
        const line *l = &t->lines[i];
        if (l->again) return 0;
        if (l->at == HELLO || l->at == LINGER || (l->at == OPEN && l->out.n)) ms = 250;
    }
    return ms;
}

/* At the end, when the server has closed its ends: whether somebody still has to get something. */
static bool is_over(const tn_tls *t) {
    if (!atomic_load(&t->closing)) return false;
    bool left = false;
    for (size_t i = 0; i < TN_TLS_LINKS; i++) left |= t->lines[i].at == OPEN || t->lines[i].at == LINGER;
    return !left || tn_now_ns() - t->closing_since >= TN_TLS_LINGER_S * 1000000000ll;
}

static void *keep(void *arg) {
    tn_tls *t = arg;
    struct epoll_event e[EVENTS];
    while (!is_over(t)) {
        const int n = epoll_wait(t->epoll, e, EVENTS, sleep_ms(t));
        bool newcomers = t->paused;
        for (int i = 0; i < n; i++) {
            const int32_t k = (int32_t)(uint32_t)e[i].data.u64;
            uint64_t rung;
            if (k == BELL) (void)!read(t->bell, &rung, sizeof rung);
            if (k == LISTENER) newcomers = true;
            line *l = k >= 0 ? &t->lines[k] : NULL;
            if (l && l->at != FREE && l->life == (uint32_t)(e[i].data.u64 >> 32)) serve(t, l);
        }
        for (size_t i = 0; i < TN_TLS_LINKS; i++)
            if (t->lines[i].again) serve(t, &t->lines[i]);
        if (newcomers && t->o.fd >= 0) come(t);
        if (atomic_load(&t->stopping) && t->o.fd >= 0) {
            close(t->o.fd);
            t->o.fd = -1;
        }
        expire(t);
    }
    return NULL;
}

static void ring(tn_tls *t) {
    for (int i = 0; i < 3 && write(t->bell, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno != EAGAIN; i++) {
    }
}

/* ---- from outside -------------------------------------------------------------------------------------- */

static bool listen_to(tn_tls *t, int fd, int as) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint32_t)as};
    return !epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* TLS 1.2 and 1.3, with the ciphers that the library holds for good. */
static tern_status load(tn_tls *t, const char *cert_pem, const char *key_pem, tern_error *err) {
    const gnutls_datum_t cert = {(unsigned char *)(uintptr_t)cert_pem, (unsigned)strlen(cert_pem)},
                         key = {(unsigned char *)(uintptr_t)key_pem, (unsigned)strlen(key_pem)};
    TN_TRY(tn_library_need(TN_LIBRARY_GNUTLS, err));
    TN_FAIL_IF(gnutls_priority_init(&t->priority, "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2", NULL) < 0 ||
                   gnutls_certificate_allocate_credentials(&t->credentials) < 0,
               err, TERN_E_MEMORY, "no memory for TLS");
    int rc = gnutls_certificate_set_x509_key_mem2(t->credentials, &cert, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
    TN_FAIL_IF(
        rc == GNUTLS_E_DECRYPTION_FAILED || rc == GNUTLS_E_INVALID_PASSWORD, err, TERN_E_INVALID,
        "the private key is encrypted, and nobody is asked for its password: want it plain, in a file that "
        "others may not read");
    TN_FAIL_IF(rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH, err, TERN_E_INVALID,
               "the certificate and the private key do not belong together");
    TN_FAIL_IF(rc < 0, err, TERN_E_INVALID,
               "these are no certificate and private key in PEM form (-----BEGIN ...): %s",
               gnutls_strerror(rc));
    return TERN_OK;
}

static void unload(tn_tls *t) {
    if (t->credentials) gnutls_certificate_free_credentials(t->credentials);
    if (t->priority) gnutls_priority_deinit(t->priority);
}

tern_status tn_tls_check(const char *cert, const char *key, tern_error *err) {
    tn_tls t = {.begun = false};
    tern_status st = load(&t, cert, key, err);
    unload(&t);
    return st;
}

tern_status tn_tls_open(const tn_tls_options *o, tn_tls **out, tern_error *err) {
    tn_tls *t = *out = calloc(1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for TLS");
    t->o = *o;
    t->o.fd = -1;
    t->epoll = t->bell = -1;
    for (size_t i = 0; i < TN_TLS_LINKS; i++) t->lines[i].wire = t->lines[i].plain = -1;
    tern_status st = load(t, o->cert, o->key, err);
    const int flags = fcntl(o->fd, F_GETFL);
    if (st == TERN_OK)
        t->epoll = epoll_create1(EPOLL_CLOEXEC), t->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (st == TERN_OK && (t->epoll < 0 || t->bell < 0 || flags < 0 || !listen_to(t, t->bell, BELL) ||
                          fcntl(o->fd, F_SETFL, flags | O_NONBLOCK)))
        st = tn_fail(err, TERN_E_MEMORY, "no memory or descriptors for TLS: %s", strerror(errno));
    if (st == TERN_OK) t->o.fd = o->fd;
    else tn_tls_close(out);
    return st;
}

tern_status tn_tls_begin(tn_tls *t, tern_error *err) {
    TN_FAIL_IF(!listen_to(t, t->o.fd, LISTENER), err, TERN_E_IO, "cannot wait for connections: %s",
               strerror(errno));
    int rc = pthread_create(&t->thread, NULL, keep, t);
    TN_FAIL_IF(rc, err, TERN_E_MEMORY, "no thread for TLS: %s", strerror(rc));
    t->begun = true;
    return TERN_OK;
}

void tn_tls_stop(tn_tls *t) {
    if (!t) return;
    atomic_store(&t->stopping, true);
    ring(t);
}

void tn_tls_close(tn_tls **pt) {
    tn_tls *t = *pt;
    *pt = NULL;
    if (!t) return;
    if (t->begun) {
        t->closing_since = tn_now_ns();
        atomic_store(&t->closing, true);
        tn_tls_stop(t);
        pthread_join(t->thread, NULL);
    }
    for (size_t i = 0; i < TN_TLS_LINKS; i++)
        if (t->lines[i].at != FREE) drop_line(&t->lines[i]);
    if (t->o.fd >= 0) close(t->o.fd);
    if (t->epoll >= 0) close(t->epoll);
    if (t->bell >= 0) close(t->bell);
    unload(t);
    free(t);
}

#endif
