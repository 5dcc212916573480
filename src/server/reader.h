/* server/reader.h - a process of its own that reads documents, because they come from anywhere and their
 * formats are large.
 *
 * It is started while the server has one thread and no sandbox, as PDF needs another program (pdftotext).
 * It reads each document in a process that ends with it: a document that breaks its reader costs one
 * error. */
#ifndef TN_SERVER_READER_H
#define TN_SERVER_READER_H

#include "base/ctx.h"

typedef struct tn_reader tn_reader;

/* Before the first thread is started. */
tern_status tn_reader_open(tn_reader **out, tern_error *err);
void tn_reader_close(tn_reader **r);

/* The text of a file, at most max_bytes of it; path has no newline. *out is zero-terminated; free it with
 * free. One caller at a time. */
tern_status tn_reader_text(tn_reader *r, const char *path, size_t max_bytes, char **out, size_t *n,
                           tern_error *err);

#endif
