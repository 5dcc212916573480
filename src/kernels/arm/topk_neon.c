/* Loops of topk.h on 128-bit vectors (NEON). */
#define TOPK_NAME tn_topk_neon
#define MERGE_NAME tn_topk_merge_neon

#include "kernels/topk.h"

#include <arm_neon.h>

static void to_keys(const int32_t *scores, size_t n, int shift, int16_t *keys, int64_t *sum,
                    int64_t *sum_sq) {
    int32x4_t by = vdupq_n_s32(-shift);
    float32x4_t sf = vdupq_n_f32(0), qf = sf; /* floats suffice: they only place the first guess */
    size_t i = 0;
    int64_t s = 0, q = 0;
    for (; i + 8 <= n; i += 8) {
        int32x4_t a = vshlq_s32(vld1q_s32(scores + i), by), b = vshlq_s32(vld1q_s32(scores + i + 4), by);
        float32x4_t f = vcvtq_f32_s32(a), g = vcvtq_f32_s32(b);
        sf = vaddq_f32(sf, vaddq_f32(f, g));
        qf = vfmaq_f32(vfmaq_f32(qf, f, f), g, g);
        vst1q_s16(keys + i, vcombine_s16(vmovn_s32(a), vmovn_s32(b)));
    }
    for (; i < n; i++) {
        keys[i] = (int16_t)(scores[i] >> shift);
        s += keys[i];
        q += (int32_t)keys[i] * keys[i];
    }
    for (; i % 32; i++) keys[i] = -32768;
    *sum = s + (int64_t)vaddvq_f32(sf);
    *sum_sq = q + (int64_t)vaddvq_f32(qf);
}

static size_t count_from(const int16_t *keys, size_t n, int32_t t) {
    int16x8_t limit = vdupq_n_s16((int16_t)t);
    size_t c = 0;
    for (size_t i = 0; i < n;) { /* 16-bit counters */
        uint16x8_t a = vdupq_n_u16(0), b = a;
        size_t end = n - i > 1 << 19 ? i + (1 << 19) : n;
        for (; i < end; i += 16) {
            a = vsubq_u16(a, vcgeq_s16(vld1q_s16(keys + i), limit));
            b = vsubq_u16(b, vcgeq_s16(vld1q_s16(keys + i + 8), limit));
        }
        c += vaddlvq_u16(a) + vaddlvq_u16(b);
    }
    return c;
}

/* One bit for each of 16 keys, from comparison masks. */
static uint32_t mask16(uint16x8_t lo, uint16x8_t hi) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t m = vandq_u8(vcombine_u8(vmovn_u16(lo), vmovn_u16(hi)), vld1q_u8(bit));
    return (uint32_t)vaddv_u8(vget_low_u8(m)) | (uint32_t)vaddv_u8(vget_high_u8(m)) << 8;
}

static size_t find_equal(const int16_t *keys, size_t n, int32_t t, uint32_t *at) {
    int16x8_t key = vdupq_n_s16((int16_t)t);
    size_t c = 0;
    for (size_t i = 0; i < n; i += 16) {
        uint32_t m = mask16(vceqq_s16(vld1q_s16(keys + i), key), vceqq_s16(vld1q_s16(keys + i + 8), key));
        for (; m; m &= m - 1) at[c++] = (uint32_t)i + (uint32_t)__builtin_ctz(m);
    }
    return c;
}

static void emit_from(const int16_t *keys, size_t n, int32_t t, uint32_t *idx, uint32_t *cuts) {
    int16x8_t limit = vdupq_n_s16((int16_t)t);
    uint32_t *to = idx;
    for (size_t i = 0; i < n; i += 16) {
        if (cuts && i % TN_SPARSE_BLOCK == 0) cuts[i / TN_SPARSE_BLOCK] = (uint32_t)(to - idx);
        uint32_t m = mask16(vcgeq_s16(vld1q_s16(keys + i), limit), vcgeq_s16(vld1q_s16(keys + i + 8), limit));
        for (; m; m &= m - 1) *to++ = (uint32_t)i + (uint32_t)__builtin_ctz(m);
    }
}

typedef int32x4_t vi;
enum { VN = 4 };
#define v_load vld1q_s32
#define v_store vst1q_s32
#define v_set1 vdupq_n_s32
#define v_sub vsubq_s32
#define v_max vmaxq_s32
#define v_min vminq_s32

#include "kernels/topk_template.h"
