/* kernels/arm/gemm_packed_neon.h - rows against weightlets on 128-bit vectors: what the products of one row
 * and of several share. Included once by each variant, which first defines
 *   put32(to, lo, hi)               stores 32 activations of a row, or codes of a channel, at their place in
 *                                   a
 *                                   block of k of rows or channels
 *   row_at(block, r), ROW_UNIT      the place of the first 32 of row r, and the distance to the next 32
 *   code_at(block, c), CODE_UNIT    the same for channel c
 *   tile_codes(t, src, n_k, codes)  a tile's codes of n_k inputs, whole groups; missing channels are left
 *                                   alone
 *   uniform_tile(R, bits, src, n_k, a, sums)    makes the sums of a tile whose channels have one width;
 *                                               false:
 *                                   it cannot
 *   codes_product(add, R, n_k, codes, a, sums)  sums[r][c] = (or, with add, +=) the products of R rows (it
 *                                               may
 *                                   round R up to a multiple of four) and 16 channels over n_k inputs
 *
 * A code u of B < 8 bits is a small positive int8, so both sides of the product are signed:
 *     sum a w = (sum a u) * 2 - (2^B - 1) * sum a         (8 bits: as it is)
 * which fits int32 for k <= TN_S8_MAX_K. Registers of codes come in pairs, inputs 16 i .. and 64 + 16 i .. of
 * a group (weightlets_neon.h): rows are copied in that order, once per product. */
#include "kernels/arm/epilogue_neon.h"
#include "kernels/arm/weightlets_neon.h"
#include "kernels/gemm_packed.h"

#include <assert.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    GROUP = TN_WEIGHTLET_GROUP,
    BLOCK_K = 4 * GROUP,       /* a tile's codes and the rows of a block stay in L1 */
    MOST_ROWS = TN_PACKED_MOST /* rows that share a tile's codes */
};

/* Up to 16 channels. */
typedef struct tile {
    size_t n_cols, step;                   /* step: bytes of a group of all of them */
    bool uniform;                          /* all of one width */
    uint64_t fields;                       /* the widths as they are stored */
    _Alignas(16) uint8_t width[TN_TILE_N]; /* 0: no such channel */
    uint8_t at[TN_TILE_N];                 /* where each begins in a group, in 16 bytes */
} tile;

static inline size_t tile_off(const tile *t, size_t c) { return (size_t)t->at[c] * 16; }

/* Three bits from bit 3 c on, of eight channels. */
static inline uint8x8_t eight_widths(uint8x16_t bits, const uint8_t *from) {
    static const int16_t down[8] = {0, -3, -6, -1, -4, -7, -2, -5};
    uint16x8_t both = vreinterpretq_u16_u8(vqtbl1q_u8(bits, vld1q_u8(from)));
    return vmovn_u16(vandq_u16(vshlq_u16(both, vld1q_s16(down)), vdupq_n_u16(7)));
}

static tile new_tile(uint64_t fields, size_t n_cols) {
    static const uint8_t bytes_lo[16] = {0, 1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2, 2, 3, 2, 3},
                         bytes_hi[16] = {3, 4, 3, 4, 3, 4, 4, 5, 4, 5, 4, 5, 5, 6, 5, 6},
                         number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    tile t = {.n_cols = n_cols, .fields = fields};
    const uint8x16_t v = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(fields), vcreate_u64(0))),
                     zero = vdupq_n_u8(0);
    uint8x16_t width = vcombine_u8(eight_widths(v, bytes_lo), eight_widths(v, bytes_hi)), to;
    width =
        vandq_u8(vaddq_u8(width, vdupq_n_u8(1)), vcltq_u8(vld1q_u8(number), vdupq_n_u8((uint8_t)t.n_cols)));
    vst1q_u8(t.width, width);
    to = vaddq_u8(width, vextq_u8(zero, width, 15)); /* sums of the widths so far */
    to = vaddq_u8(to, vextq_u8(zero, to, 14));
    to = vaddq_u8(to, vextq_u8(zero, to, 12));
    to = vaddq_u8(to, vextq_u8(zero, to, 8));
    t.step = (size_t)vgetq_lane_u8(to, 15) * 16;
    vst1q_u8(t.at, vsubq_u8(to, width));
    t.uniform = t.n_cols == TN_TILE_N && vminvq_u8(width) == vmaxvq_u8(width);
    return t;
}

/* Moves from the previous tile, which is empty or mostly has the same widths, to the one at channel n. */
static inline void next_tile(tile *t, const tn_gemm_s8_args *g, const uint8_t *bits, size_t n) {
    const size_t n_cols = g->n1 - n < TN_TILE_N ? g->n1 - n : TN_TILE_N;
    uint64_t fields = 0;
    if (n_cols == TN_TILE_N) memcpy(&fields, bits + n * 3 / 8, 6);
    else memcpy(&fields, bits + n * 3 / 8, tn_channel_bits_bytes(n_cols));
    if (fields != t->fields || n_cols != t->n_cols) *t = new_tile(fields, n_cols);
}

