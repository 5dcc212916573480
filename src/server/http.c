#include "server/http.h"

#include "server/connection.h"
#include "server/page.h"
#include "server/reply.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEARTBEAT_MS = 10000, LOOK_MS = 100, CLOSING_MS = 5000 };

struct tn_http {
    tn_http_options o;
    struct MHD_Daemon *d;
    int port; /* asked for, or of the socket that was passed */
    tn_page *page;
    atomic_int visits; /* requests read whose replies are not out */
};

typedef struct visit { /* one request */
    char *body;
    size_t n, cap;
    bool too_large, no_memory;
    bool counted; /* among tn_http's visits */
} visit;

typedef struct MHD_Connection connection;
typedef enum MHD_Result result;

/* ---- replies --------------------------------------------------------------------------------------- */

/* Takes body. */
static result respond(connection *c, int status, const char *type, struct MHD_Response *body) {
    static const tn_header headers[] = {{"Cache-Control", "no-store"}, {"WWW-Authenticate", "Bearer"}};
    return tn_respond(c, status, type, headers, status == 401 ? 2 : 1, body);
}

static result send_json(connection *c, int status, json_t *v) { /* takes v */
    return respond(c, status, "application/json", tn_body_json(v));
}

/* Sends an error in the form of the API that was asked. */
static result send_api_error(connection *c, const tern_error *err, int status, tn_api api) {
    return send_json(c, status, tn_reply_error(err, status, api == TN_API_MESSAGES));
}

static result send_error(connection *c, const tern_error *err, int status) {
    return send_api_error(c, err, status, TN_API_CHAT);
}

static result refuse(connection *c, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static result refuse(connection *c, int status, const char *fmt, ...) {
    tern_error err = {.code = TERN_E_INVALID};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err.message, sizeof err.message, fmt, ap);
    va_end(ap);
    return send_error(c, &err, status);
}

/* ---- completions ----------------------------------------------------------------------------------- */

typedef struct stream {
    tn_job *j;
    connection *c;
} stream;

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    stream *s = user;
    for (int waited = 0;; waited += LOOK_MS) {
        bool done;
        size_t n = tn_job_take(s->j, buf, max, &done);
        if (n) return (ssize_t)n;
        if (done)
            return s->j->err.code == TERN_OK || s->j->out.n ? MHD_CONTENT_READER_END_OF_STREAM
                                                            : MHD_CONTENT_READER_END_WITH_ERROR;
        if (tn_client_gone(s->c)) {
            tn_job_cancel(s->j);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (waited >= HEARTBEAT_MS && max >= 9) { /* a comment: neither side gives up on a long prompt */
            memcpy(buf, ": wait\n\n", 8);
            return 8;
        }
        tn_job_wait(s->j, LOOK_MS);
    }
}

static void free_stream(void *user) {
    stream *s = user;
    tn_job_cancel(s->j); /* a client that left in the middle; nothing where it is done */
    tn_job_leave(s->j);
    free(s);
}

static result send_stream(connection *c, tn_job *j) {
    stream *s = malloc(sizeof *s);
    struct MHD_Response *r = NULL;
    if (s) {
        *s = (stream){j, c};
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, s, free_stream);
    }
    if (!r) {
        free(s);
        tn_job_cancel(j);
        tn_job_leave(j);
        return MHD_NO;
    }
    return respond(c, 200, "text/event-stream", r);
}

/* Waits until the job is done, or with first until it has begun to answer. Returns false when its client is
 * gone. The connection is not idle meanwhile. */
static bool wait_whole(connection *c, tn_job *j, bool first) {
    bool begun;
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    while (!tn_job_done(j, &begun) && !(first && begun)) {
        if (tn_client_gone(c)) {
            tn_job_cancel(j);
            return false;
        }
        tn_job_wait(j, LOOK_MS);
    }
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)TN_HTTP_IDLE_S);
    return true;
}

static result complete(tn_http *h, connection *c, const visit *v, tn_api api) {
    tern_error err = {0};
    tn_request r;
    tn_job *j;
    tern_status st = tn_request_read(api, v->body ? v->body : "", v->n, &r, &err);
    if (st == TERN_OK) st = tn_queue_put(h->o.q, &r, &j, &err);
    if (st != TERN_OK) return send_api_error(c, &err, tn_reply_status(&err), api);
    bool streams = j->r.stream;
    if (!wait_whole(c, j, streams)) {
        tn_job_leave(j);
        return MHD_NO;
    }
    bool begun, ended = tn_job_done(j, &begun); /* from the end on, what the job holds stays as it is */
    if (streams && begun) return send_stream(c, j);
    result ok;
    assert(ended);
    (void)ended;
    if (j->err.code != TERN_OK) {
        ok = send_api_error(c, &j->err, tn_reply_status(&j->err), api);
    } else {
        char *text = malloc(j->out.n + 1);
        bool done;
        if (text) text[tn_job_take(j, text, j->out.n, &done)] = 0;
        ok = respond(c, 200, "application/json", tn_body_text(text));
    }
    tn_job_leave(j);
    return ok;
}

