#include "server/http.h"

#include "base/clock.h"
#include "base/hex.h"
#include "libraries/library.h"
#include "server/api.h"
#include "server/gate.h"
#include "server/mcp_servers.h"
#include "server/origins.h"
#include "server/page.h"
#include "server/responses.h"
#include "server/peer.h"
#include "server/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

enum { CLOSING_MS = 5000, THREAD_STACK_BYTES = 4 << 20 };

struct tn_http {
    tn_http_options o;
    struct MHD_Daemon *d;
    int port;
    tn_page *page;
    tn_uploads *uploads; /* NULL: nobody reads documents */
    tn_responses *responses;
    tn_gate *gate;
    tn_tls *tls;     /* NULL: the gate itself accepts connections */
    tn_peers *peers; /* NULL: there are keys, or the kernel does not tell */
    atomic_size_t n_bodies;
    atomic_bool ending; /* bytes */
};

typedef struct visit { /* one request */
    char *body;
    size_t n, cap;
    bool refused; /* it has its answer, and its body is not read */
    bool too_large, no_memory;
    size_t n_come; /* bytes, kept or not */
} visit;

typedef struct MHD_Connection connection;
typedef enum MHD_Result result;

/* ---- who may ask ------------------------------------------------------------------------------------ */

bool tn_http_key_ok(const char *keys, const char *given) {
    size_t n = strlen(given);
    unsigned any = 0;
    for (const char *k = keys; *k;) {
        size_t len = strcspn(k, "\r\n");
        unsigned differs = len != n || !len;
        for (size_t i = 0; i < len; i++)
            differs |= (unsigned)((uint8_t)k[i] ^ (uint8_t)(n ? given[i % n] : 0));
        any |= !differs;
        k += len;
        k += strspn(k, "\r\n");
    }
    return any;
}

/* Without keys a page in a browser must not reach the server under a name of its own that leads here. */
static bool host_ok(const tn_http *h, connection *c) {
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    return h->o.keys || !host || tn_host_allowed(h->o.hosts, host);
}

/* A browser says where a request comes from. Other sites may not send any: they could not read the replies,
 * but a document would be added, or an answer made, all the same. */
static bool is_foreign(connection *c) {
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin"),
               *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host"),
               *site = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Sec-Fetch-Site");
    if (site) return strcmp(site, "same-origin") && strcmp(site, "none"); /* no script can set it */
    if (!origin) return false;
    const char *name = strstr(origin, "://");
    return !host || !name || strcmp(name + 3, host) != 0;
}

/* The origin of a request that its site may send: then the reply says so. NULL: there is none, or it may not. The page's
 * own addresses are for the page alone. */
static const char *allowed_origin(const tn_http *h, connection *c, const char *url) {
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    return origin && !tn_page_owns(url) && tn_origin_allowed(h->o.origins, origin) ? origin : NULL;
}

/* A browser asks before it sends a request of another site. It sends no key with that. */
static bool is_preflight(const tn_http *h, connection *c, const char *url, const char *method) {
    return !strcmp(method, "OPTIONS") && h->o.origins && !tn_page_owns(url) && host_ok(h, c) &&
           MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
}

