#include "cli/pull_http.h"

#ifndef TERN_CURL

bool cli_http_open(pull_http **out, int stall_s, tern_error *err) {
    (void)stall_s;
    *out = NULL;
    (void)tn_fail(
        err, TERN_E_UNSUPPORTED,
        "this tern was built without libcurl and cannot fetch: install libcurl4-openssl-dev and build it "
        "again, or fetch the file another way (curl -LO ADDRESS, hf download) and give its path");
    return false;
}
void cli_http_close(pull_http **h) { *h = NULL; }
tern_status cli_http_get(pull_http *h, const pull_request *r, pull_reply *out, tern_error *err) {
    (void)h, (void)r;
    *out = (pull_reply){0};
    return tn_fail(err, TERN_E_UNSUPPORTED, "no libcurl");
}
void cli_http_reply_free(pull_reply *r) { (void)r; }

#else

#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct pull_http {
    void *library;
    CURL *curl;
    int stall_s;
    CURL *(*init)(void);
    void (*cleanup)(CURL *);
    void (*reset)(CURL *);
    CURLcode (*setopt)(CURL *, CURLoption, ...);
    CURLcode (*perform)(CURL *);
    CURLcode (*getinfo)(CURL *, CURLINFO, ...);
    const char *(*strerror)(CURLcode);
    struct curl_slist *(*append)(struct curl_slist *, const char *);
    void (*free_all)(struct curl_slist *);
};

bool cli_http_open(pull_http **out, int stall_s, tern_error *err) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    pull_http *h = *out = calloc(1, sizeof *h);
    if (!h) return tn_fail(err, TERN_E_MEMORY, "no memory for a connection"), false;
    h->stall_s = stall_s;
    signal(SIGPIPE, SIG_IGN); /* a connection that ends is no reason to die */
    for (size_t i = 0; i < 2 && !h->library; i++) h->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!h->library) {
        cli_http_close(out);
        return tn_fail(err, TERN_E_UNSUPPORTED,
                       "tern pull needs libcurl, which is not installed: apt-get install libcurl4 "
                       "(libcurl4t64 on "
                       "newer systems)"),
               false;
    }
    const struct {
        const char *name;
        void *into;
    } wanted[] = {{"curl_easy_init", &h->init},         {"curl_easy_cleanup", &h->cleanup},
                  {"curl_easy_reset", &h->reset},       {"curl_easy_setopt", &h->setopt},
                  {"curl_easy_perform", &h->perform},   {"curl_easy_getinfo", &h->getinfo},
                  {"curl_easy_strerror", &h->strerror}, {"curl_slist_append", &h->append},
                  {"curl_slist_free_all", &h->free_all}};
    bool all = true;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *f = dlsym(h->library, wanted[i].name);
        memcpy(wanted[i].into, &f, sizeof f);
        all = all && f;
    }
    h->curl = all ? h->init() : NULL;
    if (h->curl) return true;
    cli_http_close(out);
    return tn_fail(err, TERN_E_UNSUPPORTED, "libcurl is installed but does not start"), false;
}

void cli_http_close(pull_http **ph) {
    pull_http *h = *ph;
    *ph = NULL;
    if (!h) return;
    if (h->curl) h->cleanup(h->curl);
    /* the library stays: others of its threads and handlers may be there */
    free(h);
}

typedef struct transfer {
    pull_http *h;
    const pull_request *r;
    pull_reply *out;
    const char *failed; /* of ours: why it stopped */
    bool too_much;
} transfer;

static bool names(const char *line, size_t n, const char *name, const char **value, size_t *n_value) {
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k) || line[k] != ':') return false;
    for (k++; k < n && (line[k] == ' ' || line[k] == '\t'); k++) {
    }
    while (n > k && strchr("\r\n \t", line[n - 1])) n--;
    *value = line + k;
    *n_value = n - k;
    return true;
}

/* Of the last answer of a chain of redirects: each begins with a line of its own. */
static size_t on_header(char *line, size_t size, size_t count, void *user) {
    transfer *t = user;
    size_t n = size * count, k;
    const char *v;
    if (n > 5 && !strncmp(line, "HTTP/", 5)) {
        t->out->etag[0] = 0;
        t->out->n_announced = 0;
        t->out->retry_after_s = -1;
        t->out->whole = false;
    } else if (names(line, n, "ETag", &v, &k) && k < PULL_ETAG && v[0] == '"') {
        memcpy(t->out->etag, v, k);
        t->out->etag[k] = 0;
    } else if (names(line, n, "Retry-After", &v, &k)) {
        t->out->retry_after_s = strtol(v, NULL, 10);
    } else if (names(line, n, "Content-Length", &v, &k) && !t->out->n_announced) {
        t->out->n_announced = strtoull(v, NULL, 10);
    } else if (names(line, n, "Content-Range", &v, &k)) {
        const char *slash = memchr(v, '/', k);
        unsigned long long from = ~0ULL;
        t->out->n_announced = slash ? strtoull(slash + 1, NULL, 10) : 0;
        if (sscanf(v, "bytes %llu-", &from) != 1 || from != t->r->from)
            t->failed = "the server sent another part of the file";
    }
    return n;
}

static bool write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool to_memory(transfer *t, const char *p, size_t n) {
    pull_reply *o = t->out;
    char *more = realloc(o->body, o->n + n + 1);
    if (!more) return t->failed = "no memory for an answer", false;
    o->body = more;
    memcpy(more + o->n, p, n);
    o->n += n;
    more[o->n] = 0;
    return true;
}

