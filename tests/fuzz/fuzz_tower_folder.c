/* The encoder in a Hugging Face folder from anywhere: {"config": ..., "processor": ...}, a zero byte, and a safetensors
 * file. It is refused with a line; or it opens as the mmproj file that is written of it does. */
#include "base/json.h"
#include "model/tower_folder.h"

#include <stdlib.h>
#include <string.h>

static tn_ctx ctx;
static tn_pool *pool;

static void open_both(const tn_tower_folder *f) {
    uint8_t *bytes;
    uint64_t n_bytes;
    tn_tower *a = NULL, *b = NULL;
    tern_error err = {0};
    const tern_status one =
        tn_tower_open_file(&(tn_tower_how){.ctx = &ctx, .pool = pool, .scheme = TN_TOWER_FLOAT},
                           tn_tower_folder_file(f), &a, &err);
    if (one != TERN_OK && !err.message[0]) abort();
    if (tn_tower_folder_write(f, &bytes, &n_bytes, &err) == TERN_OK) {
        const tern_status two = tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 0, TN_TOWER_FLOAT, &b, &err);
        if (one == TERN_OK && (two != TERN_OK || tn_tower_fingerprint(a) != tn_tower_fingerprint(b))) abort();
        tn_free(&ctx, bytes);
    } else if (one == TERN_OK) {
        abort();
    }
    tn_tower_close(&a);
    tn_tower_close(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tern_error err = {0};
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    json_t *both = end ? tn_json_parse((const char *)data, (size_t)(end - data), 0, NULL) : NULL;
    tn_tower_config c;
    tn_safetensors *st = NULL;
    tn_tower_folder *f = NULL;
    if (!both) return 0;
    tn_ctx_init(&ctx, NULL);
    if (tn_pool_open(&ctx, 1, &pool, &err) != TERN_OK) abort();
    tern_status rc = tn_tower_config_of(json_object_get(both, "config"), json_object_get(both, "processor"),
                                        "config.json", "preprocessor_config.json", &c, &err);
    if (rc == TERN_OK)
        rc = tn_safetensors_open_memory(&ctx, end + 1, size - (size_t)(end + 1 - data), "fuzz", &st, &err);
    if (rc == TERN_OK) rc = tn_tower_folder_make(&ctx, "folder", &c, &st, &f, &err);
    if (rc == TERN_OK) open_both(f);
    else if (f || st || !err.message[0]) abort();
    tn_tower_folder_close(&f);
    tn_pool_close(&pool);
    json_decref(both);
    return 0;
}
