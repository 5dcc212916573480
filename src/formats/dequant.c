/* Widens ggml's block formats by their definition: little-endian blocks of 32 to 256 values. */
#include "formats/tensor.h"

#include "base/half.h"
#include "formats/code_books.h"
#include "formats/ik_types.h"

#include <string.h>

static float f16_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return tn_f16_f32(h);
}

static uint32_t u32_at(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

/* ---- blocks of 32: low nibbles are values 0..15, high nibbles 16..31 ------------------------------ */

static void q8_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(int8_t)b[2 + i];
}

static void q4_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void q4_1(const uint8_t *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

static int fifth_bit(uint32_t high, int i) { return (int)(high >> i & 1) << 4; }

static void q5_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    uint32_t high = u32_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(((b[6 + i] & 15) | fifth_bit(high, i)) - 16);
        y[i + 16] = d * (float)(((b[6 + i] >> 4) | fifth_bit(high, i + 16)) - 16);
    }
}

static void q6_0(const uint8_t *b, float *y) {
    const float d = f16_at(b);
    int8_t q[32];
    tn_q6_0_values(b, q);
    for (int i = 0; i < 32; i++) y[i] = d * (float)q[i];
}

static void q5_1(const uint8_t *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    uint32_t high = u32_at(b + 4);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[8 + i] & 15) | fifth_bit(high, i)) + m;
        y[i + 16] = d * (float)((b[8 + i] >> 4) | fifth_bit(high, i + 16)) + m;
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void iq4_values_of(const uint8_t *q, float d, float *y) {
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)iq4_values[q[i] & 15];
        y[i + 16] = d * (float)iq4_values[q[i] >> 4];
    }
}

static void iq4_nl(const uint8_t *b, float *y) { iq4_values_of(b + 2, f16_at(b), y); }

/* A block has one exponent, then four-bit floats (sign, two bits of exponent, one of mantissa): 0, 0.5 .. 6.
 * They are stored doubled here, with half of 2^(e - 127). */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void mxfp4(const uint8_t *b, float *y) {
    uint32_t u = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    float d = tn_bits_f32(u);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)fp4_values[b[1 + i] & 15];
        y[i + 16] = d * (float)fp4_values[b[1 + i] >> 4];
    }
}

/* A block of 64 has four scales (four bits of exponent, three of mantissa, an ignored sign), halved as
 * above; the pattern of NaN is 0. Each is of 16 values: low nibbles are the first eight. As a half its
 * bits are those of a number 2^7 times too small. */
static void nvfp4(const uint8_t *b, float *y) {
    for (int i = 0; i < 64; i++) {
        uint8_t scale = b[i / 16], q = b[4 + i / 16 * 8 + i % 8];
        float d = scale == 0x7f ? 0 : tn_f16_f32((uint16_t)((scale & 0x7f) << 7)) * 128;
        y[i] = d * (float)fp4_values[i % 16 < 8 ? q & 15 : q >> 4];
    }
}

/* ---- values one after another, lowest bits first -------------------------------------------------- */

static void q1_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 128; i++) y[i] = b[2 + i / 8] >> (i % 8) & 1 ? d : -d;
}

static void q2_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 64; i++) y[i] = d * (float)((b[2 + i / 4] >> (i % 4 * 2) & 3) - 1);
}

/* A float, bytes, and sums of sixteen of these, which follow from them. */
static void q8_k(const uint8_t *b, float *y) {
    float d = tn_bits_f32(u32_at(b));
    for (int i = 0; i < 256; i++) y[i] = d * (float)(int8_t)b[4 + i];
}

/* ---- super-blocks of 256 -------------------------------------------------------------------------- */

/* A block has 16 groups of 16, with a 4-bit scale and minimum each, and two-bit values, four planes in 32
 * bytes. */
static void q2_k(const uint8_t *b, float *y) {
    const uint8_t *scales = b, *q = b + 16;
    float d = f16_at(b + 80), m = f16_at(b + 82);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, plane = i % 128 / 32, at = half * 32 + i % 32, group = i / 16;
        y[i] = d * (float)(scales[group] & 15) * (float)(q[at] >> (2 * plane) & 3) -
               m * (float)(scales[group] >> 4);
    }
}

/* A block has 16 groups of 16 with six-bit scales. The two low bits are as above; the high bit is in a mask
 * whose zero means minus four. */
static void q3_k(const uint8_t *b, float *y) {
    const uint8_t *mask = b, *q = b + 32, *s = b + 96;
    float d = f16_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, plane = i % 128 / 32, at = half * 32 + i % 32, group = i / 16;
        int low = group < 8 ? s[group] & 15 : s[group - 8] >> 4,
            high = s[8 + group % 4] >> (2 * (group / 4)) & 3;
        int v = (q[at] >> (2 * plane) & 3) - (mask[i % 32] >> (half * 4 + plane) & 1 ? 0 : 4);
        y[i] = d * (float)((low | high << 4) - 32) * (float)v;
    }
}