static size_t on_data(char *p, size_t size, size_t count, void *user) {
    transfer *t = user;
    size_t n = size * count;
    long status = 0;
    t->h->getinfo(t->h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->failed) return 0;
    bool good = status == 200 || status == 206, file = t->r->fd >= 0 && good;
    uint64_t have = file ? t->out->n_written + (t->r->from && status == 206 ? t->r->from : 0) : t->out->n;
    if (n > t->r->most || have > t->r->most - n) {
        t->too_much = good;
        return good ? 0 : n; /* the page of an error may be as long as it likes; its beginning does */
    }
    if (!file) return to_memory(t, p, n) ? n : 0;
    if (status == 200 && t->r->from &&
        !t->out->whole) { /* from the beginning, though the rest was asked for */
        if (ftruncate(t->r->fd, 0) || lseek(t->r->fd, 0, SEEK_SET)) t->failed = strerror(errno);
        t->out->whole = true;
        if (!t->failed && t->r->on_bytes && !t->r->on_bytes(t->r->user, NULL, 0))
            t->failed = "it was stopped";
    }
    if (!t->failed && !write_all(t->r->fd, p, n)) t->failed = strerror(errno);
    if (!t->failed && t->r->on_bytes && !t->r->on_bytes(t->r->user, p, n)) t->failed = "it was stopped";
    t->out->n_written += n;
    return t->failed ? 0 : n;
}

static struct curl_slist *headers_of(pull_http *h, const pull_request *r) {
    char line[1200];
    struct curl_slist *all = NULL;
    if (r->token) { /* libcurl sends it to the first host alone */
        snprintf(line, sizeof line, "Authorization: Bearer %s", r->token);
        all = h->append(all, line);
    }
    if (r->accept) {
        snprintf(line, sizeof line, "Accept: %s", r->accept);
        all = h->append(all, line);
    }
    if (r->from && r->if_etag) {
        snprintf(line, sizeof line, "If-Range: %s", r->if_etag);
        all = h->append(all, line);
    }
    return all;
}

tern_status cli_http_get(pull_http *h, const pull_request *r, pull_reply *out, tern_error *err) {
    *out = (pull_reply){.retry_after_s = -1};
    transfer t = {.h = h, .r = r, .out = out};
    char why[CURL_ERROR_SIZE] = "";
    bool plain = !strncmp(r->url, "http://", 7);
    h->reset(h->curl);
    struct curl_slist *headers = headers_of(h, r);
    h->setopt(h->curl, CURLOPT_URL, r->url);
    h->setopt(h->curl, CURLOPT_HTTPHEADER, headers);
    h->setopt(h->curl, CURLOPT_USERAGENT, "tern/" TERN_VERSION_STRING);
    h->setopt(h->curl, CURLOPT_ERRORBUFFER, why);
    h->setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    h->setopt(h->curl, CURLOPT_FOLLOWLOCATION, 1L);
    h->setopt(h->curl, CURLOPT_MAXREDIRS, 10L);
#if LIBCURL_VERSION_NUM >= 0x075500
    h->setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    h->setopt(h->curl, CURLOPT_REDIR_PROTOCOLS_STR,
              plain ? "http,https" : "https"); /* never from safe to unsafe */
#else
    h->setopt(h->curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    h->setopt(h->curl, CURLOPT_REDIR_PROTOCOLS,
              (long)(plain ? CURLPROTO_HTTP | CURLPROTO_HTTPS : CURLPROTO_HTTPS));
#endif
    h->setopt(h->curl, CURLOPT_CONNECTTIMEOUT, (long)h->stall_s);
    h->setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    h->setopt(h->curl, CURLOPT_LOW_SPEED_TIME, (long)h->stall_s);
    h->setopt(h->curl, CURLOPT_HEADERFUNCTION, on_header);
    h->setopt(h->curl, CURLOPT_HEADERDATA, &t);
    h->setopt(h->curl, CURLOPT_WRITEFUNCTION, on_data);
    h->setopt(h->curl, CURLOPT_WRITEDATA, &t);
    char range[32]; /* not CURLOPT_RESUME_FROM, which refuses an answer that is the whole file */
    snprintf(range, sizeof range, "%llu-", (unsigned long long)r->from);
    if (r->from) h->setopt(h->curl, CURLOPT_RANGE, range);
    CURLcode rc = h->perform(h->curl);
    h->getinfo(h->curl, CURLINFO_RESPONSE_CODE, &out->status);
    h->free_all(headers);
    if (t.too_much)
        return tn_fail(err, TERN_E_LIMIT, "the server sends more than the %llu bytes it announced",
                       (unsigned long long)r->most);
    if (t.failed) return tn_fail(err, TERN_E_IO, "%s", t.failed);
    out->transient = rc == CURLE_PARTIAL_FILE || rc == CURLE_RECV_ERROR || rc == CURLE_SEND_ERROR ||
                     rc == CURLE_GOT_NOTHING || rc == CURLE_OPERATION_TIMEDOUT || rc == CURLE_HTTP2 ||
                     rc == CURLE_HTTP2_STREAM;
    if (rc != CURLE_OK) return tn_fail(err, TERN_E_IO, "%s", why[0] ? why : h->strerror(rc));
    return TERN_OK;
}

void cli_http_reply_free(pull_reply *r) {
    free(r->body);
    r->body = NULL;
}
#endif
