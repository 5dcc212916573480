/* base/file.h - files that are read: opened once, whole or mapped.
 *
 * A mapped file that others make shorter raises SIGBUS where its bytes are gone. From the first mapping on, a handler of
 * this module lets such an access read zeros and notes that the file shrank; it passes on what is not its own. Whoever
 * uses a mapping asks tn_file_shrank after reading, before what was read is believed. */
#ifndef TN_BASE_FILE_H
#define TN_BASE_FILE_H

#include "base/ctx.h"

#include <sys/stat.h>

typedef struct tn_file {
    tn_ctx *ctx;
    char *path;
    const uint8_t *data; /* [size_bytes]; not NULL even when empty */
    uint64_t size_bytes;
    int slot; /* of the mappings that are watched; -1: none */
} tn_file;

/* TERN_E_IO with the path and the reason; a folder is an error. */
tern_status tn_file_open(tn_ctx *ctx, const char *path, tn_file **out, tern_error *err);
/* Map a regular file that is open; fd stays the caller's. */
tern_status tn_file_map(tn_ctx *ctx, int fd, const char *path, tn_file **out, tern_error *err);
/* Bytes of the mapping were gone when somebody read them. f may be NULL. */
bool tn_file_shrank(const tn_file *f);
void tn_file_close(tn_file **f);
/* Opens a regular file for reading and tells its size and identity; anything else, a pipe or a device too, is
 * an error at once. Returns the descriptor, or -1 with TERN_E_IO in err. */
int tn_file_open_regular(const char *path, struct stat *sb, tern_error *err);
/* The whole of a regular file of at most max_bytes. *out is zero-terminated; free with free. TERN_E_IO,
 * TERN_E_LIMIT, TERN_E_MEMORY. */
tern_status tn_file_slurp(const char *path, uint64_t max_bytes, char **out, size_t *n, tern_error *err);
/* Reads exactly n bytes at an offset, whatever interrupts it. TERN_E_IO; TERN_E_FORMAT: the file ends before.
 */
tern_status tn_file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off_bytes,
                            tern_error *err);
/* Pages that lie wholly within [p, p + n_bytes) of a mapped file leave this process's memory until they are
 * touched again. */
void tn_file_release(const void *p, uint64_t n_bytes);

#endif
