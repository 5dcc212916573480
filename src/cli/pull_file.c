#include "cli/pull_file.h"

#include "base/clock.h"
#include "cli/live.h"
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH = 4096, ETAG_FILE = PULL_ETAG + 2, MOST_TEXT = 64 << 20, MOST_WAIT_S = 120 };
static const char ENDING[] = ".incomplete";

/* ---- progress ---------------------------------------------------------------------------------------- */

void cli_pull_show(pull_progress *p, const char *what, bool now) {
    enum { WIDTH = 24 };
    double t = tn_now_s(), mib = 1 << 20;
    if (!p->terminal || (!now && t - p->shown_s < 0.1)) return;
    p->shown_s = t;
    double took = t - p->started_s, rate = took > 0 ? (double)(p->done - p->at_start) / took : 0;
    char size[96], speed[64] = "";
    if (p->all) {
        int full = (int)(WIDTH * (double)p->done / (double)p->all);
        if (full > WIDTH) full = WIDTH;
        snprintf(size, sizeof size, "[%.*s%.*s] %.1f of %.1f MiB", full, "########################",
                 WIDTH - full, "........................", (double)p->done / mib, (double)p->all / mib);
    } else {
        snprintf(size, sizeof size, "%.1f MiB", (double)p->done / mib);
    }
    if (took > 1 && rate > 0) {
        double left = p->all > p->done ? (double)(p->all - p->done) / rate : 0;
        int n = snprintf(speed, sizeof speed, ", %.1f MiB/s", rate / mib);
        if (left >= 1)
            snprintf(speed + n, sizeof speed - (size_t)n, ", %.0f %s left", left < 100 ? left : left / 60,
                     left < 100 ? "s" : "min");
    }
    cli_live_line("%s%s  %.30s", size, speed, cli_shown(what));
}

void cli_pull_show_end(pull_progress *p) {
    if (p->terminal) cli_live_clear();
}

/* ---- patience ---------------------------------------------------------------------------------------- */

/* Whether a refusal may be over soon: too many requests, or a server in trouble. */
static bool may_pass(long status) { return status == 408 || status == 429 || status >= 500; }

static void wait_before(int attempt, const pull_reply *r, pull_progress *p, const char *why) {
    long s = r->retry_after_s >= 0 ? r->retry_after_s : 1L << (attempt < 6 ? attempt : 6);
    if (s > MOST_WAIT_S) s = MOST_WAIT_S;
    if (p) cli_pull_show_end(p);
    fprintf(stderr, "tern: %s; trying again", cli_shown(why));
    if (s) fprintf(stderr, " in %ld s", s);
    fputc('\n', stderr);
    struct timespec left = {.tv_sec = s};
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
}

tern_status cli_pull_text(pull_http *h, const char *url, const char *token, const char *accept, char **body,
                          size_t *n, long *status, tern_error *err) {
    const pull_request q = {.url = url, .token = token, .accept = accept, .fd = -1, .most = MOST_TEXT};
    *body = NULL;
    for (int attempt = 0;; attempt++) {
        pull_reply r;
        char why[sizeof err->message];
        tern_status st = cli_http_get(h, &q, &r, err);
        *status = r.status;
        bool again = r.transient || (st == TERN_OK && may_pass(r.status));
        if (!again || attempt + 1 == PULL_ATTEMPTS) {
            *body = r.body;
            *n = r.n;
            if (st == TERN_OK) return st;
            cli_http_reply_free(&r);
            *body = NULL;
            return st;
        }
        if (st == TERN_OK)
            snprintf(why, sizeof why, "the server says %ld%s", r.status,
                     r.status == 429 ? " (too many requests)" : "");
        else snprintf(why, sizeof why, "%s", err->message);
        cli_http_reply_free(&r);
        wait_before(attempt, &r, NULL, why);
    }
}

/* ---- a file ------------------------------------------------------------------------------------------ */

typedef struct fetching {
    pull_file *f;
    pull_progress *p;
    char part[PATH], etag_path[PATH], etag[ETAG_FILE];
    int fd;
    uint64_t have; /* bytes of the part */
    tn_sum sum;
} fetching;

