#include "documents/reader.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "documents/file_text.h"
#include "documents/office.h"
#include "documents/pipes.h"
#include "documents/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, CPU_SECONDS = 120, MOST_BYTES = 256 << 20 };

static tn_reader_fn provided; /* before the first thread */

void tn_reader_provide(tn_reader_fn fn) { provided = fn; }

typedef struct lane { /* one process that reads, and whoever it reads for */
    pid_t pid;
    int to, from; /* pipes */
    bool busy, broken;
} lane;

struct tn_reader {
    pthread_mutex_t mu; /* of busy and broken */
    pthread_cond_t is_free;
    int n;
    lane lanes[TN_READERS];
};

/* In front of every request: how much text at most, and how many bytes follow: a document's path, or what is read itself;
 * with a path the page that is wanted as a picture, 0: the text. */
typedef struct request {
    uint64_t max_bytes, n, is_path, page;
} request;

/* In front of every reply: a status of tern, and how many bytes of text or of a message follow. */
typedef struct head {
    int64_t status, n;
} head;

/* ---- the process ----------------------------------------------------------------------------------- */

static bool reply(int fd, tern_status st, const char *p, size_t n) {
    return tn_pipe_write(fd, &(head){st, (int64_t)n}, sizeof(head)) && tn_pipe_write(fd, p, n);
}

/* Gives up what reading this document does not take. Where the kernel has only one of both, that holds; where it has
 * neither the document is read as it is (the server says so when it starts). */
static tern_status seal(void *user, const char *path, bool pdf, tern_error *err) {
    (void)user;
    static const char *const system[] = {"/usr", "/lib", "/lib32", "/lib64", "/etc",
                                         "/bin", "/opt", "/nix",   "/gnu"};
    enum { N_SYSTEM = sizeof system / sizeof *system, N_PATHS = N_SYSTEM + 64 };
    tn_sandbox_path paths[N_PATHS];
    size_t n = 0;
    tern_error why;
    for (size_t i = 0; i < N_SYSTEM; i++) paths[n++] = (tn_sandbox_path){system[i], false};
    if (pdf) { /* the program, wherever it is looked for; what it reads, and its silence */
        char *folders = strdup(getenv("PATH") ? getenv("PATH") : ""), *rest = folders;
        paths[n++] = (tn_sandbox_path){path, false};
        paths[n++] = (tn_sandbox_path){"/dev/null", true};
        for (char *f; rest && (f = strsep(&rest, ":")) && n < N_PATHS;)
            if (*f == '/') paths[n++] = (tn_sandbox_path){f, false};
    }
    tern_status st = tn_sandbox_files(paths, n, true, &why);
    if (st == TERN_OK || st == TERN_E_UNSUPPORTED)
        st = tn_sandbox_enter(pdf ? TN_SANDBOX_STARTER : TN_SANDBOX_READER, &why);
    if (st != TERN_OK && st != TERN_E_UNSUPPORTED) *err = why;
    return st == TERN_E_UNSUPPORTED ? TERN_OK : st;
}

/* Loads the libraries that this document takes. The process that reads it is forked from this one and inherits them;
 * once sealed it could not load them itself. */
static void prepare(const char *path) {
    char mark[4];
    struct stat sb;
    const int fd = tn_file_open_regular(path, &sb, NULL);
    if (fd < 0) return;
    if (read(fd, mark, sizeof mark) == sizeof mark && tn_doc_is_container(mark, sizeof mark))
        tn_doc_office_prepare();
    close(fd);
}

/* Reads one document and ends. */
static void read_one(const char *path, int page, size_t max_bytes, int fd) {
    tn_ctx ctx;
    tern_error err = {0};
    char *text = NULL;
    size_t n = 0;
    tn_pipe_keep(&fd, &fd);
    (void)setrlimit(RLIMIT_CPU, &(struct rlimit){CPU_SECONDS, CPU_SECONDS});
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    tn_ctx_init(&ctx, NULL);
    tern_status st = tn_file_text(&ctx, path, page, max_bytes, seal, NULL, &text, &n, &err);
    size_t n_path = strlen(path); /* where it lies is the asker's own affair */
    const char *said = err.message;
    if (!strncmp(said, path, n_path) && !strncmp(said + n_path, ": ", 2)) said += n_path + 2;
    bool ok = st == TERN_OK ? reply(fd, st, text, n) : reply(fd, st, said, strlen(said));
    _exit(ok ? 0 : 1);
}

