/* kernels/arm/unpack_neon.c - weightlets to tiles on 128-bit vectors: eight registers hold a channel's group
 * of 128 weights, sixteen channels are transposed as 32-bit units, four channels by four units at a time.
 */
#include "kernels/arm/weightlets_neon.h"

#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP };

static inline __attribute__((always_inline)) const uint8_t *channel(const uint8_t *src, int bits,
                                                                    int8_t *out) {
    if (bits == 8) {
        memcpy(out, src, GROUP);
        return src + GROUP;
    }
    const uint8x16_t top = vdupq_n_u8((uint8_t)((1 << bits) - 1));
#pragma GCC unroll 4
    for (int i = 0; i < WEIGHTLET_PAIRS; i++) {
        uint8x16_t lo, hi;
        weightlet_pair(src, bits, i, &lo, &hi);
        vst1q_s8(out + 16 * i, vreinterpretq_s8_u8(lo + lo - top));
        vst1q_s8(out + 64 + 16 * i, vreinterpretq_s8_u8(hi + hi - top));
    }
    return src + GROUP / 8 * bits;
}

/* Four channels, four units each: lines 0..3 get 16 bytes. */
static inline __attribute__((always_inline)) void transpose(const int8_t *in, int8_t *out, size_t n_lines) {
    uint32x4_t a = vreinterpretq_u32_s8(vld1q_s8(in)), b = vreinterpretq_u32_s8(vld1q_s8(in + GROUP));
    uint32x4_t c = vreinterpretq_u32_s8(vld1q_s8(in + 2 * GROUP)),
               d = vreinterpretq_u32_s8(vld1q_s8(in + 3 * GROUP));
    uint64x2_t ab0 = vreinterpretq_u64_u32(vzip1q_u32(a, b)), ab1 = vreinterpretq_u64_u32(vzip2q_u32(a, b));
    uint64x2_t cd0 = vreinterpretq_u64_u32(vzip1q_u32(c, d)), cd1 = vreinterpretq_u64_u32(vzip2q_u32(c, d));
    uint64x2_t line[4] = {vzip1q_u64(ab0, cd0), vzip2q_u64(ab0, cd0), vzip1q_u64(ab1, cd1),
                          vzip2q_u64(ab1, cd1)};
    for (size_t i = 0; i < 4 && i < n_lines; i++) vst1q_s8(out + 64 * i, vreinterpretq_s8_u64(line[i]));
}

#define UNPACK_NAME tn_unpack_tile_neon
#define UNPACK_UNITS 4
#define UNPACK_ALIGN 16
#include "kernels/unpack_template.h"
