/* kernels/blocks_unpack.h - a chunk of a tile (blocks_s8.h) to bytes and floats, by vectors of the compiler's
 * own: written once, compiled for each instruction set. A line of 64 bytes goes in parts as wide as a
 * register: of wider vectors the compiler makes scalars and copies on the stack. The file that includes it
 * defines before:
 *   LANES                 floats of a register
 *   lookup(i, table)      a slice of indices below 16 to the table's bytes
 *   halves(src)           LANES f16 to floats
 *   BYTE_SHIFTS           1: bytes are shifted by one instruction
 *   floats(v, at, sign)   bytes at.. of 16, LANES of them, taken with a sign or without, to floats */
#include "kernels/blocks_s8.h"

#include <string.h>

#pragma GCC diagnostic ignored                                                                               \
    "-Wpsabi" /* wide vectors pass between functions of this file only, all inlined */
#define INLINE static inline __attribute__((always_inline))

#define SLICE (LANES * 4)
enum {
    LINE = 64,
    CHUNK_LINES = TN_BLOCKS_CHUNK / 4,
    N = TN_BLOCKS_N,
    AT_A_TIME = LANES == 4 ? 4 : 1 /* slices of a line that are loaded before any is stored */
};

typedef uint8_t slice __attribute__((vector_size(SLICE), aligned(1), may_alias));
typedef uint16_t slice_pairs __attribute__((vector_size(SLICE), aligned(1), may_alias));
typedef uint8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t pairs16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t bytes_of_slice __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef float slice_floats __attribute__((vector_size(SLICE), aligned(4), may_alias));
typedef uint32_t slice_words __attribute__((vector_size(SLICE), aligned(4), may_alias));

/* A chunk of one tile: q [line][16 channels][4], s and b [group][16 channels]. */
typedef struct panel {
    uint8_t q[CHUNK_LINES][LINE];
    float s[TN_BLOCKS_GROUPS][N], b[TN_BLOCKS_GROUPS][N];
} panel;

static const uint8_t iq4_values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241}; /* + 128 */
static const uint8_t mxfp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                         12, 11, 10, 9,  8,  6,  4,  0}; /* + 12 */

INLINE slice load(const uint8_t *p) { return *(const slice *)p; }
INLINE void put(uint8_t *p, slice v) { *(slice *)p = v; }

/* Bits `from`.. of every byte brought to bit `to`, those in mask kept: what a mask keeps comes from its own
 * byte. */
INLINE slice bring(slice v, int from, int to, uint8_t mask) {
#if BYTE_SHIFTS
    if (from >= to && mask == 0xff >> (from - to)) return v >> (from - to);
#endif
    slice_pairs x = (slice_pairs)v;
    x = from < to ? x << (to - from) : x >> (from - to);
    return (slice)x & mask;
}

/* Nibbles of n_lines lines: of every `span` lines the low ones are `span` lines of values, then the high
 * ones. */
INLINE const uint8_t *nibbles(const uint8_t *src, size_t n_lines, size_t span, panel *p,
                              const uint8_t *table) {
    for (size_t i = 0; i < n_lines; i++, src += LINE) {
        uint8_t *q = p->q[i / span * 2 * span + i % span];
        for (size_t o = 0; o < LINE; o += AT_A_TIME * SLICE) {
            slice v[AT_A_TIME];
#pragma GCC unroll 4
            for (size_t j = 0; j < AT_A_TIME; j++) v[j] = load(src + o + j * SLICE);
#pragma GCC unroll 4
            for (size_t j = 0; j < AT_A_TIME; j++) {
                slice lo = v[j] & 15, hi = bring(v[j], 4, 0, 15);
                put(q + o + j * SLICE, table ? lookup(lo, table) : lo);
                put(q + span * LINE + o + j * SLICE, table ? lookup(hi, table) : hi);
            }
        }
    }
    return src;
}

/* Q5_0, Q5_1: nibbles and fifth bits. */
INLINE const uint8_t *small_fives(const uint8_t *src, size_t n32, panel *p) {
    const uint8_t *high = src + n32 * 4 * LINE;
    for (size_t g = 0; g < n32; g++, high += LINE, src += 4 * LINE) {
        for (size_t o = 0; o < LINE; o += SLICE) {
            slice h = load(high + o);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                slice v = load(src + i * LINE + o);
                put(p->q[g * 8 + (size_t)i] + o, (v & 15) | bring(h, i, 4, 16));
                put(p->q[g * 8 + (size_t)i + 4] + o, bring(v, 4, 0, 15) | bring(h, i + 4, 4, 16));
            }
        }
    }
    return high;
}