static inline void widen16(uint8x16_t v, int32_t *out) {
    uint16x8_t lo = vmovl_u8(vget_low_u8(v)), hi = vmovl_u8(vget_high_u8(v));
    vst1q_s32(out, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))));
    vst1q_s32(out + 4, vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))));
    vst1q_s32(out + 8, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))));
    vst1q_s32(out + 12, vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi))));
}

/* Like finish, for channels of one width and float outputs. */
INLINE void finish_uniform(const tn_gemm_s8_args *g, bool biased, int width, size_t n, size_t n_rows,
                           int32_t (*sums)[TN_TILE_N], const int32_t *row_sum) {
    columns4 to[4];
    float *out = g->out_f32 + n;
    const int32x4_t up = vdupq_n_s32(width < 8);
    const int32_t less = width < 8 ? (1 << width) - 1 : 0;
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; c++) {
        to[c].scale = vld1q_f32(g->scale + n + 4 * c);
        if (biased) to[c].bias = vld1q_f32(g->bias + n + 4 * c);
    }
    for (size_t r = 0; r < n_rows; r++, out += g->ldo) {
        const int32x4_t l = vdupq_n_s32(less * row_sum[r]);
        int32x4_t s[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++) s[c] = vld1q_s32(sums[r] + 4 * c);
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            vst1q_f32(out + 4 * c, scaled(&to[c], biased, vsubq_s32(vshlq_s32(s[c], up), l)));
    }
}

/* A tile's sums of products with codes, of n_rows rows, to the outputs. */
static void finish(const tn_gemm_s8_args *g, const tile *t, size_t n, size_t n_rows,
                   int32_t (*sums)[TN_TILE_N], const int32_t *row_sum) {
    if (t->uniform && g->out_f32) {
        if (g->bias) finish_uniform(g, true, t->width[0], n, n_rows, sums, row_sum);
        else finish_uniform(g, false, t->width[0], n, n_rows, sums, row_sum);
        return;
    }
    const uint8x16_t width = vld1q_u8(t->width), one = vdupq_n_u8(1), narrow = vcltq_u8(width, vdupq_n_u8(8));
    int32_t up[TN_TILE_N], less[TN_TILE_N];
    widen16(vandq_u8(narrow, one), up);
    widen16(vandq_u8(narrow, vsubq_u8(vshlq_u8(one, vreinterpretq_s8_u8(width)), one)), less);
    if (g->out_f32 && t->n_cols == TN_TILE_N) {
        const bool biased = g->bias;
        const size_t ldo = g->ldo;
#pragma GCC unroll 4
        for (size_t c = 0; c < TN_TILE_N; c += 4) {
            const columns4 to = columns4_of(g, n + c, 4);
            const int32x4_t u = vld1q_s32(up + c), l = vld1q_s32(less + c);
            float *out = g->out_f32 + n + c;
            for (size_t r = 0; r < n_rows; r++, out += ldo) {
                int32x4_t acc = vshlq_s32(vld1q_s32(sums[r] + c), u);
                vst1q_f32(out, scaled(&to, biased, vmlsq_n_s32(acc, l, row_sum[r])));
            }
        }
        return;
    }
    for (size_t c = 0; c < t->n_cols; c += 4) {
        const columns4 to = columns4_of(g, n + c, t->n_cols - c < 4 ? t->n_cols - c : 4);
        const int32x4_t u = vld1q_s32(up + c), l = vld1q_s32(less + c);
        for (size_t r = 0; r < n_rows; r++)
            store4(g, r, &to, vmlsq_n_s32(vshlq_s32(vld1q_s32(sums[r] + c), u), l, row_sum[r]));
    }
}

/* Writes a group of a row, minus 128 and in the order of codes, to `to`. Returns sum plus its activations. */
INLINE int32x4_t copy_group(const uint8_t *group, int8_t *to, size_t unit, int32x4_t sum) {
    const uint8x16_t flip = vdupq_n_u8(0x80);
#pragma GCC unroll 4
    for (int i = 0; i < WEIGHTLET_PAIRS; i++) {
        int8x16_t lo = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + 16 * i), flip)),
                  hi = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + 64 + 16 * i), flip));
        put32(to + (size_t)i * unit, lo, hi);
        sum = vdotq_s32(vdotq_s32(sum, lo, vdupq_n_s8(1)), hi, vdupq_n_s8(1));
    }
    return sum;
}

/* n_k activations of a row (whole groups) from k on, zero after k_end; returns their sum. */
INLINE int32_t copy_row(const uint8_t *row, size_t k, size_t k_end, size_t n_k, int8_t *to, size_t unit) {
    int32x4_t sum = vdupq_n_s32(0);
    for (; n_k; n_k -= GROUP, k += GROUP, to += WEIGHTLET_PAIRS * unit) {
        if (k + GROUP <= k_end) {
            sum = copy_group(row + k, to, unit, sum);
        } else {
            uint8_t last[GROUP];
            memset(last, 0x80, sizeof last);
            memcpy(last, row + k, k_end - k);
            sum = copy_group(last, to, unit, sum);
        }
    }
    return vaddvq_s32(sum);
}

