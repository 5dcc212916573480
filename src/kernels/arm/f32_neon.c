/* Float kernels on NEON (AArch64). */
#include <arm_neon.h>

#define ISA neon
#define W 4
#define WIDE 8
#define MANY 4
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;
#define f_load vld1q_f32
#define f_store vst1q_f32
#define f_set1 vdupq_n_f32
#define f_fma(a, b, c) vfmaq_f32(c, a, b)
#define f_add vaddq_f32
#define f_sub vsubq_f32
#define f_mul vmulq_f32
#define f_div vdivq_f32
#define f_max(a, b) vbslq_f32(vcgtq_f32(a, b), a, b) /* vmaxq would return NaN */
#define f_round vrndnq_f32
#define f_load_f16(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define f_load_bf16(p) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))
#define bytes4(p) vreinterpret_u8_u32(vld1_dup_u32((const uint32_t *)(const void *)(p)))
#define bytes_u8(p) vmovl_u16(vget_low_u16(vmovl_u8(bytes4(p))))
#define f_load_s8(p) vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes4(p))))))
#define less_8(x) vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(x), vdupq_n_s32(8)))
#define f_load_low4(p) less_8(vandq_u32(bytes_u8(p), vdupq_n_u32(15)))
#define f_load_high4(p) less_8(vshrq_n_u32(bytes_u8(p), 4))
#define as_f vreinterpretq_f32_u32
#define as_u vreinterpretq_u32_f32
#define f_load_pairs(p, even, odd) (even = vld2q_f32(p).val[0], odd = vld2q_f32(p).val[1])
#define f_lt vcltq_f32
#define f_gt vcgtq_f32
#define f_unord(a) vmvnq_u32(vceqq_f32(a, a))
#define f_sel vbslq_f32
#define f_and(a, b) as_f(vandq_u32(as_u(a), as_u(b)))
#define f_or(a, b) as_f(vorrq_u32(as_u(a), as_u(b)))
#define f_andnot(m, a) as_f(vbicq_u32(as_u(a), as_u(m)))
#define halves_of(v) vmovn_u32(vreinterpretq_u32_s32(v))
#define u8_store(p, v)                                                                                       \
    vst1_lane_u32((uint32_t *)(void *)(p),                                                                   \
                  vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves_of(v), halves_of(v)))), 0)
#define i_cvt vcvtnq_s32_f32
#define i_add vaddq_s32
#define i_sub vsubq_s32
#define i_sra1(a) vshrq_n_s32(a, 1)
#define i_srl31(a) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), 31))
#define i_sll23(a) vshlq_n_s32(a, 23)
#define i_set1 vdupq_n_s32
#define f_cast vreinterpretq_f32_s32

#include "kernels/f32_template.h"
