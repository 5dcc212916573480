/* bench/unpack.c - speed of weightlets to tiles on the linears of a 1.5B model, one thread, beside the two formats of the paper's figure 4.
 *
 *   bench_unpack [BITS]      average of the random channel widths, default 5 (widths are uniform over average-2 .. average+2)
 *
 * (a) mixed: channels of up to 4 bits padded to nibbles, the others to bytes. (b) planes: each of a weight's 4-, 2- and 1-bit parts in
 * an array of its own for the whole tensor, K-quant style, gathered by scalar code and then tiled in a second pass. All three write the
 * same tiles from the same weights (checked). Rounds alternate; figures are medians. GB/s is of packed bytes. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/rng.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7 };

typedef struct tensor {
    size_t n, k;
    uint8_t *packed_bits, *weightlets, *mixed, *mixed_bits, *plane[3];
    size_t weightlets_bytes, mixed_bytes;
    size_t *plane_off; /* [n][3]: byte offsets in the planes */
    int8_t *tiles, *rows, *want;
    int32_t *sums;
} tensor;

static int by_double(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static void run_planes(const tensor *t) {
    for (size_t n = 0; n < t->n; n++) {
        unsigned bits = tn_channel_bits_get(t->packed_bits, n);
        const uint8_t *p4 = t->plane[0] + t->plane_off[n * 3], *p2 = t->plane[1] + t->plane_off[n * 3 + 1], *p1 = t->plane[2] + t->plane_off[n * 3 + 2];
        int8_t *out = t->rows + n * t->k;
        for (size_t i = 0; i < t->k; i++) {
            unsigned u = 0, low = 0;
            if (bits & 4) u = p4[i / 2] >> i % 2 * 4 & 15u, low = 4;
            if (bits & 2) u |= (p2[i / 4] >> i % 4 * 2 & 3u) << low, low += 2;
            if (bits & 1) u |= (p1[i / 8] >> i % 8 & 1u) << low;
            out[i] = (int8_t)(2 * (int)u - (int)((1u << bits) - 1));
        }
    }
    tn_tiles_s8_pack(t->tiles, t->sums, t->rows, 0, t->n, t->k);
}

int main(int argc, char **argv) {
    static const size_t shapes[][2] = {{1536, 1536}, {8960, 1536}, {1536, 8960}};
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
    printf("%-12s %8s %28s %28s %28s %10s\n", "n x k", "bits", "weightlets GB/s, Gw/s", "mixed 4/8 GB/s, Gw/s", "planes GB/s, Gw/s", "x planes");
    for (size_t s = 0; s < 3; s++) {
        tensor t = {.n = shapes[s][0], .k = shapes[s][1]};
        size_t n_w = t.n * t.k;
        t.packed_bits = tn_calloc(&ctx, TN_MEM_OTHER, tn_channel_bits_bytes(t.n), 1);
        t.mixed_bits = tn_calloc(&ctx, TN_MEM_OTHER, tn_channel_bits_bytes(t.n), 1);
        t.plane_off = tn_calloc(&ctx, TN_MEM_OTHER, t.n * 3, sizeof *t.plane_off);
        t.tiles = tn_alloc(&ctx, TN_MEM_OTHER, tn_tiles_s8_bytes(t.n, t.k), 1);
        t.want = tn_alloc(&ctx, TN_MEM_OTHER, tn_tiles_s8_bytes(t.n, t.k), 1);
        t.rows = tn_alloc(&ctx, TN_MEM_OTHER, n_w, 1);
        t.sums = tn_alloc(&ctx, TN_MEM_OTHER, t.n + 16, 4);
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
                    uint8_t *b = &t.plane[p][off[p] + i * width / 8];
                    *b = (uint8_t)(*b | (u >> low & ((1u << width) - 1)) << i * width % 8);
                    low += width;
                }
            }
            for (unsigned p = 0, width = 4; p < 3; p++, width /= 2) off[p] += bits & width ? t.k * width / 8 : 0;
        }
        t.weightlets_bytes = tn_weightlets_bytes(t.packed_bits, 0, t.n, t.k);
        t.mixed_bytes = tn_weightlets_bytes(t.mixed_bits, 0, t.n, t.k);
        t.weightlets = tn_alloc(&ctx, TN_MEM_OTHER, t.weightlets_bytes, 1);
        t.mixed = tn_alloc(&ctx, TN_MEM_OTHER, t.mixed_bytes, 1);
        tn_tiles_s8_pack(t.want, t.sums, t.rows, 0, t.n, t.k);
        tn_weightlets_pack(t.weightlets, t.packed_bits, t.rows, 0, t.n, t.k);
        for (size_t n = 0; n < t.n; n++) { /* a nibble holds odd numbers up to 15: narrower channels' parity is put right by their scale */
            if (tn_channel_bits_get(t.mixed_bits, n) == 4) {
                for (size_t i = 0; i < t.k; i++) t.rows[n * t.k + i] = (int8_t)(t.rows[n * t.k + i] | 1);
            }
        }
        tn_weightlets_pack(t.mixed, t.mixed_bits, t.rows, 0, t.n, t.k);
        double secs[3][ROUNDS];
        for (int round = -1; round < ROUNDS; round++) {
            for (int f = 0; f < 3; f++) {
                uint64_t t0 = tn_now_ns();
                if (f == 0) tn_weightlets_unpack(kern.unpack_tile, t.weightlets, t.packed_bits, 0, t.n, t.k, t.tiles);
                if (f == 1) tn_weightlets_unpack(kern.unpack_tile, t.mixed, t.mixed_bits, 0, t.n, t.k, t.tiles);
                if (f == 2) run_planes(&t);
                if (round >= 0) secs[f][round] = (double)(tn_now_ns() - t0) * 1e-9;
                if (memcmp(t.tiles, t.want, tn_tiles_s8_bytes(t.n, t.k))) {
                    fprintf(stderr, "bench_unpack: format %d gives other weights\n", f);
                    return 1;
                }
            }
        }
        for (int f = 0; f < 3; f++) qsort(secs[f], ROUNDS, sizeof(double), by_double);
        double packed[3] = {(double)t.weightlets_bytes, (double)t.mixed_bytes, (double)t.weightlets_bytes};
        printf("%5zu x %-5zu %7.2f", t.n, t.k, (double)sum_bits / (double)t.n);
        for (int f = 0; f < 3; f++) printf(" %15.2f %12.2f", packed[f] / secs[f][ROUNDS / 2] * 1e-9, (double)n_w / secs[f][ROUNDS / 2] * 1e-9);
        printf(" %10.1f\n", secs[2][ROUNDS / 2] / secs[0][ROUNDS / 2]);
        void *all[] = {t.packed_bits, t.mixed_bits, t.plane_off, t.tiles, t.want, t.rows, t.sums, t.plane[0], t.plane[1], t.plane[2], t.weightlets, t.mixed};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) tn_free(&ctx, all[i]);
    }
    return 0;
}