/* Q5_K: nibbles and fifth bits. */
INLINE const uint8_t *wide_fives(const uint8_t *src, panel *p) {
    const uint8_t *high = src + 32 * LINE;
#pragma GCC unroll 4
    for (int g = 0; g < 8; g += 2) {
        for (int i = 0; i < 8; i++, src += LINE) {
            uint8_t *q = p->q[g * 8 + i];
            for (size_t o = 0; o < LINE; o += SLICE) {
                slice v = load(src + o), h = load(high + i * LINE + o);
                put(q + o, (v & 15) | bring(h, g, 4, 16));
                put(q + 8 * LINE + o, bring(v, 4, 0, 15) | bring(h, g + 1, 4, 16));
            }
        }
    }
    return high + 8 * LINE;
}

/* Q6_K: nibbles and pairs above them. */
INLINE const uint8_t *sixes(const uint8_t *src, panel *p) {
    const uint8_t *high = src + 32 * LINE;
    for (int half = 0; half < 2; half++, high += 8 * LINE) {
#pragma GCC unroll 2
        for (int i0 = 0; i0 < 16; i0 += 8) {
            for (int i = 0; i < 8; i++, src += LINE) {
                uint8_t *q = p->q[half * 32 + i0 + i];
                for (size_t o = 0; o < LINE; o += SLICE) {
                    slice v = load(src + o), h = load(high + i * LINE + o);
                    put(q + o, (v & 15) | bring(h, i0 / 4, 4, 48));
                    put(q + 16 * LINE + o, bring(v, 4, 0, 15) | bring(h, 4 + i0 / 4, 4, 48));
                }
            }
        }
    }
    return high;
}

/* Q2_K: pairs. Q3_K: pairs and a third bit. */
INLINE const uint8_t *pairs(const uint8_t *src, bool bits, panel *p) {
    const uint8_t *high = src + 16 * LINE;
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 8; i++, src += LINE) {
            for (size_t o = 0; o < LINE; o += SLICE) {
                slice v = load(src + o), h = v;
                if (bits) h = load(high + i * LINE + o);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    slice x = bring(v, 2 * j, 0, 3);
                    if (bits) x |= bring(h, half * 4 + j, 2, 4);
                    put(p->q[half * 32 + j * 8 + i] + o, x);
                }
            }
        }
    }
    return bits ? high + 8 * LINE : src;
}

INLINE slice_floats *floats_at(float *p, size_t at) { return (slice_floats *)(p + at); }

INLINE const uint8_t *half_scales(const uint8_t *src, size_t n32, float (*dst)[N]) {
    for (size_t g = 0; g < n32; g++, src += 2 * N) {
        for (size_t c = 0; c < N; c += AT_A_TIME * LANES) {
#pragma GCC unroll 4
            for (size_t j = c; j < c + AT_A_TIME * LANES; j += LANES)
                *floats_at(dst[g], j) = halves(src + 2 * j);
        }
    }
    return src;
}

INLINE bytes16 high_pair(bytes16 v) { return (bytes16)((pairs16)v >> 6) & 3; }

/* Number i of 4 n six-bit ones, 16 channels. */
INLINE bytes16 six_bits(const uint8_t *src, int i) {
    const bytes16 *l = (const bytes16 *)(src + i / 4 * 3 * N);
    if (i % 4 < 3) return l[i % 4] & 63;
    bytes16 mid = high_pair(l[1]), top = high_pair(l[2]);
    return high_pair(l[0]) | (bytes16)((pairs16)mid << 2) | (bytes16)((pairs16)top << 4);
}

/* s (and b) of 8 groups from six-bit scales (and minima behind them) and d (and dmin). */
INLINE void six_bit_scales(const uint8_t *src, bool min, panel *p) {
    const uint8_t *d = src + (min ? 12 : 6) * N, *m = src + 14 * N;
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        bytes16 s = six_bits(src, g), b = s;
        if (min) b = six_bits(src + 6 * N, g);
        for (size_t c = 0; c < N; c += LANES) {
            *floats_at(p->s[g], c) =
                halves(d + 2 * c) * (min ? floats(s, c, false) : floats(s - 32, c, true));
            if (min) *floats_at(p->b[g], c) = -halves(m + 2 * c) * floats(b, c, false);
        }
    }
}

