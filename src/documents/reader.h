/* documents/reader.h - processes of their own that read documents, because they come from anywhere and their formats are
 * large.
 *
 * They are started while the program has one thread. Each reads one document at a time, in a process that ends with it
 * and that gives up everything but the document and its way back (documents/sandbox.h) before it looks into it: no file but
 * the system's own, no connection, no other program; for PDF pdftotext, which is held to the same files. A document that
 * breaks its reader costs one error, and one that takes long keeps nobody waiting but those who come when all read. */
#ifndef TN_DOCUMENTS_READER_H
#define TN_DOCUMENTS_READER_H

#include "base/ctx.h"

typedef struct tn_reader tn_reader;

/* Reads bytes of another kind than documents. It is called by those processes, and seals a process of its own for what
 * may break: *out, to be freed with free, and its length. */
typedef tern_status (*tn_reader_fn)(const uint8_t *in, size_t n, char **out, size_t *n_out, tern_error *err);
/* What tn_reader_bytes calls, for readers that are opened from now on. */
void tn_reader_provide(tn_reader_fn fn);

enum {
    TN_READERS = 4, /* at most */
    TN_READER_WAIT_S = 900
};

/* n processes, in which a document may take wait_s seconds: on a busy machine that is little. Before the first thread is
 * started. */
tern_status tn_reader_open(int n, int wait_s, tn_reader **out, tern_error *err);
void tn_reader_close(tn_reader **r);

/* The text of a file, at most max_bytes of it; the message of an error does not name it. *out is
 * zero-terminated; free it with free. Any thread may call. */
tern_status tn_reader_text(tn_reader *r, const char *path, size_t max_bytes, char **out, size_t *n,
                           tern_error *err);

/* A page of a PDF file, from 1 on, as a PNG file of at most max_bytes, or the file of a picture in an office
 * document; *n == 0: there is no such one. As above. */
tern_status tn_reader_page(tn_reader *r, const char *path, int page, size_t max_bytes, char **out, size_t *n,
                           tern_error *err);

/* What fn makes of bytes, at most max_bytes of it; as above. */
tern_status tn_reader_bytes(tn_reader *r, const void *in, size_t n_in, size_t max_bytes, char **out,
                            size_t *n, tern_error *err);

#endif
