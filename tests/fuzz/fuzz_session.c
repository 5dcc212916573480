/* A saved session from anywhere: as it is; and as the body of one with a true head and checksum, which is
 * then continued. */
#include "tiny.h"

#include <xxhash.h>

static void try_bytes(tern_session *s, const void *data, size_t size) {
    char path[64];
    tern_error err = {0};
    int fd = tiny_file(data, size, path);
    tern_status st = tern_session_load(s, path, &err);
    close(fd);
    if (st != TERN_OK) {
        if (!err.message[0]) abort();
        return;
    }
    /* keys and values are whatever the file says: a token more gives logits or an error that says what is
     * not finite */
    if (tern_session_step(s, 1, &err) != TERN_OK && !err.message[0]) abort();
}

typedef struct model {
    tern_session *s;
    uint8_t *whole; /* a true file */
    size_t n_whole;
} model;

enum { HEAD = 48, N_TOK = 3 };

static void make(const char *name, model *m) {
    tern_error err;
    tiny_make(name, false);
    tern_engine *e = tiny_engine(tiny_gguf);
    char path[300];
    snprintf(path, sizeof path, "%s/x", tiny_folder);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 32;
    if (tern_session_open(e, &so, &m->s, &err) != TERN_OK ||
        tern_session_prefill(m->s, (const int32_t[]){1, 2, 3}, N_TOK, &err) != TERN_OK ||
        tern_session_save(m->s, path, &err) != TERN_OK)
        abort();
    FILE *f = fopen(path, "rb");
    if (!f || !(m->whole = malloc(1 << 20))) abort();
    m->n_whole = fread(m->whole, 1, 1 << 20, f);
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static model models[2]; /* the second goes back to places, which its file names */
    if (!models[0].s) {
        make("tiny-llama", &models[0]);
        make("tiny-lfm2", &models[1]);
    }
    for (int i = 0; i < 2; i++) {
        model *m = &models[i];
        try_bytes(m->s, data, size);
        /* the input lies over the true file, from where its first two bytes say; n_tok and the flags are its
         * own */
        if (size <= 2 || m->n_whole <= HEAD + 8) continue;
        uint8_t *b = malloc(m->n_whole);
        if (!b) return 0;
        memcpy(b, m->whole, m->n_whole);
        size_t at = ((size_t)data[0] << 8 | data[1]) % (m->n_whole - 8), n = size - 2;
        if (n > m->n_whole - 8 - at) n = m->n_whole - 8 - at;
        memcpy(b + at, data + 2, n);
        memcpy(b, m->whole, 12);
        memcpy(b + 16, m->whole + 16, 24);
        uint64_t sum = XXH64(b, m->n_whole - 8, 0);
        memcpy(b + m->n_whole - 8, &sum, 8);
        try_bytes(m->s, b, m->n_whole);
        free(b);
    }
    return 0;
}
