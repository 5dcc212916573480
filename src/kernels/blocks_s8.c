/* The reference of blocks_s8.h: each value is looked up one by one where the layout says it lies. */
#include "kernels/blocks_s8.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { N = TN_BLOCKS_N };

const tn_blocks_traits tn_blocks_traits_of[TN_BLOCKS_N_TYPES] = {
    [TN_BLOCKS_Q8_0] = {"Q8_0", 32, 34, 128, 32, false},
    [TN_BLOCKS_Q4_0] = {"Q4_0", 32, 18, 8, 32, false},
    [TN_BLOCKS_Q4_1] = {"Q4_1", 32, 20, 0, 32, true},
    [TN_BLOCKS_Q5_0] = {"Q5_0", 32, 22, 16, 32, false},
    [TN_BLOCKS_Q5_1] = {"Q5_1", 32, 24, 0, 32, true},
    [TN_BLOCKS_Q2_K] = {"Q2_K", 256, 84, 0, 16, true},
    [TN_BLOCKS_Q3_K] = {"Q3_K", 256, 110, 4, 16, false},
    [TN_BLOCKS_Q4_K] = {"Q4_K", 256, 144, 0, 32, true},
    [TN_BLOCKS_Q5_K] = {"Q5_K", 256, 176, 0, 32, true},
    [TN_BLOCKS_Q6_K] = {"Q6_K", 256, 210, 32, 16, false},
    [TN_BLOCKS_IQ4_NL] = {"IQ4_NL", 32, 18, 128, 32, false},
    [TN_BLOCKS_IQ4_XS] = {"IQ4_XS", 256, 136, 128, 32, false},
    [TN_BLOCKS_MXFP4] = {"MXFP4", 32, 17, 12, 32, false},
    [TN_BLOCKS_IQ1] = {"IQ1", 256, 106, 9, 16, false},
    [TN_BLOCKS_IQ2] = {"IQ2", 256, 106, 43, 16, false},
    [TN_BLOCKS_IQ3_XXS] = {"IQ3_XXS", 256, 134, 62, 32, false},
    [TN_BLOCKS_IQ3_S] = {"IQ3_S", 256, 134, 15, 32, false},
    [TN_BLOCKS_TQ] = {"TQ", 256, 66, 1, 32, false},
    [TN_BLOCKS_Q1_0] = {"Q1_0", 128, 18, 1, 32, false},
    [TN_BLOCKS_Q2_0] = {"Q2_0", 64, 18, 1, 32, false},
    [TN_BLOCKS_NVFP4] = {"NVFP4", 64, 36, 12, 16, false},
    [TN_BLOCKS_IQ2_K] = {"IQ2_K", 256, 76, 31, 16, false},
    [TN_BLOCKS_IQ3_K] = {"IQ3_K", 256, 110, 63, 16, false},
    [TN_BLOCKS_IQ4_K] = {"IQ4_K", 256, 144, 128, 16, false},
    [TN_BLOCKS_IQ5_K] = {"IQ5_K", 256, 176, 128, 16, false},
    [TN_BLOCKS_IQ6_K] = {"IQ6_K", 256, 212, 128, 16, false},
    [TN_BLOCKS_IQ4_KS] = {"IQ4_KS", 256, 142, 128, 32, false},
    [TN_BLOCKS_IQ5_KS] = {"IQ5_KS", 256, 174, 128, 32, false},
    [TN_BLOCKS_IQ2_KS] = {"IQ2_KS", 256, 78, 33, 32, false},
    [TN_BLOCKS_IQ3_KS] = {"IQ3_KS", 256, 110, 63, 32, false},
    [TN_BLOCKS_KT] = {"KT", 256, 270, 128, 32, false},
};

size_t tn_blocks_bytes(tn_blocks_type type, size_t n, size_t k) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    assert(k % t->block == 0);
    return (n + N - 1) / N * N * (k / t->block) * t->bytes;
}

