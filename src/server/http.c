#include "server/http.h"

#include "base/clock.h"
#include "base/hex.h"
#include "base/json.h"
#include "server/api.h"
#include "server/page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

enum { CLOSING_MS = 5000, THREAD_STACK_BYTES = 4 << 20 };

struct tn_http {
    tn_http_options o;
    struct MHD_Daemon *d;
    int port; /* asked for, or of the socket that was passed */
    tn_page *page;
    tn_uploads *uploads; /* NULL: nobody reads documents */
    atomic_int visits;   /* requests read whose replies are not out */
};

typedef struct visit { /* one request */
    char *body;
    size_t n, cap;
    bool too_large, no_memory;
    bool counted; /* among tn_http's visits */
} visit;

typedef struct MHD_Connection connection;
typedef enum MHD_Result result;

/* ---- the small routes ------------------------------------------------------------------------------ */

static result models(const tn_api_call *a) {
    return tn_api_json(a, 200,
                       tn_json_pack("{s:s, s:o}", "object", "list", "data", tn_models_list(a->models, NULL)));
}

static result one_model(const tn_api_call *a, const char *name) {
    json_t *v = tn_models_list(a->models, name);
    return v ? tn_api_json(a, 200, v) : tn_api_refuse(a, 404, "there is no model '%.80s'", name);
}

static result metrics(const tn_api_call *a) {
    return tn_api_body(a, 200, "text/plain; version=0.0.4", tn_body_text(tn_models_metrics(a->models)));
}

/* The model that the body names, and its engine; NULL after an answer of its own: *ok. */
static tn_served *model_of(const tn_api_call *a, const json_t *body, const tern_engine **e, result *ok) {
    tern_error err = {0};
    tn_served *k;
    if (tn_api_use(a, body, &k, &err) != TERN_OK) {
        *ok = tn_api_error(a, &err, TN_API_CHAT);
        return NULL;
    }
    *e = tn_queue_opts(tn_served_queue(k))->e;
    return k;
}

static result tokenize(const tn_api_call *a, const json_t *body) {
    const json_t *t = json_object_get(body, "content");
    const tern_engine *e;
    result ok;
    if (!json_is_string(t)) return tn_api_refuse(a, 400, "'content' must be a text");
    tn_served *model = model_of(a, body, &e, &ok);
    if (!model) return ok;
    size_t n = json_string_length(t), n_ids = 0, cap = n + 16;
    int32_t *ids = malloc(cap * sizeof *ids);
    tern_error err = {0};
    tern_status st =
        ids ? tern_tokenize(e, json_string_value(t), n, json_is_true(json_object_get(body, "add_special")),
                            false, ids, cap, &n_ids, &err)
            : tn_fail(&err, TERN_E_MEMORY, "no memory for the tokens");
    tn_models_leave(model);
    json_t *list = json_array();
    for (size_t i = 0; st == TERN_OK && i < n_ids; i++) tn_json_append(&list, json_integer(ids[i]));
    free(ids);
    if (st == TERN_OK) return tn_api_json(a, 200, tn_json_pack("{s:o}", "tokens", list));
    json_decref(list);
    return tn_api_error(a, &err, TN_API_CHAT);
}

/* The text of tokens: *text is freed by the caller. */
static tern_status text_of(const tern_engine *e, const json_t *list, char **text, size_t *n,
                           tern_error *err) {
    tern_model_info info;
    tern_engine_info(e, &info);
    size_t cap = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        json_int_t id = json_is_integer(k) ? json_integer_value(k) : -1;
        TN_FAIL_IF(id < 0 || id >= info.n_vocab, err, TERN_E_INVALID,
                   "tokens[%zu] is no token of this model: want 0 to %d", i, info.n_vocab - 1);
        size_t more = tern_token_bytes(e, (int32_t)id, false, NULL, 0);
        if (*n + more > cap) {
            char *grown = realloc(*text, cap = 2 * (*n + more));
            TN_FAIL_IF(!grown, err, TERN_E_MEMORY, "no memory for the text");
            *text = grown;
        }
        *n += tern_token_bytes(e, (int32_t)id, false, *text + *n, more);
    }
    return TERN_OK;
}

static result detokenize(const tn_api_call *a, const json_t *body) {
    const json_t *list = json_object_get(body, "tokens");
    const tern_engine *e;
    result ok;
    if (!json_is_array(list)) return tn_api_refuse(a, 400, "'tokens' must be a list of token numbers");
    tn_served *model = model_of(a, body, &e, &ok);
    if (!model) return ok;
    char *text = NULL;
    size_t n = 0;
    tern_error err = {0};
    tern_status st = text_of(e, list, &text, &n, &err);
    tn_models_leave(model);
    ok = st == TERN_OK ? tn_api_json(a, 200, tn_json_pack("{s:s%}", "content", text ? text : "", n))
                       : tn_api_error(a, &err, TN_API_CHAT);
    free(text);
    return ok;
}

