/* kernels/blocks_unpack.h - a chunk of a tile (blocks_s8.h) to bytes and floats, with the compiler's vector
 * extensions: written once, compiled for each instruction set. A line of 64 bytes is handled in parts as wide
 * as a register: for wider vectors the compiler makes scalars and stack copies. The including file first
 * defines:
 *   LANES                 floats of a register
 *   lookup(i, table)      a slice of indices below 16 to the table's bytes; lookup32, lookup64: below 32, 64
 *   halves(src)           LANES f16 to floats
 *   all_halves(src, dst)  if defined, sixteen of them
 *   SIGNED                1: the product takes signed weights
 *   BY_FOURS              if defined, the file with the layout of lines in a panel
 *   BYTE_SHIFTS           1: bytes are shifted by one instruction
 *   floats(v, at, sign)   LANES of 16 bytes, from `at` on, signed or not, as floats */
#include "kernels/blocks_s8.h"

#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* wide vectors only pass between inlined functions of this file */
#define INLINE static inline __attribute__((always_inline))

#define SLICE (LANES * 4)
enum {
    LINE = 64,
    CHUNK_LINES = TN_BLOCKS_CHUNK / 4,
    N = TN_BLOCKS_N,
    AT_A_TIME = LANES == 4 ? 2 : 1 /* slices of a line that are loaded by one instruction */
};

typedef uint8_t slice __attribute__((vector_size(SLICE), aligned(1), may_alias));
typedef uint16_t slice_pairs __attribute__((vector_size(SLICE), aligned(1), may_alias));
typedef uint8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t pairs16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t bytes_of_slice __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint16_t pairs_of_slice __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef float slice_floats __attribute__((vector_size(SLICE), aligned(4), may_alias));
typedef float slice_floats_any __attribute__((vector_size(SLICE), aligned(1), may_alias));
typedef uint32_t slice_words __attribute__((vector_size(SLICE), aligned(4), may_alias));

/* A chunk of one tile: q [line][16 channels][4], s and b [group][16 channels]. */
typedef struct panel {
    uint8_t q[CHUNK_LINES][LINE];
    float s[TN_BLOCKS_GROUPS][N], b[TN_BLOCKS_GROUPS][N];
} panel;

/* Values of eight bits, v - 128, in the form that the product takes. EIGHT(0x80) makes them from s8. */
#define EIGHT(v) ((uint8_t)((v) ^ (SIGNED ? 0x80 : 0)))
static const uint8_t iq4_values[16] = {EIGHT(1),   EIGHT(24),  EIGHT(45),  EIGHT(63),  EIGHT(79),  EIGHT(93),
                                       EIGHT(106), EIGHT(118), EIGHT(129), EIGHT(141), EIGHT(153), EIGHT(166),
                                       EIGHT(181), EIGHT(197), EIGHT(217), EIGHT(241)};
static const uint8_t mxfp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                         12, 11, 10, 9,  8,  6,  4,  0}; /* + 12 */

#ifndef TERN_MINIMAL
/* Types of code books: the value of each number, without the type's offset. */
static const uint8_t iq1_values[16] = {2, 10, 18, 9, 0, 8, 16, 9},
                     iq2_values[16] = {51, 68, 86, 43, 35, 18, 0, 43},
                     iq3_xxs_values[16] = {66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0},
                     iq3_s_values[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};
