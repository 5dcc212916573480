/* bench/kernels_blocks.c - speed of products with few rows over ggml's blocks (kernels/blocks_s8.h), type by
 * type, beside the rate at which the machine reads memory.
 *
 *   bench_kernels_blocks [--threads N] [--k K] [--n N] [--m 1,4,16] [--item N] [--runs N] [--cached]
 *
 * Runs walk over copies of the weights of at least 96 MiB, one copy a run, so that they come from memory, as in
 * decoding; --cached: one copy of few columns, over and over. --item: channels that a thread takes at once. Types
 * and numbers of rows run by turns. Figures are of the quickest run, with the median of all beside it: gigabytes of
 * weights a second and billions of operations. A run is short, so that on a machine with other work some runs have
 * a core to themselves. */
#include "must_alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/order.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "kernels/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MS = 8, MAX_THREADS = 64, MAX_RUNS = 2000 };

typedef struct bench {
    tn_kernels kern;
    tn_pool *pool;
    uint8_t *weights;
    size_t cap_bytes, at; /* at: of the next copy */
    size_t n_per_item;    /* channels */
    bool cached;
    const tn_blocks_act *a[2]; /* for types without minima and with them */
    tn_blocks_args g;
} bench;

static void item(void *arg, int i, int i_thread) {
    (void)i_thread;
    const bench *b = arg;
    tn_blocks_args g = b->g;
    g.n0 = (size_t)i * b->n_per_item;
    g.n1 = g.n0 + b->n_per_item < g.n ? g.n0 + b->n_per_item : g.n;
    b->kern.blocks_gemm(&g);
}

/* Seconds of one product with the next copy of the weights. */
static double run(bench *b) {
    size_t bytes = tn_blocks_bytes(b->g.type, b->g.n, b->g.k);
    if (b->at + bytes > b->cap_bytes) b->at = 0;
    b->g.tiles = b->weights + b->at;
    if (!b->cached) b->at += bytes;
    int64_t t0 = tn_now_ns();
    tn_pool_for(b->pool, (int)((b->g.n + b->n_per_item - 1) / b->n_per_item), item, b);
    return (double)(tn_now_ns() - t0) * 1e-9;
}

static int numbers(const char *text, size_t *out) {
    int n = 0;
    for (char *p = (char *)(uintptr_t)text; *p && n < MAX_MS; p += *p == ',') out[n++] = strtoull(p, &p, 10);
    return n;
}

