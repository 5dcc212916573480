/* kernels/arm/weightlets_neon.h - a group of 128 weightlets to registers of codes, shared by the kernels that
 * unpack. */
#ifndef TN_KERNELS_ARM_WEIGHTLETS_NEON_H
#define TN_KERNELS_ARM_WEIGHTLETS_NEON_H

#include "kernels/unpack.h"

#include <arm_neon.h>

enum { WEIGHTLET_PAIRS = TN_WEIGHTLET_GROUP / 32 };

/* Shifts all bytes of x left by `by` bits, right if negative. `by` is a constant after inlining. */
static inline __attribute__((always_inline)) uint8x16_t shifted(uint8x16_t x, int by) {
    return by > 0 ? x << by : by < 0 ? x >> -by : x;
}

/* The registers of a group that hold codes 16 i .. and 64 + 16 i .. (i < 4): nibbles, 2 bits, single bits;
 * with 8 bits the codes. */
typedef struct weightlet_regs {
    uint8x16_t four, two, one;
} weightlet_regs;

/* Reads only the group's 16 * bits bytes at src. bits and i are constants after inlining. */
static inline __attribute__((always_inline)) weightlet_regs weightlet_load(const uint8_t *src, int bits,
                                                                           int i) {
    if (bits == 8)
        return (weightlet_regs){vld1q_u8(src + 16 * i), vld1q_u8(src + 64 + 16 * i), vdupq_n_u8(0)};
    const uint8_t *two = src + (bits & 4 ? 64 : 0), *one = two + (bits & 2 ? 32 : 0);
    return (weightlet_regs){bits & 4 ? vld1q_u8(src + 16 * i) : vdupq_n_u8(0),
                            bits & 2 ? vld1q_u8(two + 16 * (i % 2)) : vdupq_n_u8(0),
                            bits & 1 ? vld1q_u8(one) : vdupq_n_u8(0)};
}

/* The codes; with 8 bits the weights. The upper bits of both codes lie four bits apart in a byte, like the
 * nibbles. So they are masked together, and one insertion puts them above a nibble and extracts it from its
 * byte. */
static inline __attribute__((always_inline)) void weightlet_codes(weightlet_regs from, int bits, int i,
                                                                  uint8x16_t *lo, uint8x16_t *hi) {
    if (bits == 8) {
        *lo = from.four;
        *hi = from.two;
        return;
    }
    uint8x16_t top = vdupq_n_u8(0);
    if (bits & 2) top = vandq_u8(shifted(from.two, -(i / 2 * 2)), vdupq_n_u8(0x33));
    if (bits & 1)
        top = bits & 2 ? vbslq_u8(vdupq_n_u8(0x44), shifted(from.one, 2 - i), top)
                       : vandq_u8(shifted(from.one, -i), vdupq_n_u8(0x11));
    if (bits < 4) {
        *lo = vandq_u8(top, vdupq_n_u8(15));
        *hi = shifted(top, -4);
        return;
    }
    *lo = bits == 4 ? vandq_u8(from.four, vdupq_n_u8(15)) : vsliq_n_u8(from.four, top, 4);
    *hi = bits == 4 ? shifted(from.four, -4) : vsriq_n_u8(top, from.four, 4);
}

static inline __attribute__((always_inline)) void weightlet_pair(const uint8_t *src, int bits, int i,
                                                                 uint8x16_t *lo, uint8x16_t *hi) {
    weightlet_codes(weightlet_load(src, bits, i), bits, i, lo, hi);
}

#endif
