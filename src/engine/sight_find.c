#include "engine/sight_find.h"

#include "base/status.h"
#include "engine/beside.h"
#include "formats/gguf.h"
#include "model/tower.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Whether an encoder that was found is for models of that width, as far as its metadata say so. */
static bool fits(const char *path, int32_t n_embd, tern_error *err) {
    tn_ctx ctx;
    tn_gguf *g;
    int64_t out = 0;
    tn_ctx_init(&ctx, NULL);
    if (!n_embd || tn_gguf_open(&ctx, path, &g, NULL) != TERN_OK)
        return true; /* who opens it tells why it cannot */
    (void)tn_gguf_i64(g, "clip.vision.projection_dim", &out);
    tn_gguf_close(&g);
    return !out || tn_tower_fits(path, (int32_t)out, n_embd, err) == TERN_OK;
}

char *tn_sight_find(const char *model, int32_t n_embd, tern_error *err) {
    int n;
    char *path = tn_beside_find(model, "mmproj", &n);
    struct stat sb;
    const bool is_folder = !stat(model, &sb) && S_ISDIR(sb.st_mode),
               inside = !n && is_folder && tn_tower_in_folder(model, err);
    if (inside && !(path = strdup(model))) n = -1;
    if (n < 0)
        (void)tn_fail(err, TERN_E_MEMORY, "no memory, or no free descriptor, to look for a picture encoder");
    else if (n > 1)
        (void)tn_fail(err, TERN_E_UNSUPPORTED,
                      "%s has several picture encoders beside it: choose one with --mmproj FILE", model);
    else if (!path && !is_folder)
        (void)tn_fail(
            err, TERN_E_UNSUPPORTED,
            "%s has no picture encoder beside it (a file mmproj*.gguf): give one with --mmproj FILE", model);
    if (path && !is_folder && !fits(path, n_embd, err)) {
        free(path);
        return NULL;
    }
    return path;
}