static result count_tokens(tn_http *h, connection *c, const visit *v) {
    tern_error err = {0};
    size_t n = 0;
    tern_status st = tn_queue_measure(h->o.q, v->body ? v->body : "", v->n, &n, &err);
    if (st != TERN_OK) return send_api_error(c, &err, tn_reply_status(&err), TN_API_MESSAGES);
    return send_json(c, 200, tn_json_pack("{s:I}", "input_tokens", (json_int_t)n));
}

/* ---- embeddings ------------------------------------------------------------------------------------- */

typedef struct embedding {
    float *v; /* [n] */
    size_t n;
    bool base64;
} embedding;

static json_t *base64_of(const float *v, size_t n) {
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = (const uint8_t *)v; /* little-endian, as the API has it and this machine too */
    size_t bytes = 4 * n, at = 0;
    char *out = malloc((bytes + 2) / 3 * 4);
    if (!out) return NULL;
    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t w = (uint32_t)p[i] << 16 | (i + 1 < bytes ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < bytes ? p[i + 2] : 0);
        for (int k = 0; k < 4; k++) out[at++] = i + (size_t)k > bytes ? '=' : set[w >> (18 - 6 * k) & 63];
    }
    json_t *text = tn_json_string(out, at);
    free(out);
    return text;
}

static json_t *vector_of(const embedding *e) {
    if (e->base64) return base64_of(e->v, e->n);
    json_t *list = json_array();
    for (size_t i = 0; i < e->n; i++) tn_json_append(&list, tn_json_real((double)e->v[i]));
    return list;
}

/* One text of the request as a vector of the list. */
static bool is_gone_user(void *c) { return tn_client_gone(c); }

static tern_status embed_one(tn_http *h, connection *c, const json_t *text, bool mean, embedding *e, size_t i,
                             json_t **list, size_t *n_tokens, tern_error *err) {
    TN_FAIL_IF(!json_is_string(text) || !json_string_length(text), err, TERN_E_INVALID,
               "'input' must be a text or a list of texts, none of them empty");
    TN_TRY(tn_queue_embed(h->o.q, json_string_value(text), json_string_length(text), mean, is_gone_user, c,
                          e->v, n_tokens, err));
    tn_json_append(list, tn_json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)i, "embedding",
                                      vector_of(e)));
    TN_FAIL_IF(!*list, err, TERN_E_MEMORY, "no memory for the embeddings");
    return TERN_OK;
}

static result embeddings(tn_http *h, connection *c, const json_t *body) {
    static const char *const known[] = {"input", "model", "encoding_format", "dimensions", "user", "pooling"};
    const json_t *input = json_object_get(body, "input"), *dims = json_object_get(body, "dimensions");
    const char *format = json_string_value(json_object_get(body, "encoding_format")), *field,
               *pooling = json_string_value(json_object_get(body, "pooling"));
    json_t *value;
    tern_model_info info;
    json_object_foreach((json_t *)(uintptr_t)body, field, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(field, known[i]);
        if (!is_known) return refuse(c, 400, "'%.60s' is not supported", field);
    }
    tern_engine_info(tn_queue_opts(h->o.q)->e, &info);
    if (format && strcmp(format, "float") && strcmp(format, "base64"))
        return refuse(c, 400, "'encoding_format' must be float or base64");
    if (pooling && strcmp(pooling, "mean") && strcmp(pooling, "last"))
        return refuse(c, 400, "'pooling' must be mean or last");
    if (dims && json_integer_value(dims) != info.n_embd)
        return refuse(c, 400, "'dimensions' must be %d, as the model has them", info.n_embd);
    size_t n = json_is_array(input) ? json_array_size(input) : 1, n_tokens = 0;
    if (!n || n > 2048) return refuse(c, 400, "'input' must have 1 to 2048 texts");
    embedding e = {.v = malloc((size_t)info.n_embd * sizeof *e.v), .n = (size_t)info.n_embd};
    if (!e.v) return refuse(c, 503, "no memory for the embeddings");
    e.base64 = format && !strcmp(format, "base64");
    json_t *list = json_array();
    tern_error err = {0};
    tern_status st = TERN_OK;
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    for (size_t i = 0; st == TERN_OK && i < n; i++) {
        st = embed_one(h, c, json_is_array(input) ? json_array_get(input, i) : input,
                       pooling && !strcmp(pooling, "mean"), &e, i, &list, &n_tokens, &err);
    }
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)TN_HTTP_IDLE_S);
    free(e.v);
    if (st != TERN_OK) {
        json_decref(list);
        return send_error(c, &err, tn_reply_status(&err));
    }
    return send_json(c, 200,
                     tn_json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", list, "model",
                                  tn_queue_opts(h->o.q)->model, "usage", "prompt_tokens",
                                  (json_int_t)n_tokens, "total_tokens", (json_int_t)n_tokens));
}