/* One channel of a chunk. */
typedef struct codes {
    uint8_t q[TN_BLOCKS_CHUNK];
    float s[TN_BLOCKS_GROUPS], b[TN_BLOCKS_GROUPS];
} codes;

static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return tn_f16_f32(h);
}

/* Byte `at` of a field, channel n. */
static unsigned byte(const uint8_t *src, size_t at, size_t n) { return src[at / 4 * 64 + n * 4 + at % 4]; }

/* Value k of nibbles: of every `span` bytes first the low nibbles, then the high ones. */
static unsigned nibble(const uint8_t *src, size_t k, size_t span, size_t n) {
    return byte(src, k / (2 * span) * span + k % span, n) >> (k / span % 2 * 4) & 15;
}

/* Bit pairs of 32 bytes: the lowest of all bytes, then the next of all, ... */
static unsigned pair(const uint8_t *src, size_t k, size_t n) {
    return byte(src, k / 128 * 32 + k % 32, n) >> (k / 32 % 4 * 2) & 3;
}

static unsigned wide_bit(const uint8_t *src, size_t k, size_t n) {
    return byte(src, k % 32, n) >> (k / 32) & 1;
}

/* Fields of `bits` bits of 16 bytes: the lowest of all bytes, then the next of all, ... */
static unsigned sixteenth(const uint8_t *src, size_t k, unsigned bits, size_t n) {
    const size_t block = 128 / bits;
    return byte(src, k / block * 16 + k % 16, n) >> (k % block / 16 * bits) & ((1u << bits) - 1);
}

static unsigned small_bit(const uint8_t *src, size_t k, size_t n) {
    return byte(src, k / 32 * 4 + k % 4, n) >> (k % 32 / 4) & 1;
}

static int six_bits(const uint8_t *src, size_t i, size_t n) {
    const uint8_t *l = src + i / 4 * 3 * N + n;
    return i % 4 < 3 ? l[i % 4 * N] & 63 : l[0] >> 6 | l[N] >> 6 << 2 | l[2 * N] >> 6 << 4;
}

static bool fields_of_pairs(tn_blocks_type t) {
    return t == TN_BLOCKS_Q2_K || t == TN_BLOCKS_Q3_K || t == TN_BLOCKS_IQ1 || t == TN_BLOCKS_IQ2 ||
           t == TN_BLOCKS_TQ || t == TN_BLOCKS_IQ2_K || t == TN_BLOCKS_IQ3_K || t == TN_BLOCKS_IQ2_KS ||
           t == TN_BLOCKS_IQ3_KS;
}

static float exponent(uint8_t e) { return ldexpf(1.0f, e - 128); }

/* The table's value for a number with a third bit, or a fourth. */
static int signed_value(const int8_t *list, unsigned code, int bits) {
    int v = list[code & ((1u << bits) - 1)];
    return code >> bits ? -v : v;
}

static int table_value(tn_blocks_type type, unsigned code) {
    static const int8_t iq1[4] = {-8, 0, 8}, iq2[4] = {8, 25, 43},
                        iq3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    switch (type) {
    case TN_BLOCKS_IQ1: return code % 4 < 3 ? iq1[code % 4] + (code / 4 ? -1 : 1) : 0;
    case TN_BLOCKS_IQ2: return signed_value(iq2, code, 2);
    case TN_BLOCKS_IQ3_XXS: return signed_value(iq3_xxs, code, 3);
    default: return code & 8 ? -(int)(2 * (code & 7) + 1) : (int)(2 * code + 1);
    }
}

