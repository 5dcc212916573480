/* The smallest whole program on libtern: open a model, read a prompt, print the answer as it is written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern.h>

static bool print(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    (void)user, (void)token, (void)logprob;
    fwrite(text, 1, n_bytes, stdout);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    tern_engine *engine = NULL;
    tern_session *session = NULL;
    tern_error err;
    int32_t ids[4096];
    size_t n_ids;
    int rc = 1;

    if (tern_engine_open(argv[1], NULL, &engine, &err) != TERN_OK) goto out;
    if (tern_session_open(engine, NULL, &session, &err) != TERN_OK) goto out;
    if (tern_tokenize(engine, argv[2], strlen(argv[2]), true, true, ids, 4096, &n_ids, &err) != TERN_OK)
        goto out;
    if (tern_session_prefill(session, ids, n_ids, &err) != TERN_OK) goto out;

    tern_generate_options opt;
    tern_generate_options_defaults(&opt);
    opt.max_tokens = 64;
    opt.sampling.temperature = 0;
    opt.on_token = print;
    if (tern_session_generate(session, &opt, NULL, &err) != TERN_OK) goto out;
    putchar('\n');
    rc = 0;
out:
    if (rc) fprintf(stderr, "%s\n", err.message);
    tern_session_close(&session);
    tern_engine_close(&engine);
    return rc;
}
