/* tern-mini - the small program of a minimal build: it answers one prompt with a package.
 *   tern-mini MODEL.tern TEXT [NAME=VALUE...]
 * Names are those of `tern help set`: n-predict=64 temp=0 threads=1 ... The text is a user's message; with
 * raw=yes it is what the model goes on from, as it is. The context is 512 tokens long unless ctx-size says
 * otherwise. */
#include <stdio.h>
#include <string.h>
#include <tern.h>

static bool print(void *user, const char *text, size_t n_bytes) {
    (void)user;
    return fwrite(text, 1, n_bytes, stdout) == n_bytes && !fflush(stdout);
}

static tern_status set(tern_options *o, char *argument, bool *raw, tern_error *err) {
    char *value = strchr(argument, '=');
    if (!strcmp(argument, "raw=yes")) {
        *raw = true;
        return TERN_OK;
    }
    if (value) *value++ = 0;
    return tern_options_set(o, argument, value, err);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.tern TEXT [NAME=VALUE...]\n", argv[0]);
        return 2;
    }
    tern_engine *engine = NULL;
    tern_error err = {0};
    bool raw = false;
    tern_options *options = NULL;
    tern_status st = tern_options_new(&options, &err);
    if (st == TERN_OK)
        st = tern_options_set(options, "ctx-size", "512", &err); /* a board has little memory */
    for (int i = 3; i < argc && st == TERN_OK; i++) st = set(options, argv[i], &raw, &err);
    if (st == TERN_OK) st = tern_engine_open(argv[1], options, &engine, &err);
    const tern_message message = {raw ? NULL : "user", argv[2]};
    if (st == TERN_OK) st = tern_complete(engine, &message, 1, options, print, NULL, NULL, &err);
    if (st == TERN_OK && (putchar('\n') == EOF || fflush(stdout))) st = TERN_E_IO;
    if (st != TERN_OK)
        fprintf(stderr, "tern-mini: %s\n", err.message[0] ? err.message : tern_status_text(st));
    tern_engine_close(&engine);
    tern_options_free(&options);
    return st != TERN_OK;
}
