#include "server/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_BYTES = 8192 };

struct tn_peers {
    int netlink;   /* -1: none */
    bool in_files; /* /proc tells */
    pthread_mutex_t mu;
    uint32_t n_asked;
};

/* An end of a connection, as it lies in memory: an address of IPv4 is one word. */
typedef struct end {
    uint32_t words[4];
    in_port_t port;
} end;

/* Both ends: the client's socket has them the other way round. */
typedef struct ends {
    int family; /* of the client's socket */
    end ours, theirs;
} ends;

/* An address of IPv4 within IPv6 (::ffff:127.0.0.1) is the one of IPv4 that the client has. */
static bool read_end(const struct sockaddr_storage *a, end *out, int *family) {
    *out = (end){0};
    *family = a->ss_family;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
        out->words[0] = v4->sin_addr.s_addr;
        out->port = v4->sin_port;
        return true;
    }
    if (a->ss_family != AF_INET6) return false;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;
    memcpy(out->words, &v6->sin6_addr, sizeof out->words);
    out->port = v6->sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        *family = AF_INET;
        out->words[0] = out->words[3];
        out->words[1] = out->words[2] = out->words[3] = 0;
    }
    return true;
}

/* ---- netlink ----------------------------------------------------------------------------------------- */

typedef struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 of;
} question;

static bool is_theirs(const struct inet_diag_msg *m, const ends *e) {
    if (m->id.idiag_sport != e->theirs.port || m->id.idiag_dport != e->ours.port) return false;
    if (e->family == AF_INET6)
        return m->idiag_family == AF_INET6 &&
               !memcmp(m->id.idiag_src, e->theirs.words, sizeof e->theirs.words);
    return m->id.idiag_src[m->idiag_family == AF_INET6 ? 3 : 0] == e->theirs.words[0];
}

/* What the kernel answers to question number seq. *found: it knows the socket. */
static bool read_answer(int fd, uint32_t seq, const ends *e, uid_t *uid, bool *found) {
    for (;;) {
        _Alignas(struct nlmsghdr) char buf[ANSWER_BYTES];
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < (ssize_t)sizeof(struct nlmsghdr)) return false;
        const struct nlmsghdr *h = (const struct nlmsghdr *)(const void *)buf;
        if (h->nlmsg_seq != seq) continue;
        if (h->nlmsg_type == NLMSG_ERROR) { /* ENOENT: there is no such socket */
            const struct nlmsgerr *why = NLMSG_DATA(h);
            *found = false;
            return h->nlmsg_len >= NLMSG_LENGTH(sizeof *why) && why->error == -ENOENT;
        }
        if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || h->nlmsg_len > (size_t)n ||
            h->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
            return false;
        const struct inet_diag_msg *m = NLMSG_DATA(h);
        *found = is_theirs(m, e) && m->idiag_inode; /* without an inode no program has it */
        *uid = m->idiag_uid;
        return true;
    }
}

