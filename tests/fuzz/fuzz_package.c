/* A package from anywhere: the bytes as they are, then with true length and checksums so that what lies
 * after them is reached. */
#include "base/cpu.h"
#include "package/npu_model.h"
#include "true_package.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

static void try_bytes(tn_ctx *ctx, const uint8_t *data, size_t size) {
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tn_pool *pool;
    tn_kernels kern;
    tn_npu_model *m;
    tn_model *model;
    tern_error err = {0};
    tn_npu_model_options o = {.backend = "host",
                              .chunk = TN_CHUNK_MIN,
                              .load = XXH3_64bits(data, size) % 2 ? TN_LOAD_OVERLAP : TN_LOAD_MMAP};
    tn_aio_defaults(&o.io);
    o.io.n_parallel = 1;
    tn_kernels_init(&kern, 0);
    if (tn_pool_open(ctx, 1, &pool, NULL) != TERN_OK) abort();
    if (tn_npu_model_open(ctx, pool, &kern, path, &o, &m, &model, &err) == TERN_OK) {
        float *row = malloc((size_t)model->h.n_embd * sizeof *row);
        if (!row) abort();
        tn_npu_model_embed(m, &model->h, model->h.n_vocab - 1, row);
        free(row);
        tn_model_close(&model);
        tn_npu_model_close(&m);
    } else if (!err.message[0]) {
        abort();
    }
    tn_pool_close(&pool);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    try_bytes(&ctx, data, size);
    if (size >= PACKAGE_INDEX && size < 1 << 17) {
        uint8_t *b = malloc(size);
        if (!b) abort();
        memcpy(b, data, size);
        package_put(b + 8, TN_PKG_VERSION, 4);
        package_make_true(b, size);
        try_bytes(&ctx, b, size);
        free(b);
    }
    return 0;
}
