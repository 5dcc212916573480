#include "cli/output.h"

#include "cli/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int emit_json(json_t *j, size_t flags) {
    char *text;
    tern_error err;
    tern_status st = tn_json_text(j, flags, &text, &err);
    json_decref(j);
    if (st != TERN_OK) return failed(&err);
    fputs(text, stdout);
    putchar('\n');
    free(text);
    return EXIT_OK; /* main checks the stream */
}

bool output_open(output_file *f, const char *path, const tn_outkind *kind) {
    tern_error err;
    *f = (output_file){.path = path};
    tn_ctx_init(&f->ctx, NULL);
    if (tn_outfile_open(&f->ctx, path, kind, &f->file, &err) != TERN_OK) {
        (void)failed(&err);
        return false;
    }
    int fd = dup(tn_outfile_fd(f->file));
    f->stream = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f->stream) return true;
    (void)failed_text("%s: cannot write: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    tn_outfile_abort(&f->file);
    return false;
}

int output_close(output_file *f) {
    tern_error err;
    bool bad = ferror(f->stream);
    errno = 0;
    bad = fclose(f->stream) || bad;
    int rc = bad ? failed_text("%s: cannot write: %s", f->path, strerror(errno))
             : tn_outfile_commit(&f->file, &err) == TERN_OK ? EXIT_OK
                                                            : failed(&err);
    tn_outfile_abort(&f->file);
    return rc;
}