/* A site that is not named reads nothing, as a browser takes a reply without these headers for a no. */
static result preflight(const tn_http *h, connection *c, const char *url) {
    const char *asked = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Access-Control-Request-Headers"),
               *origin = allowed_origin(h, c, url);
    const tn_header headers[] = {{"Vary", "Origin"},
                                 {"Access-Control-Allow-Origin", origin},
                                 {"Access-Control-Allow-Credentials", "true"},
                                 {"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                                 {"Access-Control-Allow-Headers", asked ? asked : "*"},
                                 {"Access-Control-Max-Age", "600"}};
    return tn_respond(c, 200, "text/plain", headers, origin ? sizeof headers / sizeof *headers : 1,
                      tn_body_text(strdup("")));
}

static tn_guest *guest_of(connection *c) {
    return MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Without keys: whose program asks. Root may read everything anyway. A connection that its program has closed is
 * nobody's, so nobody can ask and leave before it is known who it was. */
static bool is_ours(const tn_http *h, connection *c) {
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    const int64_t told = tn_gate_uid(guest_of(c)); /* of TLS: when hands were shaken */
    uid_t uid = (uid_t)told;
    if (!h->peers) return true;
    if (told < 0 && (!i || !tn_peers_uid(h->peers, i->connect_fd, &uid))) return false;
    return !uid || uid == geteuid();
}

static bool authorised(const tn_http *h, connection *c) {
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization"),
               *bare = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    if (bare && tn_http_key_ok(h->o.keys, bare)) return true;
    return given && !strncmp(given, "Bearer ", 7) && tn_http_key_ok(h->o.keys, given + 7);
}

/* Who asks, for fair turns: the key, the address, and what the program calls itself and its user. The port
 * says nothing, because a program has many connections. */
static uint64_t client_of(connection *c) {
    static const char *const told[] = {"Authorization", "x-api-key", "User-Agent"};
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    uint64_t h = 0;
    if (i && i->client_addr && i->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)i->client_addr;
        h = XXH64(&a->sin_addr, sizeof a->sin_addr, h);
    } else if (i && i->client_addr && i->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)i->client_addr;
        h = XXH64(&a->sin6_addr, sizeof a->sin6_addr, h);
    }
    for (size_t k = 0; k < sizeof told / sizeof *told; k++) {
        const char *v = MHD_lookup_connection_value(c, MHD_HEADER_KIND, told[k]);
        h = XXH64(v ? v : "", v ? strlen(v) : 0, h);
    }
    return h;
}

static result too_large(const tn_api_call *a) {
    return tn_api_refuse(a, 413, "the body is larger than %d bytes", TN_HTTP_BODY_MAX);
}

