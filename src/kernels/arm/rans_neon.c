/* kernels/arm/rans_neon.c - a stream of entropy-coded weightlets, sixteen coders a step of registers.
 *
 * A coder's look-ups are in tables of 32 bytes, one instruction each. The words for coders that fell below
 * 2^16 are distributed by a table of 16 permutations. */
#include "kernels/rans.h"
#include "kernels/unpack.h"

#include <arm_neon.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, LANES = TN_RANS_LANES, SCALE_BITS = 12 };

#define INLINE static inline __attribute__((always_inline))

typedef struct coders {
    uint32x4_t x[LANES / 4]; /* 64 states */
    const uint8_t *at;
} coders;

/* For each set of four lanes: which bytes of the following words each lane takes; 255: none. */
static const uint8_t spread[16][8] = {{255, 255, 255, 255, 255, 255, 255, 255},
                                      {0, 1, 255, 255, 255, 255, 255, 255},
                                      {255, 255, 0, 1, 255, 255, 255, 255},
                                      {0, 1, 2, 3, 255, 255, 255, 255},
                                      {255, 255, 255, 255, 0, 1, 255, 255},
                                      {0, 1, 255, 255, 2, 3, 255, 255},
                                      {255, 255, 0, 1, 2, 3, 255, 255},
                                      {0, 1, 2, 3, 4, 5, 255, 255},
                                      {255, 255, 255, 255, 255, 255, 0, 1},
                                      {0, 1, 255, 255, 255, 255, 2, 3},
                                      {255, 255, 0, 1, 255, 255, 2, 3},
                                      {0, 1, 2, 3, 255, 255, 4, 5},
                                      {255, 255, 255, 255, 0, 1, 2, 3},
                                      {0, 1, 255, 255, 2, 3, 4, 5},
                                      {255, 255, 0, 1, 2, 3, 4, 5},
                                      {0, 1, 2, 3, 4, 5, 6, 7}};

