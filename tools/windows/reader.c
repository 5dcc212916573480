/* Documents on Windows, so far: text and HTML, which tern's own code reads. The readers of other formats are large, come
 * from elsewhere, and have no sealed process there, so they are left out; each says so. */
#include "base/status.h"
#include "documents/documents.h"
#include "documents/file_text.h"
#include "documents/mail.h"
#include "documents/office.h"
#include "documents/reader.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { MAX_TEXT = 64 << 20 };

struct tn_reader {
    tn_ctx ctx;
};

tern_status tn_doc_office(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err) {
    (void)t, (void)bytes, (void)n, (void)err;
    *why = "tern for Windows reads no office documents yet";
    return TERN_OK;
}

tern_status tn_doc_mail(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err) {
    (void)t, (void)bytes, (void)n, (void)err;
    *why = "tern for Windows reads no mail yet";
    return TERN_OK;
}

bool tn_doc_is_mail(const char *bytes, size_t n) { return (void)bytes, n > 0; } /* by its name alone */

bool tn_is_pdf(const char *bytes, size_t n) { return n >= 5 && !memcmp(bytes, "%PDF-", 5); }

tern_status tn_file_text_read(tn_ctx *ctx, int fd, uint64_t max, int seconds, char **out, size_t *n,
                              bool *late, tern_error *err) {
    size_t cap = 1 << 16;
    char *buf = tn_alloc(ctx, TN_MEM_TEXT, cap, 1);
    (void)seconds;
    *late = false;
    for (*n = 0; buf;) {
        const ssize_t got = read(fd, buf + *n, cap - *n);
        if (got < 0) {
            tn_free(ctx, buf);
            return tn_fail(err, TERN_E_IO, "%s", strerror(errno));
        }
        *n += (size_t)got;
        *out = buf;
        if (!got || *n > max) return TERN_OK;
        if (*n < cap) continue;
        char *more = tn_realloc(ctx, TN_MEM_TEXT, buf, cap *= 2, 1);
        if (!more) tn_free(ctx, buf);
        buf = more;
    }
    return tn_fail(err, TERN_E_MEMORY, "no memory for a document");
}

const char tn_pdf_no_text[] = "it has no text, but pictures of pages";

tern_status tn_file_text_of(tn_ctx *ctx, const char *path, const char *bytes, size_t n, size_t max_bytes,
                            char **text, size_t *n_text, const char **why, tern_error *err) {
    *text = NULL;
    *why = "tern for Windows reads no PDF yet";
    if (tn_is_pdf(bytes, n)) return TERN_OK;
    return tn_document_text(ctx, path, bytes, n, max_bytes, text, n_text, why, err);
}

tern_status tn_file_text(tn_ctx *ctx, const char *path, int page, size_t max_bytes,
                         tern_status (*seal)(void *user, const char *path, bool pdf, tern_error *err),
                         void *user, char **out, size_t *n, tern_error *err) {
    struct stat info;
    char *bytes = NULL;
    const char *why = NULL;
    size_t n_bytes = 0;
    bool late;
    tern_status st = TERN_OK;
    *out = NULL;
    (void)seal, (void)user;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) st = tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode)) st = tn_fail(err, TERN_E_IO, "%s: it is no ordinary file", path);
    else if ((uint64_t)info.st_size > max_bytes)
        st = tn_fail(err, TERN_E_LIMIT, "%s: it has more than %zu bytes", path, max_bytes);
    if (st == TERN_OK) st = tn_file_text_read(ctx, fd, max_bytes, 0, &bytes, &n_bytes, &late, err);
    if (page) why = "tern for Windows reads no PDF yet";
    else if (st == TERN_OK) st = tn_file_text_of(ctx, path, bytes, n_bytes, max_bytes, out, n, &why, err);
    if (st == TERN_OK && why) st = tn_fail(err, TERN_E_UNSUPPORTED, "%s: %s", path, why);
    if (fd >= 0) close(fd);
    tn_free(ctx, bytes);
    return st;
}

/* ---- where others have a process of their own ------------------------------------------------------------ */

tern_status tn_reader_open(int n, int wait_s, tn_reader **out, tern_error *err) {
    (void)n, (void)wait_s;
    tn_reader *r = *out = calloc(1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory for a reader");
    tn_ctx_init(&r->ctx, NULL);
    return TERN_OK;
}

void tn_reader_close(tn_reader **r) {
    free(*r);
    *r = NULL;
}

static tern_status read_file(tn_reader *r, const char *path, int page, size_t max_bytes, char **out,
                             size_t *n, tern_error *err) {
    char *text = NULL;
    *out = NULL;
    tern_error why;
    tern_status st = tn_file_text(&r->ctx, path, page, max_bytes < MAX_TEXT ? max_bytes : MAX_TEXT, NULL,
                                  NULL, &text, n, &why);
    const size_t n_path = strlen(path);
    const bool named = !strncmp(why.message, path, n_path) && !strncmp(why.message + n_path, ": ", 2);
    if (st != TERN_OK) return tn_fail(err, st, "%s", why.message + (named ? n_path + 2 : 0));
    *out = malloc(*n + 1); /* the caller's to free */
    if (*out) memcpy(*out, text, *n + 1);
    tn_free(&r->ctx, text);
    return *out ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for a document");
}

tern_status tn_reader_text(tn_reader *r, const char *path, size_t max_bytes, char **out, size_t *n,
                           tern_error *err) {
    return read_file(r, path, 0, max_bytes, out, n, err);
}

tern_status tn_reader_page(tn_reader *r, const char *path, int page, size_t max_bytes, char **out, size_t *n,
                           tern_error *err) {
    return read_file(r, path, page, max_bytes, out, n, err);
}
