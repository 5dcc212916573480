/* base/file.h - files that are read: opened once, whole or mapped.
 *
 * A mapped file that others make shorter raises SIGBUS where its bytes are gone. From the first mapping on, a
 * handler of this module lets such an access read zeros and notes that the file shrank; it passes on every
 * other signal. Whoever uses a mapping asks tn_file_shrank after reading, before believing what was read. */
#ifndef TN_BASE_FILE_H
#define TN_BASE_FILE_H

#include "base/ctx.h"

#include <sys/stat.h>

typedef struct tn_file {
    tn_ctx *ctx;
    char *path;
    const uint8_t *data; /* [size_bytes]; not NULL even when empty */
    uint64_t size_bytes;
    int64_t written_ns; /* when the file was written to last, as it was mapped */
    int slot;           /* of the mappings that are watched; -1: none */
} tn_file;

/* Opens and maps a file. It fails with TERN_E_IO, the path and the reason; a folder is an error. */
tern_status tn_file_open(tn_ctx *ctx, const char *path, tn_file **out, tern_error *err);
/* Maps a regular file that is open. fd stays the caller's. */
tern_status tn_file_map(tn_ctx *ctx, int fd, const char *path, tn_file **out, tern_error *err);
/* Tells whether bytes of the mapping were gone when somebody read them. f may be NULL. */
bool tn_file_shrank(const tn_file *f);
/* Tells whether somebody has written to the file, which is open as fd too, since it was mapped: what the mapping
 * holds may be anything. f may be NULL. */
bool tn_file_was_written(const tn_file *f, int fd);
void tn_file_close(tn_file **f);
/* Opens a regular file for reading and tells its size and identity. Anything else, a pipe or a device too, is
 * an error at once. Returns the descriptor, or -1 with TERN_E_IO in err. */
int tn_file_open_regular(const char *path, struct stat *sb, tern_error *err);
/* Reads the whole of a regular file of at most max_bytes. *out is zero-terminated; the caller frees it with
 * free. It fails with TERN_E_IO, TERN_E_LIMIT or TERN_E_MEMORY. */
tern_status tn_file_slurp(const char *path, uint64_t max_bytes, char **out, size_t *n, tern_error *err);
/* Reads exactly n bytes at an offset, whatever interrupts it. It fails with TERN_E_IO, or with TERN_E_FORMAT
 * where the file ends before. */
tern_status tn_file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off_bytes,
                            tern_error *err);
/* Asks the system to write what was changed of these bytes now, so that a later fsync finds little left. A hint. */
void tn_file_flush(int fd, uint64_t off_bytes, uint64_t n_bytes);
/* Lets the pages that lie wholly within [p, p + n_bytes) of a mapped file leave this process's memory until
 * they are touched again. */
void tn_file_release(const void *p, uint64_t n_bytes);

/* Makes the folders above path, for this user alone (0700). path is written to meanwhile and left as it
 * was. */
tern_status tn_file_make_parents(char *path, tern_error *err);
/* Makes a folder for what is private, and those above it; one that is there must be this user's and is
 * narrowed to 0700. */
tern_status tn_file_private_folder(char *path, tern_error *err);

#endif
