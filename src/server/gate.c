#include "server/gate.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>
#include <unistd.h>

enum {
    MAX_IN = TN_GATE_PLACES + TN_GATE_KEYS + TN_GATE_HEALTH,
    MAX_LINGER = 128,
    PEEK_BYTES = 2 * TN_GATE_HEAD,
    DROP_BYTES = 16 << 20, /* of what a client sends in vain */
    EVENTS = 64,
    LISTENER = -1,
    BELL = -2
};

typedef enum where { FREE, HALL, IN, LINGER } where;
typedef enum part { HEAD, BODY, ANSWER, IDLE } part; /* of those who are in */
typedef enum kind {
    COMING,
    WITH_BODY,
    WHOLE,
    KEY,
    HEALTH
} kind; /* how much of the request is there, who asks */

struct tn_guest {
    tn_gate *of; /* stays */
    int fd;      /* the gate's own descriptor: the number stays what it is, whoever closes his */
    int inner;   /* the server's; -1: it has begun, or none */
    uint32_t life;
    where at;
    part part;
    kind kind;
    bool leaving;  /* asked to close, or refused */
    bool hung_up;  /* it sends no more */
    bool has_left; /* the server has closed its descriptor */
    int64_t since; /* it came, its request began, it was answered */
    uint64_t order, dropped;
    uint8_t address[16];
    int64_t uid;
    struct sockaddr_storage a;
    socklen_t n_a;
};

/* The gate's thread holds mu but while it sleeps and while somebody is given a place. */
struct tn_gate {
    tn_gate_options o;
    int epoll, bell;
    pthread_t thread;
    bool begun, paused; /* paused: no descriptor was left, so nobody is accepted for a while */
    pthread_mutex_t mu;
    bool stopping, closing;
    uint64_t n_come;
    size_t n;
    tn_guest *guests; /* [n] */
    char peek[PEEK_BYTES];
};

static int64_t now_of(const tn_gate *d) { return d->o.now_ns ? d->o.now_ns(d->o.user) : tn_now_ns(); }

/* ---- what stands in a head -------------------------------------------------------------------------- */

/* How long the head is; 0: it is not whole. */
static size_t head_bytes(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '\n' || i + 1 >= n) continue;
        if (p[i + 1] == '\n') return i + 2;
        if (p[i + 1] == '\r' && i + 2 < n && p[i + 2] == '\n') return i + 3;
    }
    return n >= TN_GATE_HEAD ? n : 0; /* too long: a refusal is somebody else's affair */
}

const char *tn_gate_header(const char *head, size_t n_head, const char *name, size_t *n) {
    size_t n_name = strlen(name);
    const char *end = head + n_head, *line = head;
    while ((line = memchr(line, '\n', (size_t)(end - line)))) {
        line++;
        if ((size_t)(end - line) <= n_name || strncasecmp(line, name, n_name) || line[n_name] != ':')
            continue;
        const char *v = line + n_name + 1, *stop = memchr(v, '\n', (size_t)(end - v));
        if (!stop) stop = end;
        while (v < stop && (*v == ' ' || *v == '\t')) v++;
        while (stop > v && (stop[-1] == '\r' || stop[-1] == ' ' || stop[-1] == '\t')) stop--;
        *n = (size_t)(stop - v);
        return v;
    }
    return NULL;
}

/* This decides who comes first, and nothing else: what the request says is read by the server itself. */
static kind kind_of(const tn_gate *d, const char *p, size_t n) {
    size_t n_head = head_bytes(p, n), n_value = 0;
    if (!n_head) return COMING;
    if (n > 12 && (!memcmp(p, "GET /health ", 12) || !memcmp(p, "HEAD /health", 12))) return HEALTH;
    if (d->o.is_known && d->o.is_known(d->o.user, p, n_head)) return KEY;
    const char *length = tn_gate_header(p, n_head, "Content-Length", &n_value);
    uint64_t bytes = 0;
    for (size_t i = 0; length && i < n_value && bytes <= PEEK_BYTES; i++)
        bytes =
            length[i] >= '0' && length[i] <= '9' ? bytes * 10 + (uint64_t)(length[i] - '0') : PEEK_BYTES + 1;
    bool more = bytes > n - n_head || tn_gate_header(p, n_head, "Transfer-Encoding", &n_value);
    return more ? WITH_BODY : WHOLE;
}

/* ---- guests ------------------------------------------------------------------------------------------ */