static void begin_sum(fetching *x) {
    char head[40];
    tn_sum_begin(&x->sum, x->f->git);
    if (x->f->git)
        tn_sum_add(&x->sum, head, (size_t)snprintf(head, sizeof head, "blob %" PRIu64, x->f->n_bytes) + 1);
}

/* The sum of what an earlier attempt left. */
static tern_status sum_of_part(fetching *x, tern_error *err) {
    static char buf[1 << 16];
    struct stat sb;
    begin_sum(x);
    x->have = 0;
    TN_FAIL_IF(fstat(x->fd, &sb) || !S_ISREG(sb.st_mode), err, TERN_E_IO, "%s: no ordinary file", x->part);
    bool whole_again = !x->f->sum[0] && !x->etag[0]; /* nothing tells whether it is the same file */
    if ((whole_again || (x->f->n_bytes && (uint64_t)sb.st_size > x->f->n_bytes)) && ftruncate(x->fd, 0))
        return tn_fail(err, TERN_E_IO, "%s: %s", x->part, strerror(errno));
    (void)lseek(x->fd, 0, SEEK_SET);
    for (ssize_t k; (k = read(x->fd, buf, sizeof buf)) != 0;) {
        if (k < 0 && errno == EINTR) continue;
        TN_FAIL_IF(k < 0, err, TERN_E_IO, "%s: %s", x->part, strerror(errno));
        tn_sum_add(&x->sum, buf, (size_t)k);
        x->have += (uint64_t)k;
    }
    x->p->done += x->have;
    x->p->at_start += x->have;
    return TERN_OK;
}

static bool on_bytes(void *user, const void *data, size_t n) {
    fetching *x = user;
    if (!data) { /* it begins anew */
        x->p->done -= x->have;
        x->p->at_start = x->p->at_start > x->have ? x->p->at_start - x->have : 0;
        x->have = 0;
        begin_sum(x);
        return true;
    }
    tn_sum_add(&x->sum, data, n);
    x->have += n;
    x->p->done += n;
    cli_pull_show(x->p, x->f->shown, false);
    return true;
}

static tern_status start_over(fetching *x, tern_error *err) {
    (void)on_bytes(x, NULL, 0);
    x->etag[0] = 0;
    (void)unlink(x->etag_path);
    if (!ftruncate(x->fd, 0) && !lseek(x->fd, 0, SEEK_SET)) return TERN_OK;
    return tn_fail(err, TERN_E_IO, "%s: %s", x->part, strerror(errno));
}

/* Files that are known by no sum are gone on with only where the server names the same one. */
static void keep_etag(fetching *x, const char *etag) {
    if (x->f->sum[0] || !etag[0] || !strcmp(etag, x->etag)) return;
    snprintf(x->etag, sizeof x->etag, "%s", etag);
    FILE *f = fopen(x->etag_path, "we");
    if (!f) return;
    (void)fputs(etag, f);
    (void)fclose(f);
}

