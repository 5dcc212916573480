/* bench/unpack.c - weightlets to tiles on the linears of a 1.5B model, one thread, beside the two formats of
 * EdgeFlow's figure 4.
 *
 *   bench_unpack [BITS]      average of the random channel widths, 3 to 5 (default 5; widths are uniform over
 * average-2 .. average+2)
 *
 * (a) mixed: channels of up to 4 bits padded to nibbles, the others to bytes. (b) planes: each of a weight's
 * 4-, 2- and 1-bit parts in an array of its own for the whole tensor, in blocks of 128 as K-quants have them:
 * rows of int8 are put together plane by plane, then tiled in a second pass, both with the processor's
 * vectors. All write the same tiles from the same weights (checked). Rounds alternate; figures are medians.
 * GB/s is of packed bytes. Instructions per weight are counted by single-stepping one tile of 16 channels
 * (Linux). */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/order.h"
#include "base/rng.h"
#include "kernels/kernels.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 7, BLOCK = 128, N_FORMATS = 3 };

typedef struct tensor {
    size_t n, k;
    uint8_t *packed_bits, *weightlets, *mixed, *mixed_bits, *plane[3];
    size_t weightlets_bytes, mixed_bytes;
    size_t *plane_off; /* [n][3]: byte offsets in the planes */
    int8_t *tiles, *rows, *want;
} tensor;

typedef uint8_t bytes64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint8_t bytes32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t quads4 __attribute__((vector_size(16), aligned(4), may_alias));

/* Rows n0..n1-1 from the planes (a weight's place in its block is that of kernels/unpack.h), then tiles from
 * the rows. */
#define DEFINE_PLANES(NAME)                                                                                  \
    static void planes_##NAME(const tensor *t, size_t n0, size_t n1) {                                       \
        for (size_t n = n0; n < n1; n++) {                                                                   \
            unsigned bits = tn_channel_bits_get(t->packed_bits, n);                                          \
            uint8_t *row = (uint8_t *)t->rows + n * t->k;                                                    \
            const uint8_t *p4 = t->plane[0] + t->plane_off[n * 3],                                           \
                          *p2 = t->plane[1] + t->plane_off[n * 3 + 1],                                       \
                          *p1 = t->plane[2] + t->plane_off[n * 3 + 2];                                       \
            memset(row, 0, t->k);                                                                            \
            for (size_t g = 0; g < t->k && bits & 4; g += BLOCK, p4 += 64) {                                 \
                bytes64 x = *(const bytes64 *)p4, *to = (bytes64 *)(row + g);                                \
                to[0] |= x & 15;                                                                             \
                to[1] |= x >> 4;                                                                             \
            }                                                                                                \
            for (size_t g = 0; g < t->k && bits & 2; g += BLOCK, p2 += 32) {                                 \
                bytes32 x = *(const bytes32 *)p2, *to = (bytes32 *)(row + g);                                \
                for (int s = 0; s < 4; s++) to[s] |= (x >> 2 * s & 3) << (bits & 4);                         \
            }                                                                                                \
            for (size_t g = 0; g < t->k && bits & 1; g += BLOCK, p1 += 16) {                                 \
                bytes16 x = *(const bytes16 *)p1, *to = (bytes16 *)(row + g);                                \
                for (int s = 0; s < 8; s++) to[s] |= (x >> s & 1) << (bits & 6);                             \
            }                                                                                                \
            for (size_t i = 0; i < t->k; i += 64)                                                            \
                *(bytes64 *)(row + i) = 2 * *(bytes64 *)(row + i) - (uint8_t)((1u << bits) - 1);             \
        }                                                                                                    \
        for (size_t n = n0; n < n1; n += 16) {                                                               \
            for (size_t i = 0; i < t->k; i += 16) {                                                          \
                for (size_t c = 0; c < 16; c += 4) {                                                         \
                    quads4 r[4], a[4];                                                                       \
                    for (size_t j = 0; j < 4; j++)                                                           \
                        r[j] = *(const quads4 *)(const void *)(t->rows + (n + c + j) * t->k + i);            \
                    for (size_t j = 0; j < 2; j++) {                                                         \
                        a[2 * j] = __builtin_shuffle(r[2 * j], r[2 * j + 1], (quads4){0, 4, 1, 5});          \
                        a[2 * j + 1] = __builtin_shuffle(r[2 * j], r[2 * j + 1], (quads4){2, 6, 3, 7});      \
                    }                                                                                        \
                    quads4 *to = (quads4 *)(void *)(t->tiles + n * t->k + i * 16 + c * 4);                   \
                    to[0] = __builtin_shuffle(a[0], a[2], (quads4){0, 1, 4, 5});                             \
                    to[4] = __builtin_shuffle(a[0], a[2], (quads4){2, 3, 6, 7});                             \
                    to[8] = __builtin_shuffle(a[1], a[3], (quads4){0, 1, 4, 5});                             \
                    to[12] = __builtin_shuffle(a[1], a[3], (quads4){2, 3, 6, 7});                            \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }

#pragma GCC push_options
#if defined(__x86_64__)
#pragma GCC target("avx2")
DEFINE_PLANES(avx2)
#pragma GCC target("avx512f,avx512bw,avx512vl")
DEFINE_PLANES(avx512)
#endif
#pragma GCC pop_options
DEFINE_PLANES(baseline)

static void run(const tn_kernels *kern, const tensor *t, int format, size_t n0, size_t n1) {
    switch (format) {
    case 0:
        tn_weightlets_unpack(kern->unpack_tile,
                             t->weightlets + tn_weightlets_bytes(t->packed_bits, 0, n0, t->k), t->packed_bits,
                             n0, n1, t->k, t->tiles);
        break;
    case 1:
        tn_weightlets_unpack(kern->unpack_tile, t->mixed + tn_weightlets_bytes(t->mixed_bits, 0, n0, t->k),
                             t->mixed_bits, n0, n1, t->k, t->tiles);
        break;
    default:
#if defined(__x86_64__)
        if (kern->cpu & TN_CPU_AVX512) planes_avx512(t, n0, n1);
        else if (kern->cpu & TN_CPU_AVX2) planes_avx2(t, n0, n1);
        else
#endif
            planes_baseline(t, n0, n1);
        break;
    }
}

/* Steps of a child between two stops; what the stops themselves take is the same for n1 == n0. */
static long steps(const tn_kernels *kern, const tensor *t, int format, size_t n0, size_t n1) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        if (n1 > n0) run(kern, t, format, n0, n1);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    long n = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status)) return -1;
    for (; !ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) && waitpid(pid, &status, 0) == pid &&
           WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
         n++) {
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return n;
}

