/* kernels/arm/gemm_packed_i8mm.c - rows against weightlets on SMMLA: one instruction is 2 rows x 2 channels
 * x 8 k. A piece holds two pairs of rows or channels, eight k of both by turns. One row uses SDOT. */
#include "kernels/arm/weightlets_neon.h"

#include <stddef.h>
#include <stdint.h>

static inline uint8x16_t low_halves(uint8x16_t a, uint8x16_t b) {
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
static inline uint8x16_t high_halves(uint8x16_t a, uint8x16_t b) {
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

static inline void put_rows(int8_t *to, const int8x16_t *x) {
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2, to += 32) {
        const uint8x16_t a = vreinterpretq_u8_s8(x[i]), b = vreinterpretq_u8_s8(x[i + 1]);
        vst1q_s8(to, vreinterpretq_s8_u8(low_halves(a, b)));
        vst1q_s8(to + 16, vreinterpretq_s8_u8(high_halves(a, b)));
    }
}
static inline void put_code(int8_t *to, size_t c, int8x16_t x) {
    to += c / 2 * 32 + c % 2 * 8;
    vst1_s8(to, vget_low_s8(x));
    vst1_s8(to + 16, vget_high_s8(x));
}

/* Two channels' registers to the halves of both: pairing weightlets is cheaper than pairing codes, as they are
 * fewer. */
static inline __attribute__((always_inline)) void pair_two(weightlet_regs *w) {
    const weightlet_regs a = w[0], b = w[1];
    w[0] = (weightlet_regs){low_halves(a.four, b.four), low_halves(a.two, b.two), low_halves(a.one, b.one)};
    w[1] =
        (weightlet_regs){high_halves(a.four, b.four), high_halves(a.two, b.two), high_halves(a.one, b.one)};
}

/* acc[2 p + i]: pair p of rows and i of channels, r0c0 r0c1 r1c0 r1c1. */
static inline __attribute__((always_inline)) void multiply(int32x4_t *acc, int R, const int8x16_t *x,
                                                           int8x16_t y, int i) {
    acc[i / 2] = vmmlaq_s32(acc[i / 2], x[i % 2], y);
    if (R == 4) acc[2 + i / 2] = vmmlaq_s32(acc[2 + i / 2], x[2 + i % 2], y);
}
static inline __attribute__((always_inline)) void sums_by_row(const int32x4_t *acc, int32x4_t *sum) {
#pragma GCC unroll 2
    for (int p = 0; p < 4; p += 2) {
        const int64x2_t a = vreinterpretq_s64_s32(acc[p]), b = vreinterpretq_s64_s32(acc[p + 1]);
        sum[p] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
        sum[p + 1] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
    }
}
#include "kernels/arm/gemm_packed_neon.h"

#ifndef TERN_MINIMAL
UNIFORM(uniform2, 2)
UNIFORM(uniform4, 4)
#endif

static const uniform_fn *uniform_of(size_t n_rows) {
#ifndef TERN_MINIMAL
    if (n_rows <= 2) return uniform2;
    if (n_rows <= MOST_UNIFORM) return uniform4;
#endif
    (void)n_rows;
    return NULL;
}

void tn_gemm_packed_i8mm(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch) {
    in_parts(g, packed, bits, scratch, tn_gemm_packed_dotprod, 1);
}
