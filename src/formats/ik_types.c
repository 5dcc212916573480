/* ik_llama.cpp's block types. The tables are those of its ggml-common.h (iq2nl_values, iq2kl_values, iq3nl_values,
 * iq4k_values, iq5nl_values, iq6nl_values), whose second halves are the first plus a step. For IQ6_K its CPU reference
 * has a polynomial instead, within half a step of the table, which its products (CPU and CUDA) use. */
#include "formats/ik_types.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum { BLOCK = TN_IK_BLOCK, GROUPS = TN_IK_GROUPS };

static const int8_t iq2[4] = {-31, -13, 1, 17}, iq3[8] = {-63, -40, -23, -10, 1, 13, 28, 47},
                    iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
                    iq5[32] = {-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36,
                               -30,  -24,  -18,  -12, -6,  -1,  5,   11,  17,  23,  29,
                               36,   43,   51,   59,  68,  77,  87,  97,  109, 121},
                    iq6[64] = {-127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66,
                               -62,  -58,  -54,  -51,  -47,  -44, -40, -37, -34, -31, -28, -25, -22,
                               -19,  -16,  -13,  -11,  -8,   -5,  -2,  0,   3,   6,   9,   12,  14,
                               17,   20,   23,   27,   30,   33,  36,  40,  44,  47,  51,  55,  59,
                               63,   68,   72,   77,   82,   87,  92,  98,  103, 109, 115, 121};
/* IQ2_KL's 32 pairs of values, as numbers in iq3: the first in the low four bits. */
static const uint8_t kl_pairs[32] = {0x20, 0x50, 0x01, 0x31, 0x51, 0x71, 0x12, 0x22, 0x42, 0x52, 0x62,
                                     0x03, 0x43, 0x53, 0x73, 0x24, 0x34, 0x44, 0x54, 0x64, 0x15, 0x25,
                                     0x35, 0x45, 0x55, 0x06, 0x26, 0x46, 0x66, 0x76, 0x27, 0x57};

static unsigned u16_at(const uint8_t *p) { return p[0] | (unsigned)p[1] << 8; }
static uint32_t u32_at(const uint8_t *p) { return u16_at(p) | (uint32_t)u16_at(p + 2) << 16; }

/* ---- fields: value i, or group g, of a block ------------------------------------------------------------- */

/* Nibbles: of every `span` bytes the low ones, then the high ones. */
static unsigned nibble(const uint8_t *q, int i, int span) {
    return q[i / (2 * span) * span + i % span] >> (i / span % 2 * 4) & 15;
}

/* Pairs of bits: of every 32 bytes first the lowest. */
static unsigned pair(const uint8_t *q, int i) { return q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

/* Bits: of 32 bytes first the lowest. */
static unsigned bit(const uint8_t *q, int i) { return q[i % 32] >> (i / 32) & 1; }

static int four_bits(const uint8_t *s, int g) { return s[g / 2] >> (g % 2 * 4) & 15; }

/* ---- types with a scale for 16: f16, second, then the scales ---------------------------------------------- */

static void iq2_k(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)pair(b + 12, i);
    for (int g = 0; g < GROUPS; g++) o->scale[g] = (int8_t)(four_bits(b + 4, g) - 8);
    o->second = (uint16_t)u16_at(b + 2);
}

static void iq3_k(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)(pair(b + 14, i) | bit(b + 78, i) << 2);
    for (int g = 0; g < GROUPS; g++) {
        const int magnitude = 2 * four_bits(b + 6, g) + 1;
        o->scale[g] = (int8_t)(u16_at(b + 4) >> g & 1 ? -magnitude : magnitude);
    }
    o->second = (uint16_t)u16_at(b + 2);
}

/* IQ4_K, IQ5_K: pairs of high bits, then nibbles. */
static void six_bit_scales(const uint8_t *b, tn_ik_block *o) {
    for (int g = 0; g < GROUPS; g++)
        o->scale[g] = (int8_t)((four_bits(b + 8, g) | (b[4 + g / 4] >> (g % 4 * 2) & 3) << 4) - 32);
    o->second = (uint16_t)u16_at(b + 2);
}

static void iq4_k(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)nibble(b + 16, i, 16);
    six_bit_scales(b, o);
}

static void iq5_k(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)(nibble(b + 16, i, 32) | bit(b + 144, i) << 4);
    six_bit_scales(b, o);
}

static void iq6_k(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)(nibble(b + 20, i, 32) | pair(b + 148, i) << 4);
    memcpy(o->scale, b + 4, GROUPS);
    o->second = (uint16_t)u16_at(b + 2);
}

/* ---- types with a scale for 32 ---------------------------------------------------------------------------- */

/* The scale of 32 values, and whether their table is the second. */
static void put_32(tn_ik_block *o, int h, int scale, unsigned second) {
    o->scale[2 * h] = o->scale[2 * h + 1] = (int8_t)scale;
    o->second |= (uint16_t)(second ? 3u << (2 * h) : 0);
}