/* A value of ik_llama.cpp's types by its number in the table. */
static int ik_value(tn_blocks_type type, unsigned code) {
    static const int8_t two[4] = {-31, -13, 1, 17}, three[8] = {-63, -40, -23, -10, 1, 13, 28, 47},
                        five[32] = {-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36,
                                    -30,  -24,  -18,  -12, -6,  -1,  5,   11,  17,  23,  29,
                                    36,   43,   51,   59,  68,  77,  87,  97,  109, 121},
                        six[64] = {-127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66,
                                   -62,  -58,  -54,  -51,  -47,  -44, -40, -37, -34, -31, -28, -25, -22,
                                   -19,  -16,  -13,  -11,  -8,   -5,  -2,  0,   3,   6,   9,   12,  14,
                                   17,   20,   23,   27,   30,   33,  36,  40,  44,  47,  51,  55,  59,
                                   63,   68,   72,   77,   82,   87,  92,  98,  103, 109, 115, 121};
    switch (type) {
    case TN_BLOCKS_IQ2_K:
    case TN_BLOCKS_IQ2_KS: return two[code];
    case TN_BLOCKS_IQ3_K:
    case TN_BLOCKS_IQ3_KS: return three[code];
    case TN_BLOCKS_IQ5_K:
    case TN_BLOCKS_IQ5_KS: return five[code];
    default: return six[code];
    }
}

/* Reads the values' codes. Returns where the scales begin. */
static const uint8_t *values(tn_blocks_type type, const uint8_t *src, size_t n_k, size_t n, uint8_t *q) {
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int8_t mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t *second = src + n_k * N / 2; /* after nibbles */
    const int offset = tn_blocks_traits_of[type].offset;
    if (fields_of_pairs(type)) second = src + n_k * N / 4;
    for (size_t k = 0; k < n_k; k++) {
        switch (type) {
        case TN_BLOCKS_KT:
        case TN_BLOCKS_Q8_0: q[k] = (uint8_t)(byte(src, k, n) ^ 0x80); break;
        case TN_BLOCKS_IQ4_K:
        case TN_BLOCKS_IQ4_KS:
        case TN_BLOCKS_IQ4_NL:
        case TN_BLOCKS_IQ4_XS: q[k] = (uint8_t)(iq4[nibble(src, k, 16, n)] + 128); break;
        case TN_BLOCKS_NVFP4:
        case TN_BLOCKS_MXFP4: q[k] = (uint8_t)(mxfp4[nibble(src, k, 16, n)] + 12); break;
        case TN_BLOCKS_Q4_0:
        case TN_BLOCKS_Q4_1: q[k] = (uint8_t)nibble(src, k, 16, n); break;
        case TN_BLOCKS_Q5_0:
        case TN_BLOCKS_Q5_1: q[k] = (uint8_t)(nibble(src, k, 16, n) | small_bit(second, k, n) << 4); break;
        case TN_BLOCKS_Q4_K: q[k] = (uint8_t)nibble(src, k, 32, n); break;
        case TN_BLOCKS_Q5_K: q[k] = (uint8_t)(nibble(src, k, 32, n) | wide_bit(second, k, n) << 4); break;
        case TN_BLOCKS_Q6_K: q[k] = (uint8_t)(nibble(src, k, 64, n) | pair(second, k, n) << 4); break;
        case TN_BLOCKS_Q2_K: q[k] = (uint8_t)pair(src, k, n); break;
        case TN_BLOCKS_Q3_K: q[k] = (uint8_t)(pair(src, k, n) | wide_bit(second, k, n) << 2); break;
        case TN_BLOCKS_TQ: q[k] = (uint8_t)pair(src, k, n); break;
        case TN_BLOCKS_Q1_0: q[k] = (uint8_t)(2 * sixteenth(src, k, 1, n)); break;
        case TN_BLOCKS_Q2_0: q[k] = (uint8_t)sixteenth(src, k, 2, n); break;
        case TN_BLOCKS_IQ1:
        case TN_BLOCKS_IQ2: {
            int v = table_value(type, pair(src, k, n) | wide_bit(second, k, n) << 2);
            q[k] = (uint8_t)(v + tn_blocks_traits_of[type].offset);
            break;
        }
        case TN_BLOCKS_IQ3_XXS:
        case TN_BLOCKS_IQ3_S:
            q[k] = (uint8_t)(table_value(type, nibble(src, k, 16, n)) + tn_blocks_traits_of[type].offset);
            break;
        case TN_BLOCKS_IQ2_K:
        case TN_BLOCKS_IQ2_KS: q[k] = (uint8_t)(ik_value(type, pair(src, k, n)) + offset); break;
        case TN_BLOCKS_IQ3_K:
        case TN_BLOCKS_IQ3_KS:
            q[k] = (uint8_t)(ik_value(type, pair(src, k, n) | wide_bit(second, k, n) << 2) + offset);
            break;
        case TN_BLOCKS_IQ5_K:
        case TN_BLOCKS_IQ5_KS:
            q[k] = (uint8_t)(ik_value(type, nibble(src, k, 32, n) | wide_bit(second, k, n) << 4) + offset);
            break;
        case TN_BLOCKS_IQ6_K:
            q[k] = (uint8_t)(ik_value(type, nibble(src, k, 32, n) | pair(second, k, n) << 4) + offset);
            break;
        case TN_BLOCKS_N_TYPES: break;
        }
    }
    switch (type) {
    case TN_BLOCKS_KT:
    case TN_BLOCKS_Q8_0: return src + n_k * N;
    case TN_BLOCKS_Q1_0: return src + n_k * N / 8;
    case TN_BLOCKS_Q2_0: return src + n_k * N / 4;
    case TN_BLOCKS_Q5_0:
    case TN_BLOCKS_Q5_1:
    case TN_BLOCKS_Q5_K:
    case TN_BLOCKS_IQ1:
    case TN_BLOCKS_IQ2:
    case TN_BLOCKS_IQ3_K:
    case TN_BLOCKS_IQ3_KS:
    case TN_BLOCKS_IQ5_K:
    case TN_BLOCKS_IQ5_KS:
    case TN_BLOCKS_Q3_K: return second + n_k * N / 8;
    case TN_BLOCKS_IQ6_K:
    case TN_BLOCKS_Q6_K: return second + n_k * N / 4;
    default: return second;
    }
}