INLINE void q2_k_scales(const uint8_t *src, panel *p) {
    const uint8_t *d = src + 16 * N, *m = src + 18 * N;
    for (int g = 0; g < 16; g++) {
        bytes16 v = *(const bytes16 *)(src + g * N), high = (bytes16)((pairs16)v >> 4) & 15;
        for (size_t c = 0; c < N; c += LANES) {
            *floats_at(p->s[g], c) = halves(d + 2 * c) * floats(v & 15, c, false);
            *floats_at(p->b[g], c) = -halves(m + 2 * c) * floats(high, c, false);
        }
    }
}

INLINE void q3_k_scales(const uint8_t *src, panel *p) {
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        bytes16 s = six_bits(src, g) - 32;
        for (size_t c = 0; c < N; c += LANES)
            *floats_at(p->s[g], c) = halves(src + 12 * N + 2 * c) * floats(s, c, true);
    }
}

INLINE void q6_k_scales(const uint8_t *src, panel *p) {
    for (int g = 0; g < 16; g++) {
        bytes16 s = *(const bytes16 *)(src + g * N);
        for (size_t c = 0; c < N; c += LANES)
            *floats_at(p->s[g], c) = halves(src + 16 * N + 2 * c) * floats(s, c, true);
    }
}

/* Exponents: 2^(e - 128), the smallest two subnormal. */
INLINE void mxfp4_scales(const uint8_t *src, size_t n32, panel *p) {
    for (size_t g = 0; g < n32; g++, src += N) {
        for (size_t c = 0; c < N; c += LANES) {
            slice_words e = __builtin_convertvector(*(const bytes_of_slice *)(src + c), slice_words);
            slice_words tiny = ((slice_words){0} + 0x00200000u) << (e & 1), is_tiny = (slice_words)(e < 2);
            *(slice_words *)(p->s[g] + c) = (tiny & is_tiny) | (((e - 1) << 23) & ~is_tiny);
        }
    }
}

/* A type's scales at src, behind the chunk's values. */
INLINE void scales(tn_blocks_type type, const uint8_t *src, size_t n32, panel *p) {
    switch (type) {
    case TN_BLOCKS_Q4_1:
    case TN_BLOCKS_Q5_1: half_scales(half_scales(src, n32, p->s), n32, p->b); break;
    case TN_BLOCKS_Q2_K: q2_k_scales(src, p); break;
    case TN_BLOCKS_Q3_K: q3_k_scales(src, p); break;
    case TN_BLOCKS_Q4_K:
    case TN_BLOCKS_Q5_K: six_bit_scales(src, true, p); break;
    case TN_BLOCKS_IQ4_XS: six_bit_scales(src, false, p); break;
    case TN_BLOCKS_Q6_K: q6_k_scales(src, p); break;
    case TN_BLOCKS_MXFP4: mxfp4_scales(src, n32, p); break;
    default: half_scales(src, n32, p->s);
    }
}

static inline void unpack(tn_blocks_type type, const uint8_t *src, size_t n32, panel *p) {
    switch (type) {
    case TN_BLOCKS_Q8_0:
        for (size_t i = 0; i < n32 * 8 * LINE; i += SLICE) put(p->q[0] + i, load(src + i) ^ 0x80);
        src += n32 * 8 * LINE;
        break;
    case TN_BLOCKS_Q4_0:
    case TN_BLOCKS_Q4_1: src = nibbles(src, n32 * 4, 4, p, NULL); break;
    case TN_BLOCKS_Q5_0:
    case TN_BLOCKS_Q5_1: src = small_fives(src, n32, p); break;
    case TN_BLOCKS_Q2_K: src = pairs(src, false, p); break;
    case TN_BLOCKS_Q3_K: src = pairs(src, true, p); break;
    case TN_BLOCKS_Q4_K: src = nibbles(src, 32, 8, p, NULL); break;
    case TN_BLOCKS_Q5_K: src = wide_fives(src, p); break;
    case TN_BLOCKS_Q6_K: src = sixes(src, p); break;
    case TN_BLOCKS_IQ4_NL:
    case TN_BLOCKS_IQ4_XS: src = nibbles(src, n32 * 4, 4, p, iq4_values); break;
    case TN_BLOCKS_MXFP4: src = nibbles(src, n32 * 4, 4, p, mxfp4_values); break;
    case TN_BLOCKS_N_TYPES: break;
    }
    scales(type, src, n32, p);
}