/* Passes on what the process of a document says, whole or not at all. One that has been taken over may sleep, whatever
 * limits it was given itself: it ends here, and so does what it started, which cannot leave its group. */
static bool answer(const char *path, int page, size_t max_bytes, int wait_s, int out) {
    static const char broke[] = "the document could not be read: its reader ended",
                      late[] = "the document takes too long to read";
    const int64_t end_ns = tn_now_ns() + wait_s * INT64_C(1000000000);
    int fds[2];
    head h = {0};
    char *text = NULL;
    prepare(path);
    pid_t pid = pipe2(fds, O_CLOEXEC) ? -1 : fork();
    if (pid < 0) return reply(out, TERN_E_MEMORY, "no process for a document", 25);
    if (!pid) read_one(path, page, max_bytes, fds[1]);
    (void)setpgid(pid, pid); /* before it goes on, or it has done so itself */
    close(fds[1]);
    bool ok = tn_pipe_read(fds[0], &h, sizeof h, end_ns) && h.n >= 0 && h.n <= (int64_t)max_bytes + 4096 &&
              (text = malloc((size_t)h.n + 1)) && tn_pipe_read(fds[0], text, (size_t)h.n, end_ns);
    const bool is_late = !ok && tn_now_ns() >= end_ns;
    close(fds[0]);
    if (kill(-pid, SIGKILL)) (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    ok = ok ? reply(out, (tern_status)h.status, text, (size_t)h.n)
            : reply(out, TERN_E_FORMAT, is_late ? late : broke, strlen(is_late ? late : broke));
    free(text);
    return ok;
}

/* What the bytes are is for whoever was provided, who seals his own process. */
static bool answer_bytes(const request *q, const char *what, int out) {
    tern_error err = {0};
    char *text = NULL;
    size_t n = 0;
    tern_status st = provided ? provided((const uint8_t *)what, (size_t)q->n, &text, &n, &err)
                              : tn_fail(&err, TERN_E_UNSUPPORTED, "nobody reads these bytes");
    if (st == TERN_OK && n > q->max_bytes)
        st = tn_fail(&err, TERN_E_LIMIT, "what was read has %zu bytes; up to %zu are taken", n,
                     (size_t)q->max_bytes);
    bool ok = st == TERN_OK ? reply(out, st, text, n) : reply(out, st, err.message, strlen(err.message));
    free(text);
    return ok;
}

/* Answers requests until nobody is left to ask. */
static void serve(int in, int out, int wait_s) {
    request q;
    for (bool ok = true; ok && tn_pipe_read_all(in, &q, sizeof q) && q.n <= MOST_BYTES;) {
        char *what = malloc((size_t)q.n + 1);
        ok = what && tn_pipe_read_all(in, what, (size_t)q.n);
        if (ok) what[q.n] = 0;
        if (ok)
            ok = q.is_path ? answer(what, (int)q.page, (size_t)q.max_bytes, wait_s, out)
                           : answer_bytes(&q, what, out);
        free(what);
    }
    _exit(0);
}

/* ---- the asker's side ------------------------------------------------------------------------------- */

static bool open_lane(lane *l, int wait_s) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC)) return false;
    if (pipe2(from, O_CLOEXEC)) {
        close(to[0]), close(to[1]);
        return false;
    }
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* nobody writes to its memory either */
        signal(SIGINT, SIG_IGN);            /* of the terminal: the server ends first, and this with it */
        signal(SIGPIPE, SIG_IGN);
        tn_pipe_keep(&to[0], &from[1]);
        serve(to[0], from[1], wait_s);
    }
    close(to[0]), close(from[1]);
    if (pid < 0) close(to[1]), close(from[0]);
    *l = (lane){.pid = pid, .to = to[1], .from = from[0]};
    return pid > 0;
}