static result with_body(const tn_api_call *a, result (*route)(const tn_api_call *, const json_t *)) {
    json_error_t je;
    json_t *body = tn_json_parse(a->body, a->n_body, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(body)) {
        bool no_json = !body;
        json_decref(body);
        return no_json
                   ? tn_api_refuse(a, 400, "the body is not valid JSON, line %d: %.200s", je.line, je.text)
                   : tn_api_refuse(a, 400, "the body is not a JSON object");
    }
    result ok = route(a, body);
    json_decref(body);
    return ok;
}

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
static bool host_ok(connection *c) {
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    static const char *const own[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; host && i < 3; i++) {
        size_t n = strlen(own[i]);
        if (!strncmp(host, own[i], n) && (!host[n] || host[n] == ':')) return true;
    }
    return !host;
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
    }
    for (size_t k = 0; k < sizeof told / sizeof *told; k++) {
        const char *v = MHD_lookup_connection_value(c, MHD_HEADER_KIND, told[k]);
        h = XXH64(v ? v : "", v ? strlen(v) : 0, h);
    }
    return h;
}

/* ---- routes ------------------------------------------------------------------------------------------ */

enum { MODELS_PATH_N = sizeof "/v1/models/" - 1 };

static result api_route(const tn_api_call *a, size_t i) {
    switch (i) {
    case 0: return tn_api_complete(a, TN_API_CHAT);
    case 1: return tn_api_complete(a, TN_API_COMPLETIONS);
    case 2: return tn_api_complete(a, TN_API_MESSAGES);
    case 3: return tn_api_count_tokens(a);
    case 4: return with_body(a, tn_api_embeddings);
    case 5: return with_body(a, tokenize);
    case 6: return with_body(a, detokenize);
    case 7: return models(a);
    case 8: return tn_api_json(a, 200, tn_json_pack("{s:s}", "status", "ok"));
    default: return metrics(a);
    }
}

static result route(tn_http *h, connection *c, const char *url, const char *method, const visit *v) {
    static const struct {
        const char *method, *url;
    } all[] = {{"POST", "/v1/chat/completions"},
               {"POST", "/v1/completions"},
               {"POST", "/v1/messages"},
               {"POST", "/v1/messages/count_tokens"},
               {"POST", "/v1/embeddings"},
               {"POST", "/tokenize"},
               {"POST", "/detokenize"},
               {"GET", "/v1/models"},
               {"GET", "/health"},
               {"GET", "/metrics"}};
    const tn_api_call a = {.c = c,
                           .models = h->o.models,
                           .uploads = h->uploads,
                           .body = v->body ? v->body : "",
                           .n_body = v->n,
                           .client = client_of(c),
                           .asked_ns = tn_now_ns()};
    size_t i = 0, n = sizeof all / sizeof *all;
    while (i < n && strcmp(all[i].url, url)) i++;
    bool one = !strncmp(url, "/v1/models/", MODELS_PATH_N), rag = !strncmp(url, "/v1/rag/", 8);
    if (h->o.keys && strcmp(url, "/health") && !tn_page_is_public(url) && !authorised(h, c))
        return tn_api_refuse(&a, 401, "the API key is missing or wrong");
    if (!h->o.keys && !host_ok(c)) return tn_api_refuse(&a, 403, "this server answers to localhost only");
    if (!tn_page_is_public(url) && is_foreign(c))
        return tn_api_refuse(&a, 403, "another site's page may not ask this server");
    if (v->too_large) return tn_api_refuse(&a, 413, "the body is larger than %d bytes", TN_HTTP_BODY_MAX);
    if (v->no_memory) return tn_api_refuse(&a, 503, "no memory for the request");
    if (tn_page_owns(url)) return tn_page_answer(h->page, c, url, method, v->body, v->n);
    if (rag) return tn_api_rag(&a, url + 7, method);
    bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    if (one) return reads ? one_model(&a, url + MODELS_PATH_N) : tn_api_refuse(&a, 405, "a model wants GET");
    if (i == n) return tn_api_refuse(&a, 404, "there is no such address");
    if (strcmp(all[i].method, method) && !(all[i].method[0] == 'G' && reads))
        return tn_api_refuse(&a, 405, "%s wants %s", all[i].url, all[i].method);
    return api_route(&a, i);
}

static result handle(void *user, connection *c, const char *url, const char *method, const char *version,
                     const char *data, size_t *n_data, void **state) {
    (void)version;
    visit *v = *state;
    if (!v) {
        *state = v = calloc(1, sizeof *v);
        return v ? MHD_YES : MHD_NO;
    }
    if (*n_data) {
        if (v->n + *n_data > TN_HTTP_BODY_MAX) {
            v->too_large = true;
        } else if (!v->too_large && !v->no_memory) {
            if (v->n + *n_data > v->cap) {
                char *more = realloc(v->body, v->cap = 2 * (v->n + *n_data));
                if (!more) v->no_memory = true;
                else v->body = more;
            }
            if (!v->no_memory) {
                memcpy(v->body + v->n, data, *n_data);
                v->n += *n_data;
            }
        }
        *n_data = 0;
        return v->too_large && v->n > 2u * TN_HTTP_BODY_MAX ? MHD_NO : MHD_YES;
    }
    tn_http *h = user;
    if (!v->counted) atomic_fetch_add(&h->visits, 1);
    v->counted = true;
    return route(h, c, url, method, v);
}

