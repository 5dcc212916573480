/* Whose connection it is: by netlink and by files the same, nobody's when its program has closed it. */
#include "server/peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OTHER = 65534 };

typedef struct pair {
    int server, client;
} pair;

/* Sockets of which family both are, and whether by addresses of IPv4. */
typedef enum how { V4, MAPPED_CLIENT, V6, MAPPED_SERVER, N_HOW } how;

static pair connected(how h) {
    const bool v6_server = h == V6 || h == MAPPED_SERVER, v6_client = h == V6 || h == MAPPED_CLIENT;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr *at = v6_server ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
    socklen_t n = v6_server ? sizeof v6 : sizeof v4;
    int l = socket(v6_server ? AF_INET6 : AF_INET, SOCK_STREAM, 0),
        c = socket(v6_client ? AF_INET6 : AF_INET, SOCK_STREAM, 0), off = 0;
    if (l < 0 || c < 0) skip(); /* a machine without IPv6 */
    if (h == V6) v6.sin6_addr = in6addr_loopback;
    if (v6_server) assert_int_equal(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off), 0);
    if (bind(l, at, n)) skip();
    assert_true(!listen(l, 1) && !getsockname(l, at, &n));
    if (h == MAPPED_CLIENT) {
        v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = v4.sin_port};
        assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &v6.sin6_addr), 1);
    }
    if (h == MAPPED_SERVER) v4.sin_port = v6.sin6_port;
    assert_int_equal(v6_client ? connect(c, (struct sockaddr *)&v6, sizeof v6)
                               : connect(c, (struct sockaddr *)&v4, sizeof v4),
                     0);
    pair p = {accept(l, NULL, NULL), c};
    assert_true(p.server >= 0);
    close(l);
    return p;
}

/* NULL: this kernel does not tell it in that way. */
static tn_peers *open_peers(int way) {
    tn_peers *p;
    tern_error err;
    if (tn_peers_open(way, &p, &err) != TERN_OK) print_message("not tried: way %d: %s\n", way, err.message);
    return p;
}

static void own(void **state) {
    (void)state;
    for (int k = 0; k < 2 * N_HOW; k++) {
        tn_peers *p = open_peers(k / N_HOW ? TN_PEERS_FILES : TN_PEERS_NETLINK);
        if (!p) continue;
        const how i = (how)(k % N_HOW);
        uid_t uid = 12345;
        pair c = connected(i);
        assert_true(tn_peers_uid(p, c.server, &uid));
        assert_int_equal(uid, geteuid());
        assert_true(i == MAPPED_CLIENT || i == MAPPED_SERVER ||
                    tn_peers_uid(p, c.client, &uid)); /* the other way round too */
        shutdown(c.client, SHUT_WR);
        assert_true(tn_peers_uid(p, c.server, &uid)); /* it can still read */
        close(c.client);
        assert_false(tn_peers_uid(p, c.server, &uid));
        close(c.server);
        tn_peers_close(&p);
    }
}

/* Another user's socket, which only root can make; it is the creator's, wherever it goes. */
static void another(void **state) {
    (void)state;
    if (geteuid()) skip();
    assert_int_equal(seteuid(OTHER), 0);
    pair c = connected(V4);
    assert_int_equal(seteuid(0), 0);
    for (int way = TN_PEERS_NETLINK; way <= TN_PEERS_FILES; way++) {
        uid_t uid = 12345;
        tn_peers *p = open_peers(way);
        if (!p) continue;
        assert_true(tn_peers_uid(p, c.server, &uid));
        assert_int_equal(uid, OTHER);
        tn_peers_close(&p);
    }
    close(c.client);
    close(c.server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(own), cmocka_unit_test(another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
