/* How long an encoder of pictures takes a tile: bench_tower MMPROJ [THREADS [SIDE [float|int8 [RUNS [ROWS]]]]]. SIDE: of a
 * square picture in pixels, where the family has no tiles; 0: what its table of positions is for. Prints milliseconds of
 * the clock and of all threads' processor time, which says more on a busy machine. ROWS: a file for the rows as
 * f32. bench/peer/mtmd_tower.cpp is the same for llama.cpp. */
#include "base/clock.h"
#include "base/cpu.h"
#include "model/tower.h"

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

int main(int argc, char **argv) {
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_tower *t;
    tern_error err;
    if (argc < 2) return 2;
    int n_threads = argc > 2 ? atoi(argv[2]) : tn_cpu_count(), side = argc > 3 ? atoi(argv[3]) : 0,
        runs = argc > 5 ? atoi(argv[5]) : 5;
    tn_tower_scheme scheme = argc > 4 && !strcmp(argv[4], "int8") ? TN_TOWER_INT8 : TN_TOWER_FLOAT;
    const int64_t opening = tn_now_ns();
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    if (tn_pool_open(&ctx, n_threads, &pool, &err) != TERN_OK ||
        tn_tower_open(&ctx, pool, argv[1], 0, scheme, &t, &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("opened in %.1f ms\n", (double)(tn_now_ns() - opening) * 1e-6);
    const tn_tower_shape *s = tn_tower_shape_of(t);
    const tn_tower_size size = side ? (tn_tower_size){side, side} : tn_tower_tile(s);
    const size_t n = (size_t)size.width * (size_t)size.height * 3,
                 n_rows = (size_t)tn_tower_rows(s, size) * (size_t)tn_tower_row_width(s);
    uint8_t *rgb = malloc(n);
    float *rows = malloc(n_rows * sizeof *rows);
    if (!rgb || !rows) return 1;
    for (size_t i = 0; i < n; i++) rgb[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int i = 0; i < runs; i++) {
        double c0 = cpu_s();
        int64_t t0 = tn_now_ns();
        if (tn_tower_encode(t, &kern, pool, rgb, size, NULL, NULL, rows, &err) != TERN_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        printf("%7.1f ms, %7.1f ms of processor time\n", (double)(tn_now_ns() - t0) * 1e-6,
               (cpu_s() - c0) * 1e3);
    }
    tn_tower_close(&t);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("%ld MiB at most\n", u.ru_maxrss >> 10);
    FILE *f = argc > 6 ? fopen(argv[6], "wb") : NULL;
    if (argc > 6 && (!f || fwrite(rows, sizeof *rows, n_rows, f) != n_rows || fclose(f))) return 1;
    free(rgb);
    free(rows);
    tn_pool_close(&pool);
    return 0;
}