/* Reads scale and minimum of group g of 8, six bits each, packed in 12 bytes. */
static void scale_min(const uint8_t *s, int g, int *scale, int *min) {
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        *min = (s[g + 4] >> 4) | (s[g] >> 6) << 4;
    }
}

static void q4_k(const uint8_t *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale, min;
        scale_min(b + 4, g, &scale, &min);
        const uint8_t *q = b + 16 + g / 2 * 32;
        for (int i = 0; i < 32; i++)
            y[g * 32 + i] = d * (float)scale * (float)(g % 2 ? q[i] >> 4 : q[i] & 15) - m * (float)min;
    }
}

static void q5_k(const uint8_t *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale, min;
        scale_min(b + 4, g, &scale, &min);
        const uint8_t *high = b + 16, *q = b + 48 + g / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int v = (g % 2 ? q[i] >> 4 : q[i] & 15) | (high[i] >> g & 1) << 4;
            y[g * 32 + i] = d * (float)scale * (float)v - m * (float)min;
        }
    }
}

static void q6_k(const uint8_t *b, float *y) {
    const uint8_t *low = b, *high = b + 128;
    const int8_t *scales = (const int8_t *)(b + 192);
    float d = f16_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, in = i % 128, quarter = in / 32, l = in % 32;
        uint8_t nibble = low[half * 64 + (quarter % 2) * 32 + l];
        int v = (quarter < 2 ? nibble & 15 : nibble >> 4) | (high[half * 32 + l] >> (2 * quarter) & 3) << 4;
        y[i] = d * (float)scales[i / 16] * (float)(v - 32);
    }
}

/* A block has eight groups of 32 with six-bit scales around 32: four low bits in nibbles, two high ones in a
 * word. */
static void iq4_xs(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int g = 0; g < 8; g++) {
        int scale = (b[4 + g / 2] >> (4 * (g % 2)) & 15) | (b[2 + g / 4] >> (2 * (g % 4)) & 3) << 4;
        iq4_values_of(b + 8 + g * 16, d * (float)(scale - 32), y + g * 32);
    }
}

static void f16_row(const uint8_t *src, float *dst, uint64_t n) {
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint16_t h[16];
        memcpy(h, src + 2 * i, sizeof h);
        for (int l = 0; l < 16; l++) dst[i + (uint64_t)l] = tn_f16_f32(h[l]);
    }
    for (; i < n; i++) dst[i] = f16_at(src + 2 * i);
}

void tn_dequantise(tn_dtype d, const uint8_t *src, float *dst, uint64_t n) {
    static void (*const blocks[TN_N_DTYPES])(const uint8_t *, float *) = {
        [TN_Q8_0] = q8_0, [TN_Q4_0] = q4_0,     [TN_Q4_1] = q4_1,     [TN_Q5_0] = q5_0,   [TN_Q6_0] = q6_0,
        [TN_Q5_1] = q5_1, [TN_Q2_K] = q2_k,     [TN_Q3_K] = q3_k,     [TN_Q4_K] = q4_k,   [TN_Q5_K] = q5_k,
        [TN_Q6_K] = q6_k, [TN_IQ4_NL] = iq4_nl, [TN_IQ4_XS] = iq4_xs, [TN_MXFP4] = mxfp4, [TN_NVFP4] = nvfp4,
        [TN_Q1_0] = q1_0, [TN_Q2_0] = q2_0,     [TN_Q8_K] = q8_k,
    };
    if (d == TN_F32) {
        memcpy(dst, src, n * 4);
    } else if (d == TN_F16) {
        f16_row(src, dst, n);
    } else if (d == TN_BF16) {
        for (uint64_t i = 0; i < n; i++) dst[i] = tn_bf16_f32((uint16_t)(src[2 * i] | src[2 * i + 1] << 8));
    } else if (tn_ik_type(d)) {
        tn_ik_widen(d, src, dst, n);
    } else if (tn_code_type(d)) {
        for (uint64_t i = 0; i < n / TN_CODE_BLOCK; i++)
            tn_code_widen(d, src + i * (uint64_t)tn_dtype_block_bytes(d), dst + i * TN_CODE_BLOCK);
    } else {
        for (uint64_t i = 0; i < n / (uint64_t)tn_dtype_block(d); i++)
            blocks[d](src + i * (uint64_t)tn_dtype_block_bytes(d), dst + i * (uint64_t)tn_dtype_block(d));
    }
}
