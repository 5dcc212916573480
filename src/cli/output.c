#include "cli/output.h"

#include "cli/args.h"
#include "cli/harmful.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cli_emit_json(json_t *j, size_t flags) {
    char *text;
    tern_error err;
    tern_status st = tn_json_text(j, flags, &text, &err);
    json_decref(j);
    if (st != TERN_OK) return cli_failed(&err);
    fputs(text, stdout);
    putchar('\n');
    free(text);
    return EXIT_OK; /* main checks the stream */
}

int cli_written(int rc) {
    bool lost = fflush(stdout) || ferror(stdout);
    return lost && rc == EXIT_OK ? cli_failed_text("cannot write the output") : rc;
}

bool cli_output_open(output_file *f, const char *path, const tn_outkind *kind) {
    tern_error err;
    *f = (output_file){.path = path};
    tn_ctx_init(&f->ctx, NULL);
    if (tn_outfile_open(&f->ctx, path, kind, &f->file, &err) != TERN_OK) {
        (void)cli_failed(&err);
        return false;
    }
    int fd = dup(tn_outfile_fd(f->file));
    f->stream = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f->stream) return true;
    (void)cli_failed_text("%s: cannot write: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    tn_outfile_abort(&f->file);
    return false;
}

int cli_output_close(output_file *f) {
    tern_error err;
    bool bad = ferror(f->stream);
    errno = 0;
    bad = fclose(f->stream) || bad;
    int rc = bad ? cli_failed_text("%s: cannot write: %s", f->path, strerror(errno))
             : tn_outfile_commit(&f->file, &err) == TERN_OK ? EXIT_OK
                                                            : cli_failed(&err);
    tn_outfile_abort(&f->file);
    return rc;
}

static const char *shown(const char *text, bool exactly) {
    enum { ROOM = 4096 };
    static _Thread_local char buffers[4][ROOM];
    static _Thread_local int turn;
    char *to = buffers[turn = (turn + 1) % 4];
    size_t n = strlen(text), at = 0;
    for (size_t i = 0; i < n && at + 17 < ROOM;) {
        size_t harmful = exactly ? unseen_bytes(text + i, n - i) : harmful_bytes(text + i, n - i);
        for (size_t k = 0; k < harmful; k++)
            at += (size_t)snprintf(to + at, ROOM - at, "\\x%02x", (unsigned char)text[i + k]);
        if (!harmful) to[at++] = text[i];
        i += harmful ? harmful : 1;
    }
    to[at] = 0;
    return to;
}

const char *cli_shown(const char *text) { return shown(text, false); }
const char *cli_shown_exactly(const char *text) { return shown(text, true); }

void cli_put_answer(const char *text, size_t n) {
    static int terminal = -1;
    if (terminal < 0) terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0, from = 0; i <= n; i++) {
        size_t harmful =
            i < n && terminal && text[i] != '\n' && text[i] != '\t' ? harmful_bytes(text + i, n - i) : 0;
        if (i < n && !harmful) continue;
        fwrite(text + from, 1, i - from, stdout);
        from = i + harmful;
        if (harmful) i += harmful - 1;
    }
}
