/* A tower from a path: of an mmproj file, or of a folder. */
#include "model/tower_impl.h"

#include "base/status.h"

#include <sys/stat.h>

static tern_status open_path(const tn_tower_how *how, const char *path, tn_tower **out, tern_error *err) {
    struct stat sb;
    *out = NULL;
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) {
        tn_tower_folder *folder;
        TN_TRY(tn_tower_folder_open(how->ctx, path, &folder, err));
        tern_status st = tn_tower_open_file(how, tn_tower_folder_file(folder), out, err);
        tn_tower_folder_close(&folder);
        return st;
    }
    tn_gguf *g;
    TN_TRY(tn_gguf_open(how->ctx, path, &g, err));
    tern_status st = tn_tower_open_file(how, &(tn_tower_file){.g = g, .mapped = tn_gguf_file(g)}, out, err);
    tn_gguf_close(&g);
    return st;
}

static tern_status open_bytes(const tn_tower_how *how, const void *data, uint64_t n_bytes, bool mapped,
                              tn_tower **out, tern_error *err) {
    tn_gguf *g;
    *out = NULL;
    TN_TRY(tn_gguf_open_memory(how->ctx, data, n_bytes, "memory", &g, err));
    tern_status st = tn_tower_open_file(how, &(tn_tower_file){.g = g, .mapped = mapped}, out, err);
    tn_gguf_close(&g);
    return st;
}

tern_status tn_tower_open(tn_ctx *ctx, tn_pool *pool, const char *path, int32_t n_embd,
                          tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    return open_path(&(tn_tower_how){ctx, pool, n_embd, scheme}, path, out, err);
}

tern_status tn_tower_open_memory(tn_ctx *ctx, tn_pool *pool, const void *data, uint64_t n_bytes,
                                 int32_t n_embd, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    return open_bytes(&(tn_tower_how){ctx, pool, n_embd, scheme}, data, n_bytes, false, out, err);
}

tern_status tn_tower_open_mapped(tn_ctx *ctx, tn_pool *pool, const void *data, uint64_t n_bytes,
                                 int32_t n_embd, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    return open_bytes(&(tn_tower_how){ctx, pool, n_embd, scheme}, data, n_bytes, true, out, err);
}

tern_status tn_tower_peek(tn_ctx *ctx, const char *path, int32_t n_embd, tn_tower **out, tern_error *err) {
    return open_path(&(tn_tower_how){.ctx = ctx, .n_embd = n_embd}, path, out, err);
}

tern_status tn_tower_peek_memory(tn_ctx *ctx, const void *data, uint64_t n_bytes, int32_t n_embd,
                                 tn_tower **out, tern_error *err) {
    return open_bytes(&(tn_tower_how){.ctx = ctx, .n_embd = n_embd}, data, n_bytes, true, out, err);
}