/* ik_llama.cpp's types, in the same way. Those of IQ2_KS are above 32, because groups are of 32 there (MIDDLE). */
static const uint8_t iq2_k_values[16] = {0, 18, 32, 48}, iq2_ks_values[16] = {2, 20, 34, 50},
                     iq3_k_values[16] = {0, 23, 40, 53, 64, 76, 91, 110},
                     iq5_values[32] = {EIGHT(2),   EIGHT(14),  EIGHT(25),  EIGHT(36),  EIGHT(45),  EIGHT(54),
                                       EIGHT(63),  EIGHT(71),  EIGHT(78),  EIGHT(85),  EIGHT(92),  EIGHT(98),
                                       EIGHT(104), EIGHT(110), EIGHT(116), EIGHT(122), EIGHT(127), EIGHT(133),
                                       EIGHT(139), EIGHT(145), EIGHT(151), EIGHT(157), EIGHT(164), EIGHT(171),
                                       EIGHT(179), EIGHT(187), EIGHT(196), EIGHT(205), EIGHT(215), EIGHT(225),
                                       EIGHT(237), EIGHT(249)},
                     iq6_values[64] = {EIGHT(1),   EIGHT(7),   EIGHT(13),  EIGHT(19),  EIGHT(24),  EIGHT(30),
                                       EIGHT(35),  EIGHT(40),  EIGHT(44),  EIGHT(49),  EIGHT(54),  EIGHT(58),
                                       EIGHT(62),  EIGHT(66),  EIGHT(70),  EIGHT(74),  EIGHT(77),  EIGHT(81),
                                       EIGHT(84),  EIGHT(88),  EIGHT(91),  EIGHT(94),  EIGHT(97),  EIGHT(100),
                                       EIGHT(103), EIGHT(106), EIGHT(109), EIGHT(112), EIGHT(115), EIGHT(117),
                                       EIGHT(120), EIGHT(123), EIGHT(126), EIGHT(128), EIGHT(131), EIGHT(134),
                                       EIGHT(137), EIGHT(140), EIGHT(142), EIGHT(145), EIGHT(148), EIGHT(151),
                                       EIGHT(155), EIGHT(158), EIGHT(161), EIGHT(164), EIGHT(168), EIGHT(172),
                                       EIGHT(175), EIGHT(179), EIGHT(183), EIGHT(187), EIGHT(191), EIGHT(196),
                                       EIGHT(200), EIGHT(205), EIGHT(210), EIGHT(215), EIGHT(220), EIGHT(226),
                                       EIGHT(231), EIGHT(237), EIGHT(243), EIGHT(249)};
#endif

INLINE slice load(const uint8_t *p) { return *(const slice *)p; }
INLINE void put(uint8_t *p, slice v) { *(slice *)p = v; }

/* Moves bits `from`.. of every byte to bit `to` and masks them, so nothing from neighbouring bytes remains.
 */
INLINE slice bring(slice v, int from, int to, uint8_t mask) {
#if BYTE_SHIFTS
    if (from >= to && mask == 0xff >> (from - to)) return v >> (from - to);
#endif
    slice_pairs x = (slice_pairs)v;
    x = from < to ? x << (to - from) : x >> (from - to);
    return (slice)x & mask;
}

/* Where the two fields of values lie. */
typedef struct fields {
    size_t lines, high_lines; /* for 32 input channels */
    bool high_shared;         /* each line of the second field serves the whole chunk */
} fields;

INLINE fields fields_of(tn_blocks_type type) {
    switch (type) {
    case TN_BLOCKS_KT:
    case TN_BLOCKS_Q8_0: return (fields){8, 0, false};
    case TN_BLOCKS_Q5_0:
    case TN_BLOCKS_Q5_1: return (fields){4, 1, false};
    case TN_BLOCKS_IQ5_K:
    case TN_BLOCKS_IQ5_KS:
    case TN_BLOCKS_Q5_K: return (fields){4, 1, true};
    case TN_BLOCKS_IQ6_K:
    case TN_BLOCKS_Q6_K: return (fields){4, 2, false};
    case TN_BLOCKS_Q1_0: return (fields){1, 0, false};
    case TN_BLOCKS_Q2_0:
    case TN_BLOCKS_TQ:
    case TN_BLOCKS_IQ2_K:
    case TN_BLOCKS_IQ2_KS:
    case TN_BLOCKS_Q2_K: return (fields){2, 0, false};
    case TN_BLOCKS_IQ1:
    case TN_BLOCKS_IQ2:
    case TN_BLOCKS_IQ3_K:
    case TN_BLOCKS_IQ3_KS:
    case TN_BLOCKS_Q3_K: return (fields){2, 1, true};
    default: return (fields){4, 0, false};
    }
}

/* The values of a type's numbers; NULL: the numbers are the values. */
INLINE const uint8_t *table_of(tn_blocks_type type) {
    switch (type) {
    case TN_BLOCKS_IQ4_NL:
    case TN_BLOCKS_IQ4_XS: return iq4_values;
    case TN_BLOCKS_MXFP4: return mxfp4_values;
#ifndef TERN_MINIMAL
    case TN_BLOCKS_NVFP4: return mxfp4_values;
    case TN_BLOCKS_IQ1: return iq1_values;
    case TN_BLOCKS_IQ2: return iq2_values;
    case TN_BLOCKS_IQ3_XXS: return iq3_xxs_values;
    case TN_BLOCKS_IQ3_S: return iq3_s_values;
    case TN_BLOCKS_IQ2_K: return iq2_k_values;
    case TN_BLOCKS_IQ2_KS: return iq2_ks_values;
    case TN_BLOCKS_IQ3_K:
    case TN_BLOCKS_IQ3_KS: return iq3_k_values;
    case TN_BLOCKS_IQ4_K:
    case TN_BLOCKS_IQ4_KS: return iq4_values;
    case TN_BLOCKS_IQ5_K:
    case TN_BLOCKS_IQ5_KS: return iq5_values;
    case TN_BLOCKS_IQ6_K: return iq6_values;
#endif
    default: return NULL;
    }
}

