/* How long an encoder of pictures takes a tile: bench_tower MMPROJ [THREADS [SIDE [float|int8]]]. SIDE: of a square picture
 * in pixels, where the family has no tiles; 0: what its table of positions is for. Prints milliseconds of the clock and of
 * all threads' processor time, which says more on a busy machine; of INT8 also the cosine to the rows in floats. */
#include "base/clock.h"
#include "base/cpu.h"
#include "model/tower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6 + (double)u.ru_stime.tv_sec +
           (double)u.ru_stime.tv_usec * 1e-6;
}

/* Cosine of what two forms of a tower give. */
static double cosine(const float *a, const float *b, size_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

static int compare(tn_ctx *ctx, tn_pool *pool, const tn_kernels *kern, const char *path, const uint8_t *rgb,
                   tn_tower_size size, const float *rows, size_t n) {
    tn_tower *t;
    tern_error err;
    float *of_float = malloc(n * sizeof *of_float);
    if (!of_float || tn_tower_open(ctx, pool, path, 0, TN_TOWER_FLOAT, &t, &err) != TERN_OK ||
        tn_tower_encode(t, kern, pool, rgb, size, NULL, of_float, &err) != TERN_OK)
        return 1;
    printf("cosine to the rows in floats: %.6f\n", cosine(rows, of_float, n));
    tn_tower_close(&t);
    free(of_float);
    return 0;
}

int main(int argc, char **argv) {
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_tower *t;
    tern_error err;
    if (argc < 2) return 2;
    int n_threads = argc > 2 ? atoi(argv[2]) : tn_cpu_count(), side = argc > 3 ? atoi(argv[3]) : 0;
    tn_tower_scheme scheme = argc > 4 && !strcmp(argv[4], "int8") ? TN_TOWER_INT8 : TN_TOWER_FLOAT;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    if (tn_pool_open(&ctx, n_threads, &pool, &err) != TERN_OK ||
        tn_tower_open(&ctx, pool, argv[1], 0, scheme, &t, &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const tn_tower_shape *s = tn_tower_shape_of(t);
    const tn_tower_size size = side ? (tn_tower_size){side, side} : tn_tower_tile(s);
    const size_t n = (size_t)size.width * (size_t)size.height * 3,
                 n_rows = (size_t)tn_tower_rows(s, size) * (size_t)tn_tower_row_width(s);
    uint8_t *rgb = malloc(n);
    float *rows = malloc(n_rows * sizeof *rows);
    if (!rgb || !rows) return 1;
    for (size_t i = 0; i < n; i++) rgb[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int i = 0; i < 5; i++) {
        double c0 = cpu_s();
        int64_t t0 = tn_now_ns();
        if (tn_tower_encode(t, &kern, pool, rgb, size, NULL, rows, &err) != TERN_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        printf("%7.1f ms, %7.1f ms of processor time\n", (double)(tn_now_ns() - t0) * 1e-6,
               (cpu_s() - c0) * 1e3);
    }
    tn_tower_close(&t);
    int rc = scheme == TN_TOWER_INT8 ? compare(&ctx, pool, &kern, argv[1], rgb, size, rows, n_rows) : 0;
    free(rgb);
    free(rows);
    tn_pool_close(&pool);
    return rc;
}
