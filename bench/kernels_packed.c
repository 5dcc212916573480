/* bench/kernels_packed.c - speed of products with few rows over packed weights, on the linears of Qwen2.5
 * 0.5B and 1.5B, beside the least time the machine allows: the larger of reading the packed bytes at the rate
 * `tern bench limits` measures and of doing the products at the peak of the integer unit.
 *
 *   bench_kernels_packed [--threads N] [--m 1,16,32] [--bits 4,5,0] [--tiles] [--cached] [--quick]
 *
 * --bits: widths of the channels; 0 stands for widths drawn from 3..7. --tiles measures the 8-bit tiles
 * instead. A run of a shape walks over copies of the weights of at least 96 MiB, so that they come from
 * memory, as in decoding; --cached: one copy, over and over. The numbers of rows run by turns; figures are
 * medians. x1: time against one row. */
#include "must_alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "kernels/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_K = 8960, MAX_N = 8960, MAX_M = 512, LDA = MAX_K + 64, MAX_MS = 16, RUNS = 9 };

static const struct {
    const char *model;
    size_t k, n;
    int times; /* in a layer */
} shapes[] = {
    {"0.5B", 896, 896, 2},   {"0.5B", 896, 128, 2},  {"0.5B", 896, 4864, 2},  {"0.5B", 4864, 896, 1},
    {"1.5B", 1536, 1536, 2}, {"1.5B", 1536, 256, 2}, {"1.5B", 1536, 8960, 2}, {"1.5B", 8960, 1536, 1},
};

typedef struct bench {
    tn_kernels kern;
    tn_pool *pool;
    int n_threads;
    bool tiles, cached;
    tn_limits limits;
    uint8_t *weights, *a;
    size_t cap_bytes;
    float *out, *scale;
    int32_t *sums;
    int8_t *scratch[64];
} bench;

typedef struct job {
    bench *b;
    tn_gemm_s8_args g;
    uint8_t bits[MAX_N];
    size_t off[MAX_N / TN_PACKED_BLOCK + 1]; /* of blocks of columns */
    size_t copy_bytes, n_copies;
} job;

static void item(void *arg, int i, int i_thread) {
    const job *j = arg;
    size_t n_blocks = (j->g.n + TN_PACKED_BLOCK - 1) / TN_PACKED_BLOCK, n = (size_t)j->b->n_threads;
    size_t b0 = n_blocks * (size_t)i / n, b1 = n_blocks * (size_t)(i + 1) / n;
    tn_gemm_s8_args g = j->g;
    g.n0 = b0 * TN_PACKED_BLOCK;
    g.n1 = b1 * TN_PACKED_BLOCK < g.n ? b1 * TN_PACKED_BLOCK : g.n;
    for (size_t c = 0; c < j->n_copies && g.n0 < g.n1; c++) {
        const uint8_t *w = j->b->weights + (j->b->cached ? 0 : c * j->copy_bytes);
        g.tiles = (const int8_t *)w;
        if (j->b->tiles) j->b->kern.gemm_s8(&g);
        else tn_gemm_packed(&j->b->kern, &g, 256, w + j->off[b0], j->bits, j->b->scratch[i_thread]);
    }
}

static double run(job *j) {
    int64_t t0 = tn_now_ns();
    tn_pool_for(j->b->pool, j->b->n_threads, item, j);
    return (double)(tn_now_ns() - t0) * 1e-3 / (double)j->n_copies;
}

/* us[i]: shortest time of ms[i] rows. Returns the bytes of weights. */
static size_t shape_times(bench *b, size_t i_shape, unsigned width, const size_t *ms, int n_m, int n_runs,
                          double *us) {
    size_t k = shapes[i_shape].k, n = shapes[i_shape].n;
    static job j;
    memset(&j, 0, sizeof j);
    tn_rng r = {7};
    for (size_t i = 0; i < n; i++)
        tn_channel_bits_put(j.bits, i, width ? width : 3 + (unsigned)tn_rng_below(&r, 5));
    for (size_t i = 0; i * TN_PACKED_BLOCK < n; i++)
        j.off[i] = tn_weightlets_bytes(j.bits, 0, i * TN_PACKED_BLOCK, k);
    j.b = b;
    j.copy_bytes = b->tiles ? tn_tiles_s8_bytes(n, k) : tn_weightlets_bytes(j.bits, 0, n, k);
    j.n_copies = b->cap_bytes / j.copy_bytes;
    for (int t = -1; t < n_runs; t++) { /* the first warms up */
        for (int i = 0; i < n_m; i++) {
            j.g = (tn_gemm_s8_args){.a = b->a,
                                    .lda = LDA,
                                    .col_sum = b->sums,
                                    .m = ms[i],
                                    .n = n,
                                    .k = k,
                                    .out_f32 = b->out,
                                    .ldo = n,
                                    .scale = b->scale};
            double spent = run(&j);
            if (t < 1 || spent < us[i]) us[i] = spent;
        }
    }
    return j.copy_bytes;
}