INLINE uint8x16x2_t table_of(const uint8_t *bytes) {
    return (uint8x16x2_t){{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
}

/* The next states of four coders; inactive ones keep theirs. */
INLINE uint32x4_t advance(coders *c, uint32x4_t x, uint32x4_t f, uint32x4_t index, bool all,
                          uint32x4_t active) {
    static const uint32_t one_each[4] = {1, 2, 4, 8};
    const uint32x4_t y = vmlaq_u32(index, vshrq_n_u32(x, SCALE_BITS), f);
    uint32x4_t low = vcltq_u32(y, vdupq_n_u32(TN_RANS_FIRST));
    if (!all) low = vandq_u32(low, active);
    const unsigned m = vaddvq_u32(vandq_u32(low, vld1q_u32(one_each)));
    const uint8x8_t words = vtbl1_u8(vld1_u8(c->at), vld1_u8(spread[m]));
    const uint32x4_t in = vorrq_u32(vshlq_n_u32(y, 16), vmovl_u16(vreinterpret_u16_u8(words)));
    c->at += 2 * (unsigned)__builtin_popcount(m);
    const uint32x4_t after = vbslq_u32(low, in, y);
    return all ? after : vbslq_u32(active, after, x);
}

/* One step of 16 coders, n of them active. Returns their symbols. */
INLINE uint8x16_t quarter_step(coders *c, uint32x4_t *x, const tn_rans_table *t, bool all, int n) {
    static const int32_t lane[4] = {0, 1, 2, 3};
    const uint16x8_t w0 = vcombine_u16(vmovn_u32(x[0]), vmovn_u32(x[1])),
                     w1 = vcombine_u16(vmovn_u32(x[2]), vmovn_u32(x[3]));
    const uint8x16_t bucket = vandq_u8(vcombine_u8(vshrn_n_u16(w0, 7), vshrn_n_u16(w1, 7)), vdupq_n_u8(31)),
                     in = vandq_u8(vcombine_u8(vmovn_u16(w0), vmovn_u16(w1)), vdupq_n_u8(127));
    const uint8x16_t is_own = vcltq_u8(in, vqtbl2q_u8(table_of(t->bytes[0][0]), bucket)),
                     symbol = vbslq_u8(is_own, bucket, vqtbl2q_u8(table_of(t->bytes[0][1]), bucket));
    uint8x16_t f[2], base[2];
    for (int i = 0; i < 2; i++) {
        f[i] = vqtbl2q_u8(table_of(t->bytes[1][i]), symbol);
        base[i] = vbslq_u8(is_own, vqtbl2q_u8(table_of(t->bytes[2][i]), bucket),
                           vqtbl2q_u8(table_of(t->bytes[3][i]), bucket));
    }
    const uint16x8_t f16[2] = {vreinterpretq_u16_u8(vzip1q_u8(f[0], f[1])),
                               vreinterpretq_u16_u8(vzip2q_u8(f[0], f[1]))};
    const uint16x8_t index[2] = {
        vaddw_u8(vreinterpretq_u16_u8(vzip1q_u8(base[0], base[1])), vget_low_u8(in)),
        vaddw_u8(vreinterpretq_u16_u8(vzip2q_u8(base[0], base[1])), vget_high_u8(in))};
    uint16x8_t narrow[2] = {vdupq_n_u16(0), vdupq_n_u16(0)};
    for (int i = 0; i < 4; i++) {
        const uint32x4_t active = vcgtq_s32(vdupq_n_s32(n - 4 * i), vld1q_s32(lane));
        const uint16x4_t part_f = i % 2 ? vget_high_u16(f16[i / 2]) : vget_low_u16(f16[i / 2]),
                         part_index = i % 2 ? vget_high_u16(index[i / 2]) : vget_low_u16(index[i / 2]);
        x[i] = advance(c, x[i], vmovl_u16(part_f), vmovl_u16(part_index), all, active);
        if (all) continue;
        narrow[i / 2] = i % 2 ? vcombine_u16(vget_low_u16(narrow[i / 2]), vmovn_u32(active))
                              : vcombine_u16(vmovn_u32(active), vget_high_u16(narrow[i / 2]));
    }
    return all ? symbol : vandq_u8(symbol, vcombine_u8(vmovn_u16(narrow[0]), vmovn_u16(narrow[1])));
}

/* The bits below the symbols, one plane each. */
INLINE void take_raw(coders *c, unsigned raw, uint8x16_t code[8]) {
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bit = vld1q_u8(bits);
    for (int i = 0; i < 8; i++) {
        uint8x16_t low = vdupq_n_u8(0);
        for (unsigned b = 0; b < raw; b++) {
            const uint8_t *at = c->at + 16 * b + 2 * (unsigned)i;
            const uint8x16_t both = vcombine_u8(vdup_n_u8(at[0]), vdup_n_u8(at[1]));
            low = vorrq_u8(low, vandq_u8(vtstq_u8(both, bit), vdupq_n_u8((uint8_t)(1u << b))));
        }
        code[i] = vorrq_u8(vshlq_u8(code[i], vdupq_n_s8((int8_t)raw)), low);
    }
    c->at += 16 * raw;
}

INLINE uint8x16_t bits_of(uint8x16_t code, unsigned low, uint8_t mask) {
    return vandq_u8(vshlq_u8(code, vdupq_n_s8((int8_t) - (int)low)), vdupq_n_u8(mask));
}

/* 128 codes to weightlets (unpack.h). */
INLINE void put_group(uint8_t *dst, const uint8x16_t code[8], unsigned bits) {
    if (bits == 8) {
        for (int i = 0; i < 8; i++) vst1q_u8(dst + 16 * i, veorq_u8(code[i], vdupq_n_u8(0x80)));
        return;
    }
    if (bits & 4) {
        for (int i = 0; i < 4; i++)
            vst1q_u8(dst + 16 * i, vorrq_u8(bits_of(code[i], 0, 15), vshlq_n_u8(code[4 + i], 4)));
        dst += 64;
    }
    if (bits & 2) {
        for (int i = 0; i < 2; i++) {
            uint8x16_t v = bits_of(code[i], bits & 4, 3);
            for (int j = 1; j < 4; j++)
                v = vorrq_u8(v, vshlq_u8(bits_of(code[2 * j + i], bits & 4, 3), vdupq_n_s8((int8_t)(2 * j))));
            vst1q_u8(dst + 16 * i, v);
        }
        dst += 32;
    }
    if (bits & 1) {
        uint8x16_t v = vdupq_n_u8(0);
        for (int j = 0; j < 8; j++)
            v = vorrq_u8(v, vshlq_u8(bits_of(code[j], bits & 6, 1), vdupq_n_s8((int8_t)j)));
        vst1q_u8(dst, v);
    }
}

/* One group of one channel, of which `left` codes are in the stream. */
INLINE void group(coders *c, const tn_rans_table *t, unsigned bits, bool all, size_t left, uint8_t *dst) {
    static const int8_t place[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const unsigned raw = tn_rans_raw_bits(bits);
    const size_t first = left < LANES ? left : LANES;
    uint8x16_t code[8];
    for (int i = 0; i < 8; i++)
        code[i] =
            quarter_step(c, &c->x[i % 4 * 4], t, all, (int)(i < 4 ? first : left - first) - 16 * (i % 4));
    if (raw) take_raw(c, raw, code);
    for (int i = 0; !all && i < 8; i++) {
        const int n = (int)left - 16 * i;
        const uint8x16_t is = vcgtq_s8(vdupq_n_s8((int8_t)(n < 0 ? 0 : n > 16 ? 16 : n)), vld1q_s8(place));
        code[i] = vbslq_u8(is, code[i], vdupq_n_u8(bits == 8 ? 0x80 : 0));
    }
    put_group(dst, code, bits);
}

enum { MOST = 2 * 2 * LANES + 3 * 16 + 64 }; /* bytes that a group may read, or look at */

bool tn_rans_decode_neon(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst) {
    coders c = {.at = src + LANES * sizeof(uint32_t)};
    const uint8_t *end = src + n_bytes;
    uint8_t tail[2 * MOST]; /* copies the last bytes, so that whole registers can be read */
    bool in_tail = false;
    if (n_bytes < LANES * sizeof(uint32_t)) return false;
    for (int i = 0; i < LANES / 4; i++) c.x[i] = vreinterpretq_u32_u8(vld1q_u8(src + 16 * i));
    for (size_t tile = a->n0; tile < a->n1; tile += TN_TILE_N) {
        const size_t n = a->n1 - tile < TN_TILE_N ? a->n1 - tile : TN_TILE_N;
        for (size_t k = 0; k < a->k; k += GROUP) {
            const size_t left = a->k - k < GROUP ? a->k - k : GROUP;
            for (size_t i = 0; i < n; i++) {
                const unsigned bits = tn_channel_bits_get(a->packed_bits, tile + i);
                const tn_rans_table *t = &a->tables[a->channel_table[tile + i]];
                if ((size_t)(end - c.at) < MOST && !in_tail) {
                    const size_t rest = (size_t)(end - c.at);
                    memcpy(tail, c.at, rest);
                    memset(tail + rest, 0, sizeof tail - rest);
                    c.at = tail;
                    end = tail + rest;
                    in_tail = true;
                }
                if (left == GROUP) group(&c, t, bits, true, GROUP, dst);
                else group(&c, t, bits, false, left, dst);
                dst += GROUP / 8 * bits;
                if (c.at > end) return false;
            }
        }
    }
    uint32x4_t other = vdupq_n_u32(0);
    for (int i = 0; i < LANES / 4; i++)
        other = vorrq_u32(other, veorq_u32(c.x[i], vdupq_n_u32(TN_RANS_FIRST)));
    return !vmaxvq_u32(other) && c.at == end;
}