/* Where `second` lies after a type's values (channels' bytes of scales), and by how much it moves values; step 0: there is
 * none. */
typedef struct seconds {
    uint8_t at, step;
} seconds;

INLINE seconds seconds_of(tn_blocks_type type) {
    switch (type) {
#ifndef TERN_MINIMAL
    case TN_BLOCKS_IQ2_K:
    case TN_BLOCKS_IQ2_KS: return (seconds){8, 5};
    case TN_BLOCKS_IQ3_K:
    case TN_BLOCKS_IQ3_KS:
    case TN_BLOCKS_IQ4_KS: return (seconds){8, 4};
    case TN_BLOCKS_IQ4_K: return (seconds){12, 4};
    case TN_BLOCKS_IQ5_K: return (seconds){12, 2};
    case TN_BLOCKS_IQ5_KS: return (seconds){8, 2};
    case TN_BLOCKS_IQ6_K: return (seconds){16, 1};
#endif
    default: return (seconds){0, 0};
    }
}

/* What numbers of a chunk mean: the table and its size, and `second` with its step. */
typedef struct meaning {
    const uint8_t *table;
    int size;
    const uint8_t *second;
    uint8_t step;
} meaning;

INLINE meaning meaning_of(tn_blocks_type type, const uint8_t *scales) {
    const seconds s = seconds_of(type);
    const bool five = type == TN_BLOCKS_IQ5_K || type == TN_BLOCKS_IQ5_KS;
    return (meaning){table_of(type),
                     type == TN_BLOCKS_IQ6_K ? 64
                     : five                  ? 32
                                             : 16,
                     s.step ? scales + s.at * N : NULL, s.step};
}

INLINE slice value_of(slice v, const uint8_t *table, int size) {
    if (!table) return v;
#ifndef TERN_MINIMAL
    if (size == 64) return lookup64(v, table);
    if (size == 32) return lookup32(v, table);
#endif
    (void)size;
    return lookup(v, table);
}

/* What is added to values of group g of 16, LANES channels from byte o of a line on. */
INLINE slice moved(meaning m, size_t g, size_t o) {
    const slice_words bits =
        __builtin_convertvector(*(const pairs_of_slice *)(m.second + o / 2), slice_words);
    return (slice)(-(bits >> (uint32_t)g & 1) & m.step * 0x01010101u);
}

/* Four lines of values from value line l on (of the half, l % 4 == 0), LANES channels of each, from byte o of
 * the line on. src, high: the half's lines, or the chunk's if high is shared. For types without whole chunks
 * src and high belong to a block. */
