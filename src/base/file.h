/* base/file.h - a whole file, mapped read-only. */
#ifndef TN_BASE_FILE_H
#define TN_BASE_FILE_H

#include "base/ctx.h"

typedef struct tn_file {
    tn_ctx *ctx;
    char *path;
    const uint8_t *data; /* [size_bytes]; not NULL even when empty */
    uint64_t size_bytes;
} tn_file;

/* TERN_E_IO with the path and the reason; a folder is an error. */
tern_status tn_file_open(tn_ctx *ctx, const char *path, tn_file **out, tern_error *err);
void tn_file_close(tn_file **f);
/* Before a file is written beside PATH and renamed over it: TERN_E_IO unless PATH is a regular file, or none
 * in a folder that can be written to. A device or a pipe would be replaced, not written to. */
tern_status tn_file_may_replace(const char *path, tern_error *err);
/* Pages that lie wholly within [p, p + n_bytes) of a mapped file leave this process's memory until they are
 * touched again. */
void tn_file_release(const void *p, uint64_t n_bytes);

#endif