/* ---- the small routes ------------------------------------------------------------------------------ */

static result models(tn_http *h, connection *c) {
    json_t *list = json_array(), *adapters = json_array();
    json_t *model = tn_json_pack("{s:s, s:s, s:i, s:s}", "id", tn_queue_opts(h->o.q)->model, "object",
                                 "model", "created", 0, "owned_by", "tern");
    const char *name;
    for (size_t i = 0; (name = tern_engine_lora(tn_queue_opts(h->o.q)->e, i)); i++)
        tn_json_append(&adapters, tn_json_string(name, strlen(name)));
    tn_json_set(&model, "adapters", adapters);
    tn_json_append(&list, model);
    return send_json(c, 200, tn_json_pack("{s:s, s:o}", "object", "list", "data", list));
}

static result metrics(tn_http *h, connection *c) {
    tn_queue_counts n = tn_queue_count(h->o.q);
    char *text = NULL;
    if (asprintf(&text,
                 "# TYPE tern_requests_total counter\n"
                 "tern_requests_total{result=\"done\"} %llu\ntern_requests_total{result=\"failed\"} %llu\n"
                 "tern_requests_total{result=\"cancelled\"} %llu\n"
                 "# TYPE tern_prompt_tokens_total counter\ntern_prompt_tokens_total %llu\n"
                 "# TYPE tern_cached_tokens_total counter\ntern_cached_tokens_total %llu\n"
                 "# TYPE tern_output_tokens_total counter\ntern_output_tokens_total %llu\n"
                 "# TYPE tern_prefill_seconds_total counter\ntern_prefill_seconds_total %.6f\n"
                 "# TYPE tern_decode_seconds_total counter\ntern_decode_seconds_total %.6f\n"
                 "# TYPE tern_requests_waiting gauge\ntern_requests_waiting %d\n"
                 "# TYPE tern_requests_running gauge\ntern_requests_running %d\n",
                 (unsigned long long)n.n_done, (unsigned long long)n.n_failed,
                 (unsigned long long)n.n_cancelled, (unsigned long long)n.prompt_tokens,
                 (unsigned long long)n.cached_tokens, (unsigned long long)n.output_tokens, n.prefill_s,
                 n.decode_s, n.waiting, n.running) < 0)
        return MHD_NO;
    return respond(c, 200, "text/plain; version=0.0.4", tn_body_text(text));
}

static result tokenize(tn_http *h, connection *c, const json_t *body) {
    const json_t *t = json_object_get(body, "content");
    if (!json_is_string(t)) return refuse(c, 400, "'content' must be a text");
    size_t n = json_string_length(t), n_ids = 0, cap = n + 16;
    int32_t *ids = malloc(cap * sizeof *ids);
    tern_error err = {0};
    tern_status st =
        ids ? tern_tokenize(tn_queue_opts(h->o.q)->e, json_string_value(t), n,
                            json_is_true(json_object_get(body, "add_special")), false, ids, cap, &n_ids, &err)
            : tn_fail(&err, TERN_E_MEMORY, "no memory for the tokens");
    json_t *list = json_array();
    for (size_t i = 0; st == TERN_OK && i < n_ids; i++) tn_json_append(&list, json_integer(ids[i]));
    free(ids);
    if (st == TERN_OK) return send_json(c, 200, tn_json_pack("{s:o}", "tokens", list));
    json_decref(list);
    return send_error(c, &err, tn_reply_status(&err));
}

