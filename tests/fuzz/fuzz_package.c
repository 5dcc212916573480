/* A package from anywhere: the bytes as they are, then with true length and checksums so that what lies
 * behind them is reached. */
#include "base/cpu.h"
#include "package/npu_model.h"

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

/* Checksums of the blocks of a table of contents, where they fit it. */
static void true_hashes(uint8_t *b, size_t size, const tn_pkg_section *s, uint8_t *toc) {
    uint32_t n_records, n_hashes, h = 0;
    uint64_t small;
    memcpy(&n_records, toc, 4);
    memcpy(&n_hashes, toc + 4, 4);
    memcpy(&small, toc + 8, 8);
    if (n_records > (s->toc_bytes - 16) / sizeof(tn_pkg_record) ||
        n_hashes > (s->toc_bytes - 16 - n_records * sizeof(tn_pkg_record)) / 8)
        return;
    uint8_t *hashes = toc + 16 + n_records * sizeof(tn_pkg_record);
    for (uint32_t i = 0; i <= n_records; i++) {
        tn_pkg_record r = {.part = TN_PKG_TILES, .size_bytes = small};
        if (i) memcpy(&r, toc + 16 + (i - 1) * sizeof r, sizeof r);
        if (!tn_pkg_is_large(r.part) || s->off_bytes > size || r.off_bytes > size - s->off_bytes ||
            r.size_bytes > size - s->off_bytes - r.off_bytes)
            continue;
        for (uint64_t at = 0; at < r.size_bytes && h < n_hashes; at += TN_PKG_BLOCK, h++) {
            uint64_t n = r.size_bytes - at < TN_PKG_BLOCK ? r.size_bytes - at : TN_PKG_BLOCK;
            put(hashes + 8 * h, XXH3_64bits(b + s->off_bytes + r.off_bytes + at, n), 8);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { HEADER = 56, INDEX = 64, SECTION = sizeof(tn_pkg_section) };
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    try_bytes(&ctx, data, size);
    if (size >= INDEX && size < 1 << 17) {
        uint8_t *b = malloc(size);
        if (!b) abort();
        memcpy(b, data, size);
        uint32_t n;
        uint64_t index_bytes;
        memcpy(&n, b + 12, 4);
        memcpy(&index_bytes, b + 24, 8);
        if (index_bytes > size - INDEX) index_bytes = size - INDEX;
        if (n > index_bytes / SECTION) n = (uint32_t)(index_bytes / SECTION);
        for (uint32_t i = 0; i < n; i++) {
            uint8_t *entry = b + INDEX + SECTION * i;
            tn_pkg_section s;
            memcpy(&s, entry, SECTION);
            if (s.toc_bytes >= 16 && s.toc_off_bytes <= index_bytes &&
                s.toc_bytes <= index_bytes - s.toc_off_bytes) {
                true_hashes(b, size, &s, b + INDEX + s.toc_off_bytes);
                put(entry + 24, XXH64(b + INDEX + s.toc_off_bytes, s.toc_bytes, 0), 8);
            } else if (s.off_bytes <= size && s.size_bytes <= size - s.off_bytes) {
                put(entry + 24, XXH64(b + s.off_bytes, s.size_bytes, 0), 8);
            }
        }
        put(b + 8, TN_PKG_VERSION, 4);
        put(b + 12, n, 4);
        put(b + 16, size, 8);
        put(b + 24, index_bytes, 8);
        put(b + 32, XXH64(b + INDEX, index_bytes, 0), 8);
        put(b + 48, XXH64(b, 48, 0), 8);
        try_bytes(&ctx, b, size);
        free(b);
    }
    return 0;
}