int main(int argc, char **argv) {
    static const size_t shapes[][2] = {{1536, 1536}, {8960, 1536}, {1536, 8960}};
    static const char *const names[N_FORMATS] = {"weightlets", "mixed 4/8", "planes"};
    double average = argc > 1 ? atof(argv[1]) : 5;
    if (!(average >= 3 && average <= 5)) {
        fprintf(stderr, "bench_unpack: BITS is 3 to 5\n");
        return 2;
    }
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    tn_rng r = {1};
    printf("%-12s %6s  %-14s %8s %12s %12s %20s\n", "n x k", "bits", "format", "GB/s", "10^9 w/s",
           "weightlets x", "instructions/weight");
    for (size_t s = 0; s < 3; s++) {
        tensor t = {.n = shapes[s][0], .k = shapes[s][1]};
        size_t n_w = t.n * t.k;
        t.packed_bits = tn_calloc(&ctx, TN_MEM_OTHER, tn_channel_bits_bytes(t.n), 1);
        t.mixed_bits = tn_calloc(&ctx, TN_MEM_OTHER, tn_channel_bits_bytes(t.n), 1);
        t.plane_off = tn_calloc(&ctx, TN_MEM_OTHER, t.n * 3, sizeof *t.plane_off);
        t.tiles = tn_alloc(&ctx, TN_MEM_OTHER, tn_tiles_s8_bytes(t.n, t.k), 1);
        t.want = tn_alloc(&ctx, TN_MEM_OTHER, tn_tiles_s8_bytes(t.n, t.k), 1);
        t.rows = tn_alloc(&ctx, TN_MEM_OTHER, n_w, 1);
        int32_t *sums = tn_alloc(&ctx, TN_MEM_OTHER, t.n + 16, 4);
        for (int i = 0; i < 3; i++) t.plane[i] = tn_calloc(&ctx, TN_MEM_OTHER, n_w / 2, 1);
        size_t off[3] = {0}, sum_bits = 0;
        for (size_t n = 0; n < t.n; n++) {
            unsigned bits = (unsigned)(average - 2 + 5 * tn_rng_f64(&r));
            tn_channel_bits_put(t.packed_bits, n, bits);
            tn_channel_bits_put(t.mixed_bits, n, bits <= 4 ? 4 : 8);
            sum_bits += bits;
            for (size_t i = 0; i < 3; i++) t.plane_off[n * 3 + i] = off[i];
            for (size_t i = 0; i < t.k; i++) {
                unsigned u = (unsigned)tn_rng_below(&r, 1u << bits), low = 0;
                t.rows[n * t.k + i] = (int8_t)(2 * (int)u - (int)((1u << bits) - 1));
                for (unsigned p = 0, width = 4; p < 3; p++, width /= 2) {
                    if (!(bits & width)) continue;
                    size_t n_bytes = BLOCK / 8 * width, j = i % BLOCK;
                    uint8_t *b = &t.plane[p][off[p] + i / BLOCK * n_bytes + j % n_bytes];
                    *b = (uint8_t)(*b | (u >> low & ((1u << width) - 1)) << j / n_bytes * width);
                    low += width;
                }
            }
            for (unsigned p = 0, width = 4; p < 3; p++, width /= 2)
                off[p] += bits & width ? t.k * width / 8 : 0;
        }
        t.weightlets_bytes = tn_weightlets_bytes(t.packed_bits, 0, t.n, t.k);
        t.mixed_bytes = tn_weightlets_bytes(t.mixed_bits, 0, t.n, t.k);
        t.weightlets = tn_alloc(&ctx, TN_MEM_OTHER, t.weightlets_bytes, 1);
        t.mixed = tn_alloc(&ctx, TN_MEM_OTHER, t.mixed_bytes, 1);
        tn_tiles_s8_pack(t.want, sums, t.rows, 0, t.n, t.k);
        tn_weightlets_pack(t.weightlets, t.packed_bits, t.rows, 0, t.n, t.k);
        for (size_t n = 0; n < t.n; n++) { /* a nibble holds odd numbers up to 15: narrower channels' parity
                                              is put right by their scale */
            if (tn_channel_bits_get(t.mixed_bits, n) == 4) {
                for (size_t i = 0; i < t.k; i++) t.rows[n * t.k + i] = (int8_t)(t.rows[n * t.k + i] | 1);
            }
        }
        tn_weightlets_pack(t.mixed, t.mixed_bits, t.rows, 0, t.n, t.k);
        double secs[N_FORMATS][ROUNDS];
        for (int round = -1; round < ROUNDS; round++) {
            for (int f = 0; f < N_FORMATS; f++) {
                uint64_t t0 = tn_now_ns();
                run(&kern, &t, f, 0, t.n);
                if (round >= 0) secs[f][round] = (double)(tn_now_ns() - t0) * 1e-9;
                if (memcmp(t.tiles, t.want, tn_tiles_s8_bytes(t.n, t.k))) {
                    fprintf(stderr, "bench_unpack: format '%s' gives other weights\n", names[f]);
                    return 1;
                }
            }
        }
        for (int f = 0; f < N_FORMATS; f++) qsort(secs[f], ROUNDS, sizeof(double), tn_by_double);
        for (int f = 0; f < N_FORMATS; f++) {
            double median = secs[f][ROUNDS / 2],
                   packed = f == 1 ? (double)t.mixed_bytes : (double)t.weightlets_bytes;
            bool count = s == 0; /* stepping is slow */
            long all = count ? steps(&kern, &t, f, 16, 32) : 0,
                 none = count ? steps(&kern, &t, f, 16, 16) : 0;
            printf("%5zu x %-4zu %6.2f  %-14s %8.2f %12.2f %12.2f", t.n, t.k, (double)sum_bits / (double)t.n,
                   names[f], packed / median * 1e-9, (double)n_w / median * 1e-9,
                   median / secs[0][ROUNDS / 2]);
            if (all > 0 && none > 0) printf(" %20.3f\n", (double)(all - none) / (16.0 * (double)t.k));
            else printf(" %20s\n", "-");
        }
        void *blocks[] = {t.packed_bits, t.mixed_bits, t.plane_off, t.tiles,    t.want,       t.rows,
                          sums,          t.plane[0],   t.plane[1],  t.plane[2], t.weightlets, t.mixed};
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) tn_free(&ctx, blocks[i]);
    }
    return 0;
}
