/* A picture from anywhere: decoded or refused with a line, then cut into tiles. Its first byte chooses the tiles; pictures
 * of many pixels are left alone, because they take the time of their pixels. */
#include "media/medium.h"
#include "pictures/picture.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PIXELS = 1 << 20 };

/* Sees sizes before anything is decoded: it lends no memory for large ones. */
static void *lend(void *user, size_t n, size_t align) {
    (void)user;
    void *p = NULL;
    if (n > 4 * MOST_PIXELS) return NULL;
    return posix_memalign(&p, align < sizeof p ? sizeof p : align, n ? n : 1) ? NULL : p;
}

static void take_back(void *user, void *p) {
    (void)user;
    free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const tn_tower_shape shapes[] = {
        {.image = 16, .patch = 4, .shuffle = 2, .longest = 64},
        {.image = 9, .patch = 3, .shuffle = 1, .longest = 100},
        {.kind = TN_TOWER_GEMMA3, .image = 12, .patch = 3, .shuffle = 2, .longest = 12},
        {.kind = TN_TOWER_QWEN3VL,
         .image = 12,
         .patch = 3,
         .shuffle = 2,
         .min_pixels = 100,
         .max_pixels = 900},
        {.kind = TN_TOWER_INTERNVL, .image = 16, .patch = 4, .shuffle = 2, .min_tiles = 1, .max_tiles = 12},
        {.kind = TN_TOWER_GEMMA4, .image = 12, .patch = 1, .shuffle = 2, .max_pixels = 280},
        {.kind = TN_TOWER_LFM2,
         .image = 8,
         .patch = 1,
         .shuffle = 2,
         .min_pixels = 256,
         .max_pixels = 1024,
         .tile = 32,
         .min_tiles = 2,
         .max_tiles = 10},
    };
    if (!size) return 0;
    tern_hooks h;
    tern_hooks_defaults(&h);
    h.alloc = lend;
    h.release = take_back;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &h);
    tn_picture p;
    tn_medium m;
    tern_error err = {0};
    tern_status st = tn_picture_decode(&ctx, data + 1, size - 1, &p, &err);
    if (st != TERN_OK) {
        if (p.rgb || !err.message[0]) abort();
        return 0;
    }
    if (p.width < 1 || p.height < 1) abort();
    uint8_t key[TN_VIEW_KEY];
    const tn_tower_shape *s = &shapes[(data[0] >> 1) % (sizeof shapes / sizeof *shapes)];
    if (tn_medium_make(&ctx, s, &p, data[0] & 1, &m, &err) == TERN_OK) {
        if (m.n_views != m.rows * m.columns + 1 || m.n_views > TN_MEDIUM_VIEWS) abort();
        for (int32_t i = 0; i < m.n_views; i++) tn_view_pixels(&m, i, key);
        tn_medium_free(&m);
    } else if (m.rgb || !err.message[0]) {
        abort();
    }
    tn_picture_free(&p);
    return 0;
}
