/* server/http.h - the HTTP side of tern serve, on libmicrohttpd: routes, limits, keys.
 *
 *   a connection -> gate.c -> a request -> who may ask -> its address: routes.c, or the page
 *
 * Connections come in by the gate (gate.h); each that has a place has a thread. Keys are looked at before a
 * body is read. All bodies together are limited, as each of them is. No path of a request is opened and no
 * content is logged. Errors have OpenAI's form. */
#ifndef TN_SERVER_HTTP_H
#define TN_SERVER_HTTP_H

#include "server/models.h"
#include "documents/reader.h"
#include "documents/rerank.h"

enum { TN_HTTP_BODY_MAX = 32 << 20, TN_HTTP_BODIES_MAX = 128 << 20 };

typedef struct tn_http tn_http;

typedef struct tn_http_options {
    tn_models *models;
    tn_reader *reader;            /* of documents; NULL: it reads none */
    const tn_reranker *reranker;  /* puts passages of documents in order; NULL: none */
    struct tn_mcp_servers *tools; /* of the page's answers; NULL: none */
    const char *host;             /* an address of IPv4 or IPv6, or localhost */
    int port;                     /* 0: any free one */
    int listen_fd; /* a socket that listens already, taken on success; host and port count for nothing. -1: none */
    const char *origins;            /* of other sites' pages that may ask (origins.h), or NULL */
    const char *hosts;              /* further names that it answers to without keys (origins.h), or NULL */
    const char *tls_cert, *tls_key; /* PEM texts: it speaks TLS alone (tls.h); NULL: plain HTTP */
    bool strict;                    /* a request with a field that is not followed is refused */
    /* One per line. NULL: then only names of this machine are served, and programs of this user and of root where the
     * kernel tells whose a connection is. */
    const char *keys;
} tn_http_options;

/* Opens the server. It borrows what the options point to. */
tern_status tn_http_open(const tn_http_options *o, tn_http **out, tern_error *err);
void tn_http_close(tn_http **h);
/* Lets nobody new in: whoever asks from now on reads 503. What is being answered goes on. */
void tn_http_drain(tn_http *h);
/* How many requests are whole and not answered. */
int tn_http_busy(tn_http *h);
int tn_http_port(const tn_http *h);
/* Tells whether other users of this machine are kept out: by keys, or because the kernel tells them apart. */
bool tn_http_is_private(const tn_http *h);

/* Tells whether `given` is one of the keys. The time tells nothing about them but their number and
 * lengths. */
bool tn_http_key_ok(const char *keys, const char *given);

#endif
