/* kernels/arm/unpack_neon.c - weightlets to tiles on 128-bit vectors: eight registers hold a channel's group
 * of 128 weights, sixteen channels are transposed as 32-bit units, four channels by four units at a time.
 * Codes are assembled doubled, as in unpack_avx512.c, so that the weight is one subtraction away. */
#include "kernels/unpack.h"

#include <arm_neon.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, REGS = GROUP / 16 };

/* Bits of x from position `from` of every byte to position `to`; shifts by a register, so that either
 * direction is one instruction. */
static inline __attribute__((always_inline)) uint8x16_t moved(uint8x16_t x, int from, int to, int width) {
    return vandq_u8(vshlq_u8(x, vdupq_n_s8((int8_t)(to - from))),
                    vdupq_n_u8((uint8_t)(((1 << width) - 1) << to)));
}

static inline __attribute__((always_inline)) const uint8_t *channel(const uint8_t *src, int bits,
                                                                    int8_t *out) {
    uint8x16_t w[REGS];
    if (bits == 8) {
        memcpy(out, src, GROUP);
        return src + GROUP;
    }
    for (int i = 0; i < REGS; i++) w[i] = vdupq_n_u8(0);
    int place = 1;
    if (bits & 4) {
        for (int i = 0; i < 4; i++) {
            uint8x16_t x = vld1q_u8(src + 16 * i);
            w[i] = moved(x, 0, 1, 4);
            w[4 + i] = moved(x, 4, 1, 4);
        }
        src += 64;
        place = 5;
    }
    if (bits & 2) {
        for (int i = 0; i < 2; i++) {
            uint8x16_t x = vld1q_u8(src + 16 * i);
            for (int s = 0; s < 4; s++) w[2 * s + i] = vorrq_u8(w[2 * s + i], moved(x, 2 * s, place, 2));
        }
        src += 32;
        place += 2;
    }
    if (bits & 1) {
        uint8x16_t x = vld1q_u8(src);
        for (int s = 0; s < 8; s++) w[s] = vorrq_u8(w[s], moved(x, s, place, 1));
        src += 16;
    }
    uint8x16_t zero = vdupq_n_u8((uint8_t)((1 << bits) - 1));
    for (int i = 0; i < REGS; i++) vst1q_s8(out + 16 * i, vreinterpretq_s8_u8(vsubq_u8(w[i], zero)));
    return src;
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
