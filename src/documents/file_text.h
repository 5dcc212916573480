/* documents/file_text.h - the text of a file on this machine, PDF included (pdftotext reads it), and its pages as pictures (pdftoppm). */
#ifndef TN_DOCUMENTS_FILE_TEXT_H
#define TN_DOCUMENTS_FILE_TEXT_H

#include "base/ctx.h"

/* The text of a file, as an index would read it, without one; with a page (from 1) that page of a PDF file as
 * a PNG file, or that picture of an office document; nothing where there is none. When its bytes are read,
 * and before anybody looks into them, seal is called with the path and whether it is PDF, which pdftotext
 * reads; NULL: nothing is. *out is zero-terminated; free with tn_free. */
tern_status tn_file_text(tn_ctx *ctx, const char *path, int page, size_t max_bytes,
                         tern_status (*seal)(void *user, const char *path, bool pdf, tern_error *err),
                         void *user, char **out, size_t *n, tern_error *err);

/* The same of bytes that were read; path is absolute. Where there is no text *out is NULL and *why says the reason,
 * a constant. */
tern_status tn_file_text_of(tn_ctx *ctx, const char *path, const char *bytes, size_t n, size_t max_bytes,
                            char **text, size_t *n_text, const char **why, tern_error *err);

extern const char tn_pdf_no_text[]; /* that reason of a PDF file whose pages hold pictures alone */
bool tn_is_pdf(const char *bytes, size_t n);

/* Reads everything that fd gives, at most max + 1 bytes, within `seconds` (0: no limit). *n > max tells that
 * there was more. */
tern_status tn_file_text_read(tn_ctx *ctx, int fd, uint64_t max, int seconds, char **out, size_t *n,
                              bool *late, tern_error *err);

#endif