static bool ask_netlink(tn_peers *p, const ends *e, uid_t *uid, bool *found) {
    question q = {.head = {.nlmsg_len = sizeof q,
                           .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                           .nlmsg_flags = NLM_F_REQUEST,
                           .nlmsg_seq = ++p->n_asked},
                  .of = {.sdiag_family = (uint8_t)e->family,
                         .sdiag_protocol = IPPROTO_TCP,
                         .idiag_states = ~0u,
                         .id = {.idiag_sport = e->theirs.port,
                                .idiag_dport = e->ours.port,
                                .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    memcpy(q.of.id.idiag_src, e->theirs.words, sizeof e->theirs.words);
    memcpy(q.of.id.idiag_dst, e->ours.words, sizeof e->ours.words);
    return send(p->netlink, &q, sizeof q, 0) == (ssize_t)sizeof q &&
           read_answer(p->netlink, p->n_asked, e, uid, found);
}

/* ---- files ------------------------------------------------------------------------------------------- */

/* An address as the kernel writes it: words of 32 bits as they lie in memory, and the port. In tcp6 an address of IPv4
 * has three words before it. */
static bool same_end(const char *text, const end *a, int family) {
    const char *colon = strrchr(text, ':');
    unsigned port;
    if (!colon || sscanf(colon, ":%x", &port) != 1 || port != ntohs(a->port)) return false;
    char want[40];
    if (family == AF_INET6)
        snprintf(want, sizeof want, "%08" PRIX32 "%08" PRIX32 "%08" PRIX32 "%08" PRIX32, a->words[0],
                 a->words[1], a->words[2], a->words[3]);
    else
        snprintf(want, sizeof want, "%s%08" PRIX32, colon - text == 8 ? "" : "0000000000000000FFFF0000",
                 a->words[0]);
    return (size_t)(colon - text) == strlen(want) && !strncmp(text, want, strlen(want));
}

static bool ask_file(const char *path, const ends *e, uid_t *uid, bool *found) {
    char line[512], local[48], remote[48];
    unsigned id;
    unsigned long inode;
    FILE *f = fopen(path, "re");
    *found = false;
    if (!f) return false;
    while (!*found && fgets(line, sizeof line, f))
        if (sscanf(line, " %*u: %47s %47s %*x %*x:%*x %*x:%*x %*x %u %*d %lu", local, remote, &id, &inode) ==
                4 &&
            inode && same_end(local, &e->theirs, e->family) && same_end(remote, &e->ours, e->family)) {
            *found = true;
            *uid = id;
        }
    fclose(f);
    return true;
}

static bool ask_files(const ends *e, uid_t *uid, bool *found) {
    bool known = ask_file("/proc/self/net/tcp", e, uid, found);
    if (known && !*found) (void)ask_file("/proc/self/net/tcp6", e, uid, found); /* IPv4 by a socket of IPv6 */
    return known;
}

/* ---- both -------------------------------------------------------------------------------------------- */

bool tn_peers_uid(tn_peers *p, int fd, uid_t *uid) {
    ends e;
    struct sockaddr_storage ours, theirs;
    socklen_t n_ours = sizeof ours, n_theirs = sizeof theirs;
    int family;
    bool found = false, known = false;
    if (getsockname(fd, (struct sockaddr *)&ours, &n_ours) ||
        getpeername(fd, (struct sockaddr *)&theirs, &n_theirs) || !read_end(&ours, &e.ours, &family) ||
        !read_end(&theirs, &e.theirs, &e.family) || family != e.family)
        return false;
    pthread_mutex_lock(&p->mu);
    if (p->netlink >= 0) known = ask_netlink(p, &e, uid, &found);
    pthread_mutex_unlock(&p->mu);
    if (!known && p->in_files) (void)ask_files(&e, uid, &found);
    return found;
}

/* Tells whether the way that p has now tells the user of a connection of our own. */
static bool tells(tn_peers *p) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    uid_t uid = (uid_t)-1;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = l >= 0 && c >= 0 && !bind(l, (struct sockaddr *)&a, n) && !listen(l, 1) &&
              !getsockname(l, (struct sockaddr *)&a, &n) && !connect(c, (struct sockaddr *)&a, n);
    int s = ok ? accept4(l, NULL, NULL, SOCK_CLOEXEC) : -1;
    ok = s >= 0 && tn_peers_uid(p, s, &uid) && uid == geteuid();
    if (ok) {
        close(c);
        c = -1;
        ok = !tn_peers_uid(p, s, &uid); /* nobody's, whatever number stands there */
    }
    if (s >= 0) close(s);
    if (c >= 0) close(c);
    if (l >= 0) close(l);
    return ok;
}

tern_status tn_peers_open(int ways, tn_peers **out, tern_error *err) {
    tn_peers *p = *out = calloc(1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for asking whose connections are");
    pthread_mutex_init(&p->mu, NULL);
    int netlink =
        ways & TN_PEERS_NETLINK ? socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG) : -1;
    p->netlink = netlink;
    if (netlink >= 0 && !tells(p)) {
        close(netlink);
        netlink = -1;
    }
    p->netlink = -1;
    p->in_files = ways & TN_PEERS_FILES;
    p->in_files = p->in_files && tells(p);
    p->netlink = netlink;
    if (p->netlink >= 0 || p->in_files) return TERN_OK;
    tn_peers_close(out);
    return tn_fail(err, TERN_E_UNSUPPORTED, "this kernel does not tell whose a connection is");
}

void tn_peers_close(tn_peers **pp) {
    tn_peers *p = *pp;
    *pp = NULL;
    if (!p) return;
    if (p->netlink >= 0) close(p->netlink);
    pthread_mutex_destroy(&p->mu);
    free(p);
}
