/* kernels/arm/blocks_s8_128.h - what the 128-bit products over blocks share. Their files define MAX_ROWS,
 * struct act, act_load and dot before. */
typedef float32x4_t vf;
typedef int32x4_t vi;
#define LANES 4
#ifndef TILES
#define TILES 1
#endif
#define SIGNED 1
#define PAIRS 0
#define BYTE_SHIFTS 1
/* otherwise gcc loads everything first, more than fits the registers. */
#define in_turn() __asm__ volatile("" ::: "memory")
#define f_load vld1q_f32
#define f_store vst1q_f32
#define f_set1 vdupq_n_f32
#define f_fma(a, b, c) vfmaq_f32(c, a, b)
#define f_add vaddq_f32
#define f_cvt vcvtq_f32_s32
#define f_zero() vdupq_n_f32(0)
#define i_set1 vdupq_n_s32
#define i_zero() vdupq_n_s32(0)
#define lookup(i, table) ((slice)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)(i)))
#define lookup32(i, table) ((slice)vqtbl2q_u8(vld1q_u8_x2(table), (uint8x16_t)(i)))
#define lookup64(i, table) ((slice)vqtbl4q_u8(vld1q_u8_x4(table), (uint8x16_t)(i)))
#define halves(src)                                                                                          \
    ((slice_floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)(src)))))
static inline void all_halves(const uint8_t *src, float *dst) {
    const float16x8_t a = vreinterpretq_f16_u8(vld1q_u8(src)), b = vreinterpretq_f16_u8(vld1q_u8(src + 16));
    vst1q_f32(dst, vcvt_f32_f16(vget_low_f16(a)));
    vst1q_f32(dst + 4, vcvt_high_f32_f16(a));
    vst1q_f32(dst + 8, vcvt_f32_f16(vget_low_f16(b)));
    vst1q_f32(dst + 12, vcvt_high_f32_f16(b));
}
#define all_halves all_halves
static inline float32x4_t quarter(uint8x16_t v, int i, int sign) {
    uint8x8_t half = i < 2 ? vget_low_u8(v) : vget_high_u8(v);
    if (sign) {
        int16x8_t w = vmovl_s8(vreinterpret_s8_u8(half));
        return vcvtq_f32_s32(vmovl_s16(i % 2 ? vget_high_s16(w) : vget_low_s16(w)));
    }
    uint16x8_t w = vmovl_u8(half);
    return vcvtq_f32_u32(vmovl_u16(i % 2 ? vget_high_u16(w) : vget_low_u16(w)));
}
#define floats(v, at, sign) ((slice_floats)quarter((uint8x16_t)(v), (int)(at) / 4, sign))

#include "kernels/blocks_template.h"
