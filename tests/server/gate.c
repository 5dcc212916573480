/* Who comes in: bytes that drip hold no place, what is slow gives way, who is refused reads why. The clock is the
 * test's own; waiting is for what must come, however long it takes. */
#include "server/gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 512 };

typedef struct inside { /* a connection that was given a place */
    int fd;
    tn_guest *g;
} inside;

typedef struct house {
    tn_gate *gate;
    int port;
    atomic_llong now;
    pthread_mutex_t mu;
    inside in[MOST];
    size_t n_in;
} house;

static bool enter(void *user, int fd, const struct sockaddr *a, socklen_t n) {
    house *h = user;
    (void)a;
    (void)n;
    tn_guest *g = tn_gate_began(h->gate, fd);
    if (!g) return close(fd), false;
    pthread_mutex_lock(&h->mu);
    h->in[h->n_in++] = (inside){fd, g};
    pthread_mutex_unlock(&h->mu);
    return true;
}

static bool is_known(void *user, const char *head, size_t n) {
    size_t n_value = 0;
    const char *v = tn_gate_header(head, n, "x-api-key", &n_value);
    (void)user;
    return v && n_value == 6 && !memcmp(v, "secret", 6);
}

static int64_t now(void *user) { return atomic_load(&((house *)user)->now); }

static void open_house(house *h, size_t n_hall) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t n = sizeof a;
    tern_error err;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, n) && !listen(fd, 512) &&
                !getsockname(fd, (struct sockaddr *)&a, &n));
    *h = (house){.port = ntohs(a.sin_port), .now = 1000000000000};
    pthread_mutex_init(&h->mu, NULL);
    const tn_gate_options o = {
        .fd = fd, .n_hall = n_hall, .enter = enter, .is_known = is_known, .user = h, .now_ns = now};
    assert_int_equal(tn_gate_open(&o, &h->gate, &err), TERN_OK);
    assert_int_equal(tn_gate_begin(h->gate, &err), TERN_OK);
}

static void close_house(house *h) {
    tn_gate_end(h->gate);
    for (size_t i = 0; i < h->n_in; i++) {
        if (h->in[i].fd < 0) continue;
        close(h->in[i].fd);
        tn_gate_left(h->in[i].g);
    }
    tn_gate_close(&h->gate);
    pthread_mutex_destroy(&h->mu);
}

static size_t n_in(house *h) {
    pthread_mutex_lock(&h->mu);
    size_t n = h->n_in;
    pthread_mutex_unlock(&h->mu);
    return n;
}

static void wait_in(house *h, size_t n) {
    while (n_in(h) < n) poll(NULL, 0, 1);
    assert_int_equal(n_in(h), n);
}

/* So many are in the hall, and so many of them have sent a whole head. */
static void wait_hall(house *h, int n, int n_waiting) {
    for (tn_gate_counts c = {0}; c.hall != n || c.waiting != n_waiting; c = tn_gate_count(h->gate))
        poll(NULL, 0, 1);
}

static void pass(house *h, int s) {
    atomic_fetch_add(&h->now, s * 1000000000ll);
    tn_gate_wake(h->gate);
}

/* A client whose address is 127.0.0.K. */
static int client(const house *h, int k, const char *says) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000 + (uint32_t)k)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a));
    a = (struct sockaddr_in){.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)h->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, says, strlen(says), MSG_NOSIGNAL), strlen(says));
    return fd;
}

/* All that the client reads until the server has ended. A reset fails. */
static const char *all_of(int fd) {
    static char text[4096];
    size_t n = 0;
    for (ssize_t k; (k = recv(fd, text + n, sizeof text - 1 - n, 0)) != 0; n += (size_t)k) assert_true(k > 0);
    text[n] = 0;
    close(fd);
    return text;
}

static void assert_refused(int fd, const char *status) {
    const char *got = all_of(fd);
    assert_memory_equal(got, status, strlen(status));
    assert_non_null(strstr(got, "\r\nConnection: close\r\n"));
    assert_true(!strstr(got, " 503 ") || strstr(got, "\r\nRetry-After: 1\r\n"));
    const char *body = strstr(got, "\r\n\r\n"), *length = strstr(got, "Content-Length: ");
    assert_true(body && length && strtoul(length + 16, NULL, 10) == strlen(body + 4) && body[4] == '{');
}

