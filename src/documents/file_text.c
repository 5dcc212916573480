#include "documents/file_text.h"

#include "base/clock.h"
#include "base/status.h"
#include "documents/documents.h"
#include "documents/office.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { PDF_SECONDS = 120 };
static const uint64_t PDF_MEMORY_BYTES = 1u << 30;

tern_status tn_file_text_read(tn_ctx *ctx, int fd, uint64_t max, int seconds, char **out, size_t *n,
                              bool *late, tern_error *err) {
    size_t cap = 1 << 16;
    int64_t end_ns = tn_now_ns() + (int64_t)seconds * 1000000000;
    char *buf = tn_alloc(ctx, TN_MEM_TEXT, cap, 1);
    *n = 0;
    *late = false;
    while (buf && *n <= max) {
        if (*n == cap) {
            char *more = tn_realloc(ctx, TN_MEM_TEXT, buf, cap *= 2, 1);
            if (!more) tn_free(ctx, buf);
            buf = more;
            continue;
        }
        if (seconds) {
            int64_t left_ms = (end_ns - tn_now_ns()) / 1000000;
            struct pollfd p = {.fd = fd, .events = POLLIN};
            if (left_ms <= 0 || (poll(&p, 1, (int)left_ms) == 0)) {
                *late = true;
                break;
            }
        }
        ssize_t got = read(fd, buf + *n, cap - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got < 0) break;
            *out = buf;
            return TERN_OK;
        }
        *n += (size_t)got;
    }
    if (buf && (*n > max || *late)) {
        *out = buf;
        return TERN_OK;
    }
    tern_status st = buf ? tn_fail(err, TERN_E_IO, "%s", strerror(errno))
                         : tn_fail(err, TERN_E_MEMORY, "no memory for a document");
    tn_free(ctx, buf);
    return st;
}

