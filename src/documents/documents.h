/* documents/documents.h - the text of files that people keep: plain text, HTML, e-mail, office documents and
 * books.
 *
 *   bytes -> tn_document_text -> UTF-8 text -> passages (extract.h)
 *
 * Its first bytes and its name say what a file is. Nothing is unpacked to disk, no name inside a file is
 * opened, nothing outside the bytes is read, and everything is bounded: what a file may unfold to, the
 * entries of a container, the depth of a tree. PDF is not read here (documents/file_text.c runs pdftotext). */
#ifndef TN_DOCUMENTS_DOCUMENTS_H
#define TN_DOCUMENTS_DOCUMENTS_H

#include "base/ctx.h"

/* Returns the text of bytes[0..n) of a file of this name. *out is valid UTF-8, zero-terminated, at most
 * max_text bytes, the caller's to free with tn_free. Where the file has no text *out is NULL and *why says
 * the reason, a constant. */
tern_status tn_document_text(tn_ctx *ctx, const char *name, const char *bytes, size_t n, size_t max_text,
                             char **out, size_t *n_out, const char **why, tern_error *err);

extern const char tn_document_no_text[]; /* the reason where there are bytes, and no words */

/* The same of what pdftotext wrote: a form feed stays after every page. */
tern_status tn_document_pages(tn_ctx *ctx, const char *bytes, size_t n, size_t max_text, char **out,
                              size_t *n_out, const char **why, tern_error *err);
/* Names pages of such a text that have none ("2, 5 to 7"), as many as list[0..size) has room for. Returns how many there
 * are: pictures of pages, or blank ones. */
int64_t tn_document_empty_pages(const char *text, size_t n, char *list, size_t size);
/* Whether the text of a file has the lines of the file: plain text, Markdown, code. */
bool tn_document_has_lines(const char *name, const char *bytes, size_t n);

#endif