static unsigned sixteen_bits(const uint8_t *src, size_t n) {
    return src[2 * n] | (unsigned)src[2 * n + 1] << 8;
}

/* The whole number that scales group g of an ik type. */
static int ik_scale(tn_blocks_type type, const uint8_t *src, size_t g, size_t n) {
    const int four = src[g / 2 * N + n] >> (g % 2 * 4) & 15;
    switch (type) {
    case TN_BLOCKS_IQ2_K: return four - 8;
    case TN_BLOCKS_IQ3_K: return sixteen_bits(src + 10 * N, n) >> g & 1 ? -(2 * four + 1) : 2 * four + 1;
    case TN_BLOCKS_IQ4_K:
    case TN_BLOCKS_IQ5_K: return six_bits(src, g, n) - 32;
    default: return (int8_t)src[g * N + n];
    }
}

/* Scales of an ik type at src, and values whose table is the second. */
static void decode_ik(tn_blocks_type type, const uint8_t *src, size_t n, codes *c) {
    static const struct {
        uint8_t second, d, step;
    } of[TN_BLOCKS_N_TYPES] = {
        [TN_BLOCKS_IQ2_K] = {8, 10, 5},  [TN_BLOCKS_IQ3_K] = {8, 12, 4},  [TN_BLOCKS_IQ4_K] = {12, 14, 4},
        [TN_BLOCKS_IQ5_K] = {12, 14, 2}, [TN_BLOCKS_IQ6_K] = {16, 18, 1}, [TN_BLOCKS_IQ4_KS] = {8, 10, 4},
        [TN_BLOCKS_IQ5_KS] = {8, 10, 2}, [TN_BLOCKS_IQ2_KS] = {8, 10, 5}, [TN_BLOCKS_IQ3_KS] = {8, 10, 4},
        [TN_BLOCKS_KT] = {8, 10, 0},
    };
    const size_t group = tn_blocks_traits_of[type].group;
    const unsigned second = sixteen_bits(src + of[type].second * N, n);
    float d;
    if (group == 16) d = half_at(src + of[type].d * N + 2 * n);
    else memcpy(&d, src + of[type].d * N + 4 * n, sizeof d);
    for (size_t g = 0; g < TN_BLOCKS_CHUNK / group; g++) {
        c->b[g] = 0;
        c->s[g] = d * (float)ik_scale(type, src, g, n);
    }
    for (size_t k = 0; k < TN_BLOCKS_CHUNK; k++)
        c->q[k] = (uint8_t)(c->q[k] + (second >> (k / 16) & 1) * of[type].step);
}

