/* tests/fuzz/tiny.h - what targets share that need a model: random weights, packed once for the process,
 * in a folder of its own that goes with it; and inputs as files of memory. */
#ifndef TN_TESTS_FUZZ_TINY_H
#define TN_TESTS_FUZZ_TINY_H

#include "session/session.h"
#include "lab/synth.h"
#include "quant/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char tiny_folder[200], tiny_gguf[256], tiny_package[256];

static inline void tiny_remove(void) {
    char path[300];
    static const char *const names[] = {"m.gguf", "m.tern", "m.tern.profile", "x",
                                        "x-wal",  "x-shm",  "x-journal"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", tiny_folder, names[i]);
        unlink(path);
    }
    rmdir(tiny_folder);
}

static inline void tiny_place(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(tiny_folder, sizeof tiny_folder, "%.100s/fuzz-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(tiny_folder)) abort();
    snprintf(tiny_gguf, sizeof tiny_gguf, "%s/m.gguf", tiny_folder);
    snprintf(tiny_package, sizeof tiny_package, "%s/m.tern", tiny_folder);
    atexit(tiny_remove);
}

/* A model of this name (tern synth) as a file, and as a package where `packed`; the one before it goes. */
static inline void tiny_make(const char *name, bool packed) {
    tn_ctx ctx;
    tn_pool *pool;
    tern_error err = {0};
    tn_pack_options o;
    tn_ctx_init(&ctx, NULL);
    tn_pack_defaults(&o);
    o.calib_tokens = 64;
    o.n_threads = 1;
    if (tiny_folder[0]) tiny_remove();
    tiny_place();
    if (tn_pool_open(&ctx, 1, &pool, &err) != TERN_OK ||
        tn_synth(&ctx, pool, name, tiny_gguf, 7, TN_F32, &err) != TERN_OK ||
        (packed && tn_pack(&ctx, tiny_gguf, tiny_package, &o, NULL, &err) != TERN_OK)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    tn_pool_close(&pool);
}

static inline tern_engine *tiny_engine(const char *path) {
    tern_engine *e = NULL;
    tern_error err = {0};
    tern_options *o;
    if (tern_options_new(&o, &err) != TERN_OK || tern_options_set(o, "threads", "1", &err) != TERN_OK)
        abort();
    if (tern_engine_open(path, o, &e, &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    tern_options_free(&o);
    return e;
}

/* A file of memory with these bytes; path names it until close(fd). */
static inline int tiny_file(const void *data, size_t n, char path[64]) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || lseek(fd, 0, SEEK_SET)) abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
