#include "cli/store_args.h"

#include "cli/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Says why there is no path, and which options help. */
static char *path_of(const char *given, const char *options) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err;
    char *place = NULL, *copy;
    tern_status st = given ? TERN_OK : tn_store_default_path(&ctx, &place, &err);
    if (st != TERN_OK) {
        if (st == TERN_E_MEMORY) cli_failed(&err);
        else cli_failed_text("%s; give %s", err.message, options);
        return NULL;
    }
    copy = strdup(given ? given : place);
    if (!copy) cli_failed_text("no memory for a path");
    tn_free(&ctx, place);
    return copy;
}

char *cli_store_path(const char *given) { return path_of(given, "--store FILE"); }

bool cli_history_path(char *out, size_t cap) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state) return snprintf(out, cap, "%s/tern-history", state) < (int)cap;
    return home && *home && snprintf(out, cap, "%s/.tern_history", home) < (int)cap;
}

int cli_open_stored_session(tern_engine *e, tern_session_options *so, const char *given, bool none,
                            tern_session **out) {
    tern_error err;
    char *path = none ? NULL : path_of(given, "--store FILE or --no-store");
    if (!none && !path) return EXIT_FAILED;
    bool is_new = path && access(path, F_OK) && isatty(STDERR_FILENO);
    so->store = path;
    tern_status st = tern_session_open(e, so, out, &err);
    if (st != TERN_OK && path && !given) { /* whatever is wrong with it, it is not what was asked for */
        tern_error without;
        so->store = NULL;
        st = tern_session_open(e, so, out, &without);
        if (st == TERN_OK) fprintf(stderr, "tern: nothing is stored: %s\n", cli_shown(err.message));
    }
    if (st == TERN_OK && is_new && so->store) /* told once, to a person */
        fprintf(stderr,
                "tern: conversations are kept in %s, on this machine only, to speed up later answers "
                "(--no-store does not keep them; tern forget erases them)\n",
                cli_shown(path));
    so->store = NULL;
    free(path);
    return st == TERN_OK ? -1 : cli_failed(&err);
}

void cli_store_ctx(tn_ctx *ctx) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = cli_log_line;
    tn_ctx_init(ctx, &hooks);
}

tn_store *cli_store_open_existing(tn_ctx *ctx, const char *given, int *rc) {
    char *file = cli_store_path(given);
    tn_store *s = NULL;
    tern_error err;
    *rc = EXIT_FAILED;
    if (!file) return NULL;
    if (access(file, F_OK) && !given) *rc = EXIT_OK;
    else if (tn_store_open(ctx, file, NULL, &s, &err) != TERN_OK) *rc = cli_failed(&err);
    free(file);
    return s;
}
