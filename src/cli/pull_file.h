/* cli/pull_file.h - a file is fetched: what an earlier attempt left is gone on from, and it has its name only when its sum is right. */
#ifndef TN_CLI_PULL_FILE_H
#define TN_CLI_PULL_FILE_H

#include "cli/pull_http.h"
#include "base/sum.h"

#include <stdatomic.h>

typedef struct pull_progress {
    bool terminal;
    uint64_t done, all; /* bytes of all files; all 0: not known */
    double started_s, shown_s;
    uint64_t at_start;
} pull_progress;

typedef struct pull_file {
    const char *url, *token, *shown; /* shown: what messages call it */
    const char *into;                /* the file; beside it lies INTO.incomplete until it is whole */
    uint64_t n_bytes;                /* 0: not known */
    char sum[TN_SUM_TEXT];           /* of all bytes; "": not known, and set when it is there */
    bool git;                        /* the sum is git's: SHA-1, with the length in front */
} pull_file;

enum { PULL_ATTEMPTS = 6 };

/* TERN_OK: the file is there. Transient failures are tried again, after a while that grows or that the server says. */
tern_status cli_pull_file(pull_http *h, pull_file *f, pull_progress *p, tern_error *err);
/* A small answer as text, with the same patience; the caller frees *body. *status: 200, or what the server refused it with, for which
 * err has no words. */
tern_status cli_pull_text(pull_http *h, const char *url, const char *token, const char *accept, char **body,
                          size_t *n, long *status, tern_error *err);
/* The line of progress, for all files. */
void cli_pull_show(pull_progress *p, const char *what, bool now);
void cli_pull_show_end(pull_progress *p);
#endif