static void table(bench *b, const size_t *ms, int n_m, int n_runs) {
    static double s[TN_BLOCKS_N_TYPES][MAX_MS][MAX_RUNS];
    for (int r = 0; r < n_runs; r++) {
        for (tn_blocks_type t = 0; t < TN_BLOCKS_N_TYPES; t++) {
            if (b->g.k % tn_blocks_traits_of[t].block) continue;
            for (int i = 0; i < n_m; i++) {
                b->g.type = t, b->g.m = ms[i], b->g.a = b->a[tn_blocks_traits_of[t].has_min];
                s[t][i][r] = run(b);
            }
        }
    }
    for (tn_blocks_type t = 0; t < TN_BLOCKS_N_TYPES; t++) {
        if (b->g.k % tn_blocks_traits_of[t].block) continue;
        double bytes = (double)tn_blocks_bytes(t, b->g.n, b->g.k), ops = 2.0 * (double)(b->g.n * b->g.k);
        printf("%-7s", tn_blocks_traits_of[t].name);
        for (int i = 0; i < n_m; i++) {
            qsort(s[t][i], (size_t)n_runs, sizeof s[t][i][0], tn_by_double);
            double best = s[t][i][0], median = s[t][i][n_runs / 2];
            printf("  %4zu rows %5.1f (%5.1f) GB/s %4.0f (%4.0f) GOPS", ms[i], bytes / best * 1e-9,
                   bytes / median * 1e-9, ops * (double)ms[i] / best * 1e-9,
                   ops * (double)ms[i] / median * 1e-9);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    size_t ms[MAX_MS] = {1, 4};
    int n_m = 2, n_runs = 200, n_threads = 1;
    static bench b;
    b.g.k = 896, b.g.n = 4864, b.n_per_item = 128;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--cached")) b.cached = true;
        else if (!strcmp(argv[i], "--threads")) n_threads = atoi(value), i++;
        else if (!strcmp(argv[i], "--k")) b.g.k = strtoull(value, NULL, 10), i++;
        else if (!strcmp(argv[i], "--n")) b.g.n = strtoull(value, NULL, 10), i++;
        else if (!strcmp(argv[i], "--item"))
            b.n_per_item = strtoull(value, NULL, 10) / TN_BLOCKS_N * TN_BLOCKS_N, i++;
        else if (!strcmp(argv[i], "--runs")) n_runs = atoi(value), i++;
        else if (!strcmp(argv[i], "--m")) n_m = numbers(value, ms), i++;
        else n_threads = 0;
    }
    if (n_threads < 1 || n_threads > MAX_THREADS || n_runs < 1 || n_runs > MAX_RUNS || !n_m || !b.g.n ||
        !b.g.k || b.g.k % 32 || !b.n_per_item) {
        fprintf(stderr,
                "usage: %s [--threads N] [--k K] [--n N] [--m 1,4,16] [--item N] [--runs N] [--cached]\n",
                argv[0]);
        return 1;
    }
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err = {0};
    tn_limits limits;
    if (tn_pool_open(&ctx, n_threads, &b.pool, &err)) return 1;
    tn_kernels_init(&b.kern, tn_cpu_flags(NULL));
    if (tn_limits_measure(&ctx, b.pool, tn_cpu_flags(NULL), &limits, &err)) return 1;
    printf("%d thread(s), %zu x %zu: peak %.0f GOPS, read %.1f GB/s\n", n_threads, b.g.k, b.g.n,
           (n_threads == 1 ? limits.thread_int8_ops : limits.int8_ops) * 1e-9,
           (n_threads == 1 ? limits.thread_read_bytes_per_s : limits.read_bytes_per_s) * 1e-9);
    size_t largest = 0, max_m = 0;
    for (tn_blocks_type t = 0; t < TN_BLOCKS_N_TYPES; t++) {
        if (b.g.k % tn_blocks_traits_of[t].block) continue;
        size_t bytes = tn_blocks_bytes(t, b.g.n, b.g.k);
        largest = bytes > largest ? bytes : largest;
    }
    for (int i = 0; i < n_m; i++) max_m = ms[i] > max_m ? ms[i] : max_m;
    b.cap_bytes = largest > (size_t)96 << 20 ? largest : (size_t)96 << 20;
    b.weights = must_alloc(&ctx, b.cap_bytes);
    memset(b.weights, 0x11, b.cap_bytes); /* every f16 is small and finite */
    float *x = must_alloc(&ctx, max_m * b.g.k * sizeof *x);
    const size_t n_acts = max_m * tn_blocks_n_chunks(b.g.k);
    tn_blocks_act *a = must_alloc(&ctx, 2 * n_acts * sizeof *a);
    tn_rng r = {1};
    for (size_t i = 0; i < max_m * b.g.k; i++) x[i] = (float)(tn_rng_below(&r, 1000)) - 500;
    /* Types with minima read float sums: another's integers would be denormals, which take some processors long. */
    for (int has_min = 0; has_min < 2; has_min++) {
        for (size_t i = 0; i < max_m; i++)
            b.kern.blocks_quantise(has_min ? TN_BLOCKS_Q4_1 : TN_BLOCKS_Q8_0, x + i * b.g.k, b.g.k,
                                   a + has_min * n_acts + i, max_m);
        b.a[has_min] = a + has_min * n_acts;
    }
    b.g.ldo = b.g.n;
    b.g.out = must_alloc(&ctx, max_m * b.g.n * sizeof *b.g.out);
    table(&b, ms, n_m, n_runs);
    tn_pool_close(&b.pool);
    return 0;
}