/* Channel n of the chunk at src, n_k input channels. */
static void decode(tn_blocks_type type, const uint8_t *src, size_t n_k, size_t n, codes *c) {
    src = values(type, src, n_k, n, c->q);
    if (type >= TN_BLOCKS_IQ2_K) {
        decode_ik(type, src, n, c);
        return;
    }
    size_t n_groups = n_k / tn_blocks_traits_of[type].group;
    for (size_t g = 0; g < n_groups; g++) {
        c->b[g] = 0;
        switch (type) {
        case TN_BLOCKS_Q2_K:
            c->s[g] = half_at(src + 16 * N + 2 * n) * (float)(src[g * N + n] & 15);
            c->b[g] = -(half_at(src + 18 * N + 2 * n) * (float)(src[g * N + n] >> 4));
            break;
        case TN_BLOCKS_Q3_K:
            c->s[g] = half_at(src + 12 * N + 2 * n) * (float)(six_bits(src, g, n) - 32);
            break;
        case TN_BLOCKS_Q4_K:
        case TN_BLOCKS_Q5_K:
            c->s[g] = half_at(src + 12 * N + 2 * n) * (float)six_bits(src, g, n);
            c->b[g] = -(half_at(src + 14 * N + 2 * n) * (float)six_bits(src + 6 * N, g, n));
            break;
        case TN_BLOCKS_IQ4_XS:
            c->s[g] = half_at(src + 6 * N + 2 * n) * (float)(six_bits(src, g, n) - 32);
            break;
        case TN_BLOCKS_Q6_K: c->s[g] = half_at(src + 16 * N + 2 * n) * (float)(int8_t)src[g * N + n]; break;
        case TN_BLOCKS_MXFP4: c->s[g] = exponent(src[g * N + n]); break;
        case TN_BLOCKS_TQ: c->s[g] = half_at(src + 2 * n); break;
        case TN_BLOCKS_Q1_0:
        case TN_BLOCKS_Q2_0:
            c->s[g] = half_at(src + g * 32 / tn_blocks_traits_of[type].block * 2 * N + 2 * n);
            break;
        case TN_BLOCKS_NVFP4: c->s[g] = tn_f16_f32((uint16_t)(src[g * N + n] << 7)) * 128; break;
        case TN_BLOCKS_IQ1:
        case TN_BLOCKS_IQ2:
        case TN_BLOCKS_IQ3_XXS:
        case TN_BLOCKS_IQ3_S: {
            float unit = type == TN_BLOCKS_IQ3_S ? 1 : type == TN_BLOCKS_IQ3_XXS ? 0.25f : 0.125f;
            int four = src[g / 2 * N + n] >> (g % 2 * 4) & 15;
            c->s[g] = half_at(src + n_groups / 2 * N + 2 * n) * unit * (float)(2 * four + 1);
            break;
        }
        default:
            c->s[g] = half_at(src + g * 2 * N + 2 * n);
            if (tn_blocks_traits_of[type].has_min) c->b[g] = half_at(src + (n_groups + g) * 2 * N + 2 * n);
        }
    }
}

static size_t chunk_len(size_t c, size_t k) {
    return k - c * TN_BLOCKS_CHUNK < TN_BLOCKS_CHUNK ? k - c * TN_BLOCKS_CHUNK : TN_BLOCKS_CHUNK;
}

