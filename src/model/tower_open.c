/* A tower from a path: of an mmproj file, or of a folder. */
#include "model/tower_impl.h"

#include "base/status.h"

#include <sys/stat.h>

tern_status tn_tower_open(tn_ctx *ctx, tn_pool *pool, const char *path, int32_t n_embd,
                          tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    struct stat sb;
    *out = NULL;
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) {
        tn_tower_folder *folder;
        TN_TRY(tn_tower_folder_open(ctx, path, &folder, err));
        tern_status st =
            tn_tower_open_file(ctx, pool, tn_tower_folder_file(folder), n_embd, scheme, out, err);
        tn_tower_folder_close(&folder);
        return st;
    }
    tn_gguf *g;
    TN_TRY(tn_gguf_open(ctx, path, &g, err));
    tern_status st = tn_tower_open_file(ctx, pool, &(tn_tower_file){.g = g}, n_embd, scheme, out, err);
    tn_gguf_close(&g);
    return st;
}

tern_status tn_tower_open_memory(tn_ctx *ctx, tn_pool *pool, const void *data, uint64_t n_bytes,
                                 int32_t n_embd, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    tn_gguf *g;
    *out = NULL;
    TN_TRY(tn_gguf_open_memory(ctx, data, n_bytes, "memory", &g, err));
    tern_status st = tn_tower_open_file(ctx, pool, &(tn_tower_file){.g = g}, n_embd, scheme, out, err);
    tn_gguf_close(&g);
    return st;
}
