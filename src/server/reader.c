#include "server/reader.h"

#include "base/status.h"
#include "store/rag.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REQUEST_BYTES = 4200, CPU_SECONDS = 120, WAIT_SECONDS = 900 };

struct tn_reader {
    pid_t pid;
    int to, from; /* pipes */
};

/* In front of every reply: a status of tern, and how many bytes of text or of a message follow. */
typedef struct head {
    int64_t status, n;
} head;

static bool write_all(int fd, const void *p, size_t n) {
    for (const char *at = p; n;) {
        ssize_t k = write(fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

static bool read_all(int fd, void *p, size_t n) {
    for (char *at = p; n;) {
        ssize_t k = read(fd, at, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

/* ---- the process ----------------------------------------------------------------------------------- */

static bool reply(int fd, tern_status st, const char *p, size_t n) {
    return write_all(fd, &(head){st, (int64_t)n}, sizeof(head)) && write_all(fd, p, n);
}

/* Reads one document and ends. */
static void read_one(const char *path, size_t max_bytes, int fd) {
    tn_ctx ctx;
    tern_error err = {0};
    char *text = NULL;
    size_t n = 0;
    (void)setrlimit(RLIMIT_CPU, &(struct rlimit){CPU_SECONDS, CPU_SECONDS});
    alarm(WAIT_SECONDS); /* a busy machine gives little time, and a process that waits uses none */
    tn_ctx_init(&ctx, NULL);
    tern_status st = tn_rag_file_text(&ctx, path, max_bytes, &text, &n, &err);
    bool ok = st == TERN_OK ? reply(fd, st, text, n) : reply(fd, st, err.message, strlen(err.message));
    _exit(ok ? 0 : 1);
}

/* Passes on what the process of a document says, whole or not at all. */
static bool answer(const char *path, size_t max_bytes, int out) {
    static const char broke[] = "the document could not be read: its reader ended";
    int fds[2];
    head h = {0};
    char *text = NULL;
    pid_t pid = pipe2(fds, O_CLOEXEC) ? -1 : fork();
    if (pid < 0) return reply(out, TERN_E_MEMORY, "no process for a document", 25);
    if (!pid) {
        close(fds[0]);
        read_one(path, max_bytes, fds[1]);
    }
    close(fds[1]);
    bool ok = read_all(fds[0], &h, sizeof h) && h.n >= 0 && h.n <= (int64_t)max_bytes + 4096 &&
              (text = malloc((size_t)h.n + 1)) && read_all(fds[0], text, (size_t)h.n);
    close(fds[0]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    ok = ok ? reply(out, (tern_status)h.status, text, (size_t)h.n)
            : reply(out, TERN_E_FORMAT, broke, sizeof broke - 1);
    free(text);
    return ok;
}

/* Answers requests, "MAX_BYTES PATH\n", until nobody is left to ask. */
static void serve(int in, int out) {
    FILE *f = fdopen(in, "r");
    char line[REQUEST_BYTES];
    while (f && fgets(line, sizeof line, f)) {
        char *path;
        size_t max_bytes = strtoull(line, &path, 10), n = strlen(path);
        if (n < 3 || path[0] != ' ' || path[n - 1] != '\n') break;
        path[n - 1] = 0;
        if (!answer(path + 1, max_bytes, out)) break;
    }
    _exit(0);
}

/* ---- the server's side ------------------------------------------------------------------------------ */

tern_status tn_reader_open(tn_reader **out, tern_error *err) {
    int to[2], from[2];
    tn_reader *r = *out = calloc(1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory for the reader of documents");
    bool ok = !pipe2(to, O_CLOEXEC);
    if (ok && pipe2(from, O_CLOEXEC)) {
        close(to[0]), close(to[1]);
        ok = false;
    }
    pid_t pid = ok ? fork() : -1;
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN); /* of the terminal: the server ends first, and this with it */
        signal(SIGPIPE, SIG_IGN);
        close(to[1]), close(from[0]);
        serve(to[0], from[1]);
    }
    if (ok) close(to[0]), close(from[1]);
    if (ok && pid < 0) close(to[1]), close(from[0]);
    if (pid < 0) {
        free(r);
        *out = NULL;
        return tn_fail(err, TERN_E_MEMORY, "no process for reading documents: %s", strerror(errno));
    }
    *r = (tn_reader){.pid = pid, .to = to[1], .from = from[0]};
    return TERN_OK;
}

void tn_reader_close(tn_reader **pr) {
    tn_reader *r = *pr;
    *pr = NULL;
    if (!r) return;
    close(r->to);
    close(r->from);
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    free(r);
}

tern_status tn_reader_text(tn_reader *r, const char *path, size_t max_bytes, char **out, size_t *n,
                           tern_error *err) {
    char line[REQUEST_BYTES];
    head h;
    *out = NULL;
    int k = snprintf(line, sizeof line, "%zu %s\n", max_bytes, path);
    TN_FAIL_IF(k < 0 || (size_t)k >= sizeof line, err, TERN_E_LIMIT, "the document's path is too long");
    bool ok = write_all(r->to, line, (size_t)k) && read_all(r->from, &h, sizeof h) && h.n >= 0 &&
              h.n <= (int64_t)max_bytes + 4096;
    TN_FAIL_IF(!ok, err, TERN_E_IO, "the process that reads documents has ended: start the server again");
    char *text = malloc((size_t)h.n + 1);
    if (!text || !read_all(r->from, text, (size_t)h.n)) {
        free(text);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the document's text");
    }
    text[ *n = (size_t)h.n] = 0;
    if (h.status == TERN_OK) {
        *out = text;
        return TERN_OK;
    }
    const char *colon = strstr(text, ": "); /* the path is the server's own affair */
    tern_status st = tn_fail(err, (tern_status)h.status, "%.400s", colon ? colon + 2 : text);
    free(text);
    return st;
}
