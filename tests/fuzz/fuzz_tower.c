/* An encoder of pictures from anywhere (an mmproj file): refused with a line, or it encodes a tile. */
#include "model/tower.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_tower *t = NULL;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, 0);
    if (tn_pool_open(&ctx, 1, &pool, &err) != TERN_OK) abort();
    tern_status st = tn_tower_open_memory(&ctx, pool, data, size, 0, TN_TOWER_FLOAT, &t, &err);
    if (st != TERN_OK && (t || !err.message[0])) abort();
    const tn_tower_shape *s = t ? tn_tower_shape_of(t) : NULL;
    if (s && s->image <= 64 && s->width <= 64 && s->ff <= 256 && s->n_layers <= 4) {
        const int32_t block = s->patch * s->shuffle;
        const tn_tower_size z = s->max_pixels ? (tn_tower_size){3 * block, 2 * block} : tn_tower_tile(s);
        uint8_t *rgb = calloc((size_t)z.width * (size_t)z.height, 3);
        float *rows = calloc((size_t)tn_tower_rows(s, z) * (size_t)tn_tower_row_width(s), sizeof *rows);
        if (rgb && rows) (void)tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, rows, &err);
        free(rgb);
        free(rows);
    }
    tn_tower_close(&t);
    tn_pool_close(&pool);
    return 0;
}