static void completed(void *user, connection *c, void **state, enum MHD_RequestTerminationCode why) {
    tn_http *h = user;
    (void)c;
    (void)why;
    visit *v = *state;
    if (v && v->counted) atomic_fetch_sub(&h->visits, 1);
    if (v) free(v->body);
    free(v);
    *state = NULL;
}

/* Decodes %41 to A in place. %00 stays as it is, because what stands behind it would be cut off an address, and
 * another one meant. */
static size_t unescape(void *user, struct MHD_Connection *c, char *s) {
    (void)user;
    (void)c;
    char *to = s;
    for (const char *at = s; *at; at++) {
        int high = *at == '%' ? tn_hex_digit(at[1]) : -1, low = high >= 0 ? tn_hex_digit(at[2]) : -1;
        bool byte = low >= 0 && (high | low);
        *to++ = *at;
        if (byte) to[-1] = (char)(high << 4 | low), at += 2;
    }
    *to = 0;
    return (size_t)(to - s);
}

/* Where it will listen, or where the socket given listens: IPv4, and this machine alone where there are no
 * keys. */
static tern_status address_of(const tn_http_options *o, struct sockaddr_in *a, tern_error *err) {
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port)};
    char host[INET_ADDRSTRLEN];
    if (o->listen_fd < 0) {
        TN_FAIL_IF(inet_pton(AF_INET, o->host, &a->sin_addr) != 1, err, TERN_E_INVALID,
                   "'%s' is not an IPv4 address", o->host);
    } else {
        int listens = 0;
        socklen_t n = sizeof *a, n_int = sizeof listens;
        bool ok = !getsockname(o->listen_fd, (struct sockaddr *)a, &n) && a->sin_family == AF_INET &&
                  !getsockopt(o->listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n_int) && listens;
        TN_FAIL_IF(!ok, err, TERN_E_INVALID,
                   "the socket that was passed does not listen on an IPv4 address: want "
                   "ListenStream=127.0.0.1:PORT");
    }
    TN_FAIL_IF(ntohl(a->sin_addr.s_addr) >> 24 != 127 && !o->keys, err, TERN_E_INVALID,
               "address %s can be reached from elsewhere: give it keys (--api-key-file)",
               inet_ntop(AF_INET, &a->sin_addr, host, sizeof host));
    return TERN_OK;
}

tern_status tn_http_open(const tn_http_options *o, tn_http **out, tern_error *err) {
    *out = NULL;
    struct sockaddr_in a;
    TN_TRY(address_of(o, &a, err));
    tn_http *h = calloc(1, sizeof *h);
    TN_FAIL_IF(!h, err, TERN_E_MEMORY, "no memory for the server");
    h->o = *o;
    tern_error why;
    if (o->reader && tn_uploads_open(tn_models_ctx(o->models), o->reader, &h->uploads, &why) != TERN_OK)
        tn_log(tn_models_ctx(o->models), TERN_LOG_WARN, "documents cannot be kept: %s", why.message);
    tern_status st = tn_page_open(o->models, h->uploads, &h->page, err);
    if (st != TERN_OK) {
        tn_uploads_close(&h->uploads);
        free(h);
        return st;
    }
    errno = 0;
    h->d = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, NULL,
        NULL, handle, h, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&a, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)TN_HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TN_CONNECTION_IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)TN_HTTP_HEADERS_MAX, MHD_OPTION_NOTIFY_COMPLETED,
        completed, h, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)THREAD_STACK_BYTES, o->listen_fd >= 0 ? MHD_OPTION_LISTEN_SOCKET : MHD_OPTION_END,
        o->listen_fd, MHD_OPTION_END);
    if (!h->d) {
        (void)tn_fail(err, TERN_E_IO, "cannot listen on %s port %d: %s", o->host, o->port,
                      errno ? strerror(errno) : "refused");
        tn_page_close(&h->page);
        tn_uploads_close(&h->uploads);
        free(h);
        return TERN_E_IO;
    }
    h->port = ntohs(a.sin_port);
    *out = h;
    return TERN_OK;
}

int tn_http_port(const tn_http *h) {
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(h->d, MHD_DAEMON_INFO_BIND_PORT);
    return i && i->port ? i->port : h->port;
}

void tn_http_close(tn_http **ph) {
    tn_http *h = *ph;
    if (!h) return;
    /* who asked gets its answer, unless it does not read */
    int fd = MHD_quiesce_daemon(h->d);
    for (int i = 0; i < CLOSING_MS / 10 && atomic_load(&h->visits); i++) poll(NULL, 0, 10);
    MHD_stop_daemon(h->d);
    if (fd >= 0) close(fd);
    tn_page_close(&h->page);
    tn_uploads_close(&h->uploads);
    free(h);
    *ph = NULL;
}
