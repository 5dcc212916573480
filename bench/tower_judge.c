/* Whether an encoder's rows in INT8 are those in floats, by built-in drawings of several sizes: bench_tower_judge MMPROJ
 * THREADS SIDE... SIDE: of the drawing in pixels, rounded down to whole blocks of patches; 0: a tile of the family, or what
 * its table of positions is for. Prints the cosines' mean and least and the seconds of both forms. */
#include "base/clock.h"
#include "base/cpu.h"
#include "model/tower_judge.h"

#include <stdio.h>
#include <stdlib.h>

static tn_ctx ctx;
static tn_pool *pool;
static tn_kernels kern;

static float *see(const tn_tower *t, tn_tower_size z, double *took_s) {
    const tn_tower_shape *s = tn_tower_shape_of(t);
    tern_error err;
    uint8_t *rgb = malloc((size_t)z.width * (size_t)z.height * 3);
    float *rows = malloc((size_t)tn_tower_rows(s, z) * (size_t)tn_tower_row_width(s) * sizeof *rows);
    if (!rgb || !rows) exit(1);
    tn_tower_draw(rgb, z);
    const int64_t t0 = tn_now_ns();
    if (tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, rows, &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    *took_s = (double)(tn_now_ns() - t0) * 1e-9;
    free(rgb);
    return rows;
}

int main(int argc, char **argv) {
    tn_tower *t[2];
    tern_error err;
    if (argc < 4) return 2;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    if (tn_pool_open(&ctx, atoi(argv[2]), &pool, &err) != TERN_OK ||
        tn_tower_open(&ctx, pool, argv[1], 0, TN_TOWER_FLOAT, &t[0], &err) != TERN_OK ||
        tn_tower_open(&ctx, pool, argv[1], 0, TN_TOWER_INT8, &t[1], &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const tn_tower_shape *s = tn_tower_shape_of(t[0]);
    for (int i = 3; i < argc; i++) {
        const int32_t block = s->patch * s->shuffle, side = atoi(argv[i]),
                      most = tn_tower_any_size(s->kind) ? side : s->image,
                      whole = (side < most ? side : most) / block * block;
        const tn_tower_size z = side ? (tn_tower_size){whole, whole} : tn_tower_tile(s);
        double took_s[2];
        float *rows[2];
        for (int k = 0; k < 2; k++) rows[k] = see(t[k], z, &took_s[k]);
        const tn_tower_verdict v = tn_tower_compare(
            rows[1], rows[0], (size_t)tn_tower_rows(s, z) * (size_t)(1 + s->n_deep), (size_t)s->out);
        printf("%4d x %4d: mean %.5f, least %.5f: %s; floats %.2f s, INT8 %.2f s\n", z.width, z.height,
               (double)v.mean, (double)v.least, tn_tower_holds(v) ? "INT8" : "floats", took_s[0], took_s[1]);
        fflush(stdout);
        free(rows[0]);
        free(rows[1]);
    }
    tn_tower_close(&t[0]);
    tn_tower_close(&t[1]);
    tn_pool_close(&pool);
    return 0;
}
