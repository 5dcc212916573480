/* cli/pull_http.h - what tern pull asks of the network: a small answer in memory, a large one to a file. libcurl does it, and is
 * loaded when the command runs and by no other: nothing else of tern can open a connection. */
#ifndef TN_CLI_PULL_HTTP_H
#define TN_CLI_PULL_HTTP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pull_http pull_http;

typedef struct pull_request {
    const char *url;
    const char *token;  /* for the host of the URL alone, not for where it redirects to; NULL: none */
    const char *accept; /* NULL: anything */
    /* of a file */
    int fd;        /* what comes is appended here; -1: it goes to memory */
    uint64_t from; /* its bytes before are there: the server is asked for the rest */
    const char
        *if_etag; /* that rest only of this file, else all of it; NULL: what is fetched is known by its sum */
    uint64_t most;                                            /* more bytes than that are an error */
    bool (*on_bytes)(void *user, const void *data, size_t n); /* each piece that was written; false: stop */
    void *user;
} pull_request;

enum { PULL_ETAG = 200 };

typedef struct pull_reply {
    bool transient; /* it failed in a way that may not last: a connection that ended or stood still */
    long status;    /* 200, 206, 404, ...; 0: no answer */
    char *body;     /* zero-terminated, where it goes to memory; freed by cli_http_reply_free */
    size_t n;
    uint64_t n_written;   /* to the file in this reply */
    bool whole;           /* it sends the file from its beginning: what was there is gone */
    uint64_t n_announced; /* of all of the file; 0: not told */
    char etag[PULL_ETAG]; /* strong ones alone; "": none */
    long retry_after_s;   /* -1: not told */
} pull_reply;

/* False: tern was built without libcurl, or it is not here; err says how to get it. stall_s: so long without a byte is a failure. */
bool cli_http_open(pull_http **out, int stall_s, tern_error *err);
void cli_http_close(pull_http **h);
/* TERN_OK with a status, whichever it is; TERN_E_IO where the connection failed, err says how. TERN_E_LIMIT: more than `most`. */
tern_status cli_http_get(pull_http *h, const pull_request *r, pull_reply *out, tern_error *err);
void cli_http_reply_free(pull_reply *r);
#endif