/* Tells whether the request has a body in an encoding: everything but blanks, commas and "identity". */
static bool is_encoded(connection *c, const char *length) {
    const char *v = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Encoding");
    if (!v || (length ? !strtoull(length, NULL, 10)
                      : !MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Transfer-Encoding")))
        return false;
    for (; *v; v += strcspn(v, ", \t")) {
        v += strspn(v, ", \t");
        const size_t n = strcspn(v, ", \t");
        if (n && (n != 8 || strncasecmp(v, "identity", 8) != 0)) return true;
    }
    return false;
}

/* What the head alone tells: the request is answered before its body is read. */
static bool refused(const tn_http *h, connection *c, const char *url, const char *method, result *ok) {
    const tn_api_call a = {.c = c, .url = url, .origin = allowed_origin(h, c, url)};
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    if (is_preflight(h, c, url, method)) *ok = preflight(h, c, url);
    else if (h->o.keys && strcmp(url, "/health") && strcmp(url, "/v1/health") && !tn_page_is_public(url) &&
             !authorised(h, c))
        *ok = tn_api_refuse(&a, 401, "the API key is missing or wrong");
    else if (!host_ok(h, c))
        *ok =
            tn_api_refuse(&a, 403, "this server answers to localhost only, and to the names of --allow-host");
    else if (strcmp(url, "/health") && !tn_page_is_public(url) && !is_ours(h, c))
        *ok =
            tn_api_refuse(&a, 403,
                          "this server answers its own user's programs: others need a key, which it has with "
                          "--api-key-file");
    else if (!tn_page_is_public(url) && !a.origin && is_foreign(c))
        *ok = tn_api_refuse(&a, 403, "another site's page may not ask this server");
    else if (length && strtoull(length, NULL, 10) > TN_HTTP_BODY_MAX) *ok = too_large(&a);
    else if (is_encoded(c, length))
        *ok = tn_api_refuse(&a, 415, "the body has an encoding: send it as it is, without Content-Encoding");
    else return false;
    return true;
}

/* ---- requests ----------------------------------------------------------------------------------------- */

/* A mark of UTF-8 in front of JSON, as editors of Windows write it, is none of it. */
static size_t mark_of(const visit *v) {
    static const char mark[] = "\xef\xbb\xbf";
    return v->n > 3 && !memcmp(v->body, mark, 3) && (v->body[3] == '{' || v->body[3] == '[') ? 3 : 0;
}

static result route(tn_http *h, connection *c, const char *url, const char *method, const visit *v) {
    const size_t skip = mark_of(v);
    const tn_api_call a = {.c = c,
                           .url = url,
                           .models = h->o.models,
                           .uploads = h->uploads,
                           .responses = h->responses,
                           .strict = h->o.strict,
                           .origin = allowed_origin(h, c, url),
                           .body = v->body ? v->body + skip : "",
                           .n_body = v->n - skip,
                           .client = client_of(c),
                           .priority = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Tern-Priority"),
                           .asked_ns = tn_now_ns()};
    if (v->too_large) return too_large(&a);
    if (v->no_memory) return tn_api_refuse(&a, 503, "no memory for the request");
    if (tn_page_owns(url)) return tn_page_answer(h->page, c, url, method, v->body, v->n);
    return tn_api_route(&a, url, method);
}

/* More of the body. It takes as much memory as has come, and all of them together have a limit. */
static void keep_body(tn_http *h, visit *v, const char *data, size_t n) {
    if (v->too_large || v->no_memory) return;
    v->too_large = v->n + n > TN_HTTP_BODY_MAX;
    if (v->too_large) return;
    if (v->n + n > v->cap) {
        size_t cap = 2 * (v->n + n), more = cap - v->cap;
        bool fits = atomic_fetch_add(&h->n_bodies, more) + more <= TN_HTTP_BODIES_MAX;
        char *to = fits ? realloc(v->body, cap) : NULL;
        v->no_memory = !to;
        if (!to) {
            atomic_fetch_sub(&h->n_bodies, more);
            return;
        }
        v->body = to;
        v->cap = cap;
    }
    memcpy(v->body + v->n, data, n);
    v->n += n;
}

/* It is called when a request's head has come, with each part of its body, and at its end. */
static result handle(void *user, connection *c, const char *url, const char *method, const char *version,
                     const char *data, size_t *n_data, void **state) {
    (void)version;
    tn_http *h = user;
    visit *v = *state;
    if (!v) {
        if (!guest_of(c)) return MHD_NO; /* given up before it began */
        *state = v = calloc(1, sizeof *v);
        if (!v) return MHD_NO;
        tn_gate_reading(guest_of(c));
        result ok = MHD_YES;
        v->refused = atomic_load(&h->ending);
        if (v->refused) {
            const tn_api_call a = {.c = c, .url = url, .origin = allowed_origin(h, c, url)};
            return tn_api_refuse(&a, 503, "the server is ending");
        }
        v->refused = refused(h, c, url, method, &ok);
        return ok;
    }
    if (v->refused) {
        *n_data = 0;
        return MHD_YES;
    }
    if (*n_data) {
        keep_body(h, v, data, *n_data);
        v->n_come += *n_data;
        *n_data = 0;
        return v->n_come > 2u * TN_HTTP_BODY_MAX ? MHD_NO : MHD_YES;
    }
    if (!tn_gate_answering(guest_of(c))) return MHD_NO;
    return route(h, c, url, method, v);
}

static void completed(void *user, connection *c, void **state, enum MHD_RequestTerminationCode why) {
    tn_http *h = user;
    (void)why;
    visit *v = *state;
    if (v) atomic_fetch_sub(&h->n_bodies, v->cap);
    if (v) free(v->body);
    free(v);
    *state = NULL;
    if (guest_of(c)) tn_gate_idle(guest_of(c));
}

/* ---- connections -------------------------------------------------------------------------------------- */

static void began_or_ended(void *user, connection *c, void **guest,
                           enum MHD_ConnectionNotificationCode what) {
    tn_http *h = user;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *guest =
            tn_gate_began(h->gate, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    else if (*guest) tn_gate_left(*guest);
}

static bool enter(void *user, int fd, const struct sockaddr *a, socklen_t n) {
    tn_http *h = user;
    return MHD_add_connection(h->d, fd, a, n) == MHD_YES;
}

/* A client of TLS, whose plain text comes from fd. Nobody's is no user's. */
static bool take(void *user, int fd, int wire, const struct sockaddr *a, socklen_t n) {
    tn_http *h = user;
    uid_t uid = (uid_t)-1;
    if (h->peers) (void)tn_peers_uid(h->peers, wire, &uid);
    return tn_gate_take(h->gate, fd, a, n, h->peers ? (int64_t)uid : -1);
}

/* Tells whether a head that the gate has seen shows a key: then its connection may have a place that is kept. */
static bool is_known(void *user, const char *head, size_t n) {
    const tn_http *h = user;
    static const char *const names[] = {"x-api-key", "Authorization"};
    for (size_t i = 0; i < 2; i++) {
        char key[512];
        size_t n_value = 0, n_skip = i ? 7 : 0;
        const char *v = tn_gate_header(head, n, names[i], &n_value);
        if (!v || n_value <= n_skip || n_value - n_skip >= sizeof key) continue;
        if (i && memcmp(v, "Bearer ", 7) != 0) continue;
        snprintf(key, sizeof key, "%.*s", (int)(n_value - n_skip), v + n_skip);
        if (tn_http_key_ok(h->o.keys, key)) return true;
    }
    return false;
}

static size_t unescape(void *user, struct MHD_Connection *c, char *s) {
    (void)user;
    (void)c;
    return tn_percent_decode(s);
}

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

/* An address of IPv4 or IPv6, in brackets or not; localhost is this machine's of IPv4. */
static bool read_address(const char *host, int port, address *a, socklen_t *n) {
    char bare[INET6_ADDRSTRLEN + 2];
    size_t len = strlen(host);
    const bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
    if (len >= sizeof bare) return false;
    snprintf(bare, sizeof bare, "%.*s", (int)(brackets ? len - 2 : len), host + brackets);
    *a = (address){.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
    *n = sizeof a->v4;
    if (!strcmp(bare, "localhost")) a->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else if (brackets || inet_pton(AF_INET, bare, &a->v4.sin_addr) != 1) {
        *a = (address){.v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)}};
        *n = sizeof a->v6;
        return inet_pton(AF_INET6, bare, &a->v6.sin6_addr) == 1;
    }
    return true;
}

static bool is_of_this_machine(const address *a) {
    if (a->any.sa_family == AF_INET) return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &a->v6.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

/* A socket that listens where the options say, or the one that they have: this machine alone where there are no
 * keys. The address :: is every address of IPv4, too. */
static tern_status listening(const tn_http_options *o, int *fd, int *port, tern_error *err) {
    address a = {0};
    socklen_t n = sizeof a, n_int = sizeof(int);
    int listens = 0, on = 1, off = 0;
    *fd = -1;
    if (o->listen_fd < 0) {
        TN_FAIL_IF(!read_address(o->host, o->port, &a, &n), err, TERN_E_INVALID,
                   "'%s' is not an IPv4 or IPv6 address, nor localhost", o->host);
    } else {
        bool ok = !getsockname(o->listen_fd, &a.any, &n) &&
                  (a.any.sa_family == AF_INET || a.any.sa_family == AF_INET6) &&
                  !getsockopt(o->listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n_int) && listens;
        TN_FAIL_IF(!ok, err, TERN_E_INVALID,
                   "the socket that was passed does not listen on an address of the internet: want "
                   "ListenStream=127.0.0.1:PORT");
    }
    TN_FAIL_IF(!is_of_this_machine(&a) && !o->keys, err, TERN_E_INVALID,
               "address %s can be reached from elsewhere: give it keys (--api-key-file)",
               o->listen_fd < 0 ? o->host : "of the socket that was passed");
    const int family = a.any.sa_family;
    int s = o->listen_fd >= 0 ? o->listen_fd : socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = o->listen_fd >= 0 ||
              (s >= 0 && !setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
               (family == AF_INET || !setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off)) &&
               !bind(s, &a.any, n) && !listen(s, SOMAXCONN) && !getsockname(s, &a.any, &n));
    int why = errno;
    if (!ok && s >= 0) close(s);
    TN_FAIL_IF(!ok, err, TERN_E_IO, "cannot listen on %s port %d: %s", o->host, o->port, strerror(why));
    *fd = s;
    *port = ntohs(family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    return TERN_OK;
}

/* The server's own threads; connections come from the gate. */
static tern_status start(tn_http *h, tern_error *err) {
    errno = 0;
    h->d = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
                                MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET,
                            0, NULL, NULL, handle, h, MHD_OPTION_CONNECTION_LIMIT,
                            2u * (TN_GATE_PLACES + TN_GATE_KEYS + TN_GATE_HEALTH),
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TN_CONNECTION_IDLE_S,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)TN_GATE_HEAD,
                            MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                            began_or_ended, h, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
                            MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES, MHD_OPTION_END);
    TN_FAIL_IF(!h->d, err, TERN_E_IO, "cannot serve: %s",
               errno ? strerror(errno) : "no threads or descriptors");
    TN_TRY(tn_gate_begin(h->gate, err));
    return h->tls ? tn_tls_begin(h->tls, err) : TERN_OK;
}

/* Who lets clients in: the gate, or where there is a certificate a thread before it. It takes fd on success. */
static tern_status open_doors(tn_http *h, const tn_http_options *o, int fd, tern_error *err) {
    const tn_gate_options go = {
        .fd = o->tls_cert ? -1 : fd, .enter = enter, .is_known = o->keys ? is_known : NULL, .user = h};
    const tn_tls_options to = {.fd = fd, .cert = o->tls_cert, .key = o->tls_key, .take = take, .user = h};
    TN_TRY(tn_gate_open(&go, &h->gate, err));
    tern_status st = o->tls_cert ? tn_tls_open(&to, &h->tls, err) : TERN_OK;
    if (st != TERN_OK) tn_gate_close(&h->gate);
    return st;
}

tern_status tn_http_open(const tn_http_options *o, tn_http **out, tern_error *err) {
    int fd, port;
    *out = NULL;
    TN_TRY(tn_library_need(TN_LIBRARY_MICROHTTPD, err));
    TN_TRY(listening(o, &fd, &port, err));
    tn_http *h = calloc(1, sizeof *h);
    tern_status st = h ? open_doors(h, o, fd, err) : tn_fail(err, TERN_E_MEMORY, "no memory for the server");
    if (st != TERN_OK) {
        if (o->listen_fd < 0) close(fd);
        free(h);
        return st;
    }
    h->o = *o;
    h->port = port;
    tern_error why;
    if (o->reader &&
        tn_uploads_open(tn_models_ctx(o->models), o->reader, o->reranker, &h->uploads, &why) != TERN_OK)
        tn_log(tn_models_ctx(o->models), TERN_LOG_WARN, "documents cannot be kept: %s", why.message);
    if (!o->keys) (void)tn_peers_open(TN_PEERS_ANY, &h->peers, &why); /* tn_http_is_private tells */
    st = tn_page_open(o->models, h->uploads, o->tools, &h->page, err);
    if (st == TERN_OK) st = tn_responses_open(&h->responses, err);
    if (st == TERN_OK) st = start(h, err);
    *out = h;
    if (st != TERN_OK) tn_http_close(out);
    return st;
}

int tn_http_port(const tn_http *h) { return h->port; }
bool tn_http_is_private(const tn_http *h) { return h->o.keys || h->peers; }

void tn_http_drain(tn_http *h) {
    atomic_store(&h->ending, true);
    if (h->o.tools) tn_mcp_servers_hurry(h->o.tools);
    tn_tls_stop(h->tls);
    tn_gate_stop(h->gate);
}

int tn_http_busy(tn_http *h) { return tn_gate_count(h->gate).busy; }

void tn_http_close(tn_http **ph) {
    tn_http *h = *ph;
    if (!h) return;
    /* who asked gets its answer, unless it does not read */
    tn_tls_stop(h->tls);
    tn_gate_stop(h->gate);
    for (int i = 0; i < CLOSING_MS / 10 && tn_gate_count(h->gate).busy; i++) poll(NULL, 0, 10);
    tn_gate_end(h->gate);
    if (h->d) MHD_stop_daemon(h->d);
    if (h->gate) tn_gate_empty(h->gate); /* TLS sends what is left, and may ask the gate until it has ended */
    tn_tls_close(&h->tls);
    tn_gate_close(&h->gate);
    tn_peers_close(&h->peers);
    tn_page_close(&h->page);
    tn_uploads_close(&h->uploads);
    tn_responses_close(&h->responses);
    free(h);
    *ph = NULL;
}
