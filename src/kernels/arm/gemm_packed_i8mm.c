/* kernels/arm/gemm_packed_i8mm.c - rows against weightlets on SMMLA: one instruction is 2 rows x 2 channels
 * x 8 k. Rows and codes are laid out by pairs, alternating eight k of each, so nothing needs zipping; 8 rows
 * x 8 channels share their loads. One row uses SDOT. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

/* Eight k of a row or channel lie beside eight of its neighbour; 32 k of two such pairs of rows, or of four
 * pairs of channels, side by side. */
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

/* Either half of two channels' registers. */
INLINE weightlet_regs zipped(int half, weightlet_regs a, weightlet_regs b) {
    return half ? (weightlet_regs){high_halves(a.four, b.four), high_halves(a.two, b.two),
                                   high_halves(a.one, b.one)}
                : (weightlet_regs){low_halves(a.four, b.four), low_halves(a.two, b.two),
                                   low_halves(a.one, b.one)};
}

/* Two channels' codes at once: pairing weightlets is cheaper, as they are fewer. */
INLINE void pair_codes(int bits, const uint8_t *src, const uint8_t *other, size_t step, size_t n_k,
                       int8_t *to) {
    for (; n_k; n_k -= GROUP, src += step, other += step, to += WEIGHTLET_PAIRS * CODE_UNIT) {
#pragma GCC unroll 2
        for (int i0 = 0; i0 < WEIGHTLET_PAIRS; i0 += 2) {
            const weightlet_regs a[2] = {weightlet_load(src, bits, i0), weightlet_load(src, bits, i0 + 1)},
                                 b[2] = {weightlet_load(other, bits, i0),
                                         weightlet_load(other, bits, i0 + 1)};
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                uint8x16_t lo[2], hi[2];
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++)
                    weightlet_codes(zipped(half, a[j], b[j]), bits, i0 + j, &lo[half], &hi[half]);
                int8_t *at = to + (i0 + j) * CODE_UNIT;
                vst1q_s8(at, vreinterpretq_s8_u8(lo[0]));
                vst1q_s8(at + 16, vreinterpretq_s8_u8(lo[1]));
                vst1q_s8(at + 32, vreinterpretq_s8_u8(hi[0]));
                vst1q_s8(at + 48, vreinterpretq_s8_u8(hi[1]));
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

/* Stores the sums of P pairs of rows and C of channels, r0c0 r0c1 r1c0 r1c1, by rows, or adds them to what is
 * there. */
INLINE void put_sums(int P, int C, bool add, int32x4_t (*acc)[CHANNEL_PAIRS], int32_t (*sums)[16], int c) {
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 4
        for (int i = 0; i < C; i += 2) {
            int64x2_t one = vreinterpretq_s64_s32(acc[p][i]), two = vreinterpretq_s64_s32(acc[p][i + 1]);
            int32_t *even = sums[2 * p] + c + 2 * i, *odd = sums[2 * p + 1] + c + 2 * i;
            int32x4_t x = vreinterpretq_s32_s64(vzip1q_s64(one, two)),
                      y = vreinterpretq_s32_s64(vzip2q_s64(one, two));
            if (add) x = vaddq_s32(x, vld1q_s32(even)), y = vaddq_s32(y, vld1q_s32(odd));
            vst1q_s32(even, x);
            vst1q_s32(odd, y);
        }
    }
}

/* Registers j of a group's channels and their 32 inputs. */
INLINE void uniform_step(int bits, int P, int j, const uint8_t *src, const int8_t *a,
                         int32x4_t (*acc)[CHANNEL_PAIRS]) {
    int8x16_t x[2][4];
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) x[p][k] = vld1q_s8(a + p * PAIR + k * 16);
    }
#pragma GCC unroll 8
    for (int i = 0; i < CHANNEL_PAIRS; i++) {
        const uint8_t *from = src + 2 * i * 16 * bits;
        const weightlet_regs even = weightlet_load(from, bits, j),
                             odd = weightlet_load(from + 16 * bits, bits, j);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            uint8x16_t lo, hi;
            weightlet_codes(zipped(half, even, odd), bits, j, &lo, &hi);
#pragma GCC unroll 2
            for (int p = 0; p < P; p++)
                acc[p][i] = vmmlaq_s32(acc[p][i], x[p][half], vreinterpretq_s8_u8(lo));
#pragma GCC unroll 2
            for (int p = 0; p < P; p++)
                acc[p][i] = vmmlaq_s32(acc[p][i], x[p][2 + half], vreinterpretq_s8_u8(hi));
        }
        __asm__ volatile("" ::: "memory");
    }
}