static const char WHOLE[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
                  HALF[] = "POST /v1/completions HTTP/1.1\r\nHost: local",
                  BODY[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab",
                  HEALTH[] = "GET /health HTTP/1.1\r\n\r\n",
                  KEY[] = "GET /v1/models HTTP/1.1\r\nHost: a\r\nX-API-Key:  secret \r\n\r\n",
                  WRONG[] = "GET /v1/models HTTP/1.1\r\nHost: a\r\nX-API-Key: secreT\r\n\r\n";

/* As the server: the request is read and being answered. */
static void answer(house *h, size_t i) {
    tn_gate_reading(h->in[i].g);
    assert_true(tn_gate_answering(h->in[i].g));
}

static void leave(house *h, size_t i) {
    close(h->in[i].fd);
    h->in[i].fd = -1;
    tn_gate_left(h->in[i].g);
}

/* Fills all places with answers that are being made, of two addresses. */
static void fill(house *h, int fds[TN_GATE_PLACES]) {
    for (int i = 0; i < TN_GATE_PLACES; i++) {
        fds[i] = client(h, 2 + i % 2, WHOLE);
        wait_in(h, (size_t)i + 1);
        answer(h, (size_t)i);
    }
}

static void close_all(int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) close(fds[i]);
}

/* Half a request holds no place, for however many clients; it has its time in all, whatever drips. */
static void half_requests(void **state) {
    (void)state;
    house h;
    int fds[150];
    open_house(&h, 0);
    for (int i = 0; i < 150; i++) fds[i] = client(&h, 1, HALF);
    int honest = client(&h, 1, WHOLE);
    wait_in(&h, 1);
    wait_hall(&h, 150, 0);
    answer(&h, 0);
    for (int s = 0; s < TN_GATE_HEAD_S; s++) { /* a byte each second */
        pass(&h, 1);
        for (int i = 0; i < 150; i++) (void)!send(fds[i], "x", 1, MSG_NOSIGNAL);
    }
    for (int i = 0; i < 150; i++) assert_refused(fds[i], "HTTP/1.1 408 ");
    assert_int_equal(n_in(&h), 1);
    close(honest);
    close_house(&h);
}

/* A head that comes in pieces is let in when it is whole, and the server reads all of it. */
static void pieces(void **state) {
    (void)state;
    house h;
    char got[sizeof BODY + 3];
    open_house(&h, 0);
    int fd = client(&h, 1, "");
    for (size_t i = 0; i < sizeof BODY - 1; i++) {
        assert_true(i > sizeof BODY - 4 || !n_in(&h));
        assert_int_equal(send(fd, BODY + i, 1, 0), 1);
    }
    wait_in(&h, 1);
    assert_int_equal(send(fd, "cde", 3, 0), 3);
    for (size_t n = 0; n < sizeof got - 1;) {
        ssize_t k = recv(h.in[0].fd, got + n, sizeof got - 1 - n, 0);
        if (k > 0) n += (size_t)k;
        else poll(&(struct pollfd){.fd = h.in[0].fd, .events = POLLIN}, 1, -1);
    }
    assert_memory_equal(got, BODY, sizeof BODY - 1);
    close(fd);
    close_house(&h);
}

/* The hall is full: who has sent nothing whole for longest goes, with a word. */
static void full_hall(void **state) {
    (void)state;
    house h;
    int fds[20];
    open_house(&h, 16);
    for (int i = 0; i < 20; i++) fds[i] = client(&h, 1 + i % 2, HALF);
    for (int i = 0; i < 4; i++) assert_refused(fds[i], "HTTP/1.1 503 ");
    int one = client(&h, 3, WHOLE); /* this asks the next of them to go */
    assert_refused(fds[4], "HTTP/1.1 503 ");
    wait_in(&h, 1);
    for (int i = 0; i < 12; i++) fds[i] = client(&h, 5, HALF); /* three quarters are one address's at most */
    int last = client(&h, 5, HALF);
    assert_refused(fds[0], "HTTP/1.1 503 ");
    close(one);
    close(last);
    close_house(&h);
    close_all(fds + 1, 19);
}

/* Idle connections give way, the one that was idle for longest first; without need they have their time. */
static void idle(void **state) {
    (void)state;
    house h;
    int fds[TN_GATE_PLACES];
    open_house(&h, 0);
    fill(&h, fds);
    pass(&h, 1);
    tn_gate_idle(h.in[7].g);
    pass(&h, 1);
    for (int i = 0; i < TN_GATE_PLACES; i++)
        if (i != 7) tn_gate_idle(h.in[i].g);
    int fd = client(&h, 1, WHOLE);
    assert_string_equal(all_of(fds[7]), "");
    leave(&h, 7);
    wait_in(&h, TN_GATE_PLACES + 1);
    answer(&h, TN_GATE_PLACES);
    pass(&h, TN_GATE_IDLE_S);
    for (int i = 0; i < TN_GATE_PLACES; i++)
        if (i != 7) assert_string_equal(all_of(fds[i]), "");
    close(fd);
    close_house(&h);
}

/* Bodies that drip have some of the places alone, and lose them to others after two seconds; without others they have
 * a minute in all. */
static void bodies(void **state) {
    (void)state;
    house h;
    int fds[TN_GATE_BODIES];
    open_house(&h, 0);
    for (int i = 0; i < TN_GATE_BODIES; i++) {
        fds[i] = client(&h, 1, BODY);
        wait_in(&h, (size_t)i + 1);
        tn_gate_reading(h.in[i].g);
        pass(&h, i == 0);
    }
    int more = client(&h, 1, BODY), whole = client(&h, 1, WHOLE);
    wait_in(&h, TN_GATE_BODIES + 1); /* the whole one; the other waits */
    answer(&h, TN_GATE_BODIES);
    wait_hall(&h, 1, 1);
    pass(&h, TN_GATE_PRESSED_S - 1);
    assert_refused(fds[0], "HTTP/1.1 503 ");
    assert_false(tn_gate_answering(h.in[0].g));
    leave(&h, 0);
    wait_in(&h, TN_GATE_BODIES + 2);
    answer(&h, TN_GATE_BODIES + 1);
    pass(&h, TN_GATE_REQUEST_S);
    for (int i = 1; i < TN_GATE_BODIES; i++) assert_refused(fds[i], "HTTP/1.1 408 ");
    close(more);
    close(whole);
    close_house(&h);
}

/* All places are busy: clients with a key and /health have places of their own, others wait and are told. */
static void kept(void **state) {
    (void)state;
    house h;
    int fds[TN_GATE_PLACES], keys[TN_GATE_KEYS + 1], health[TN_GATE_HEALTH];
    size_t n = TN_GATE_PLACES;
    open_house(&h, 0);
    fill(&h, fds);
    int waits = client(&h, 4, WHOLE), wrong = client(&h, 4, WRONG);
    for (int i = 0; i < TN_GATE_KEYS; i++) keys[i] = client(&h, 4, KEY);
    wait_in(&h, n += TN_GATE_KEYS);
    keys[TN_GATE_KEYS] = client(&h, 4, KEY); /* one too many */
    for (int i = 0; i < TN_GATE_HEALTH; i++) health[i] = client(&h, 4, HEALTH);
    wait_in(&h, n += TN_GATE_HEALTH);
    wait_hall(&h, 3, 3);
    for (size_t i = TN_GATE_PLACES; i < n; i++) answer(&h, i);
    pass(&h, TN_GATE_WAIT_S);
    assert_refused(waits, "HTTP/1.1 503 ");
    assert_refused(wrong, "HTTP/1.1 503 ");
    assert_refused(keys[TN_GATE_KEYS], "HTTP/1.1 503 ");
    assert_int_equal(n_in(&h), n);
    assert_int_equal(tn_gate_count(h.gate).busy, n);
    close_all(fds, TN_GATE_PLACES);
    close_all(keys, TN_GATE_KEYS);
    close_all(health, TN_GATE_HEALTH);
    close_house(&h);
}

/* One address has three quarters of the places at most. */
static void one_address(void **state) {
    (void)state;
    house h;
    int fds[TN_GATE_PLACES];
    const size_t most = TN_GATE_PLACES * 3 / 4;
    open_house(&h, 0);
    for (size_t i = 0; i < TN_GATE_PLACES; i++) fds[i] = client(&h, 1, WHOLE);
    wait_hall(&h, TN_GATE_PLACES - (int)most, TN_GATE_PLACES - (int)most);
    wait_in(&h, most);
    for (size_t i = 0; i < most; i++) answer(&h, i);
    int other = client(&h, 2, WHOLE);
    wait_in(&h, most + 1);
    leave(&h, 0); /* one place is free for the first again */
    wait_in(&h, most + 2);
    close(other);
    close_all(fds, TN_GATE_PLACES);
    close_house(&h);
}

/* Who does not read its answer gives way to others. */
static void unread(void **state) {
    (void)state;
    static char much[1 << 20];
    house h;
    int fds[TN_GATE_PLACES];
    open_house(&h, 0);
    fill(&h, fds);
    struct tcp_info info = {
        0}; /* until nothing is on its way and something waits: the client's own buffer is full */
    for (socklen_t n = sizeof info; send(h.in[9].fd, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 ||
                                    info.tcpi_unacked || !info.tcpi_notsent_bytes;
         n = sizeof info)
        assert_int_equal(getsockopt(h.in[9].fd, IPPROTO_TCP, TCP_INFO, &info, &n), 0);
    int fd = client(&h, 4, WHOLE);
    wait_hall(&h, 1, 1);
    pass(&h, TN_GATE_UNREAD_S - 1);
    assert_int_equal(poll(&(struct pollfd){.fd = h.in[9].fd, .events = POLLRDHUP}, 1, 0), 0);
    pass(&h, 1);
    while (poll(&(struct pollfd){.fd = h.in[9].fd, .events = POLLRDHUP}, 1, -1) < 1) {
    }
    leave(&h, 9);
    wait_in(&h, TN_GATE_PLACES + 1);
    close(fd);
    close_all(fds, TN_GATE_PLACES);
    close_house(&h);
}

/* Who is refused reads it all, though it has not stopped sending: its connection is not reset. */
static void no_reset(void **state) {
    (void)state;
    static char much[1 << 20];
    house h;
    int fds[TN_GATE_PLACES];
    open_house(&h, 0);
    fill(&h, fds);
    int fd = client(&h, 4, "POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n");
    for (ssize_t k = 1; k > 0;) k = send(fd, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL);
    wait_hall(&h, 1, 1);
    pass(&h, TN_GATE_WAIT_S);
    assert_int_equal(send(fd, much, sizeof much, MSG_NOSIGNAL), sizeof much); /* only if somebody reads */
    assert_refused(fd, "HTTP/1.1 503 ");
    close_all(fds, TN_GATE_PLACES);
    close_house(&h);
}

/* Requests that were whole before the end are let in; nobody else is. */
static void the_end(void **state) {
    (void)state;
    house h;
    int fds[TN_GATE_PLACES];
    open_house(&h, 0);
    fill(&h, fds);
    int waits = client(&h, 4, WHOLE), half = client(&h, 4, HALF);
    while (tn_gate_count(h.gate).busy < TN_GATE_PLACES + 1) poll(NULL, 0, 1);
    tn_gate_stop(h.gate);
    leave(&h, 3);
    wait_in(&h, TN_GATE_PLACES + 1);
    assert_int_equal(tn_gate_count(h.gate).busy, TN_GATE_PLACES);
    close(waits);
    close(half);
    close_all(fds, TN_GATE_PLACES);
    close_house(&h);
}

static void headers(void **state) {
    (void)state;
    static const char head[] =
        "GET / HTTP/1.1\r\nContent-Lengths: 1\r\ncontent-LENGTH:\t 12 \r\nEmpty:\r\nLast: x";
    size_t n = 9;
    const char *v = tn_gate_header(head, sizeof head - 1, "Content-Length", &n);
    assert_true(v && n == 2 && !memcmp(v, "12", 2));
    assert_true(tn_gate_header(head, sizeof head - 1, "empty", &n) && !n);
    v = tn_gate_header(head, sizeof head - 1, "LAST", &n);
    assert_true(v && n == 1 && *v == 'x');
    assert_null(tn_gate_header(head, sizeof head - 1, "GET / HTTP/1.1", &n));
    assert_null(tn_gate_header(head, 20, "Content-Length", &n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_requests), cmocka_unit_test(pieces),  cmocka_unit_test(full_hall),
        cmocka_unit_test(idle),          cmocka_unit_test(bodies),  cmocka_unit_test(kept),
        cmocka_unit_test(one_address),   cmocka_unit_test(unread),  cmocka_unit_test(no_reset),
        cmocka_unit_test(the_end),       cmocka_unit_test(headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