static const uint8_t *chunk_at(tn_blocks_type type, const uint8_t *tiles, size_t n, size_t k, size_t c) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    return tiles + n / N * tn_blocks_bytes(type, N, k) +
           c * (size_t)(TN_BLOCKS_CHUNK / t->block) * t->bytes * N;
}

void tn_blocks_row(tn_blocks_type type, const uint8_t *tiles, size_t n, size_t k, float *out) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    for (size_t c = 0; c < tn_blocks_n_chunks(k); c++) {
        codes w;
        size_t n_k = chunk_len(c, k);
        decode(type, chunk_at(type, tiles, n, k, c), n_k, n % N, &w);
        for (size_t i = 0; i < n_k; i++) {
            float v = w.s[i / t->group] * (float)(w.q[i] - t->offset);
            *out++ = t->has_min ? v + w.b[i / t->group] : v;
        }
    }
}

void tn_blocks_quantise_ref(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                            size_t stride) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    for (size_t c = 0; c < tn_blocks_n_chunks(k); c++, out += stride) {
        size_t n_k = chunk_len(c, k);
        const float *v = x + c * TN_BLOCKS_CHUNK;
        for (size_t i0 = 0; i0 < n_k; i0 += TN_BLOCKS_ACT) {
            size_t i1 = i0 + TN_BLOCKS_ACT < n_k ? i0 + TN_BLOCKS_ACT : n_k;
            float max = 0;
            for (size_t i = i0; i < i1; i++) max = fabsf(v[i]) > max ? fabsf(v[i]) : max;
            out->scale[i0 / TN_BLOCKS_ACT] = max / 127;
            float inverse = 127 / max;
            for (size_t i = i0; i < i1; i++) {
                float q = v[i] * inverse;
                out->q[i] = q != q ? 0 : (int8_t)rintf(q > 127 ? 127 : q < -127 ? -127 : q);
            }
        }
        for (size_t g = 0; g < n_k / t->group; g++) {
            int32_t sum = 0;
            for (size_t i = 0; i < t->group; i++) sum += out->q[g * t->group + i];
            if (t->has_min) out->of.sum[g] = (float)sum;
            else out->of.start[g] = -(int32_t)t->offset * sum;
        }
    }
}

void tn_blocks_gemm_ref(const tn_blocks_args *g) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[g->type];
    assert(g->n0 % N == 0 && g->n1 <= g->n && (g->n1 % N == 0 || g->n1 == g->n) && g->k % 32 == 0);
    for (size_t n = g->n0; n < g->n1; n++) {
        for (size_t m = 0; m < g->m; m++) g->out[m * g->ldo + n] = 0;
        for (size_t c = 0; c < tn_blocks_n_chunks(g->k); c++) {
            codes w;
            size_t n_k = chunk_len(c, g->k);
            decode(g->type, chunk_at(g->type, g->tiles, n, g->k, c), n_k, n % N, &w);
            for (size_t m = 0; m < g->m; m++) {
                const tn_blocks_act *a = g->a + c * g->m + m;
                float *acc = &g->out[m * g->ldo + n];
                for (size_t k = 0; k < n_k;) {
                    float p = 0, scale = a->scale[k / TN_BLOCKS_ACT];
                    size_t end = k + TN_BLOCKS_ACT < n_k ? k + TN_BLOCKS_ACT : n_k;
                    for (; k < end; k += t->group) {
                        int32_t sum = t->has_min ? 0 : a->of.start[k / t->group];
                        for (size_t i = k; i < k + t->group; i++) sum += w.q[i] * a->q[i];
                        p = fmaf((float)sum, w.s[k / t->group], p);
                        if (t->has_min) p = fmaf(w.b[k / t->group], a->of.sum[k / t->group], p);
                    }
                    *acc = fmaf(p, scale, *acc);
                }
            }
        }
        for (size_t m = 0; g->bias && m < g->m; m++) g->out[m * g->ldo + n] += g->bias[n];
    }
}
