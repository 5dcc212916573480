/* kernels/arm/gemm_packed_i8mm.c - rows against weightlets on SMMLA: one instruction is 2 rows x 2 channels
 * x 8 k. Rows and codes are laid out by pairs, eight k of each in turn, so nothing is zipped; 4 rows x 16
 * channels share their loads. Up to three rows go by SDOT. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

/* Eight k of a row or channel lie beside eight of its neighbour; 32 of two such pairs of rows, or of the eight of
 * channels, side by side. */
enum {
    FOUR = 4 * 512, /* bytes of four rows in a block of k */
    PAIR = 2 * 32,
    ROW_UNIT = 2 * PAIR,
    CHANNEL_PAIRS = 8,
    CODE_UNIT = CHANNEL_PAIRS * PAIR
};

static inline int8_t *row_at(int8_t *block, size_t r) {
    return block + r / 4 * FOUR + r % 4 / 2 * PAIR + r % 2 * 8;
}
static inline int8_t *code_at(int8_t *block, size_t c) { return block + c / 2 * PAIR + c % 2 * 8; }
static inline void put32(int8_t *to, int8x16_t lo, int8x16_t hi) {
    vst1_s8(to, vget_low_s8(lo));
    vst1_s8(to + 16, vget_high_s8(lo));
    vst1_s8(to + 32, vget_low_s8(hi));
    vst1_s8(to + 48, vget_high_s8(hi));
}
#include "kernels/arm/gemm_packed_neon.h"

_Static_assert((int)FOUR == 4 * (int)BLOCK_K && 2 * (int)CHANNEL_PAIRS == (int)TN_TILE_N,
               "a block has its room");

static inline uint8x16_t low_halves(uint8x16_t a, uint8x16_t b) {
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
static inline uint8x16_t high_halves(uint8x16_t a, uint8x16_t b) {
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

/* Two channels' codes at once: their weightlets are paired, which are fewer. */
INLINE void pair_codes(int bits, const uint8_t *src, const uint8_t *other, size_t step, size_t n_k,
                       int8_t *to) {
    for (; n_k; n_k -= GROUP, src += step, other += step, to += WEIGHTLET_PAIRS * CODE_UNIT) {
#pragma GCC unroll 4
        for (int i = 0; i < WEIGHTLET_PAIRS; i++) {
            const weightlet_regs a = weightlet_load(src, bits, i), b = weightlet_load(other, bits, i);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                uint8x16_t lo, hi;
                weightlet_codes(half ? (weightlet_regs){high_halves(a.four, b.four),
                                                        high_halves(a.two, b.two), high_halves(a.one, b.one)}
                                     : (weightlet_regs){low_halves(a.four, b.four), low_halves(a.two, b.two),
                                                        low_halves(a.one, b.one)},
                                bits, i, &lo, &hi);
                vst1q_s8(to + i * CODE_UNIT + half * 16, vreinterpretq_s8_u8(lo));
                vst1q_s8(to + i * CODE_UNIT + half * 16 + 32, vreinterpretq_s8_u8(hi));
            }
        }
    }
}

BY_WIDTH(pair_of, pair_codes, (const uint8_t *src, const uint8_t *other, size_t step, size_t n_k, int8_t *to),
         src, other, step, n_k, to)

static void tile_codes(const tile *t, const uint8_t *src, size_t n_k, int8_t *codes) {
    for (size_t c = 0; c < t->n_cols; c += 2) {
        const uint8_t *from = src + tile_off(t, c), *other = src + tile_off(t, c + 1);
        int8_t *to = code_at(codes, c);
        if (t->width[c] == t->width[c + 1]) {
            pair_of[t->width[c]](from, other, t->step, n_k, to);
        } else {
            codes_of[t->width[c]](from, t->step, n_k, to);
            if (c + 1 < t->n_cols) codes_of[t->width[c + 1]](other, t->step, n_k, code_at(codes, c + 1));
        }
    }
}

/* P pairs of rows and all channels. */
INLINE void pairs(int P, size_t n_k, const int8_t *codes, const int8_t *a, int32_t (*sums)[16]) {
    int32x4_t acc[2][CHANNEL_PAIRS]; /* r0c0 r0c1 r1c0 r1c1 */
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < CHANNEL_PAIRS; i++) acc[p][i] = vdupq_n_s32(0);
    }
    for (const int8_t *end = a + 4 * n_k; a < end; a += ROW_UNIT, codes += CODE_UNIT) {
#pragma GCC unroll 2
        for (int half = 0; half < PAIR; half += 32) {
            int8x16_t x[2][2];
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) {
                x[p][0] = vld1q_s8(a + p * PAIR + half);
                x[p][1] = vld1q_s8(a + p * PAIR + half + 16);
            }
#pragma GCC unroll 8
            for (int i = 0; i < CHANNEL_PAIRS; i++) {
                int8x16_t lo = vld1q_s8(codes + i * PAIR + half), hi = vld1q_s8(codes + i * PAIR + half + 16);
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) acc[p][i] = vmmlaq_s32(acc[p][i], x[p][0], lo);
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) acc[p][i] = vmmlaq_s32(acc[p][i], x[p][1], hi);
            }
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 4
        for (int i = 0; i < CHANNEL_PAIRS; i += 2) {
            int64x2_t one = vreinterpretq_s64_s32(acc[p][i]), two = vreinterpretq_s64_s32(acc[p][i + 1]);
            int32_t *even = sums[2 * p] + 2 * i, *odd = sums[2 * p + 1] + 2 * i;
            vst1q_s32(even, vaddq_s32(vld1q_s32(even), vreinterpretq_s32_s64(vzip1q_s64(one, two))));
            vst1q_s32(odd, vaddq_s32(vld1q_s32(odd), vreinterpretq_s32_s64(vzip2q_s64(one, two))));
        }
    }
}

static void codes_product(size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[16]) {
    size_t r = 0;
    for (; r + 2 < n_rows; r += 4, a += FOUR) pairs(2, n_k, codes, a, sums + r);
    if (r < n_rows) pairs(1, n_k, codes, a, sums + r);
}

void tn_gemm_packed_i8mm(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch) {
    in_parts(g, packed, bits, scratch, tn_gemm_packed_dotprod, 3);
}
