/* base/half.h - conversions between float and its 16-bit forms. They are scalar and round to the nearest
 * even. */
#ifndef TN_BASE_HALF_H
#define TN_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float tn_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t tn_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float tn_bf16_f32(uint16_t h) { return tn_bits_f32((uint32_t)h << 16); }

static inline uint16_t tn_f32_bf16(float f) {
    uint32_t u = tn_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float tn_round_bf16(float f) { return tn_bf16_f32(tn_f32_bf16(f)); }

static inline float tn_f16_f32(uint16_t h) {
    /* Branch-free, so that a compiler can vectorise it. */
    uint32_t m = h & 0x7fffu, normal = (m << 13) + (m < 0x7c00u ? 112u << 23 : 224u << 23),
             subnormal = tn_f32_bits((float)(int32_t)m * 0x1p-24f);
    return tn_bits_f32((m < 0x400u ? subnormal : normal) | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t tn_f32_f16(float f) {
    uint32_t u = tn_f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (a < 0x38800000u) { /* subnormal: add a magic number that aligns the bits */
        float v = tn_bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (tn_f32_bits(v) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}

#endif