static result detokenize(tn_http *h, connection *c, const json_t *body) {
    const tern_engine *e = tn_queue_opts(h->o.q)->e;
    const json_t *list = json_object_get(body, "tokens");
    if (!json_is_array(list)) return refuse(c, 400, "'tokens' must be a list of token numbers");
    tern_model_info info;
    tern_engine_info(e, &info);
    char *text = NULL;
    size_t n = 0, cap = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        json_int_t id = json_is_integer(k) ? json_integer_value(k) : -1;
        if (id < 0 || id >= info.n_vocab) {
            free(text);
            return refuse(c, 400, "tokens[%zu] is no token of this model: want 0 to %d", i, info.n_vocab - 1);
        }
        size_t more = tern_token_bytes(e, (int32_t)id, false, NULL, 0);
        if (n + more > cap) {
            char *grown = realloc(text, cap = 2 * (n + more));
            if (!grown) {
                free(text);
                return refuse(c, 503, "no memory for the text");
            }
            text = grown;
        }
        n += tern_token_bytes(e, (int32_t)id, false, text + n, more);
    }
    json_t *v = tn_json_pack("{s:s%}", "content", text ? text : "", n);
    free(text);
    return send_json(c, 200, v);
}

static result with_body(tn_http *h, connection *c, const visit *v,
                        result (*route)(tn_http *, connection *, const json_t *)) {
    json_error_t je;
    json_t *body = json_loadb(v->body ? v->body : "", v->n, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(body)) {
        bool no_json = !body;
        json_decref(body);
        return no_json ? refuse(c, 400, "the body is not valid JSON, line %d: %.200s", je.line, je.text)
                       : refuse(c, 400, "the body is not a JSON object");
    }
    result ok = route(h, c, body);
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

static bool authorised(const tn_http *h, connection *c) {
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization"),
               *bare = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    if (bare && tn_http_key_ok(h->o.keys, bare)) return true;
    return given && !strncmp(given, "Bearer ", 7) && tn_http_key_ok(h->o.keys, given + 7);
}

/* ---- routes ------------------------------------------------------------------------------------------ */

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
    size_t i = 0, n = sizeof all / sizeof *all;
    while (i < n && strcmp(all[i].url, url)) i++;
    if (h->o.keys && strcmp(url, "/health") && !tn_page_is_public(url) && !authorised(h, c))
        return refuse(c, 401, "the API key is missing or wrong");
    if (!h->o.keys && !host_ok(c)) return refuse(c, 403, "this server answers to localhost only");
    if (tn_page_owns(url) && !v->too_large && !v->no_memory)
        return tn_page_answer(h->page, c, url, method, v->body, v->n);
    if (i == n && !tn_page_owns(url)) return refuse(c, 404, "there is no such address");
    if (i < n && strcmp(all[i].method, method) && !(all[i].method[0] == 'G' && !strcmp(method, "HEAD")))
        return refuse(c, 405, "%s wants %s", all[i].url, all[i].method);
    if (v->too_large) return refuse(c, 413, "the body is larger than %d bytes", TN_HTTP_BODY_MAX);
    if (v->no_memory) return refuse(c, 503, "no memory for the request");
    switch (i) {
    case 0: return complete(h, c, v, TN_API_CHAT);
    case 1: return complete(h, c, v, TN_API_COMPLETIONS);
    case 2: return complete(h, c, v, TN_API_MESSAGES);
    case 3: return count_tokens(h, c, v);
    case 4: return with_body(h, c, v, embeddings);
    case 5: return with_body(h, c, v, tokenize);
    case 6: return with_body(h, c, v, detokenize);
    case 7: return models(h, c);
    case 8: return send_json(c, 200, tn_json_pack("{s:s}", "status", "ok"));
    default: return metrics(h, c);
    }
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

/* Where it will listen, or where the socket given listens: IPv4, and this machine alone where there are no keys. */
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
    tern_status st = tn_page_open(o->q, tn_queue_opts(o->q)->reader, &h->page, err);
    if (st != TERN_OK) {
        free(h);
        return st;
    }
    errno = 0;
    h->d = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, NULL,
        NULL, handle, h, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&a, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)TN_HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TN_HTTP_IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)TN_HTTP_HEADERS_MAX, MHD_OPTION_NOTIFY_COMPLETED,
        completed, h, MHD_OPTION_THREAD_STACK_SIZE, (size_t)(512 << 10),
        o->listen_fd >= 0 ? MHD_OPTION_LISTEN_SOCKET : MHD_OPTION_END, o->listen_fd, MHD_OPTION_END);
    if (!h->d) {
        (void)tn_fail(err, TERN_E_IO, "cannot listen on %s port %d: %s", o->host, o->port,
                      errno ? strerror(errno) : "refused");
        tn_page_close(&h->page);
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
    free(h);
    *ph = NULL;
}