static void address_of(tn_guest *g) {
    memset(g->address, 0, sizeof g->address);
    if (g->a.ss_family == AF_INET) memcpy(g->address, &((struct sockaddr_in *)(void *)&g->a)->sin_addr, 4);
    else if (g->a.ss_family == AF_INET6) /* a network of 64 bits is one client's */
        memcpy(g->address, &((struct sockaddr_in6 *)(void *)&g->a)->sin6_addr, 8);
}

static bool same_address(const tn_guest *a, const tn_guest *b) {
    return !memcmp(a->address, b->address, sizeof a->address);
}

static bool watch(tn_gate *d, tn_guest *g) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET,
                            .data.u64 = (uint64_t)g->life << 32 | (uint64_t)(g - d->guests)};
    return !epoll_ctl(d->epoll, EPOLL_CTL_ADD, g->fd, &e);
}

static void forget(tn_guest *g) {
    if (g->fd >= 0) close(g->fd); /* the poll set forgets it with its last descriptor */
    g->fd = -1;
    g->at = FREE;
    g->life++;
}

static size_t count(const tn_gate *d, where at) {
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) n += d->guests[i].at == at;
    return n;
}

/* Reads what comes and drops it. false: nothing more will come, or it was too much. */
static bool drop(tn_gate *d, tn_guest *g) {
    for (;;) {
        ssize_t k = recv(g->fd, d->peek, sizeof d->peek, MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        g->dropped += (uint64_t)k;
        if (!k || g->dropped > DROP_BYTES) return false;
    }
}

/* The connection is ended as far as the server goes; it stays until the client has read what it was told. */
static void linger(tn_gate *d, tn_guest *g, bool watched) {
    tn_guest *oldest = NULL;
    shutdown(g->fd, SHUT_WR);
    g->at = LINGER;
    g->since = now_of(d);
    g->dropped = 0;
    if (!watched && !watch(d, g)) {
        forget(g);
        return;
    }
    if (!drop(d, g)) {
        forget(g);
        return;
    }
    if (count(d, LINGER) <= MAX_LINGER) return;
    for (size_t i = 0; i < d->n; i++)
        if (d->guests[i].at == LINGER && (!oldest || d->guests[i].since < oldest->since))
            oldest = &d->guests[i];
    forget(oldest);
}

/* One line that fits into an empty buffer of the kernel's, so it is sent at once or not at all. */
static void tell(const tn_guest *g, int status) {
    static const char form[] = "HTTP/1.1 %s\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
                               "Connection: close\r\n%sContent-Length: %zu\r\n\r\n%s";
    const char *body =
        status == 503
            ? "{\"error\":{\"message\":\"the server has no place left: ask again in a moment\",\"type\":"
              "\"server_error\",\"param\":null,\"code\":503}}"
            : "{\"error\":{\"message\":\"the request did not come in time\",\"type\":"
              "\"invalid_request_error\",\"param\":null,\"code\":408}}";
    char text[512];
    int n =
        snprintf(text, sizeof text, form, status == 503 ? "503 Service Unavailable" : "408 Request Timeout",
                 status == 503 ? "Retry-After: 1\r\n" : "", strlen(body), body);
    (void)!send(g->fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Somebody in the hall is told why it does not come in. */
static void refuse(tn_gate *d, tn_guest *g, int status) {
    tell(g, status);
    linger(d, g, true);
}

/* Somebody who is in and whose request is not whole, or who has none: the server's thread sees the end of the
 * connection. */
static void send_away(tn_guest *g, int status) {
    if (g->part == HEAD || g->part == BODY) tell(g, status);
    g->leaving = true;
    g->has_left |= g->inner >= 0; /* it never began */
    g->inner = -1;
    shutdown(g->fd, SHUT_RDWR);
}

/* ---- places ------------------------------------------------------------------------------------------ */

static bool is_reading(const tn_guest *g) {
    return g->at == IN && g->kind == WITH_BODY && (g->part == HEAD || g->part == BODY);
}

typedef enum lack { NOTHING, PLACE, PLACE_OF_ADDRESS, BODY_PLACE } lack;

/* What somebody would need to come in. */
static lack lacks(const tn_gate *d, const tn_guest *g) {
    size_t n_in = 0, n_here = 0, n_bodies = 0;
    size_t most = g->kind == HEALTH ? MAX_IN
                  : g->kind == KEY  ? TN_GATE_PLACES + TN_GATE_KEYS
                                    : TN_GATE_PLACES;
    for (size_t i = 0; i < d->n; i++) {
        const tn_guest *o = &d->guests[i];
        n_in += o->at == IN;
        n_here += o->at == IN && same_address(o, g);
        n_bodies += is_reading(o);
    }
    if (n_in >= most) return PLACE;
    if (g->kind < KEY && n_here >= TN_GATE_PLACES * 3 / 4) return PLACE_OF_ADDRESS;
    return g->kind == WITH_BODY && n_bodies >= TN_GATE_BODIES ? BODY_PLACE : NOTHING;
}

/* Tells whether some bytes of the answer have not even been sent, because the client does not read. */
static bool unread(const tn_guest *g) {
    struct tcp_info i = {0};
    socklen_t n = sizeof i;
    int waits = 0;
    if (!getsockopt(g->fd, IPPROTO_TCP, TCP_INFO, &i, &n)) return i.tcpi_notsent_bytes;
    return !ioctl(g->fd, SIOCOUTQ, &waits) &&
           waits; /* of a pair: who carries the bytes cannot get rid of them */
}

/* Tells whether somebody who is in may be asked to go where others wait. */
static bool can_go(const tn_guest *g, int64_t now) {
    const int64_t s = (now - g->since) / 1000000000;
    return g->part == IDLE ||
           (g->part == ANSWER ? s >= TN_GATE_UNREAD_S && unread(g) : s >= TN_GATE_PRESSED_S);
}

/* Asks who can best go to go: idle for longest, else whose request has been coming for longest. */
static void make_room(tn_gate *d, const tn_guest *g, lack why, int64_t now) {
    tn_guest *best = NULL;
    for (size_t i = 0; i < d->n; i++) {
        tn_guest *o = &d->guests[i];
        if (o->at != IN || o->leaving || !can_go(o, now)) continue;
        if (why == PLACE_OF_ADDRESS && !same_address(o, g)) continue;
        if (why == BODY_PLACE && !is_reading(o)) continue;
        bool idle = o->part == IDLE, best_idle = best && best->part == IDLE;
        if (!best || idle > best_idle || (idle == best_idle && o->since < best->since)) best = o;
    }
    if (best) send_away(best, 503);
}

static size_t places_of(const tn_gate *d, const tn_guest *g) {
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) n += d->guests[i].at == IN && same_address(&d->guests[i], g);
    return n;
}

/* The next of a kind that may come in: of the address that has fewest places, who came first. */
static tn_guest *next_in(tn_gate *d, kind k, lack *why) {
    tn_guest *best = NULL;
    size_t best_places = 0;
    for (size_t i = 0; i < d->n; i++) {
        tn_guest *g = &d->guests[i];
        if (g->at != HALL || g->kind != k) continue;
        lack l = lacks(d, g);
        size_t places = places_of(d, g);
        bool better = !best || (l == NOTHING) > (*why == NOTHING) ||
                      ((l == NOTHING) == (*why == NOTHING) &&
                       (places < best_places || (places == best_places && g->order < best->order)));
        if (better) best = g, best_places = places, *why = l;
    }
    return best;
}

static void enter(tn_gate *d, tn_guest *g) {
    int fd = fcntl(g->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) {
        refuse(d, g, 503);
        return;
    }
    (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, g->fd, &(struct epoll_event){0});
    g->at = IN;
    g->part = HEAD;
    g->leaving = g->has_left = false;
    for (size_t i = 0; i < d->n; i++) /* the server has closed one of this number without a word */
        if (d->guests[i].at == IN && d->guests[i].inner == fd)
            d->guests[i].leaving = d->guests[i].has_left = true;
    g->inner = fd;
    g->since = now_of(d);
    pthread_mutex_unlock(&d->mu); /* the server's threads take it at once */
    bool entered = d->o.enter(d->o.user, fd, (const struct sockaddr *)&g->a, g->n_a);
    pthread_mutex_lock(&d->mu);
    if (entered) return;
    tell(g, 503);
    linger(d, g, false);
}

/* Lets in who can come in. One is asked to leave for each that waits, not more. */
static void let_in(tn_gate *d) {
    for (kind k = HEALTH; k > COMING; k--) {
        for (;;) {
            lack why = NOTHING;
            tn_guest *g = next_in(d, k, &why);
            size_t n_leaving = 0, n_wait = 0;
            for (size_t i = 0; i < d->n; i++) {
                n_leaving += d->guests[i].at == IN && d->guests[i].leaving;
                n_wait += d->guests[i].at == HALL && d->guests[i].kind == k;
            }
            if (g && why != NOTHING && n_leaving < n_wait) make_room(d, g, why, now_of(d));
            if (!g || why != NOTHING) break;
            enter(d, g);
        }
    }
}

/* ---- the hall ---------------------------------------------------------------------------------------- */

static void look(tn_gate *d, tn_guest *g) {
    ssize_t n = recv(g->fd, d->peek, sizeof d->peek, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n > 0) g->kind = kind_of(d, d->peek, (size_t)n);
    if (n <= 0 || (g->kind == COMING && g->hung_up)) forget(g);
}

/* A free record for one who comes. Where the hall is full, or one address has three quarters of it, who has
 * waited longest for its own first bytes goes. NULL: nobody can. */
static tn_guest *room_in_hall(tn_gate *d, const tn_guest *newcomer) {
    size_t cap = d->o.n_hall ? d->o.n_hall : TN_GATE_HALL, n_hall = 0, n_here = 0;
    tn_guest *free_one = NULL, *oldest = NULL;
    for (size_t i = 0; i < d->n; i++) {
        tn_guest *g = &d->guests[i];
        if (g->at == FREE && !free_one) free_one = g;
        n_hall += g->at == HALL;
        n_here += g->at == HALL && same_address(g, newcomer);
    }
    bool crowded = n_here >= cap * 3 / 4;
    if (n_hall < cap && !crowded) return free_one;
    for (size_t i = 0; i < d->n; i++) {
        tn_guest *g = &d->guests[i];
        if (g->at != HALL || g->kind != COMING || (crowded && !same_address(g, newcomer))) continue;
        if (!oldest || g->order < oldest->order) oldest = g;
    }
    if (oldest) refuse(d, oldest, 503);
    return oldest ? free_one : NULL;
}

/* All but the gate, which the server's threads read without the lock. */
static void settle(tn_guest *to, const tn_guest *g) {
    const size_t rest = offsetof(tn_guest, fd);
    memcpy((char *)to + rest, (const char *)g + rest, sizeof *to - rest);
}

/* One who comes has a place in the hall, or is told that there is none. */
static bool receive(tn_gate *d, tn_guest *g) {
    address_of(g);
    tn_guest *to = room_in_hall(d, g);
    bool refused = !to;
    for (size_t i = 0; !to && i < d->n; i++)
        if (d->guests[i].at == FREE) to = &d->guests[i];
    if (to) {
        g->life = to->life;
        g->order = ++d->n_come;
        g->since = now_of(d);
        settle(to, g);
    }
    if (!to || !watch(d, to)) {
        tell(g, 503);
        if (to) forget(to);
        else close(g->fd);
        return false;
    }
    if (refused) refuse(d, to, 503);
    else look(d, to);
    return true;
}

static void come(tn_gate *d) {
    for (;;) {
        tn_guest g = {.of = d, .inner = -1, .uid = -1, .n_a = sizeof g.a, .kind = COMING, .at = HALL};
        g.fd = accept4(d->o.fd, (struct sockaddr *)&g.a, &g.n_a, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (g.fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (g.fd < 0) {
            d->paused = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            return;
        }
        const int kernel_bytes = TN_GATE_KERNEL_BYTES; /* what is not read waits where it is counted */
        (void)setsockopt(g.fd, SOL_SOCKET, SO_SNDBUF, &kernel_bytes, sizeof kernel_bytes);
        (void)receive(d, &g);
    }
}

/* ---- time -------------------------------------------------------------------------------------------- */

static int64_t limit_s(const tn_guest *g) {
    if (g->at == HALL) return g->kind == COMING ? TN_GATE_HEAD_S : TN_GATE_WAIT_S;
    if (g->at == LINGER) return TN_GATE_LINGER_S;
    if (g->at == FREE || g->leaving || g->part == ANSWER) return 0;
    if (g->inner >= 0) return TN_GATE_UNREAD_S; /* given a place that nobody has taken up: it was lost */
    return g->part == IDLE ? TN_GATE_IDLE_S : TN_GATE_REQUEST_S;
}

/* Ends what took too long. */
static void expire(tn_gate *d) {
    const int64_t now = now_of(d);
    for (size_t i = 0; i < d->n; i++) {
        tn_guest *g = &d->guests[i];
        const int64_t limit = limit_s(g);
        if (!limit || now - g->since < limit * 1000000000ll) continue;
        if (g->at == HALL) refuse(d, g, g->kind == COMING ? 408 : 503);
        else if (g->at == LINGER) forget(g);
        else send_away(g, 408);
    }
}

/* How long the thread may sleep, in ms: it looks at the clock four times a second while anybody is here who may
 * be too slow, and not at all while nobody is. */
static int sleep_ms(const tn_gate *d) {
    bool any = d->paused;
    for (size_t i = 0; i < d->n && !any; i++) any = limit_s(&d->guests[i]) > 0;
    return any ? 250 : -1;
}

/* Those who have left free their places; what they still send is read. */
static void see_off(tn_gate *d) {
    for (size_t i = 0; i < d->n; i++)
        if (d->guests[i].at == IN && d->guests[i].has_left) linger(d, &d->guests[i], false);
}

/* What the poll set says of the hall and of those that linger. Returns whether somebody knocks. */
static bool heed(tn_gate *d, const struct epoll_event *e, int n) {
    bool newcomers = d->paused;
    for (int i = 0; i < n; i++) {
        const int32_t k = (int32_t)(uint32_t)e[i].data.u64;
        uint64_t rung;
        if (k == BELL) (void)!read(d->bell, &rung, sizeof rung);
        if (k == LISTENER) newcomers = true;
        tn_guest *g = k >= 0 ? &d->guests[k] : NULL;
        if (!g || g->life != (uint32_t)(e[i].data.u64 >> 32)) continue;
        g->hung_up |= (e[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        if (g->at == HALL) look(d, g);
        else if (g->at == LINGER && !drop(d, g)) forget(g);
    }
    return newcomers;
}

static void *keep(void *arg) {
    tn_gate *d = arg;
    struct epoll_event e[EVENTS];
    pthread_mutex_lock(&d->mu);
    while (!d->closing) {
        const int ms = sleep_ms(d);
        pthread_mutex_unlock(&d->mu);
        const int n = epoll_wait(d->epoll, e, EVENTS, ms);
        pthread_mutex_lock(&d->mu);
        const bool newcomers = heed(d, e, n);
        see_off(d);
        if ((newcomers || d->stopping) && d->o.fd >= 0) come(d); /* at the end, who asked before it */
        if (d->stopping && d->o.fd >= 0) {
            close(d->o.fd);
            d->o.fd = -1;
        }
        expire(d);
        if (!d->closing) let_in(d);
    }
    pthread_mutex_unlock(&d->mu);
    return NULL;
}

/* ---- from outside ------------------------------------------------------------------------------------ */

void tn_gate_wake(tn_gate *d) {
    for (int i = 0; i < 3 && write(d->bell, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno != EAGAIN; i++) {
    }
}

static bool listen_to(tn_gate *d, int fd, int as) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint32_t)as};
    return !epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &e);
}

tern_status tn_gate_open(const tn_gate_options *o, tn_gate **out, tern_error *err) {
    tn_gate *d = *out = calloc(1, sizeof *d);
    TN_FAIL_IF(!d, err, TERN_E_MEMORY, "no memory for connections");
    d->o = *o;
    d->o.fd = -1;
    d->n = (o->n_hall ? o->n_hall : TN_GATE_HALL) + MAX_IN + MAX_LINGER + 2;
    d->guests = calloc(d->n, sizeof *d->guests);
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    d->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (size_t i = 0; d->guests && i < d->n; i++) d->guests[i] = (tn_guest){.of = d, .fd = -1, .inner = -1};
    pthread_mutex_init(&d->mu, NULL);
    int flags = o->fd >= 0 ? fcntl(o->fd, F_GETFL) : 0;
    bool ok = d->guests && d->epoll >= 0 && d->bell >= 0 && listen_to(d, d->bell, BELL) && flags >= 0 &&
              (o->fd < 0 || !fcntl(o->fd, F_SETFL, flags | O_NONBLOCK));
    if (ok) {
        d->o.fd = o->fd;
        return TERN_OK;
    }
    tn_gate_close(out);
    return tn_fail(err, TERN_E_MEMORY, "no memory or descriptors for connections: %s", strerror(errno));
}

tern_status tn_gate_begin(tn_gate *d, tern_error *err) {
    TN_FAIL_IF(d->o.fd >= 0 && !listen_to(d, d->o.fd, LISTENER), err, TERN_E_IO,
               "cannot wait for connections: %s", strerror(errno));
    int rc = pthread_create(&d->thread, NULL, keep, d);
    TN_FAIL_IF(rc, err, TERN_E_MEMORY, "no thread for connections: %s", strerror(rc));
    d->begun = true;
    return TERN_OK;
}

bool tn_gate_take(tn_gate *d, int fd, const struct sockaddr *a, socklen_t n, int64_t uid) {
    tn_guest g = {.of = d, .fd = fd, .inner = -1, .uid = uid, .n_a = n, .kind = COMING, .at = HALL};
    memcpy(&g.a, a, (size_t)n < sizeof g.a ? (size_t)n : sizeof g.a);
    pthread_mutex_lock(&d->mu);
    bool stays = !d->closing;
    if (stays) stays = receive(d, &g);
    else close(fd);
    pthread_mutex_unlock(&d->mu);
    tn_gate_wake(d); /* its time runs from now on */
    return stays;
}

int64_t tn_gate_uid(const tn_guest *g) { return g->uid; }

void tn_gate_stop(tn_gate *d) {
    pthread_mutex_lock(&d->mu);
    d->stopping = true;
    pthread_mutex_unlock(&d->mu);
    tn_gate_wake(d);
}

tn_gate_counts tn_gate_count(tn_gate *d) {
    tn_gate_counts n = {0};
    pthread_mutex_lock(&d->mu);
    for (size_t i = 0; i < d->n; i++) {
        const tn_guest *g = &d->guests[i];
        bool whole = g->kind > WITH_BODY;
        n.hall += g->at == HALL;
        n.waiting += g->at == HALL && g->kind > COMING;
        n.busy += (g->at == HALL && whole) ||
                  (g->at == IN && !g->leaving && (g->part == ANSWER || (g->part != IDLE && whole)));
    }
    pthread_mutex_unlock(&d->mu);
    return n;
}

void tn_gate_end(tn_gate *d) {
    if (!d->begun) return;
    pthread_mutex_lock(&d->mu);
    d->closing = d->stopping = true;
    pthread_mutex_unlock(&d->mu);
    tn_gate_wake(d);
    pthread_join(d->thread, NULL);
    d->begun = false;
}

void tn_gate_empty(tn_gate *d) {
    pthread_mutex_lock(&d->mu);
    for (size_t i = 0; d->guests && i < d->n; i++)
        if (d->guests[i].at != FREE) forget(&d->guests[i]);
    pthread_mutex_unlock(&d->mu);
}

void tn_gate_close(tn_gate **pd) {
    tn_gate *d = *pd;
    *pd = NULL;
    if (!d) return;
    tn_gate_end(d);
    tn_gate_empty(d);
    if (d->o.fd >= 0) close(d->o.fd);
    if (d->epoll >= 0) close(d->epoll);
    if (d->bell >= 0) close(d->bell);
    pthread_mutex_destroy(&d->mu);
    free(d->guests);
    free(d);
}

tn_guest *tn_gate_began(tn_gate *d, int fd) {
    tn_guest *found = NULL;
    pthread_mutex_lock(&d->mu);
    for (size_t i = 0; i < d->n; i++)
        if (d->guests[i].at == IN && d->guests[i].inner == fd) found = &d->guests[i];
    if (found) found->inner = -1;
    pthread_mutex_unlock(&d->mu);
    return found;
}

void tn_gate_reading(tn_guest *g) {
    pthread_mutex_lock(&g->of->mu);
    g->part = BODY;
    g->since = now_of(g->of);
    pthread_mutex_unlock(&g->of->mu);
}

bool tn_gate_answering(tn_guest *g) {
    pthread_mutex_lock(&g->of->mu);
    bool stays = !g->leaving;
    if (stays) g->part = ANSWER, g->since = now_of(g->of);
    pthread_mutex_unlock(&g->of->mu);
    return stays;
}

void tn_gate_idle(tn_guest *g) {
    pthread_mutex_lock(&g->of->mu);
    g->part = IDLE;
    g->kind = WITH_BODY; /* nothing is known of its next request */
    g->since = now_of(g->of);
    pthread_mutex_unlock(&g->of->mu);
    tn_gate_wake(g->of); /* somebody may wait for its place */
}

void tn_gate_left(tn_guest *g) {
    pthread_mutex_lock(&g->of->mu);
    g->leaving = g->has_left = true;
    pthread_mutex_unlock(&g->of->mu);
    tn_gate_wake(g->of);
}
