/* base/outfile.h - output files that appear whole or not at all and never replace another kind of file.
 *
 * The writer names the kind. An existing file is replaced only if it begins like that kind or is empty;
 * pipes, devices and folders never are. A symbolic link is followed and its target replaced. Until commit
 * the bytes lie in a nameless file, or in one with a random name if the file system has no such files. If
 * the writer is killed, the old file stays. */
#ifndef TN_BASE_OUTFILE_H
#define TN_BASE_OUTFILE_H

#include "base/ctx.h"

typedef struct tn_outkind {
    const char *what;      /* "a saved session", for messages */
    const char *begins[2]; /* its first bytes; the second may be NULL */
    bool is_private;       /* readable by its owner only, whatever the umask */
} tn_outkind;

typedef struct tn_outfile tn_outfile;

/* Checks in advance whether opening would succeed now. */
tern_status tn_outfile_may(const char *path, const tn_outkind *kind, tern_error *err);
/* Opens a file for writing. kind is borrowed until the file is closed. It fails with TERN_E_IO. */
tern_status tn_outfile_open(tn_ctx *ctx, const char *path, const tn_outkind *kind, tn_outfile **out,
                            tern_error *err);
int tn_outfile_fd(const tn_outfile *o); /* for writing and reading; not to be closed */
/* Writes all n bytes after those written before. A full disk is TERN_E_IO and is named. */
tern_status tn_outfile_write(tn_outfile *o, const void *data, uint64_t n, tern_error *err);
/* Syncs the file and gives it its name. Always closes o. */
tern_status tn_outfile_commit(tn_outfile **o, tern_error *err);
void tn_outfile_abort(tn_outfile **o); /* NULL-safe */

#endif