INLINE void four_lines(tn_blocks_type type, const uint8_t *src, const uint8_t *high, int half, int l,
                       size_t o, slice *w) {
    const meaning m = meaning_of(type, NULL);
    const uint8_t *table = m.table;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        slice v;
        switch (type) {
        case TN_BLOCKS_KT:
        case TN_BLOCKS_Q8_0: w[i] = load(src + (l + i) * LINE + o) ^ EIGHT(0x80); break;
        case TN_BLOCKS_Q5_0:
        case TN_BLOCKS_Q5_1:
            v = bring(load(high + o), l + i, 4, 16);
            w[i] = bring(load(src + i * LINE + o), l, 0, 15) | v;
            break;
        case TN_BLOCKS_Q4_K:
            w[i] = bring(load(src + (l / 16 * 8 + l % 8 + i) * LINE + o), l / 8 % 2 * 4, 0, 15);
            break;
        case TN_BLOCKS_IQ5_K:
        case TN_BLOCKS_IQ5_KS:
        case TN_BLOCKS_Q5_K:
            v = bring(load(high + (l % 8 + i) * LINE + o), half * 4 + l / 8, 4, 16);
            w[i] = bring(load(src + (l / 16 * 8 + l % 8 + i) * LINE + o), l / 8 % 2 * 4, 0, 15) | v;
            w[i] = value_of(w[i], table, m.size);
            break;
        case TN_BLOCKS_IQ6_K:
            v = bring(load(high + (l % 8 + i) * LINE + o), l / 8 * 2, 4, 48);
            w[i] = bring(load(src + (l / 16 * 8 + l % 8 + i) * LINE + o), l / 8 % 2 * 4, 0, 15) | v;
            w[i] = value_of(w[i], table, m.size);
            break;
        case TN_BLOCKS_Q6_K:
            v = bring(load(high + (l % 8 + i) * LINE + o), l / 8 * 2, 4, 48);
            w[i] = bring(load(src + (l % 16 + i) * LINE + o), l / 16 * 4, 0, 15) | v;
            break;
        case TN_BLOCKS_IQ2_K:
        case TN_BLOCKS_IQ2_KS:
        case TN_BLOCKS_TQ:
        case TN_BLOCKS_Q2_K:
            w[i] = bring(load(src + (l % 8 + i) * LINE + o), l / 8 * 2, 0, 3);
            if (table) w[i] = lookup(w[i], table);
            break;
        case TN_BLOCKS_IQ1:
        case TN_BLOCKS_IQ2:
        case TN_BLOCKS_IQ3_K:
        case TN_BLOCKS_IQ3_KS:
        case TN_BLOCKS_Q3_K:
            v = bring(load(high + (l % 8 + i) * LINE + o), half * 4 + l / 8, 2, 4);
            w[i] = bring(load(src + (l % 8 + i) * LINE + o), l / 8 * 2, 0, 3) | v;
            if (table) w[i] = lookup(w[i], table);
            break;
        case TN_BLOCKS_Q1_0: w[i] = bring(load(src + i * LINE + o), l / 4, 1, 2); break;
        case TN_BLOCKS_Q2_0: w[i] = bring(load(src + i * LINE + o), l / 4 * 2, 0, 3); break;
        default: /* nibbles of blocks of 32 */
            v = bring(load(src + (l / 8 * 4 + i) * LINE + o), l % 8, 0, 15);
            w[i] = table ? lookup(v, table) : v;
        }
    }
}

/* The layout of lines in a panel: unchanged, or as the instruction set's file defines it. */
#ifdef BY_FOURS
#include BY_FOURS
#else
INLINE void arrange(slice *four) { (void)four; }
INLINE uint8_t *four_at(panel *p, size_t four) { return p->q[4 * four]; }
INLINE size_t place(size_t o, size_t i) { return i * LINE + o; }
#endif

/* Slices of the four lines from src on, side by side as a register's loads are. */
INLINE void load4(const uint8_t *src, slice (*v)[4]) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
#pragma GCC unroll 2
        for (size_t j = 0; j < AT_A_TIME; j++) v[j][i] = load(src + i * LINE + j * SLICE);
    }
#pragma GCC unroll 2
    for (size_t j = 0; j < AT_A_TIME; j++) arrange(v[j]);
}

/* Stores slices of four lines of values at the first line's place in a panel. */
INLINE void put4(uint8_t *at, size_t o, const slice *v) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) put(at + place(o, i), v[i]);
}

/* Unpacks n_fields fields of `mask` bits, `width` apart, of four lines v; their values go `apart` fours
 * apart, and a four is the number of a group of 16. more: further bits of the same lines, or NULL; those of field f start at bit more_from + f *
 * more_apart and move to bit `to`. */
typedef struct cut {
    int n_fields, width;
    uint8_t mask;
    size_t apart;
    int more_from, more_apart, to;
    uint8_t more_mask;
} cut;

INLINE void put_fields(uint8_t *const *at, size_t four, size_t o, cut c, const slice *v, const slice *more,
                       meaning m) {
#pragma GCC unroll 4
    for (int f = 0; f < c.n_fields; f++) {
        slice x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            x[i] = bring(v[i], f * c.width, 0, c.mask);
            if (more) x[i] |= bring(more[i], c.more_from + f * c.more_apart, c.to, c.more_mask);
            x[i] = value_of(x[i], m.table, m.size);
        }
        if (m.second) {
            const slice by = moved(m, four + (size_t)f * c.apart, o);
            slice all[4] = {by, by, by, by};
            arrange(all);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) x[i] += all[i];
        }
        put4(at[f], o, x);
    }
}

