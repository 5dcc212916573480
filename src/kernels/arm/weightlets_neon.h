/* kernels/arm/weightlets_neon.h - a group of 128 weightlets to eight registers of codes, shared by the kernels
 * that unpack. */
#ifndef TN_KERNELS_ARM_WEIGHTLETS_NEON_H
#define TN_KERNELS_ARM_WEIGHTLETS_NEON_H

#include "kernels/unpack.h"

#include <arm_neon.h>

enum { WEIGHTLET_REGS = TN_WEIGHTLET_GROUP / 16 };

/* All bytes of x moved up by `by` bits, down where that is negative; a constant where this is inlined. */
static inline __attribute__((always_inline)) uint8x16_t shifted(uint8x16_t x, int by) {
    return by > 0 ? x << by : by < 0 ? x >> -by : x;
}

/* acc with `width` bits from position `from` of x at `to`; nothing lies above those in acc. */
static inline __attribute__((always_inline)) uint8x16_t put(uint8x16_t acc, uint8x16_t x, int from, int to,
                                                            int width) {
    if (from + width == 8 && !to) return shifted(x, -from);
    return vbslq_u8(vdupq_n_u8((uint8_t)(((1 << width) - 1) << to)), shifted(x, to - from), acc);
}

/* Codes of a group with bits < 8, moved up by `place` bits; reads its 16 * bits bytes at src and no more; bits
 * is a constant where this is inlined. */
static inline __attribute__((always_inline)) void
weightlets_placed_neon(const uint8_t *src, int bits, int place, uint8x16_t w[static WEIGHTLET_REGS]) {
#pragma GCC unroll 8
    for (int i = 0; i < WEIGHTLET_REGS; i++) w[i] = vdupq_n_u8(0);
    if (bits & 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            uint8x16_t x = vld1q_u8(src + 16 * i);
            w[i] = put(w[i], x, 0, place, 4);
            w[4 + i] = put(w[4 + i], x, 4, place, 4);
        }
        src += 64;
        place += 4;
    }
    if (bits & 2) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            uint8x16_t x = vld1q_u8(src + 16 * i);
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) w[2 * s + i] = put(w[2 * s + i], x, 2 * s, place, 2);
        }
        src += 32;
        place += 2;
    }
    if (bits & 1) {
        uint8x16_t x = vld1q_u8(src);
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++) w[s] = put(w[s], x, s, place, 1);
    }
}

#endif
