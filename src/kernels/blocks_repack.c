/* From a GGUF file's rows of blocks to tiles (blocks_s8.h): words of 16 rows side by side, scales apart. */
#include "kernels/blocks_s8.h"

#include <string.h>

enum { N = TN_BLOCKS_N, LINE = 64 };

/* Channel n's words of one field. Returns where the next field's lines begin. */
static inline uint8_t *turn(uint8_t *to, const uint8_t *field, size_t n_bytes, size_t n) {
    for (size_t i = 0; i < n_bytes; i += 4, to += LINE) memcpy(to + n * 4, field + i, 4);
    return to;
}

/* The fifth bits of a block of 32, from bit i for value i to bit i of byte j for value 4 i + j. */
static uint32_t spread(uint32_t bits) {
    uint32_t out = 0;
    for (int i = 0; i < 8; i++) /* four bits to four bytes */
        out |= ((bits >> (4 * i) & 15) * 0x00204081u & 0x01010101u) << i;
    return out;
}

/* Channel n's f16 at b, for each of n_groups blocks. */
static void put_halves(uint8_t *to, const uint8_t *b, size_t stride, size_t n_groups, size_t n) {
    for (size_t g = 0; g < n_groups; g++) memcpy(to + (g * N + n) * 2, b + g * stride, 2);
}

/* Channel n's six-bit numbers. */
static void put_six(uint8_t *to, const uint8_t *v, size_t n_numbers, size_t n) {
    for (size_t i = 0; i < n_numbers; i += 4, to += 3 * N) {
        for (size_t j = 0; j < 3; j++) to[j * N + n] = (uint8_t)(v[i + j] | (v[i + 3] >> (2 * j) & 3) << 6);
    }
}

/* Channel n's scales of a chunk of K type. */
static void put_k_scales(tn_blocks_type type, uint8_t *to, const uint8_t *b, size_t n) {
    uint8_t v[16];
    switch (type) {
    case TN_BLOCKS_Q4_K:
    case TN_BLOCKS_Q5_K: {
        const uint8_t *s = b + 4;
        for (int g = 0; g < 8; g++) {
            v[g] = (uint8_t)(g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4);
            v[g + 8] = (uint8_t)(g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4);
        }
        put_six(to, v, 16, n);
        put_halves(to + 12 * N, b, 2, 2, n);
        break;
    }
    case TN_BLOCKS_Q3_K: {
        const uint8_t *s = b + 96;
        for (int g = 0; g < 16; g++)
            v[g] = (uint8_t)((g < 8 ? s[g] & 15 : s[g - 8] >> 4) | (s[8 + g % 4] >> (2 * (g / 4)) & 3) << 4);
        put_six(to, v, 16, n);
        put_halves(to + 12 * N, b + 108, 2, 1, n);
        break;
    }
    case TN_BLOCKS_IQ4_XS:
        for (int g = 0; g < 8; g++)
            v[g] = (uint8_t)((b[4 + g / 2] >> (4 * (g % 2)) & 15) | (b[2 + g / 4] >> (2 * (g % 4)) & 3) << 4);
        put_six(to, v, 8, n);
        put_halves(to + 6 * N, b, 2, 1, n);
        break;
    case TN_BLOCKS_Q2_K:
        for (size_t g = 0; g < 16; g++) to[g * N + n] = b[g];
        put_halves(to + 16 * N, b + 80, 2, 2, n);
        break;
    case TN_BLOCKS_Q6_K:
        for (size_t g = 0; g < 16; g++) to[g * N + n] = b[192 + g];
        put_halves(to + 16 * N, b + 208, 2, 1, n);
        break;
    default: break;
    }
}

static void put_scales(tn_blocks_type type, uint8_t *to, const uint8_t *b, size_t n_k, size_t n) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    size_t n_blocks = n_k / 32;
    if (t->block == TN_BLOCKS_CHUNK) {
        put_k_scales(type, to, b, n);
    } else if (type == TN_BLOCKS_MXFP4) {
        for (size_t g = 0; g < n_blocks; g++) to[g * N + n] = b[g * t->bytes];
    } else {
        put_halves(to, b, t->bytes, n_blocks, n);
        if (t->has_min) put_halves(to + n_blocks * 2 * N, b + 2, t->bytes, n_blocks, n);
    }
}