tern_status tn_reader_open(int n, int wait_s, tn_reader **out, tern_error *err) {
    tn_reader *r = *out = calloc(1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory for the reader of documents");
    pthread_mutex_init(&r->mu, NULL);
    pthread_cond_init(&r->is_free, NULL);
    while (r->n < n && r->n < TN_READERS && open_lane(&r->lanes[r->n], wait_s)) r->n++;
    if (r->n) return TERN_OK;
    int why = errno;
    tn_reader_close(out);
    return tn_fail(err, TERN_E_MEMORY, "no process for reading documents: %s", strerror(why));
}

void tn_reader_close(tn_reader **pr) {
    tn_reader *r = *pr;
    *pr = NULL;
    if (!r) return;
    for (int i = 0; i < r->n; i++) {
        close(r->lanes[i].to);
        close(r->lanes[i].from);
        while (waitpid(r->lanes[i].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    pthread_cond_destroy(&r->is_free);
    pthread_mutex_destroy(&r->mu);
    free(r);
}

/* A process that reads nothing, as soon as there is one; NULL: they have all ended. */
static lane *take(tn_reader *r) {
    lane *l = NULL;
    pthread_mutex_lock(&r->mu);
    for (bool any = true; any && !l;) {
        any = false;
        for (int i = 0; i < r->n && !l; i++) {
            any |= !r->lanes[i].broken;
            if (!r->lanes[i].busy && !r->lanes[i].broken) l = &r->lanes[i];
        }
        if (l) l->busy = true;
        else if (any) pthread_cond_wait(&r->is_free, &r->mu);
    }
    pthread_mutex_unlock(&r->mu);
    return l;
}

static void give(tn_reader *r, lane *l, bool broken) {
    pthread_mutex_lock(&r->mu);
    l->busy = false;
    l->broken = broken;
    pthread_cond_broadcast(&r->is_free);
    pthread_mutex_unlock(&r->mu);
}

/* What the process answers, in memory of its own; NULL: *broken, or no memory. */
static char *exchange(const lane *l, const request *q, const char *what, head *h, bool *broken) {
    const size_t max_bytes = (size_t)q->max_bytes;
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* a reader that has ended is an error, not the end */
    bool asked = tn_pipe_write(l->to, q, sizeof *q) && tn_pipe_write(l->to, what, (size_t)q->n);
    signal(SIGPIPE, before);
    *broken =
        !asked || !tn_pipe_read_all(l->from, h, sizeof *h) || h->n < 0 || h->n > (int64_t)max_bytes + 4096;
    char *text = *broken ? NULL : malloc((size_t)h->n + 1);
    if (*broken || (text && tn_pipe_read_all(l->from, text, (size_t)h->n))) return text;
    free(text);
    *broken = true; /* what it says next would not be the next answer */
    return NULL;
}

static tern_status ask(tn_reader *r, const request *q, const char *what, char **out, size_t *n,
                       tern_error *err) {
    head h;
    bool broken;
    *out = NULL;
    lane *l = take(r);
    TN_FAIL_IF(!l, err, TERN_E_IO, "the processes that read documents have ended: start the server again");
    char *text = exchange(l, q, what, &h, &broken);
    give(r, l, broken);
    TN_FAIL_IF(!text, err, TERN_E_IO, "the process that reads the document has ended, or there is no memory");
    text[ *n = (size_t)h.n] = 0;
    if (h.status == TERN_OK) {
        *out = text;
        return TERN_OK;
    }
    tern_status st = tn_fail(err, (tern_status)h.status, "%.400s", text);
    free(text);
    return st;
}

tern_status tn_reader_page(tn_reader *r, const char *path, int page, size_t max_bytes, char **out, size_t *n,
                           tern_error *err) {
    const request q = {max_bytes, strlen(path), true, (uint64_t)page};
    *out = NULL;
    TN_FAIL_IF(q.n > PATH_BYTES, err, TERN_E_LIMIT, "the document's path is too long");
    return ask(r, &q, path, out, n, err);
}

tern_status tn_reader_text(tn_reader *r, const char *path, size_t max_bytes, char **out, size_t *n,
                           tern_error *err) {
    return tn_reader_page(r, path, 0, max_bytes, out, n, err);
}

tern_status tn_reader_bytes(tn_reader *r, const void *in, size_t n_in, size_t max_bytes, char **out,
                            size_t *n, tern_error *err) {
    const request q = {max_bytes, n_in, false, 0};
    *out = NULL;
    TN_FAIL_IF(n_in > MOST_BYTES, err, TERN_E_LIMIT, "%zu bytes are too many to be read", n_in);
    return ask(r, &q, in, out, n, err);
}
