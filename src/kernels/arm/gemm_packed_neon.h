/* kernels/arm/gemm_packed_neon.h - few rows against weightlets on 128-bit vectors: everything but the inner
 * product of several rows. Included once by each variant, which defines before
 *   lane_offset(r, k)                        where activation k of row r lies in a block of rows
 *   code_offset(c, k)                        where code k of channel c lies in a tile's codes
 *   codes_product(R, n_k, codes, a, sums)    sums[r][c] += the products of R rows, rounded up to a whole of
 *                                            ROW_STEP, and 16 channels over n_k inputs, a whole number of groups
 * and ROW_STEP. Eight inputs lie together in both.
 *
 * A code u of B < 8 bits is a small positive int8, so both sides of the product are signed:
 *     sum a w = (sum a u) * 2 - (2^B - 1) * sum a         (8 bits: as it is)
 * which fits int32 for k <= TN_S8_MAX_K. One row takes a channel's codes as registers to the product. More
 * rows take them from a tile's codes of a block of k, unpacked once into L1. */
#include "kernels/arm/epilogue_neon.h"
#include "kernels/arm/weightlets_neon.h"
#include "kernels/gemm_packed.h"

#include <assert.h>

#define INLINE static inline __attribute__((always_inline))

enum { GROUP = TN_WEIGHTLET_GROUP, BLOCK_K = 8 * GROUP };

/* Up to 16 channels. */
typedef struct tile {
    size_t n_cols, step;   /* step: bytes of a group of all of them */
    size_t off[TN_TILE_N]; /* of each in a group */
    int width[TN_TILE_N];
} tile;

static tile tile_of(const tn_gemm_s8_args *g, const uint8_t *bits, size_t n) {
    tile t = {.n_cols = g->n1 - n < TN_TILE_N ? g->n1 - n : TN_TILE_N};
    for (size_t c = 0; c < t.n_cols; c++) {
        t.width[c] = (int)tn_channel_bits_get(bits, n + c);
        t.off[c] = t.step;
        t.step += (size_t)(GROUP / 8 * t.width[c]);
    }
    return t;
}

/* A tile's sums of products with codes, of n_rows rows, to the outputs. */
static void finish(const tn_gemm_s8_args *g, const tile *t, size_t n, size_t n_rows,
                   int32_t (*sums)[TN_TILE_N], const int32_t *row_sum) {
    int32_t less[TN_TILE_N] = {0}, up[TN_TILE_N] = {0};
    for (size_t c = 0; c < t->n_cols; c++) {
        up[c] = t->width[c] < 8;
        less[c] = t->width[c] < 8 ? (1 << t->width[c]) - 1 : 0;
    }
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < t->n_cols; c += 4) {
            int32x4_t acc = vshlq_s32(vld1q_s32(sums[r] + c), vld1q_s32(up + c));
            store4(g, r, n + c, t->n_cols - c < 4 ? t->n_cols - c : 4,
                   vmlsq_n_s32(acc, vld1q_s32(less + c), row_sum[r]));
        }
    }
}

/* Activations k..k+7 of a row less 128, zero behind its end. */
static inline int8x8_t eight(const uint8_t *row, size_t k, size_t n_k) {
    uint8x8_t x;
    if (k + 8 <= n_k) {
        x = vld1_u8(row + k);
    } else {
        uint8_t last[8];
        for (size_t i = 0; i < 8; i++) last[i] = k + i < n_k ? row[k + i] : 0x80;
        x = vld1_u8(last);
    }
    return vreinterpret_s8_u8(veor_u8(x, vdup_n_u8(0x80)));
}

/* ---- one row --------------------------------------------------------------------------------------- */

/* A channel over n_groups groups; `next` is prefetched as it is read. */
INLINE int32_t channel_row(int bits, const uint8_t *src, size_t step, size_t n_groups, size_t ahead,
                           const int8_t *a) {
    int32x4_t sum[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
    for (size_t i = 0; i < n_groups; i++, src += step, a += GROUP) {
        uint8x16_t w[WEIGHTLET_REGS];
        const uintptr_t next = (uintptr_t)src + ahead; /* may lie behind the matrix: it is not read */
        __builtin_prefetch((const void *)next, 0, 2);
        if (bits > 4) __builtin_prefetch((const void *)(next + 64), 0, 2);
        if (bits == 8) {
#pragma GCC unroll 8
            for (int j = 0; j < WEIGHTLET_REGS; j++) w[j] = vld1q_u8(src + 16 * j);
        } else {
            weightlets_placed_neon(src, bits, 0, w);
        }
#pragma GCC unroll 8
        for (int j = 0; j < WEIGHTLET_REGS; j++)
            sum[j % 4] = vdotq_s32(sum[j % 4], vreinterpretq_s8_u8(w[j]), vld1q_s8(a + 16 * j));
    }
    return vaddvq_s32(vaddq_s32(vaddq_s32(sum[0], sum[1]), vaddq_s32(sum[2], sum[3])));
}

static void one_row(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, int8_t *a) {
    const size_t n_groups = (g->k + GROUP - 1) / GROUP;
    int32_t sums[1][TN_TILE_N] = {{0}};
    int32x2_t sum = vdup_n_s32(0);
    for (size_t k = 0; k < n_groups * GROUP; k += 8) {
        int8x8_t x = eight(g->a, k, g->k);
        vst1_s8(a + k, x);
        sum = vpadal_s16(sum, vpaddl_s8(x));
    }
    const int32_t row_sum = vaddv_s32(sum);
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        const tile t = tile_of(g, bits, n);
        const size_t ahead = t.step * n_groups; /* the same place in the next tile */
        for (size_t c = 0; c < t.n_cols; c++) {
            const uint8_t *src = packed + t.off[c];
            switch (t.width[c]) {
            case 1: sums[0][c] = channel_row(1, src, t.step, n_groups, ahead, a); break;
            case 2: sums[0][c] = channel_row(2, src, t.step, n_groups, ahead, a); break;
            case 3: sums[0][c] = channel_row(3, src, t.step, n_groups, ahead, a); break;
            case 4: sums[0][c] = channel_row(4, src, t.step, n_groups, ahead, a); break;
            case 5: sums[0][c] = channel_row(5, src, t.step, n_groups, ahead, a); break;
            case 6: sums[0][c] = channel_row(6, src, t.step, n_groups, ahead, a); break;
            case 7: sums[0][c] = channel_row(7, src, t.step, n_groups, ahead, a); break;
            default: sums[0][c] = channel_row(8, src, t.step, n_groups, ahead, a); break;
            }
        }
        finish(g, &t, n, 1, sums, &row_sum);
        packed += ahead;
    }
}

