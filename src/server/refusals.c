#include "server/refusals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Layers below give words, not numbers: those of the kernel for a disk, a quota or a file that is full, and SQLite's. */
static bool is_full(const char *message) {
    return strstr(message, strerror(ENOSPC)) || strstr(message, strerror(EDQUOT)) ||
           strstr(message, strerror(EFBIG)) || strstr(message, "disk is full");
}

tern_status tn_own_files(tern_error *err) {
    char text[sizeof err->message];
    const bool io = err->code == TERN_E_IO || err->code == TERN_E_LIMIT;
    const bool erased =
        strstr(err->message, "could not be overwritten"); /* where each write takes new room */
    if (io && is_full(err->message))
        return tn_fail(err, TN_E_FULL,
                       erased ? "the disk is full: it is gone, but its bytes could not be overwritten"
                              : "the disk is full: nothing was kept");
    if (err->message[0] != '/') { /* "no memory to write PATH" */
        char *path = strstr(err->message, " /");
        while (path && path > err->message && path[-1] == ':') path--;
        if (path) *path = 0;
        return err->code;
    }
    /* a path may hold ": " itself, but not after its last slash: those are names that tern gave */
    const char *slash = strrchr(err->message, '/'), *rest = strstr(slash, ": ");
    snprintf(text, sizeof text, "%s", rest ? rest + 2 : "its file cannot be used");
    return tn_fail(err, err->code == TERN_E_LIMIT ? TERN_E_IO : err->code, "the server's own files: %s",
                   text);
}
