/* From a GGUF file's rows of blocks to tiles (blocks_s8.h): words of 16 rows side by side, scales apart. */
#include "kernels/blocks_s8.h"

#include <string.h>

enum { N = TN_BLOCKS_N, LINE = 64 };

/* Four channels at once: four words of each are transposed in registers, in a fifth of the time of single
 * words. A cold start waits for this. */
enum { AT_ONCE = 4, CHUNK_BYTES = TN_BLOCKS_CHUNK / 32 * 34 /* of Q8_0, at most */ };

typedef uint32_t words __attribute__((vector_size(16)));
#if defined(__clang__)
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (words){i, j, k, l})
#endif

static inline words load_words(const uint8_t *p) {
    words w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* The words of one field, n_bytes (a multiple of 16) at offset `at` of the blocks b of channels n .. n + 3.
 * Returns where the next field's lines begin. */
static inline uint8_t *turn(uint8_t *to, const uint8_t *const b[AT_ONCE], size_t at, size_t n_bytes,
                            size_t n) {
    for (size_t i = at; i < at + n_bytes; i += sizeof(words), to += 4 * LINE) {
        const words w0 = load_words(b[0] + i), w1 = load_words(b[1] + i), w2 = load_words(b[2] + i),
                    w3 = load_words(b[3] + i), lo01 = PICK(w0, w1, 0, 4, 1, 5),
                    hi01 = PICK(w0, w1, 2, 6, 3, 7), lo23 = PICK(w2, w3, 0, 4, 1, 5),
                    hi23 = PICK(w2, w3, 2, 6, 3, 7),
                    lines[4] = {PICK(lo01, lo23, 0, 1, 4, 5), PICK(lo01, lo23, 2, 3, 6, 7),
                                PICK(hi01, hi23, 0, 1, 4, 5), PICK(hi01, hi23, 2, 3, 6, 7)};
        for (size_t l = 0; l < 4; l++) memcpy(to + l * LINE + n * 4, &lines[l], sizeof lines[l]);
    }
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

/* Channel n's scales of ik_llama.cpp's types: from the file's block, or from that of tn_blocks_from_ik. */
static void put_ik_scales(tn_blocks_type type, uint8_t *to, const uint8_t *b, size_t n) {
    const size_t at = tn_blocks_traits_of[type].bytes - 14u; /* in a block of tn_blocks_from_ik */
    uint8_t v[16];
    switch (type) {
    case TN_BLOCKS_IQ2_K:
    case TN_BLOCKS_IQ3_K: {
        const bool signs = type == TN_BLOCKS_IQ3_K;
        for (size_t g = 0; g < 8; g++) to[g * N + n] = b[(signs ? 6 : 4) + g];
        put_halves(to + 8 * N, b + 2, 2, signs ? 2 : 1, n);
        put_halves(to + (signs ? 12 : 10) * N, b, 2, 1, n);
        break;
    }
    case TN_BLOCKS_IQ4_K:
    case TN_BLOCKS_IQ5_K:
        for (int g = 0; g < 16; g++)
            v[g] = (uint8_t)((b[8 + g / 2] >> (4 * (g % 2)) & 15) | (b[4 + g / 4] >> (2 * (g % 4)) & 3) << 4);
        put_six(to, v, 16, n);
        put_halves(to + 12 * N, b + 2, 2, 1, n);
        put_halves(to + 14 * N, b, 2, 1, n);
        break;
    case TN_BLOCKS_IQ6_K:
        for (size_t g = 0; g < 16; g++) to[g * N + n] = b[4 + g];
        put_halves(to + 16 * N, b + 2, 2, 1, n);
        put_halves(to + 18 * N, b, 2, 1, n);
        break;
    default:
        for (size_t g = 0; g < 8; g++) to[g * N + n] = b[at + g];
        put_halves(to + 8 * N, b + at + 8, 2, 1, n);
        memcpy(to + 10 * N + 4 * n, b + at + 10, 4);
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
    case TN_BLOCKS_IQ1:
    case TN_BLOCKS_IQ2:
        for (size_t g = 0; g < 8; g++) to[g * N + n] = b[96 + g];
        put_halves(to + 8 * N, b + 104, 2, 1, n);
        break;
    case TN_BLOCKS_IQ3_XXS:
    case TN_BLOCKS_IQ3_S:
        for (size_t g = 0; g < 4; g++) to[g * N + n] = b[128 + g];
        put_halves(to + 4 * N, b + 132, 2, 1, n);
        break;
    case TN_BLOCKS_TQ: put_halves(to, b + 64, 2, 1, n); break;
    default: put_ik_scales(type, to, b, n);
    }
}

static void put_scales(tn_blocks_type type, uint8_t *to, const uint8_t *b, size_t n_k, size_t n) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    size_t n_blocks = n_k / 32;
    if (t->block == TN_BLOCKS_CHUNK) {
        put_k_scales(type, to, b, n);
    } else if (type == TN_BLOCKS_NVFP4) { /* without the pattern of NaN, and without the sign */
        for (size_t g = 0; g < n_k / 16; g++) {
            uint8_t scale = b[g / 4 * 36 + g % 4];
            to[g * N + n] = scale == 0x7f ? 0 : scale & 0x7f;
        }
    } else if (type == TN_BLOCKS_Q1_0 || type == TN_BLOCKS_Q2_0) {
        put_halves(to, b, t->bytes, n_k / t->block, n);
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

/* A block's values in the order of its tile: NVFP4's 64 nibbles as two blocks of MXFP4, others as 16 bytes.
 * Returns their bytes. */
static size_t reorder(tn_blocks_type type, const uint8_t *b, uint8_t out[32]) {
    memset(out, 0, 32);
    for (size_t k = 0; k < tn_blocks_traits_of[type].block; k++) {
        if (type == TN_BLOCKS_NVFP4)
            out[k / 32 * 16 + k % 16] |=
                (uint8_t)((b[4 + k / 16 * 8 + k % 8] >> (k % 16 / 8 * 4) & 15) << (k / 16 % 2 * 4));
        else if (type == TN_BLOCKS_Q1_0) out[k % 16] |= (uint8_t)((b[2 + k / 8] >> (k % 8) & 1) << (k / 16));
        else out[k % 16] |= (uint8_t)((b[2 + k / 4] >> (k % 4 * 2) & 3) << (k / 16 * 2));
    }
    return type == TN_BLOCKS_NVFP4 ? 32 : 16;
}

/* The values of a chunk of channels n .. n + 3 from their blocks b. Returns where the scales begin. */
static uint8_t *put_values(tn_blocks_type type, uint8_t *to, const uint8_t *const b[AT_ONCE], size_t n_k,
                           size_t n) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    switch (type) {
    case TN_BLOCKS_Q2_K: return turn(to, b, 16, 64, n);
    case TN_BLOCKS_Q3_K: return turn(turn(to, b, 32, 64, n), b, 0, 32, n);
    case TN_BLOCKS_Q4_K: return turn(to, b, 16, 128, n);
    case TN_BLOCKS_Q5_K: return turn(turn(to, b, 48, 128, n), b, 16, 32, n);
    case TN_BLOCKS_Q6_K: return turn(turn(to, b, 0, 128, n), b, 128, 64, n);
    case TN_BLOCKS_IQ4_XS: return turn(to, b, 8, 128, n);
    case TN_BLOCKS_IQ1:
    case TN_BLOCKS_IQ2: return turn(turn(to, b, 0, 64, n), b, 64, 32, n);
    case TN_BLOCKS_IQ3_XXS:
    case TN_BLOCKS_IQ3_S: return turn(to, b, 0, 128, n);
    case TN_BLOCKS_IQ2_KS:
    case TN_BLOCKS_TQ: return turn(to, b, 0, 64, n);
    case TN_BLOCKS_IQ2_K: return turn(to, b, 12, 64, n);
    case TN_BLOCKS_IQ3_K: return turn(turn(to, b, 14, 64, n), b, 78, 32, n);
    case TN_BLOCKS_IQ4_K: return turn(to, b, 16, 128, n);
    case TN_BLOCKS_IQ5_K: return turn(turn(to, b, 16, 128, n), b, 144, 32, n);
    case TN_BLOCKS_IQ6_K: return turn(turn(to, b, 20, 128, n), b, 148, 64, n);
    case TN_BLOCKS_IQ4_KS: return turn(to, b, 0, 128, n);
    case TN_BLOCKS_IQ5_KS: return turn(to, b, 0, 160, n);
    case TN_BLOCKS_IQ3_KS: return turn(to, b, 0, 96, n);
    case TN_BLOCKS_KT: return turn(to, b, 0, 256, n);
    case TN_BLOCKS_Q1_0:
    case TN_BLOCKS_Q2_0:
    case TN_BLOCKS_NVFP4:
        for (size_t k = 0, at = 0; k < n_k; k += t->block, at += t->bytes) {
            uint8_t ordered[AT_ONCE][32];
            const uint8_t *o[AT_ONCE];
            size_t n_ordered = 0;
            for (size_t i = 0; i < AT_ONCE; i++) {
                n_ordered = reorder(type, b[i] + at, ordered[i]);
                o[i] = ordered[i];
            }
            to = turn(to, o, 0, n_ordered, n);
        }
        return to;
    default: break;
    }
    const small_fields *f = &small_fields_of[type];
    for (size_t g = 0; g < n_k / 32; g++) to = turn(to, b, g * t->bytes + f->qs, f->n_qs, n);
    for (size_t g = 0; f->high && g < n_k / 32; g++, to += LINE) {
        for (size_t i = 0; i < AT_ONCE; i++) {
            uint32_t high;
            memcpy(&high, b[i] + g * t->bytes + f->high, sizeof high);
            high = spread(high);
            memcpy(to + (n + i) * 4, &high, sizeof high);
        }
    }
    return to;
}

void tn_blocks_repack(tn_blocks_type type, const uint8_t *const *rows, size_t n_rows, size_t k,
                      uint8_t *tile) {
    static const uint8_t zeros[CHUNK_BYTES]; /* blocks of a missing channel */
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    for (size_t c = 0; c < tn_blocks_n_chunks(k); c++) {
        size_t k0 = c * TN_BLOCKS_CHUNK, n_k = k - k0 < TN_BLOCKS_CHUNK ? k - k0 : TN_BLOCKS_CHUNK,
               at = k0 / t->block * t->bytes;
        for (size_t n = 0; n < N; n += AT_ONCE) {
            const uint8_t *b[AT_ONCE];
            for (size_t i = 0; i < AT_ONCE; i++) b[i] = n + i < n_rows ? rows[n + i] + at : zeros;
            uint8_t *scales = put_values(type, tile, b, n_k, n);
            for (size_t i = 0; i < AT_ONCE; i++) put_scales(type, scales, b[i], n_k, n + i);
        }
        tile += n_k / t->block * t->bytes * N;
    }
}

void tn_blocks_from_codes(tn_blocks_type type, const uint8_t codes[TN_BLOCKS_CHUNK],
                          const uint8_t scales[TN_BLOCKS_GROUPS], uint16_t d, uint8_t *block) {
    const bool nibbles = type == TN_BLOCKS_IQ3_XXS || type == TN_BLOCKS_IQ3_S;
    const size_t n_scales = nibbles ? 8 : type == TN_BLOCKS_TQ ? 0 : 16;
    memset(block, 0, tn_blocks_traits_of[type].bytes);
    for (size_t k = 0; k < TN_BLOCKS_CHUNK; k++) {
        if (nibbles) {
            block[k / 32 * 16 + k % 16] |= (uint8_t)(codes[k] << (k / 16 % 2 * 4));
            continue;
        }
        block[k / 128 * 32 + k % 32] |= (uint8_t)((codes[k] & 3) << (k / 32 % 4 * 2));
        if (type != TN_BLOCKS_TQ) block[64 + k % 32] |= (uint8_t)((codes[k] >> 2) << (k / 32));
    }
    block += nibbles ? 128 : type == TN_BLOCKS_TQ ? 64 : 96;
    for (size_t g = 0; g < n_scales; g++)
        block[g / 2] |= (uint8_t)(scales[g * TN_BLOCKS_GROUPS / n_scales] << (g % 2 * 4));
    memcpy(block + n_scales / 2, &d, sizeof d);
}

void tn_blocks_from_ik(tn_blocks_type type, const uint8_t codes[TN_BLOCKS_CHUNK],
                       const int8_t scales[TN_BLOCKS_GROUPS], uint16_t second, float d, uint8_t *block) {
    memset(block, 0, tn_blocks_traits_of[type].bytes);
    for (size_t k = 0; k < TN_BLOCKS_CHUNK; k++) {
        const unsigned c = codes[k];
        switch (type) {
        case TN_BLOCKS_IQ4_KS: block[k / 32 * 16 + k % 16] |= (uint8_t)(c << (k / 16 % 2 * 4)); break;
        case TN_BLOCKS_IQ5_KS:
            block[k / 64 * 32 + k % 32] |= (uint8_t)((c & 15) << (k / 32 % 2 * 4));
            block[128 + k % 32] |= (uint8_t)((c >> 4) << (k / 32));
            break;
        case TN_BLOCKS_KT: block[k] = (uint8_t)(c ^ 0x80); break;
        default:
            block[k / 128 * 32 + k % 32] |= (uint8_t)((c & 3) << (k / 32 % 4 * 2));
            if (type == TN_BLOCKS_IQ3_KS) block[64 + k % 32] |= (uint8_t)((c >> 2) << (k / 32));
        }
    }
    block += tn_blocks_traits_of[type].bytes - 14;
    for (size_t g = 0; g < 8; g++) block[g] = (uint8_t)scales[2 * g];
    memcpy(block + 8, &second, sizeof second);
    memcpy(block + 10, &d, sizeof d);
}

/* Offsets of a block's f16 values; -1: none. */
static void half_places(tn_blocks_type type, int at[2]) {
    at[0] = 0, at[1] = -1;
    switch (type) {
    case TN_BLOCKS_Q2_K: at[0] = 80, at[1] = 82; break;
    case TN_BLOCKS_Q3_K: at[0] = 108; break;
    case TN_BLOCKS_Q6_K: at[0] = 208; break;
    case TN_BLOCKS_TQ: at[0] = 64; break; /* of TQ2_0, whose blocks are those of the form */
    case TN_BLOCKS_NVFP4:                 /* all are finite */
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