static double least_us(const bench *b, double bytes, double macs) {
    double read =
               bytes / (b->n_threads == 1 ? b->limits.thread_read_bytes_per_s : b->limits.read_bytes_per_s),
           ops = 2 * macs / (b->n_threads == 1 ? b->limits.thread_int8_ops : b->limits.int8_ops);
    return 1e6 * (read > ops ? read : ops);
}

static void line(const bench *b, const char *name, size_t m, double us, double one_us, double bytes,
                 double macs) {
    printf("%-17s %5zu %10.1f %8.2f %8.1f %8.0f %8.1f\n", name, m, us, us / one_us, bytes / us * 1e-3,
           2e-3 * macs / us, 100 * least_us(b, bytes, macs) / us);
}

static void table(bench *b, unsigned width, const size_t *ms, int n_m, int n_runs) {
    printf("%s\n%-17s %5s %10s %8s %8s %8s %8s\n",
           b->tiles     ? "tiles"
           : width == 0 ? "widths 3..7"
                        : (char[]){(char)('0' + width), ' ', 'b', 0},
           "shape", "rows", "us", "x1", "GB/s", "GOPS", "% limit");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes;) {
        double layer[MAX_MS] = {0}, bytes = 0, macs = 0;
        const char *model = shapes[s].model;
        for (; s < sizeof shapes / sizeof *shapes && !strcmp(model, shapes[s].model); s++) {
            double us[MAX_MS], size = (double)shapes[s].k * (double)shapes[s].n;
            char name[32];
            snprintf(name, sizeof name, "%s %zu x %zu", model, shapes[s].k, shapes[s].n);
            double w = (double)shape_times(b, s, width, ms, n_m, n_runs, us);
            for (int i = 0; i < n_m; i++) {
                line(b, name, ms[i], us[i], us[0], w, size * (double)ms[i]);
                layer[i] += us[i] * shapes[s].times;
            }
            bytes += w * shapes[s].times;
            macs += size * shapes[s].times;
        }
        for (int i = 0; i < n_m; i++) line(b, model, ms[i], layer[i], layer[0], bytes, macs * (double)ms[i]);
    }
}

static int numbers(const char *text, size_t *out) {
    int n = 0;
    for (char *p = (char *)(uintptr_t)text; *p && n < MAX_MS; p += *p == ',') out[n++] = strtoull(p, &p, 10);
    return n;
}

int main(int argc, char **argv) {
    size_t ms[MAX_MS] = {1, 2, 4, 8, 12, 16, 24, 32}, bits[MAX_MS] = {4, 5, 0};
    int n_m = 8, n_bits = 3, n_runs = RUNS;
    static bench b;
    b.n_threads = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) n_runs = 3;
        else if (!strcmp(argv[i], "--tiles")) b.tiles = true;
        else if (!strcmp(argv[i], "--cached")) b.cached = true;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc) b.n_threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--m") && i + 1 < argc) n_m = numbers(argv[++i], ms);
        else if (!strcmp(argv[i], "--bits") && i + 1 < argc) n_bits = numbers(argv[++i], bits);
        else {
            fprintf(stderr,
                    "usage: %s [--quick] [--tiles] [--cached] [--threads N] [--m 1,16,32] [--bits 4,5,0]\n",
                    argv[0]);
            return 1;
        }
    }
    if (b.n_threads < 1 || b.n_threads > 64) return 1;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err = {0};
    if (tn_pool_open(&ctx, b.n_threads, &b.pool, &err)) return 1;
    tn_kernels_init(&b.kern, tn_cpu_flags(NULL));
    if (tn_limits_measure(&ctx, b.pool, tn_cpu_flags(NULL), &b.limits, &err)) return 1;
    printf("%d thread(s): peak %.0f GOPS, read %.1f GB/s\n", b.n_threads,
           (b.n_threads == 1 ? b.limits.thread_int8_ops : b.limits.int8_ops) * 1e-9,
           (b.n_threads == 1 ? b.limits.thread_read_bytes_per_s : b.limits.read_bytes_per_s) * 1e-9);
    b.cap_bytes = (size_t)96 << 20;
    b.weights = must_alloc(&ctx, b.cap_bytes);
    b.a = must_alloc(&ctx, (size_t)MAX_M * LDA);
    b.out = must_alloc(&ctx, (size_t)MAX_M * MAX_N * sizeof(float));
    b.scale = must_alloc(&ctx, MAX_N * sizeof(float));
    b.sums = must_alloc(&ctx, MAX_N * sizeof(int32_t));
    tn_rng r = {1};
    for (size_t i = 0; i < b.cap_bytes; i += 8) *(uint64_t *)(b.weights + i) = tn_rng_u64(&r);
    for (size_t i = 0; i < (size_t)MAX_M * LDA; i++) b.a[i] = (uint8_t)(tn_rng_u64(&r) >> 56);
    for (int i = 0; i < b.n_threads; i++)
        b.scratch[i] = must_alloc(&ctx, tn_gemm_packed_scratch_bytes(MAX_K));
    for (int i = 0; i < (b.tiles ? 1 : n_bits); i++) table(&b, (unsigned)bits[i], ms, n_m, n_runs);
    return 0;
}