static tern_status open_part(fetching *x, tern_error *err) {
    TN_FAIL_IF(snprintf(x->part, PATH, "%s%s", x->f->into, ENDING) >= PATH ||
                   snprintf(x->etag_path, PATH, "%s%s.etag", x->f->into, ENDING) >= PATH,
               err, TERN_E_INVALID, "%s: path too long", x->f->into);
    x->fd = open(x->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    TN_FAIL_IF(x->fd < 0, err, TERN_E_IO, "%s: %s", x->part, strerror(errno));
    TN_FAIL_IF(flock(x->fd, LOCK_EX | LOCK_NB), err, TERN_E_IO, "%s is being fetched by another process",
               x->f->shown);
    FILE *f = fopen(x->etag_path, "re");
    if (f && (!fgets(x->etag, sizeof x->etag, f) || x->etag[0] != '"')) x->etag[0] = 0;
    if (f) fclose(f);
    return sum_of_part(x, err);
}

/* One attempt. *again: it may be tried once more. */
static tern_status attempt(pull_http *h, fetching *x, bool *again, pull_reply *r, tern_error *err) {
    pull_file *f = x->f;
    *again = false;
    *r = (pull_reply){.retry_after_s = -1};
    if (f->n_bytes && x->have == f->n_bytes) return TERN_OK; /* whole already */
    const pull_request q = {.url = f->url,
                            .token = f->token,
                            .fd = x->fd,
                            .from = x->have,
                            .if_etag = f->sum[0] ? NULL : x->etag,
                            .most = f->n_bytes ? f->n_bytes : UINT64_MAX / 2,
                            .on_bytes = on_bytes,
                            .user = x};
    tern_status st = cli_http_get(h, &q, r, err);
    cli_http_reply_free(r);
    if (r->status == 200 || r->status == 206) keep_etag(x, r->etag);
    *again = r->transient;
    if (st == TERN_E_LIMIT) (void)start_over(x, NULL);
    if (st != TERN_OK) {
        tern_error why = *err;
        return tn_fail(err, st, "%s: %.400s", f->shown, why.message);
    }
    if (r->status == 416 && x->have) { /* what was there is no beginning of the file */
        *again = true;
        TN_TRY(start_over(x, err));
        return tn_fail(err, TERN_E_IO, "%s: the server cannot send the rest", f->shown);
    }
    if (r->status != 200 && r->status != 206) {
        *again = may_pass(r->status);
        return tn_fail(err, r->status == 401 || r->status == 403 ? TERN_E_INVALID : TERN_E_IO,
                       "%s: the server says %ld%s", f->shown, r->status,
                       r->status == 429   ? " (too many requests)"
                       : r->status == 404 ? " (there is none)"
                                          : "");
    }
    uint64_t all = f->n_bytes ? f->n_bytes : r->n_announced;
    *again = all && x->have < all;
    if (*again)
        return tn_fail(err, TERN_E_IO, "%s: the connection ended after %" PRIu64 " of %" PRIu64 " bytes",
                       f->shown, x->have, all);
    return TERN_OK;
}

static tern_status check_sum(fetching *x, tern_error *err) {
    char sum[TN_SUM_TEXT];
    tn_sum_end(&x->sum, sum);
    if (!x->f->sum[0]) snprintf(x->f->sum, sizeof x->f->sum, "%s", sum);
    if (!strcmp(sum, x->f->sum)) return TERN_OK;
    (void)unlink(x->part);
    return tn_fail(
        err, TERN_E_FORMAT,
        "%s: the download has a wrong checksum (%.12s..., not %.12s...) and was removed; fetch it again",
        x->f->shown, sum, x->f->sum);
}

tern_status cli_pull_file(pull_http *h, pull_file *f, pull_progress *p, tern_error *err) {
    struct stat sb;
    if (!stat(f->into, &sb) && S_ISREG(sb.st_mode) && (!f->n_bytes || (uint64_t)sb.st_size == f->n_bytes) &&
        f->sum[0]) {
        p->done += (uint64_t)sb.st_size;
        p->at_start += (uint64_t)sb.st_size;
        return TERN_OK; /* files have their names only when they are whole */
    }
    fetching x = {.f = f, .p = p, .fd = -1};
    tern_status st = open_part(&x, err);
    bool again = st == TERN_OK;
    uint64_t had = x.have;
    for (int i = 0; again; i++) {
        pull_reply r;
        st = attempt(h, &x, &again, &r, err);
        if (x.have > had) i = 0, had = x.have; /* it goes forward: patience is for standing still */
        if (st == TERN_OK || !again || i + 1 >= PULL_ATTEMPTS) break;
        wait_before(i, &r, p, err->message);
    }
    if (st == TERN_OK) st = check_sum(&x, err);
    if (st == TERN_OK && (fsync(x.fd) || rename(x.part, f->into)))
        st = tn_fail(err, TERN_E_IO, "%s: %s", f->into, strerror(errno));
    if (st == TERN_OK) (void)unlink(x.etag_path);
    if (x.fd >= 0) close(x.fd);
    return st;
}