/* Four lines at src, and at high where there are any, by fields to a panel. */
INLINE void four_by_fields(const uint8_t *src, const uint8_t *high, panel *p, size_t four, cut c, meaning m) {
    uint8_t *at[4] = {NULL};
#pragma GCC unroll 4
    for (int f = 0; f < c.n_fields; f++) at[f] = four_at(p, four + (size_t)f * c.apart);
#pragma GCC unroll 2
    for (size_t o = 0; o < LINE; o += AT_A_TIME * SLICE) {
        slice v[AT_A_TIME][4], h[AT_A_TIME][4];
        load4(src + o, v);
        if (high) load4(high + o, h);
#pragma GCC unroll 2
        for (size_t j = 0; j < AT_A_TIME; j++)
            put_fields(at, four, o + j * SLICE, c, v[j], high ? h[j] : NULL, m);
    }
}

/* Nibbles of n_lines lines: of every `span` lines, the low nibbles are `span` lines of values, then the high
 * ones are. */
INLINE const uint8_t *nibbles(tn_blocks_type type, const uint8_t *src, size_t n_lines, size_t span,
                              panel *p) {
    const meaning m = meaning_of(type, src + n_lines * LINE);
    const cut c = {.n_fields = 2, .width = 4, .mask = 15, .apart = span / 4};
    for (size_t i = 0; i < n_lines / 4; i++, src += 4 * LINE)
        four_by_fields(src, NULL, p, i / (span / 4) * 2 * (span / 4) + i % (span / 4), c, m);
    return src;
}

/* Q5_0, Q5_1: nibbles and fifth bits. */
INLINE const uint8_t *small_fives(const uint8_t *src, size_t n32, panel *p) {
    const uint8_t *high = src + n32 * 4 * LINE;
    for (size_t g = 0; g < n32; g++, high += LINE, src += 4 * LINE) {
        uint8_t *const at[2] = {four_at(p, g * 2), four_at(p, g * 2 + 1)};
#pragma GCC unroll 2
        for (size_t o = 0; o < LINE; o += AT_A_TIME * SLICE) {
            slice v[AT_A_TIME][4];
            load4(src + o, v);
#pragma GCC unroll 2
            for (size_t j = 0; j < AT_A_TIME; j++) {
                slice h = load(high + o + j * SLICE);
#pragma GCC unroll 2
                for (int f = 0; f < 2; f++) {
                    slice x[4];
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++) x[i] = bring(h, 4 * f + i, 4, 16);
                    arrange(x);
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++) x[i] |= bring(v[j][i], 4 * f, 0, 15);
                    put4(at[f], o + j * SLICE, x);
                }
            }
        }
    }
    return high;
}

/* Q5_K, IQ5_K: nibbles and fifth bits. */
INLINE const uint8_t *wide_fives(tn_blocks_type type, const uint8_t *src, panel *p) {
    const uint8_t *high = src + 32 * LINE;
    const meaning m = meaning_of(type, high + 8 * LINE);
#pragma GCC unroll 4
    for (int g = 0; g < 8; g += 2) {
        const cut c = {2, 4, 15, 2, g, 1, 4, 16};
        for (size_t i = 0; i < 2; i++, src += 4 * LINE)
            four_by_fields(src, high + i * 4 * LINE, p, (size_t)g * 2 + i, c, m);
    }
    return high + 8 * LINE;
}

/* Q6_K: nibbles and pairs above them. */
INLINE const uint8_t *sixes(const uint8_t *src, panel *p) {
    const uint8_t *high = src + 32 * LINE;
    for (size_t half = 0; half < 2; half++, high += 8 * LINE) {
#pragma GCC unroll 2
        for (int i0 = 0; i0 < 4; i0 += 2) {
            const cut c = {2, 4, 15, 4, i0, 4, 4, 48};
            for (size_t i = 0; i < 2; i++, src += 4 * LINE)
                four_by_fields(src, high + i * 4 * LINE, p, half * 8 + (size_t)i0 + i, c, (meaning){0});
        }
    }
    return high;
}

/* Q2_K, TQ, IQ2_K: pairs. Q3_K, IQ1, IQ2, IQ3_K: pairs and a third bit. */
INLINE const uint8_t *pairs(tn_blocks_type type, const uint8_t *src, bool bits, panel *p) {
    const uint8_t *high = src + 16 * LINE;
    const meaning m = meaning_of(type, bits ? high + 8 * LINE : high);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const cut c = {4, 2, 3, 2, half * 4, 1, 2, 4};
        for (size_t i = 0; i < 2; i++, src += 4 * LINE)
            four_by_fields(src, bits ? high + i * 4 * LINE : NULL, p, (size_t)half * 8 + i, c, m);
    }
    return bits ? high + 8 * LINE : src;
}