/* ---- several rows ---------------------------------------------------------------------------------- */

INLINE void channel_codes(int bits, const uint8_t *src, size_t step, size_t c, size_t n_k, int8_t *codes) {
    for (size_t k = 0; k < n_k; k += GROUP, src += step) {
        uint8x16_t w[WEIGHTLET_REGS];
        if (bits == 8) {
#pragma GCC unroll 8
            for (int j = 0; j < WEIGHTLET_REGS; j++) w[j] = vld1q_u8(src + 16 * j);
        } else {
            weightlets_placed_neon(src, bits, 0, w);
        }
#pragma GCC unroll 8
        for (size_t j = 0; j < WEIGHTLET_REGS; j++) {
            int8x16_t x = vreinterpretq_s8_u8(w[j]);
            vst1_s8(codes + code_offset(c, k + 16 * j), vget_low_s8(x));
            vst1_s8(codes + code_offset(c, k + 16 * j + 8), vget_high_s8(x));
        }
    }
}

/* Channels that do not exist keep what was there. */
static void tile_codes(const tile *t, const uint8_t *src, size_t n_k, int8_t *codes) {
    for (size_t c = 0; c < t->n_cols; c++) {
        const uint8_t *from = src + t->off[c];
        switch (t->width[c]) {
        case 1: channel_codes(1, from, t->step, c, n_k, codes); break;
        case 2: channel_codes(2, from, t->step, c, n_k, codes); break;
        case 3: channel_codes(3, from, t->step, c, n_k, codes); break;
        case 4: channel_codes(4, from, t->step, c, n_k, codes); break;
        case 5: channel_codes(5, from, t->step, c, n_k, codes); break;
        case 6: channel_codes(6, from, t->step, c, n_k, codes); break;
        case 7: channel_codes(7, from, t->step, c, n_k, codes); break;
        default: channel_codes(8, from, t->step, c, n_k, codes); break;
        }
    }
}

/* All rows, block by block of k, to out: less 128, zero behind k and in rows that fill up a step. */
static void copy_rows(const tn_gemm_s8_args *g, size_t n_rows, size_t k_up, int8_t *out, int32_t *row_sum) {
    for (size_t k0 = 0; k0 < k_up; k0 += BLOCK_K, out += n_rows * BLOCK_K) {
        const size_t n_k = k_up - k0 < BLOCK_K ? k_up - k0 : BLOCK_K;
        for (size_t r = 0; r < g->m; r++) {
            int32x2_t sum = vdup_n_s32(0);
            for (size_t k = 0; k < n_k; k += 8) {
                int8x8_t x = eight(g->a + r * g->lda, k0 + k, g->k);
                vst1_s8(out + lane_offset(r, k), x);
                sum = vpadal_s16(sum, vpaddl_s8(x));
            }
            row_sum[r] += vaddv_s32(sum);
        }
        for (size_t r = g->m; r < n_rows; r++) {
            for (size_t k = 0; k < n_k; k += 8) vst1_s8(out + lane_offset(r, k), vdup_n_s8(0));
        }
    }
}

static void several_rows(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, int8_t *a) {
    const size_t k_up = (g->k + GROUP - 1) / GROUP * GROUP,
                 n_rows = (g->m + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
    int32_t row_sum[TN_PACKED_FEW] = {0}, sums[TN_PACKED_FEW][TN_TILE_N];
    int8_t codes[TN_TILE_N * BLOCK_K];
    memset(codes, 0, sizeof codes);
    copy_rows(g, n_rows, k_up, a, row_sum);
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        const tile t = tile_of(g, bits, n);
        memset(sums, 0, sizeof sums);
        for (size_t k0 = 0; k0 < k_up; k0 += BLOCK_K) {
            const size_t n_k = k_up - k0 < BLOCK_K ? k_up - k0 : BLOCK_K;
            tile_codes(&t, packed + k0 / GROUP * t.step, n_k, codes);
            codes_product(n_rows, n_k, codes, a + k0 * n_rows, sums);
        }
        finish(g, &t, n, g->m, sums, row_sum);
        packed += k_up / GROUP * t.step;
    }
}

static void gemm_packed(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                        uint8_t *scratch) {
    assert(g->m <= TN_PACKED_FEW && g->n0 % TN_TILE_N == 0 && g->n1 <= g->n);
    if (g->m == 1) one_row(g, packed, bits, (int8_t *)scratch);
    else if (g->m) several_rows(g, packed, bits, (int8_t *)scratch);
}
