/* store/documents.h - the text of files that people keep: plain text, HTML, e-mail, office documents and
 * books.
 *
 *   bytes -> tn_document_text -> UTF-8 text -> passages (extract.h)
 *
 * Its first bytes and its name say what a file is. Nothing is unpacked to disk, no name inside a file is
 * opened, nothing outside the bytes is read, and everything is bounded: what a file may unfold to, the
 * entries of a container, the depth of a tree. PDF is not read here (store/rag.c runs pdftotext). */
#ifndef TN_STORE_DOCUMENTS_H
#define TN_STORE_DOCUMENTS_H

#include "base/ctx.h"

#include <string.h>

/* Returns the text of bytes[0..n) of a file of this name. *out is valid UTF-8, zero-terminated, at most
 * max_text bytes, the caller's to free with tn_free. Where the file has no text *out is NULL and *why says
 * the reason, a constant. */
tern_status tn_document_text(tn_ctx *ctx, const char *name, const char *bytes, size_t n, size_t max_text,
                             char **out, size_t *n_out, const char **why, tern_error *err);

/* The same of what pdftotext wrote: a form feed stays after every page. */
tern_status tn_document_pages(tn_ctx *ctx, const char *bytes, size_t n, size_t max_text, char **out,
                              size_t *n_out, const char **why, tern_error *err);
/* Whether the text of a file has the lines of the file: plain text, Markdown, code. */
bool tn_document_has_lines(const char *name, const char *bytes, size_t n);

/* ---- between the files of this folder -------------------------------------------------------------- */

/* This is a growing text of bounded length. After a failure nothing is added. */
typedef struct tn_doc_text {
    tn_ctx *ctx;
    char *p; /* zero-terminated once something was put */
    size_t n, cap, max;
    bool no_memory, full; /* full: there was more than max bytes */
} tn_doc_text;

void tn_doc_put(tn_doc_text *t, const char *s, size_t n);
static inline void tn_doc_put_str(tn_doc_text *t, const char *s) { tn_doc_put(t, s, strlen(s)); }
/* Puts so many newlines between what was put and what comes, unless nothing was put. */
void tn_doc_break(tn_doc_text *t, int n_newlines);

enum { TN_DOC_ZIP_ENTRIES = 10000, TN_DOC_MAIL_DEPTH = 8, TN_DOC_MAIL_PARTS = 256 };

/* Reads docx, pptx, xlsx, odt, ods, odp and epub; a container's entries say which it is. *why is as above. */
tern_status tn_doc_office(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err);
/* Reads a message (RFC 5322 and MIME). */
tern_status tn_doc_mail(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err);
/* Tells whether these bytes begin like a message's header. */
bool tn_doc_is_mail(const char *bytes, size_t n);

#endif
