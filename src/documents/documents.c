#include "documents/documents.h"

#include "base/status.h"
#include "documents/extract.h"
#include "documents/mail.h"
#include "documents/office.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool has_suffix(const char *name, const char *const *list) {
    size_t n = strlen(name);
    for (; *list; list++) {
        size_t m = strlen(*list);
        if (n > m && !strcasecmp(name + n - m, *list)) return true;
    }
    return false;
}

/* Turns bytes into text: encodings first, then markup. *out is NULL when there is no memory. */
static tern_status plain_text(tn_ctx *ctx, bool html, const char *bytes, size_t n, char **out, size_t *n_out,
                              tern_error *err) {
    TN_TRY(tn_text_decode(ctx, bytes, n, out, n_out, err));
    if (!html) return TERN_OK;
    char *text = *out;
    tern_status st = tn_text_from_html(ctx, text, *n_out, out, n_out, err);
    tn_free(ctx, text);
    if (st != TERN_OK) *out = NULL;
    return st;
}

static const char *const html[] = {".html", ".htm", ".xhtml", NULL};
static const char *const mail[] = {".eml", ".mht", NULL};

bool tn_document_has_lines(const char *name, const char *bytes, size_t n) {
    bool zip = n >= 4 && !memcmp(bytes, "PK\3\4", 4), pdf = n >= 5 && !memcmp(bytes, "%PDF-", 5);
    return !zip && !pdf && !has_suffix(name, html) && !(has_suffix(name, mail) && tn_doc_is_mail(bytes, n));
}

const char tn_document_no_text[] = "it has no text";

/* A text that says something, or why there is none. */
static tern_status say_something(tn_ctx *ctx, char **out, size_t n, const char **why) {
    if (*out && strspn(*out, " \n\t\f") < n) return TERN_OK;
    tn_free(ctx, *out);
    *out = NULL;
    *why = tn_document_no_text;
    return TERN_OK;
}

tern_status tn_document_pages(tn_ctx *ctx, const char *bytes, size_t n, size_t max_text, char **out,
                              size_t *n_out, const char **why, tern_error *err) {
    *out = NULL;
    *n_out = 0;
    *why = n > max_text                  ? "it holds more text than a document may have"
           : tn_text_is_binary(bytes, n) ? "it is binary"
                                         : NULL;
    if (*why) return TERN_OK;
    TN_TRY(tn_text_decode_pages(ctx, bytes, n, out, n_out, err));
    return say_something(ctx, out, *n_out, why);
}

static void put_pages(char *list, size_t size, int64_t first, int64_t last) {
    const size_t at = strlen(list);
    char one[64];
    int n = snprintf(one, sizeof one, "%s%lld", at ? ", " : "", (long long)first);
    if (last > first) n += snprintf(one + n, sizeof one - (size_t)n, " to %lld", (long long)last);
    if (size - at > (size_t)n) memcpy(list + at, one, (size_t)n + 1);
}

int64_t tn_document_empty_pages(const char *text, size_t n, char *list, size_t size) {
    int64_t n_empty = 0, first = 0, page = 1; /* first: of the empty ones that this page follows; 0: none */
    *list = 0;
    for (const char *p = text, *end = text + n, *next; p < end; p = next + 1, page++) {
        next = memchr(p, '\f', (size_t)(end - p));
        if (!next) next = end;
        if (p + strspn(p, " \n\t") >= next) {
            n_empty++;
            if (!first) first = page;
        } else if (first) {
            put_pages(list, size, first, page - 1);
            first = 0;
        }
    }
    if (first) put_pages(list, size, first, page - 1);
    return n_empty;
}

tern_status tn_document_text(tn_ctx *ctx, const char *name, const char *bytes, size_t n, size_t max_text,
                             char **out, size_t *n_out, const char **why, tern_error *err) {
    bool zip = tn_doc_is_container(bytes, n),
         is_mail = !zip && has_suffix(name, mail) && tn_doc_is_mail(bytes, n);
    *out = NULL;
    *n_out = 0;
    *why = NULL;
    if (zip || is_mail) {
        tn_doc_text t = {.ctx = ctx, .max = max_text};
        tern_status st = zip ? tn_doc_office(&t, bytes, n, why, err) : tn_doc_mail(&t, bytes, n, why, err);
        if (st == TERN_OK && t.no_memory)
            st = tn_fail(err, TERN_E_MEMORY, "no memory for the text of a document");
        if (st == TERN_OK && t.full) *why = "it holds more text than a document may have";
        if (st != TERN_OK || *why) {
            tn_free(ctx, t.p);
            return st;
        }
        *out = t.p;
        *n_out = t.n;
    } else if (tn_text_is_binary(bytes, n)) {
        *why = "it is binary";
        return TERN_OK;
    } else {
        TN_TRY(plain_text(ctx, has_suffix(name, html), bytes, n, out, n_out, err));
    }
    return say_something(ctx, out, *n_out, why);
}
