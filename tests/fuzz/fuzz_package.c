/* A package from anywhere: the bytes as they are, then with true length and checksums so that what lies behind them is reached. */
#include "base/cpu.h"
#include "engine/npu_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

static void put(uint8_t *p, uint64_t v, int n) {
    for (int i = 0; i < n; i++) p[i] = (uint8_t)(v >> 8 * i);
}

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
    tn_npu_model_options o = {.backend = "host", .chunk = TN_CHUNK_MIN};
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
    enum { HEADER = 48, SECTION = sizeof(tn_pkg_section) };
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    try_bytes(&ctx, data, size);
    if (size >= HEADER && size < 1 << 17) {
        uint8_t *b = malloc(size);
        if (!b) abort();
        memcpy(b, data, size);
        uint32_t n;
        memcpy(&n, b + 12, 4);
        if (n > (size - HEADER) / SECTION) n = (uint32_t)((size - HEADER) / SECTION);
        for (uint32_t i = 0; i < n; i++) {
            tn_pkg_section s;
            memcpy(&s, b + HEADER + SECTION * i, SECTION);
            if (s.off_bytes <= size && s.size_bytes <= size - s.off_bytes) put(b + HEADER + SECTION * i + 24, XXH64(b + s.off_bytes, s.size_bytes, 0), 8);
        }
        put(b + 8, TN_PKG_VERSION, 4);
        put(b + 12, n, 4);
        put(b + 16, size, 8);
        put(b + 24, HEADER, 8);
        put(b + 32, XXH64(b + HEADER, (size_t)n * SECTION, 0), 8);
        put(b + 40, XXH64(b, 40, 0), 8);
        try_bytes(&ctx, b, size);
        free(b);
    }
    return 0;
}
