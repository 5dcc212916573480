/* server/http.h - the HTTP side of tern serve, on libmicrohttpd: routes, limits, keys.
 *
 *   POST /v1/chat/completions, /v1/completions   to the queue; streamed as server-sent events where asked
 *   POST /tokenize, /detokenize   GET /v1/models[/NAME], /health, /metrics   /v1/rag/...  (api.h)
 *
 * One thread per connection; connections, bodies, headers and idle time are limited. No path of a request
 * is opened and no content is logged. Errors have OpenAI's form. */
#ifndef TN_SERVER_HTTP_H
#define TN_SERVER_HTTP_H

#include "server/models.h"
#include "server/reader.h"

enum { TN_HTTP_BODY_MAX = 8 << 20, TN_HTTP_HEADERS_MAX = 32 << 10, TN_HTTP_CONNECTIONS = 64 };

typedef struct tn_http tn_http;

typedef struct tn_http_options {
    tn_models *models;
    tn_reader *reader; /* of documents; NULL: it reads none */
    const char *host;  /* an IPv4 address */
    int port;          /* 0: any free one */
    int listen_fd; /* a socket that listens already, taken on success; host and port count for nothing. -1: none */
    const char *keys; /* one per line, or NULL: then only names of this machine are served */
} tn_http_options;

/* Opens the server. It borrows what the options point to. */
tern_status tn_http_open(const tn_http_options *o, tn_http **out, tern_error *err);
void tn_http_close(tn_http **h);
int tn_http_port(const tn_http *h);

/* Tells whether `given` is one of the keys. The time tells nothing about them but their number and
 * lengths. */
bool tn_http_key_ok(const char *keys, const char *given);

#endif
