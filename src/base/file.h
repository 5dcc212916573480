/* base/file.h - files for reading: opened once, whole or mapped.
 *
 * If another process truncates a mapped file, access to the missing bytes raises SIGBUS. From the first
 * mapping on, a handler of this module lets such an access read zeros and notes that the file shrank; it
 * passes on every other signal. Users of a mapping call tn_file_changed after reading, before they trust
 * the data. */
#ifndef TN_BASE_FILE_H
#define TN_BASE_FILE_H

#include "base/ctx.h"

#include <sys/stat.h>

typedef struct tn_file {
    tn_ctx *ctx;
    char *path;
    const uint8_t *data; /* [size_bytes]; not NULL even when empty */
    uint64_t size_bytes;
    int64_t written_ns; /* time of the last write when the file was mapped */
    uint64_t device, inode;
    int slot; /* index among the watched mappings; -1: none */
} tn_file;

static inline int64_t tn_file_written_ns(const struct stat *sb) {
    return (int64_t)sb->st_mtim.tv_sec * 1000000000 + sb->st_mtim.tv_nsec;
}
/* Notes which file sb is of, and when it was written last: who maps it asks later whether it is still that. */
static inline void tn_file_note(tn_file *f, const struct stat *sb) {
    f->written_ns = tn_file_written_ns(sb);
    f->device = (uint64_t)sb->st_dev;
    f->inode = (uint64_t)sb->st_ino;
}

/* Opens and maps a file. It fails with TERN_E_IO, the path and the reason; a folder is an error. */
tern_status tn_file_open(tn_ctx *ctx, const char *path, tn_file **out, tern_error *err);
/* Maps an open regular file. fd stays the caller's. */
tern_status tn_file_map(tn_ctx *ctx, int fd, const char *path, tn_file **out, tern_error *err);
/* Whether missing bytes of the mapping were read. f may be NULL. */
bool tn_file_shrank(const tn_file *f);
/* Whether that happened, or the file that has the path now is this one and was written to since it was mapped. f may be
 * NULL. */
bool tn_file_changed(const tn_file *f);
/* Whether the file, also open as fd, was written to since it was mapped; the mapping may then hold
 * anything. f may be NULL. */
bool tn_file_was_written(const tn_file *f, int fd);
/* Whether fd is the mapped file, unchanged: another file may have taken its name since. */
bool tn_file_is(const tn_file *f, int fd);
void tn_file_close(tn_file **f);
/* Opens a regular file for reading and gives its size and identity. Anything else, such as a pipe or a
 * device, is an error at once. Returns the descriptor, or -1 with TERN_E_IO in err. */
int tn_file_open_regular(const char *path, struct stat *sb, tern_error *err);
/* Reads a whole regular file of at most max_bytes. *out is zero-terminated; the caller frees it with free. It
 * fails with TERN_E_IO, TERN_E_LIMIT or TERN_E_MEMORY. */
tern_status tn_file_slurp(const char *path, uint64_t max_bytes, char **out, size_t *n, tern_error *err);
/* Reads exactly n bytes at an offset, also across interruptions. Fails with TERN_E_IO, or with
 * TERN_E_FORMAT if the file is too short. */
tern_status tn_file_read_at(int fd, const char *path, void *dst, uint64_t n, uint64_t off_bytes,
                            tern_error *err);
/* Hints that changed bytes should be written now, so that a later fsync has little to do. */
void tn_file_flush(int fd, uint64_t off_bytes, uint64_t n_bytes);
/* Releases the pages that lie wholly within [p, p + n_bytes) of a mapped file until they are touched
 * again. */
void tn_file_release(const void *p, uint64_t n_bytes);

/* Whether a path is absolute. */
bool tn_file_is_absolute(const char *path);
/* Makes the folders above path, for this user only (0700). path is modified meanwhile and restored. */
tern_status tn_file_make_parents(char *path, tern_error *err);
/* Makes a private folder and those above it. An existing one must be this user's and is narrowed to 0700. */
tern_status tn_file_private_folder(char *path, tern_error *err);

#endif