/* Up to four rows, P pairs, and all channels of a tile of one width: codes go to the product in registers. */
INLINE void uniform_pairs(int bits, int P, const uint8_t *src, size_t n_k, const int8_t *a,
                          int32_t (*sums)[16]) {
    int32x4_t acc[2][CHANNEL_PAIRS];
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < CHANNEL_PAIRS; i++) acc[p][i] = vdupq_n_s32(0);
    }
    for (; n_k; n_k -= GROUP, src += TN_TILE_N * 16 * bits, a += WEIGHTLET_PAIRS * ROW_UNIT) {
        if (bits == 4) { /* all steps are alike: in a loop gcc does not move the sums around */
#pragma GCC unroll 1
            for (int j = 0; j < WEIGHTLET_PAIRS; j++)
                uniform_step(bits, P, 0, src + 16 * j, a + j * ROW_UNIT, acc);
            continue;
        }
#pragma GCC unroll 4
        for (int j = 0; j < WEIGHTLET_PAIRS; j++) uniform_step(bits, P, j, src, a + j * ROW_UNIT, acc);
    }
    put_sums(P, CHANNEL_PAIRS, false, acc, sums, 0);
}

#ifndef TERN_MINIMAL
#define UNIFORM(name, P)                                                                                     \
    BY_WIDTH(name, uniform_pairs, (const uint8_t *src, size_t n_k, const int8_t *a, int32_t(*sums)[16]), P,  \
             src, n_k, a, sums)
UNIFORM(uniform1, 1)
UNIFORM(uniform2, 2)
#endif

static bool uniform_tile(size_t n_rows, int bits, const uint8_t *src, size_t n_k, const int8_t *a,
                         int32_t (*sums)[TN_TILE_N]) {
#ifdef TERN_MINIMAL
    (void)n_rows, (void)bits, (void)src, (void)n_k, (void)a, (void)sums;
    return false;
#else
    if (n_rows > 4) return false; /* a tile's codes are unpacked once for all of them */
    (n_rows <= 2 ? uniform1 : uniform2)[bits](src, n_k, a, sums);
    return true;
#endif
}

/* P pairs of rows and C of channels, from pair c on. */
INLINE void pairs(int P, int C, bool add, size_t n_k, const int8_t *codes, const int8_t *a,
                  int32_t (*sums)[16], int c) {
    int32x4_t acc[4][CHANNEL_PAIRS];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < C; i++) acc[p][i] = vdupq_n_s32(0);
    }
    codes += c * PAIR;
    const int8_t *second = a + FOUR; /* rows from 4 on: too far away for one base address */
    for (const int8_t *end = a + 4 * n_k; a < end; a += ROW_UNIT, second += ROW_UNIT, codes += CODE_UNIT) {
        __asm__("" : "+r"(second));
#pragma GCC unroll 2
        for (int half = 0; half < PAIR; half += 32) {
            int8x16_t x[4][2];
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                const int8_t *from = (p < 2 ? a : second) + p % 2 * PAIR + half;
                x[p][0] = vld1q_s8(from), x[p][1] = vld1q_s8(from + 16);
                __asm__("" : "+w"(x[p][0]), "+w"(x[p][1])); /* loaded together: one instruction */
            }
#pragma GCC unroll 8
            for (int i = 0; i < C; i++) {
                int8x16_t lo = vld1q_s8(codes + i * PAIR + half), hi = vld1q_s8(codes + i * PAIR + half + 16);
                __asm__("" : "+w"(lo), "+w"(hi));
#pragma GCC unroll 4
                for (int p = 0; p < P; p++) acc[p][i] = vmmlaq_s32(acc[p][i], x[p][0], lo);
#pragma GCC unroll 4
                for (int p = 0; p < P; p++) acc[p][i] = vmmlaq_s32(acc[p][i], x[p][1], hi);
                __asm__ volatile("" ::: "memory"); /* keeps later loads after this point */
            }
        }
    }
    put_sums(P, C, add, acc, sums, 2 * c);
}

INLINE void rows_product(bool add, size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                         int32_t (*sums)[16]) {
    size_t r = 0;
    for (; r + 6 < n_rows; r += 8, a += 2 * FOUR) {
        pairs(4, CHANNEL_PAIRS / 2, add, n_k, codes, a, sums + r, 0);
        pairs(4, CHANNEL_PAIRS / 2, add, n_k, codes, a, sums + r, CHANNEL_PAIRS / 2);
    }
    for (; r + 2 < n_rows; r += 4, a += FOUR) pairs(2, CHANNEL_PAIRS, add, n_k, codes, a, sums + r, 0);
    if (r < n_rows) pairs(1, CHANNEL_PAIRS, add, n_k, codes, a, sums + r, 0);
}

static void codes_product(bool add, size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[16]) {
    if (add) rows_product(true, n_rows, n_k, codes, a, sums);
    else rows_product(false, n_rows, n_k, codes, a, sums);
}

void tn_gemm_packed_i8mm(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch) {
    in_parts(g, packed, bits, scratch, tn_gemm_packed_dotprod, 1);
}