/* Fields of a block of 32: where qs begin, how many bytes, where the fifth bits are (0: none). */
typedef struct small_fields {
    uint8_t qs, n_qs, high;
} small_fields;
static const small_fields small_fields_of[TN_BLOCKS_N_TYPES] = {
    [TN_BLOCKS_Q8_0] = {2, 32, 0},  [TN_BLOCKS_Q4_0] = {2, 16, 0}, [TN_BLOCKS_Q4_1] = {4, 16, 0},
    [TN_BLOCKS_Q5_0] = {6, 16, 2},  [TN_BLOCKS_Q5_1] = {8, 16, 4}, [TN_BLOCKS_IQ4_NL] = {2, 16, 0},
    [TN_BLOCKS_MXFP4] = {1, 16, 0},
};

/* Channel n's values of a chunk, b being its blocks; returns where the scales begin. */
static uint8_t *put_values(tn_blocks_type type, uint8_t *to, const uint8_t *b, size_t n_k, size_t n) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    switch (type) {
    case TN_BLOCKS_Q2_K: return turn(to, b + 16, 64, n);
    case TN_BLOCKS_Q3_K: return turn(turn(to, b + 32, 64, n), b, 32, n);
    case TN_BLOCKS_Q4_K: return turn(to, b + 16, 128, n);
    case TN_BLOCKS_Q5_K: return turn(turn(to, b + 48, 128, n), b + 16, 32, n);
    case TN_BLOCKS_Q6_K: return turn(turn(to, b, 128, n), b + 128, 64, n);
    case TN_BLOCKS_IQ4_XS: return turn(to, b + 8, 128, n);
    default: break;
    }
    const small_fields *f = &small_fields_of[type];
    for (size_t g = 0; g < n_k / 32; g++) to = turn(to, b + g * t->bytes + f->qs, f->n_qs, n);
    for (size_t g = 0; f->high && g < n_k / 32; g++, to += LINE) {
        uint32_t high;
        memcpy(&high, b + g * t->bytes + f->high, sizeof high);
        high = spread(high);
        memcpy(to + n * 4, &high, sizeof high);
    }
    return to;
}

void tn_blocks_repack(tn_blocks_type type, const uint8_t *const *rows, size_t n_rows, size_t k,
                      uint8_t *tile) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    if (n_rows < N) memset(tile, 0, tn_blocks_bytes(type, N, k));
    for (size_t c = 0; c < tn_blocks_n_chunks(k); c++) {
        size_t k0 = c * TN_BLOCKS_CHUNK, n_k = k - k0 < TN_BLOCKS_CHUNK ? k - k0 : TN_BLOCKS_CHUNK,
               at = k0 / t->block * t->bytes;
        for (size_t n = 0; n < n_rows; n++) {
            uint8_t *scales = put_values(type, tile, rows[n] + at, n_k, n);
            put_scales(type, scales, rows[n] + at, n_k, n);
        }
        tile += n_k / t->block * t->bytes * N;
    }
}

/* Where a block's f16 lie: -1 for none. */
static void half_places(tn_blocks_type type, int at[2]) {
    at[0] = 0, at[1] = -1;
    switch (type) {
    case TN_BLOCKS_Q2_K: at[0] = 80, at[1] = 82; break;
    case TN_BLOCKS_Q3_K: at[0] = 108; break;
    case TN_BLOCKS_Q6_K: at[0] = 208; break;
    case TN_BLOCKS_MXFP4: at[0] = -1; break;
    default:
        if (tn_blocks_traits_of[type].has_min) at[1] = 2;
    }
}

bool tn_blocks_finite(tn_blocks_type type, const uint8_t *src, size_t n_bytes) {
    int at[2];
    half_places(type, at);
    for (size_t i = 0; i < n_bytes; i += tn_blocks_traits_of[type].bytes) {
        for (int h = 0; h < 2; h++) {
            uint16_t v;
            if (at[h] < 0) continue;
            memcpy(&v, src + i + (size_t)at[h], sizeof v);
            if ((v & 0x7c00) == 0x7c00) return false;
        }
        /* 12 * 2^(e - 128) is finite up to e = 252 */
        if (type == TN_BLOCKS_MXFP4 && src[i] > 252) return false;
    }
    return true;
}