/* Seven bits of an odd scale around zero, above the bit of the table. */
static void put_odd(tn_ik_block *o, int h, unsigned byte) { put_32(o, h, (int)(byte & 254) - 127, byte & 1); }

static void iq4_ks(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)nibble(b + 8, i, 16);
    for (int h = 0; h < 8; h++) put_odd(o, h, b[h]);
}

static void iq5_ks(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)(nibble(b + 8, i, 32) | bit(b + 136, i) << 4);
    for (int h = 0; h < 8; h++) put_odd(o, h, b[h]);
}

/* Words of four nibbles, 15 bits in Gray code; the lowest bits of eight words are the byte of the scale. */
static void iq4_kss(const uint8_t *b, tn_ik_block *o) {
    for (int h = 0; h < 8; h++, b += 16) {
        uint8_t plain[16];
        unsigned scale = 0;
        for (int w = 0; w < 8; w++) {
            const unsigned word = u16_at(b + 2 * w), gray = word & 0xfffe, both = gray ^ gray >> 1;
            plain[2 * w] = (uint8_t)both;
            plain[2 * w + 1] = (uint8_t)(both >> 8);
            scale |= (word & 1) << w;
        }
        for (int i = 0; i < 32; i++) o->code[32 * h + i] = (uint8_t)nibble(plain, i, 16);
        put_odd(o, h, scale);
    }
}

static void iq2_ks(const uint8_t *b, tn_ik_block *o) {
    const unsigned more = u16_at(b);
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)pair(b + 6, i);
    for (int h = 0; h < 8; h++)
        put_32(o, h, (four_bits(b + 2, h) | (int)(more >> (8 + h) & 1) << 4) - 16, more >> h & 1);
}

static void iq3_ks(const uint8_t *b, tn_ik_block *o) {
    const unsigned more = u16_at(b);
    for (int i = 0; i < BLOCK; i++) o->code[i] = (uint8_t)(pair(b + 6, i) | bit(b + 70, i) << 2);
    for (int h = 0; h < 8; h++) {
        const int low = b[2 + h % 4] >> (h / 4 * 4) & 15;
        put_32(o, h, (low | (int)(more >> h & 1) << 4) - 16, more >> (8 + h) & 1);
    }
}

static void iq2_kl(const uint8_t *b, tn_ik_block *o) {
    for (int i = 0; i < BLOCK / 2; i++) {
        const int h = i / 16, j = i % 16;
        const unsigned entry = nibble(b + 6, i, 16) | (b[70 + j] >> h & 1u) << 4;
        o->code[2 * i] = kl_pairs[entry] & 15;
        o->code[2 * i + 1] = kl_pairs[entry] >> 4;
    }
    for (int h = 0; h < 8; h++)
        put_32(o, h, ((b[2 + h % 4] >> (h / 4 * 4) & 15) | (int)(u16_at(b) >> (2 * h) & 3) << 4) - 32, 0);
}

/* ---- trellises: a number starts a sequence of values ------------------------------------------------------ */

/* n values: the sum of the four bytes' low six bits, around zero, of each product with the factor. */
static void walk(uint32_t x, int n, uint8_t *code) {
    for (int i = 0; i < n; i++) {
        x *= 0xcbac1fedu;
        const uint32_t s = x & 0x3f3f3f3f;
        code[i] = (uint8_t)((s & 255) + (s >> 8 & 255) + (s >> 16 & 255) + (s >> 24) + 2);
    }
}

/* Bytes of scales (a nibble in the table of four bits, the thirteenth bits of the numbers), 32 low bytes, 16 of nibbles. */
static void iq1_kt(const uint8_t *b, tn_ik_block *o) {
    for (int e = 0; e < 32; e++) {
        const int h = e / 4;
        const unsigned high = b[40 + e % 16] >> (e / 16 * 4) & 15, top = b[h] >> (4 + e % 4) & 1;
        walk((b[8 + e] | high << 8 | top << 12) + 4096, 8, o->code + 8 * e);
    }
    for (int h = 0; h < 8; h++) put_32(o, h, iq4[b[h] & 15], 0);
}

static int split_nibble(const uint8_t *b, int h) { return b[h % 4] >> (h / 4 * 4) & 15; }

static void iq2_kt(const uint8_t *b, tn_ik_block *o) {
    for (int e = 0; e < 32; e++) walk(u16_at(b + 4 + 2 * e) + 4096, 8, o->code + 8 * e);
    for (int h = 0; h < 8; h++) put_32(o, h, iq4[split_nibble(b, h)], 0);
}

/* Magnitudes, and signs apart. */
static void iq3_kt(const uint8_t *b, tn_ik_block *o) {
    for (int e = 0; e < 32; e++) walk(u16_at(b + 4 + 2 * e) + 4096, 8, o->code + 8 * e);
    for (int i = 0; i < BLOCK; i++) {
        const int magnitude = o->code[i] < 128 ? 128 - o->code[i] : o->code[i] - 128;
        o->code[i] = (uint8_t)(bit(b + 68, i) ? 128 - magnitude : 128 + magnitude);
    }
    for (int h = 0; h < 8; h++) put_32(o, h, split_nibble(b, h), 0);
}