#ifndef TERN_MINIMAL
/* IQ6_K: nibbles as of Q5_K and pairs as of Q6_K. */
INLINE const uint8_t *wide_sixes(tn_blocks_type type, const uint8_t *src, panel *p) {
    const uint8_t *high = src + 32 * LINE;
    const meaning m = meaning_of(type, high + 16 * LINE);
    for (size_t half = 0; half < 2; half++, high += 8 * LINE) {
#pragma GCC unroll 2
        for (int g = 0; g < 4; g += 2) {
            const cut c = {2, 4, 15, 2, 2 * g, 2, 4, 48};
            for (size_t i = 0; i < 2; i++, src += 4 * LINE)
                four_by_fields(src, high + i * 4 * LINE, p, half * 8 + (size_t)g * 2 + i, c, m);
        }
    }
    return high;
}

/* Q2_0. */
INLINE const uint8_t *small_pairs(const uint8_t *src, size_t n32, panel *p) {
    const cut c = {.n_fields = 4, .width = 2, .mask = 3, .apart = 1};
    for (size_t i = 0; i < n32 / 2; i++, src += 4 * LINE)
        four_by_fields(src, NULL, p, 4 * i, c, (meaning){0});
    return src;
}

/* Q1_0: bits, each worth two. */
INLINE const uint8_t *small_bits(const uint8_t *src, size_t n32, panel *p) {
    for (size_t i = 0; i < n32 / 4; i++, src += 4 * LINE) {
#pragma GCC unroll 2
        for (size_t o = 0; o < LINE; o += AT_A_TIME * SLICE) {
            slice v[AT_A_TIME][4];
            load4(src + o, v);
#pragma GCC unroll 2
            for (size_t j = 0; j < AT_A_TIME; j++) {
#pragma GCC unroll 8
                for (int f = 0; f < 8; f++) {
                    slice x[4];
#pragma GCC unroll 4
                    for (int line = 0; line < 4; line++) x[line] = bring(v[j][line], f, 1, 2);
                    put4(four_at(p, 8 * i + (size_t)f), o + j * SLICE, x);
                }
            }
        }
    }
    return src;
}
#endif

/* Q8_0. */
INLINE const uint8_t *bytes(const uint8_t *src, size_t n_lines, panel *p) {
    for (size_t i = 0; i < n_lines / 4; i++, src += 4 * LINE) {
        uint8_t *const at = four_at(p, i);
#pragma GCC unroll 2
        for (size_t o = 0; o < LINE; o += AT_A_TIME * SLICE) {
            slice v[AT_A_TIME][4];
            load4(src + o, v);
#pragma GCC unroll 2
            for (size_t j = 0; j < AT_A_TIME; j++) {
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) v[j][c] ^= EIGHT(0x80);
                put4(at, o + j * SLICE, v[j]);
            }
        }
    }
    return src;
}

INLINE slice_floats *floats_at(float *p, size_t at) { return (slice_floats *)(p + at); }