/* Writes all rows to out, block by block of k: minus 128, zero after k and in rows that pad a step. */
static void copy_rows(const tn_gemm_s8_args *g, size_t n_rows, size_t k_up, int8_t *out, int32_t *row_sum) {
    for (size_t k0 = 0; k0 < k_up; k0 += BLOCK_K, out += n_rows * BLOCK_K) {
        const size_t n_k = k_up - k0 < BLOCK_K ? k_up - k0 : BLOCK_K;
        for (size_t r = 0; r < g->m; r++)
            row_sum[r] += copy_row(g->a + r * g->lda, k0, g->k, n_k, row_at(out, r), ROW_UNIT);
        for (size_t r = g->m; r < n_rows; r++) {
            int8_t *to = row_at(out, r);
            for (size_t k = 0; k < n_k; k += 32, to += ROW_UNIT) put32(to, vdupq_n_s8(0), vdupq_n_s8(0));
        }
    }
}

/* A channel's codes of n_k inputs from code_at on. */
INLINE void channel_codes(int bits, const uint8_t *src, size_t step, size_t n_k, int8_t *to) {
    for (; n_k; n_k -= GROUP, src += step, to += WEIGHTLET_PAIRS * CODE_UNIT) {
#pragma GCC unroll 4
        for (int i = 0; i < WEIGHTLET_PAIRS; i++) {
            uint8x16_t lo, hi;
            weightlet_pair(src, bits, i, &lo, &hi);
            put32(to + i * CODE_UNIT, vreinterpretq_s8_u8(lo), vreinterpretq_s8_u8(hi));
        }
    }
}

#define BY_WIDTH(name, one, args, ...)                                                                       \
    static void name##_1 args { one(1, __VA_ARGS__); }                                                       \
    static void name##_2 args { one(2, __VA_ARGS__); }                                                       \
    static void name##_3 args { one(3, __VA_ARGS__); }                                                       \
    static void name##_4 args { one(4, __VA_ARGS__); }                                                       \
    static void name##_5 args { one(5, __VA_ARGS__); }                                                       \
    static void name##_6 args { one(6, __VA_ARGS__); }                                                       \
    static void name##_7 args { one(7, __VA_ARGS__); }                                                       \
    static void name##_8 args { one(8, __VA_ARGS__); }                                                       \
    static void(*const name[9])                                                                              \
        args = {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8};

BY_WIDTH(codes_of, channel_codes, (const uint8_t *src, size_t step, size_t n_k, int8_t *to), src, step, n_k,
         to)

static void tile_codes(const tile *t, const uint8_t *src, size_t n_k, int8_t *codes);
static void codes_product(bool add, size_t n_rows, size_t n_k, const int8_t *codes, const int8_t *a,
                          int32_t (*sums)[TN_TILE_N]);
static bool uniform_tile(size_t n_rows, int bits, const uint8_t *src, size_t n_k, const int8_t *a,
                         int32_t (*sums)[TN_TILE_N]);

static void several_rows(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, int8_t *a) {
    const size_t k_up = (g->k + GROUP - 1) / GROUP * GROUP, n_rows = (g->m + 3) / 4 * 4;
    int32_t row_sum[MOST_ROWS] = {0}, sums[MOST_ROWS][TN_TILE_N];
    int8_t codes[TN_TILE_N * BLOCK_K];
    memset(codes, 0, sizeof codes);
    copy_rows(g, n_rows, k_up, a, row_sum);
    tile t = {0};
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N, packed += k_up / GROUP * t.step) {
        next_tile(&t, g, bits, n);
        if (t.uniform && uniform_tile(g->m, t.width[0], packed, k_up, a, sums)) {
            finish(g, &t, n, g->m, sums, row_sum);
            continue;
        }
        for (size_t k0 = 0; k0 < k_up; k0 += BLOCK_K) {
            const size_t n_k = k_up - k0 < BLOCK_K ? k_up - k0 : BLOCK_K;
            tile_codes(&t, packed + k0 / GROUP * t.step, n_k, codes);
            codes_product(k0, g->m, n_k, codes, a + k0 * n_rows, sums);
        }
        finish(g, &t, n, g->m, sums, row_sum);
    }
}

/* Rows m0 .. m0 + m - 1 as a separate product. */
static tn_gemm_s8_args rows_of(const tn_gemm_s8_args *g, size_t m0, size_t m) {
    tn_gemm_s8_args p = *g;
    p.a += m0 * g->lda;
    p.m = m;
    if (p.out_s32) p.out_s32 += m0 * g->ldo;
    if (p.out_f32) p.out_f32 += m0 * g->ldo;
    if (p.out_u8) p.out_u8 += m0 * g->ldo;
    return p;
}

/* MOST_ROWS at a time; up to n_few of them by `few`. */
static inline void in_parts(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                            uint8_t *scratch, tn_gemm_packed_fn few, size_t n_few) {
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n);
    for (size_t m = 0; m < g->m; m += MOST_ROWS) {
        const tn_gemm_s8_args p = rows_of(g, m, g->m - m < MOST_ROWS ? g->m - m : MOST_ROWS);
        if (p.m <= n_few) few(&p, packed, bits, scratch);
        else several_rows(&p, packed, bits, (int8_t *)scratch);
    }
}