/* Eight words (where the numbers begin, seven bits of scale, three bits of each of eight numbers), 64 low bytes, 32 of
 * nibbles. Four values each. */
static void iq4_kt(const uint8_t *b, tn_ik_block *o) {
    for (int e = 0; e < 64; e++) {
        const uint32_t word = u32_at(b + e / 8 * 4);
        const unsigned high = b[96 + e % 32] >> (e / 32 * 4) & 15, top = word >> (8 + e % 8 * 3) & 7;
        walk((b[32 + e] | high << 8 | top << 12) + (word & 1 ? 32768 + 4096 : 4096), 4, o->code + 4 * e);
    }
    for (int h = 0; h < 8; h++) put_32(o, h, (int)(b[4 * h] >> 1) - 64, 0);
}

/* ---- all of them ------------------------------------------------------------------------------------------- */

/* table NULL: the codes are values. A type without a head has its f16 at the block's beginning. */
static const struct {
    void (*decode)(const uint8_t *, tn_ik_block *);
    const int8_t *table;
    int8_t step;
} types[TN_N_DTYPES] = {
    [TN_IQ2_K] = {iq2_k, iq2, 5},    [TN_IQ3_K] = {iq3_k, iq3, 4},     [TN_IQ4_K] = {iq4_k, iq4, 4},
    [TN_IQ5_K] = {iq5_k, iq5, 2},    [TN_IQ6_K] = {iq6_k, iq6, 1},     [TN_IQ4_KS] = {iq4_ks, iq4, 4},
    [TN_IQ5_KS] = {iq5_ks, iq5, 2},  [TN_IQ4_KSS] = {iq4_kss, iq4, 4}, [TN_IQ2_KS] = {iq2_ks, iq2, 5},
    [TN_IQ3_KS] = {iq3_ks, iq3, 4},  [TN_IQ2_KL] = {iq2_kl, iq3, 0},   [TN_IQ1_KT] = {iq1_kt, NULL, 0},
    [TN_IQ2_KT] = {iq2_kt, NULL, 0}, [TN_IQ3_KT] = {iq3_kt, NULL, 0},  [TN_IQ4_KT] = {iq4_kt, NULL, 0},
};

/* Eight bytes of high bits (of values i, i + 16, i + 8 and i + 24 from the lowest pair on), then nibbles as in Q4_0. */
void tn_q6_0_values(const uint8_t *block, int8_t out[32]) {
    for (int i = 0; i < 32; i++) {
        const int low = block[10 + i % 16] >> (i / 16 * 4) & 15,
                  high = block[2 + i % 8] >> (i / 8 % 2 * 4 + i / 16 * 2) & 3;
        out[i] = (int8_t)((low | high << 4) - 32);
    }
}

bool tn_ik_type(tn_dtype d) { return d < TN_N_DTYPES && types[d].decode; }

void tn_ik_read(tn_dtype d, const uint8_t *block, tn_ik_block *out) {
    out->second = 0;
    types[d].decode(block, out);
}

float tn_ik_d(tn_dtype d, const uint8_t *at) {
    return tn_dtype_head_bytes(d) == 4 ? tn_bits_f32(u32_at(at)) : tn_f16_f32((uint16_t)u16_at(at));
}

void tn_ik_set_d(tn_dtype d, uint8_t *at, float v) {
    const uint16_t half = tn_f32_f16(v);
    if (tn_dtype_head_bytes(d) == 4) memcpy(at, &v, sizeof v);
    else memcpy(at, &half, sizeof half);
}

/* A scale and a value are at most 128 each: a number beyond which their product might be infinite is refused, too. */
static bool usable(float d) { return fabsf(d) <= 0x1p113f; }

bool tn_ik_finite(tn_dtype d, const uint8_t *row, size_t n_bytes) {
    if (tn_dtype_head_bytes(d)) return usable(tn_ik_d(d, row));
    for (size_t i = 0; i < n_bytes; i += (size_t)tn_dtype_block_bytes(d))
        if (!usable(tn_ik_d(d, row + i))) return false;
    return true;
}

void tn_ik_widen(tn_dtype d, const uint8_t *row, float *out, uint64_t n) {
    const size_t head = (size_t)tn_dtype_head_bytes(d), bytes = (size_t)tn_dtype_block_bytes(d);
    const uint8_t *block = row + head;
    for (uint64_t at = 0; at < n; at += BLOCK, block += bytes) {
        tn_ik_block b;
        tn_ik_read(d, block, &b);
        const float unit = tn_ik_d(d, head ? row : block);
        for (int i = 0; i < BLOCK && at + (uint64_t)i < n; i++) {
            const int g = i / TN_IK_GROUP, c = b.code[i];
            const int v = types[d].table ? types[d].table[c] + types[d].step * (b.second >> g & 1) : c - 128;
            out[at + (uint64_t)i] = unit * (float)b.scale[g] * (float)v;
        }
    }
}