INLINE const uint8_t *half_scales(const uint8_t *src, size_t n32, float (*dst)[N]) {
    for (size_t g = 0; g < n32; g++, src += 2 * N) {
#ifdef all_halves
        all_halves(src, dst[g]);
#else
        for (size_t c = 0; c < N; c += LANES) *floats_at(dst[g], c) = halves(src + 2 * c);
#endif
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

/* s (and b) of 8 groups from six-bit scales (and minima after them) and d (and dmin). */
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

INLINE void q3_k_scales(const uint8_t *src, const uint8_t *d, panel *p) {
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        bytes16 s = six_bits(src, g) - 32;
        for (size_t c = 0; c < N; c += LANES) *floats_at(p->s[g], c) = halves(d + 2 * c) * floats(s, c, true);
    }
}

INLINE void q6_k_scales(const uint8_t *src, const uint8_t *d, panel *p) {
    for (int g = 0; g < 16; g++) {
        bytes16 s = *(const bytes16 *)(src + g * N);
        for (size_t c = 0; c < N; c += LANES) *floats_at(p->s[g], c) = halves(d + 2 * c) * floats(s, c, true);
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

#ifndef TERN_MINIMAL
/* s of n_groups groups from scales of four bits and d, in multiples of unit. */
INLINE void four_bit_scales(const uint8_t *src, int n_groups, float unit, panel *p) {
    slice_floats d[N / LANES];
    for (size_t c = 0; c < N; c += LANES) d[c / LANES] = halves(src + n_groups / 2 * N + 2 * c) * unit;
#pragma GCC unroll 2
    for (int g = 0; g < n_groups; g++) {
        bytes16 v = *(const bytes16 *)(src + g / 2 * N), s = (g % 2 ? (bytes16)((pairs16)v >> 4) : v) & 15;
        s = s + s + 1;
        for (size_t c = 0; c < N; c += LANES) *floats_at(p->s[g], c) = d[c / LANES] * floats(s, c, false);
    }
}

/* IQ2_K: four bits around eight. IQ3_K: odd magnitudes with their signs. */
INLINE void iq_k_scales(const uint8_t *src, bool odd, panel *p) {
    const uint8_t *d = src + (odd ? 12 : 10) * N, *signs = src + 10 * N;
#pragma GCC unroll 2
    for (int g = 0; g < 16; g++) {
        bytes16 v = *(const bytes16 *)(src + g / 2 * N), s = (g % 2 ? (bytes16)((pairs16)v >> 4) : v) & 15;
        s = odd ? s + s + 1 : s - 8;
        for (size_t c = 0; c < N; c += LANES) {
            slice_floats f = halves(d + 2 * c) * floats(s, c, true);
            if (odd) {
                slice_words bits =
                    __builtin_convertvector(*(const pairs_of_slice *)(signs + 2 * c), slice_words);
                f = (slice_floats)((slice_words)f ^ (bits >> (uint32_t)g & 1) << 31);
            }
            *floats_at(p->s[g], c) = f;
        }
    }
}

/* s8 and f32 d. */
INLINE void ks_scales(const uint8_t *src, panel *p) {
    const float *d = (const float *)(const void *)(src + 10 * N);
    for (int g = 0; g < 8; g++) {
        bytes16 s = *(const bytes16 *)(src + g * N);
        for (size_t c = 0; c < N; c += LANES)
            *floats_at(p->s[g], c) = *(const slice_floats_any *)(const void *)(d + c) * floats(s, c, true);
    }
}

/* f16 of blocks of 32 `span` values. */
INLINE void spread_scales(const uint8_t *src, size_t n32, size_t span, panel *p) {
    for (size_t g = 0; g < n32; g++) {
        for (size_t c = 0; c < N; c += LANES) *floats_at(p->s[g], c) = halves(src + g / span * 2 * N + 2 * c);
    }
}

/* Exponent and mantissa: those of a half that is 2^7 times smaller. */
INLINE void nvfp4_scales(const uint8_t *src, size_t n32, panel *p) {
    for (size_t g = 0; g < 2 * n32; g++) {
        uint16_t half[N];
        for (size_t c = 0; c < N; c++) half[c] = (uint16_t)(src[g * N + c] << 7);
        for (size_t c = 0; c < N; c += LANES)
            *floats_at(p->s[g], c) = halves((const uint8_t *)half + 2 * c) * 128.0f;
    }
}

INLINE void one_scale(const uint8_t *src, panel *p) {
    for (size_t c = 0; c < N; c += LANES) {
        slice_floats d = halves(src + 2 * c);
        for (int g = 0; g < 8; g++) *floats_at(p->s[g], c) = d;
    }
}
#endif

/* A type's scales at src, after the chunk's values. */
INLINE void scales(tn_blocks_type type, const uint8_t *src, size_t n32, panel *p) {
    switch (type) {
    case TN_BLOCKS_Q4_1:
    case TN_BLOCKS_Q5_1: half_scales(half_scales(src, n32, p->s), n32, p->b); break;
    case TN_BLOCKS_Q2_K: q2_k_scales(src, p); break;
    case TN_BLOCKS_Q3_K: q3_k_scales(src, src + 12 * N, p); break;
    case TN_BLOCKS_Q4_K:
    case TN_BLOCKS_Q5_K: six_bit_scales(src, true, p); break;
    case TN_BLOCKS_IQ4_XS: six_bit_scales(src, false, p); break;
    case TN_BLOCKS_Q6_K: q6_k_scales(src, src + 16 * N, p); break;
    case TN_BLOCKS_MXFP4: mxfp4_scales(src, n32, p); break;
#ifndef TERN_MINIMAL
    case TN_BLOCKS_IQ1:
    case TN_BLOCKS_IQ2: four_bit_scales(src, 16, 0.125f, p); break;
    case TN_BLOCKS_IQ3_XXS: four_bit_scales(src, 8, 0.25f, p); break;
    case TN_BLOCKS_IQ3_S: four_bit_scales(src, 8, 1, p); break;
    case TN_BLOCKS_TQ: one_scale(src, p); break;
    case TN_BLOCKS_Q1_0: spread_scales(src, n32, 4, p); break;
    case TN_BLOCKS_Q2_0: spread_scales(src, n32, 2, p); break;
    case TN_BLOCKS_NVFP4: nvfp4_scales(src, n32, p); break;
    case TN_BLOCKS_IQ2_K: iq_k_scales(src, false, p); break;
    case TN_BLOCKS_IQ3_K: iq_k_scales(src, true, p); break;
    case TN_BLOCKS_IQ4_K:
    case TN_BLOCKS_IQ5_K: q3_k_scales(src, src + 14 * N, p); break;
    case TN_BLOCKS_IQ6_K: q6_k_scales(src, src + 18 * N, p); break;
    case TN_BLOCKS_IQ2_KS:
    case TN_BLOCKS_IQ3_KS:
    case TN_BLOCKS_IQ4_KS:
    case TN_BLOCKS_IQ5_KS:
    case TN_BLOCKS_KT: ks_scales(src, p); break;
#endif
    default: half_scales(src, n32, p->s);
    }
}

static inline void unpack(tn_blocks_type type, const uint8_t *src, size_t n32, panel *p) {
    switch (type) {
    case TN_BLOCKS_Q8_0: src = bytes(src, n32 * 8, p); break;
    case TN_BLOCKS_Q4_0:
    case TN_BLOCKS_Q4_1: src = nibbles(type, src, n32 * 4, 4, p); break;
    case TN_BLOCKS_Q5_0:
    case TN_BLOCKS_Q5_1: src = small_fives(src, n32, p); break;
    case TN_BLOCKS_Q2_K: src = pairs(type, src, false, p); break;
    case TN_BLOCKS_Q3_K: src = pairs(type, src, true, p); break;
    case TN_BLOCKS_Q4_K: src = nibbles(type, src, 32, 8, p); break;
    case TN_BLOCKS_Q5_K: src = wide_fives(type, src, p); break;
    case TN_BLOCKS_Q6_K: src = sixes(src, p); break;
    case TN_BLOCKS_IQ4_NL:
    case TN_BLOCKS_IQ4_XS: src = nibbles(type, src, n32 * 4, 4, p); break;
    case TN_BLOCKS_MXFP4: src = nibbles(type, src, n32 * 4, 4, p); break;
#ifndef TERN_MINIMAL
    case TN_BLOCKS_IQ1: src = pairs(type, src, true, p); break;
    case TN_BLOCKS_IQ2: src = pairs(type, src, true, p); break;
    case TN_BLOCKS_IQ3_XXS: src = nibbles(type, src, 32, 4, p); break;
    case TN_BLOCKS_IQ3_S: src = nibbles(type, src, 32, 4, p); break;
    case TN_BLOCKS_TQ: src = pairs(type, src, false, p); break;
    case TN_BLOCKS_Q1_0: src = small_bits(src, n32, p); break;
    case TN_BLOCKS_Q2_0: src = small_pairs(src, n32, p); break;
    case TN_BLOCKS_NVFP4: src = nibbles(type, src, n32 * 4, 4, p); break;
    case TN_BLOCKS_IQ2_K:
    case TN_BLOCKS_IQ2_KS: src = pairs(type, src, false, p); break;
    case TN_BLOCKS_IQ3_K:
    case TN_BLOCKS_IQ3_KS: src = pairs(type, src, true, p); break;
    case TN_BLOCKS_IQ4_K:
    case TN_BLOCKS_IQ4_KS: src = nibbles(type, src, 32, 4, p); break;
    case TN_BLOCKS_IQ5_K:
    case TN_BLOCKS_IQ5_KS: src = wide_fives(type, src, p); break;
    case TN_BLOCKS_IQ6_K: src = wide_sixes(type, src, p); break;
    case TN_BLOCKS_KT: src = bytes(src, 64, p); break;
#endif
    default: break;
    }
    scales(type, src, n32, p);
}