/* Lets a program of poppler's have so much memory and time, no core and no file of its own. */
static void bound_poppler(pid_t pid) {
    static const struct {
        int what;
        rlim_t most;
    } limits[] = {
        {RLIMIT_AS, PDF_MEMORY_BYTES}, {RLIMIT_CPU, PDF_SECONDS}, {RLIMIT_FSIZE, 0}, {RLIMIT_CORE, 0}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        (void)prlimit(pid, limits[i].what, &(struct rlimit){limits[i].most, limits[i].most}, NULL);
}

/* How a program of poppler's fails, in words. */
typedef struct poppler {
    const char *missing, *late, *much, *cannot;
} poppler;

/* Reads the output of a program of poppler's. *why is a reason when it gives none. *code: what it ended with. */
static tern_status run_poppler(tn_ctx *ctx, char *const argv[], const poppler *said, size_t max_bytes,
                               char **out, size_t *n, int *code, const char **why, tern_error *err) {
    int fds[2];
    *out = NULL;
    *n = 0;
    *code = -1;
    TN_FAIL_IF(pipe2(fds, O_CLOEXEC), err, TERN_E_IO, "no pipe: %s", strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    int rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    if (rc) {
        close(fds[0]);
        *why = said->missing;
        return TERN_OK;
    }
    bound_poppler(pid);
    bool late;
    tern_status st = tn_file_text_read(ctx, fds[0], max_bytes, PDF_SECONDS, out, n, &late, err);
    close(fds[0]);
    if (st != TERN_OK || late || *n > max_bytes) kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (st != TERN_OK) return st;
    if (WIFEXITED(status)) *code = WEXITSTATUS(status);
    if (late) *why = said->late;
    else if (*n > max_bytes) *why = said->much;
    else if (*code) *why = *code == 127 ? said->missing : said->cannot;
    if (*why) {
        tn_free(ctx, *out);
        *out = NULL;
    }
    return TERN_OK;
}

/* The path is absolute, so it is no option. */
static tern_status pdf_text(tn_ctx *ctx, const char *path, size_t max_bytes, char **out, size_t *n,
                            const char **why, tern_error *err) {
    static const poppler said = {
        "reading PDF needs pdftotext (package poppler-utils), which is not installed",
        "pdftotext takes too long", "it holds more text than a document may have",
        "pdftotext cannot read it"};
    char *argv[] = {"pdftotext", "-q", "-enc", "UTF-8", (char *)path, "-", NULL};
    int code;
    return run_poppler(ctx, argv, &said, max_bytes, out, n, &code, why, err);
}

/* A page as a PNG file of so many pixels at its longer side; nothing where there is no such page. */
static tern_status pdf_page(tn_ctx *ctx, const char *path, int page, size_t max_bytes, char **out, size_t *n,
                            const char **why, tern_error *err) {
    enum { NO_SUCH_PAGE = 99 };
    static const poppler said = {
        "looking at a page of PDF needs pdftoppm (package poppler-utils), which is not installed",
        "pdftoppm takes too long", "a page of it makes too large a picture", "pdftoppm cannot read it"};
    char number[16];
    snprintf(number, sizeof number, "%d", page);
    char *argv[] = {"pdftoppm", "-q",        "-png", "-f",         number, "-l",
                    number,     "-scale-to", "2048", (char *)path, NULL};
    int code;
    TN_TRY(run_poppler(ctx, argv, &said, max_bytes, out, n, &code, why, err));
    if (code == NO_SUCH_PAGE) *why = NULL;
    return TERN_OK;
}

bool tn_is_pdf(const char *bytes, size_t n) { return n >= 5 && !memcmp(bytes, "%PDF-", 5); }

tern_status tn_file_text_of(tn_ctx *ctx, const char *path, const char *bytes, size_t n, size_t max_bytes,
                            char **text, size_t *n_text, const char **why, tern_error *err) {
    if (!tn_is_pdf(bytes, n)) return tn_document_text(ctx, path, bytes, n, max_bytes, text, n_text, why, err);
    char *raw = NULL;
    size_t n_raw = 0;
    *text = NULL;
    TN_TRY(pdf_text(ctx, path, max_bytes, &raw, &n_raw, why, err));
    if (*why) return TERN_OK;
    tern_status st = tn_document_pages(ctx, raw, n_raw, max_bytes, text, n_text, why, err);
    tn_free(ctx, raw);
    if (st == TERN_OK && *why == tn_document_no_text) *why = tn_pdf_no_text;
    return st;
}

const char tn_pdf_no_text[] =
    "it has no text, but pictures of pages: a model that sees looks at them (tern run "
    "MODEL FILE TEXT)";

static tern_status page_of(tn_ctx *ctx, const char *path, const char *bytes, size_t n, int page,
                           size_t max_bytes, char **out, size_t *n_out, const char **why, tern_error *err) {
    *out = NULL;
    if (tn_is_pdf(bytes, n)) return pdf_page(ctx, path, page, max_bytes, out, n_out, why, err);
    if (tn_doc_is_container(bytes, n))
        return tn_doc_office_picture(ctx, bytes, n, page, out, n_out, why, err);
    *why = "it is no PDF, and has no pages";
    return TERN_OK;
}

tern_status tn_file_text(tn_ctx *ctx, const char *path, int page, size_t max_bytes,
                         tern_status (*seal)(void *user, const char *path, bool pdf, tern_error *err),
                         void *user, char **out, size_t *n, tern_error *err) {
    char *real = realpath(path, NULL), *bytes = NULL;
    int fd = -1;
    while (real && (fd = open(real, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0 && errno == EINTR) {
    }
    struct stat info;
    const char *why = NULL;
    size_t n_bytes;
    bool late;
    tern_status st = TERN_OK;
    *out = NULL;
    *n = 0;
    if (fd < 0 || fstat(fd, &info)) st = tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode)) st = tn_fail(err, TERN_E_IO, "%s: it is no ordinary file", path);
    else if ((uint64_t)info.st_size > max_bytes)
        st = tn_fail(err, TERN_E_LIMIT, "%s: it has more than %zu bytes", path, max_bytes);
    if (st == TERN_OK) st = tn_file_text_read(ctx, fd, max_bytes, 0, &bytes, &n_bytes, &late, err);
    if (st == TERN_OK && seal) st = seal(user, real, tn_is_pdf(bytes, n_bytes), err);
    if (st == TERN_OK)
        st = page ? page_of(ctx, real, bytes, n_bytes, page, max_bytes, out, n, &why, err)
                  : tn_file_text_of(ctx, real, bytes, n_bytes, max_bytes, out, n, &why, err);
    if (st == TERN_OK && why) st = tn_fail(err, TERN_E_UNSUPPORTED, "%s: %s", path, why);
    if (fd >= 0) close(fd);
    tn_free(ctx, bytes);
    free(real);
    return st;
}
