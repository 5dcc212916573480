/* kernels/arm/gemm_packed_neon.h - rows against weightlets on 128-bit vectors: what the products of one row
 * and of several share. Rows lie by fours, in pieces of 16 inputs of each. The codes of a tile lie by four
 * channels in the same way, four such pieces for each 16 inputs. Four rows and all channels of a tile share
 * their loads. Included once by each variant, which first defines
 *   put_rows(to, x)            stores 16 inputs of four rows as a piece
 *   put_code(to, c, x)         stores 16 codes of channel c of four in a piece
 *   pair_two(w)                moves the registers of two channels so that unpacking them gives half a piece
 *   multiply(acc, R, x, y, i)  adds the products of R rows of a piece (2 or 4) and register i of a piece of
 *                              codes to the 16 sums of four rows and four channels
 *   sums_by_row(acc, sum)      moves such sums to a register for each row; done twice it changes nothing
 *   uniform_of(n_rows)         is declared below
 *
 * A code u of B < 8 bits is a small positive int8, so both sides of the product are signed:
 *     sum a w = (sum a u) * 2 - (2^B - 1) * sum a         (8 bits: as it is)
 * which fits int32 for k <= TN_S8_MAX_K. */
#include "kernels/arm/epilogue_neon.h"
#include "kernels/arm/weightlets_neon.h"
#include "kernels/gemm_packed.h"

#include <assert.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    GROUP = TN_WEIGHTLET_GROUP,
    BLOCK_K = 4 * GROUP,        /* a tile's codes and the rows of a block stay in L1 */
    MOST_ROWS = TN_PACKED_MOST, /* rows that share a tile's codes */
    PIECE = 16,                 /* inputs */
    PIECE_BYTES = 4 * PIECE,
    TILE_PIECE_BYTES = TN_TILE_N * PIECE,
    QUAD = 16 /* sums of four rows and four channels */
};

/* Up to 16 channels. */
typedef struct tile {
    size_t n_cols, step;                    /* step: bytes of a group of all of them */
    bool uniform;                           /* all of one width */
    uint64_t fields;                        /* the widths as they are stored */
    _Alignas(16) uint8_t width[TN_TILE_N];  /* 0: no such channel */
    uint8_t at[TN_TILE_N];                  /* where each begins in a group, in 16 bytes */
    int32_t up[TN_TILE_N], less[TN_TILE_N]; /* output = (sum << up) - less * the row's sum */
} tile;

static inline size_t tile_off(const tile *t, size_t c) { return (size_t)t->at[c] * 16; }

/* Three bits from bit 3 c on, of eight channels. */
static inline uint8x8_t eight_widths(uint8x16_t bits, const uint8_t *from) {
    static const int16_t down[8] = {0, -3, -6, -1, -4, -7, -2, -5};
    uint16x8_t both = vreinterpretq_u16_u8(vqtbl1q_u8(bits, vld1q_u8(from)));
    return vmovn_u16(vandq_u16(vshlq_u16(both, vld1q_s16(down)), vdupq_n_u16(7)));
}

static inline void widen16(uint8x16_t v, int32_t *out) {
    uint16x8_t lo = vmovl_u8(vget_low_u8(v)), hi = vmovl_u8(vget_high_u8(v));
    vst1q_s32(out, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))));
    vst1q_s32(out + 4, vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))));
    vst1q_s32(out + 8, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))));
    vst1q_s32(out + 12, vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi))));
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
    const uint8x16_t one = vdupq_n_u8(1), narrow = vcltq_u8(width, vdupq_n_u8(8));
    widen16(vandq_u8(narrow, one), t.up);
    widen16(vandq_u8(narrow, vsubq_u8(vshlq_u8(one, vreinterpretq_s8_u8(width)), one)), t.less);
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

/* Where the sum of row r and channel c of a tile is. */
INLINE size_t sum_at(size_t r, size_t c) { return r / 4 * 4 * TN_TILE_N + c / 4 * QUAD + r % 4 * 4 + c % 4; }

/* The output of four channels' sums of a row. */
INLINE int32x4_t summed(int32x4_t x, int32x4_t up, int32x4_t less, int32_t row_sum) {
    x = vshlq_s32(x, up);
    __asm__("" : "+w"(x)); /* or gcc makes two instructions of the next one */
    return vmlsq_n_s32(x, less, row_sum);
}

/* Like finish, for whole tiles and float outputs. */
INLINE void finish_whole(const tn_gemm_s8_args *g, bool biased, const tile *t, size_t n, size_t n_rows,
                         const int32_t *sums, const int32_t *row_sum) {
    columns4 to[4];
    int32x4_t up[4], less[4];
    float *out = g->out_f32 + n;
    const size_t ldo = g->ldo;
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; c++) {
        to[c].scale = vld1q_f32(g->scale + n + 4 * c);
        if (biased) to[c].bias = vld1q_f32(g->bias + n + 4 * c);
        up[c] = vld1q_s32(t->up + 4 * c);
        less[c] = vld1q_s32(t->less + 4 * c);
    }
    for (const int32_t *end = row_sum + n_rows; row_sum < end; sums += 3 * QUAD) {
        const int32_t *four = end - row_sum < 4 ? end : row_sum + 4;
        for (; row_sum < four; row_sum++, sums += 4, out += ldo) {
            float32x4_t y[4];
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++)
                y[c] = scaled(&to[c], biased, summed(vld1q_s32(sums + QUAD * c), up[c], less[c], *row_sum));
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++) vst1q_f32(out + 4 * c, y[c]);
        }
    }
}

/* A tile's sums of products with codes, of n_rows rows, to the outputs. */
static void finish(const tn_gemm_s8_args *g, const tile *t, size_t n, size_t n_rows, const int32_t *sums,
                   const int32_t *row_sum) {
    if (g->out_f32 && t->n_cols == TN_TILE_N) {
        if (g->bias) finish_whole(g, true, t, n, n_rows, sums, row_sum);
        else finish_whole(g, false, t, n, n_rows, sums, row_sum);
        return;
    }
    for (size_t c = 0; c < t->n_cols; c += 4) {
        const columns4 to = columns4_of(g, n + c, t->n_cols - c < 4 ? t->n_cols - c : 4);
        const int32x4_t up = vld1q_s32(t->up + c), less = vld1q_s32(t->less + c);
        for (size_t r = 0; r < n_rows; r++)
            store4(g, r, &to, summed(vld1q_s32(sums + sum_at(r, c)), up, less, row_sum[r]));
    }
}

/* Writes 16 inputs of four rows, minus 128, as a piece, and adds them to sums. */
INLINE void copy_piece(const uint8x16_t *x, int8_t *to, int32x4_t *sum) {
    int8x16_t a[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = vreinterpretq_s8_u8(veorq_u8(x[i], vdupq_n_u8(0x80)));
        sum[i] = vdotq_s32(sum[i], a[i], vdupq_n_s8(1));
    }
    put_rows(to, a);
}

/* Writes n_k inputs (whole groups) of rows r to r + 3 from k on, minus 128, in pieces: zero after the end of
 * a row; where there are fewer rows the last one is there again. Adds their sums to sum. */
static void copy_rows(const tn_gemm_s8_args *g, size_t r, size_t k, size_t n_k, int8_t *to, int32_t *sum) {
    const size_t n_here = g->k - k < n_k ? g->k - k : n_k;
    const int8_t *end = to + 4 * n_k;
    const uint8_t *row[4];
    uint8x16_t x[4];
    int32x4_t s[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        row[i] = g->a + (r + i < g->m ? r + i : g->m - 1) * g->lda + k;
        s[i] = vdupq_n_s32(0);
    }
    size_t j = 0;
    for (; j + PIECE <= n_here; j += PIECE, to += PIECE_BYTES) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = vld1q_u8(row[i] + j);
        copy_piece(x, to, s);
    }
    for (; to < end; j += PIECE, to += PIECE_BYTES) {
        for (int i = 0; i < 4; i++) {
            uint8_t last[PIECE];
            memset(last, 0x80, sizeof last);
            if (j < n_here) memcpy(last, row[i] + j, n_here - j);
            x[i] = vld1q_u8(last);
        }
        copy_piece(x, to, s);
    }
    vst1q_s32(sum, vaddq_s32(vld1q_s32(sum), vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]))));
}

/* A channel's codes of n_k inputs: of the c-th of the four whose pieces begin at `to`. */
INLINE void channel_codes(int bits, const uint8_t *src, size_t step, size_t n_k, int8_t *to, size_t c) {
    for (; n_k; n_k -= GROUP, src += step, to += TN_TILE_N * GROUP) {
#pragma GCC unroll 4
        for (int i = 0; i < WEIGHTLET_PAIRS; i++) {
            uint8x16_t lo, hi;
            weightlet_pair(src, bits, i, &lo, &hi);
            put_code(to + i * TILE_PIECE_BYTES, c, vreinterpretq_s8_u8(lo));
            put_code(to + (WEIGHTLET_PAIRS + i) * TILE_PIECE_BYTES, c, vreinterpretq_s8_u8(hi));
        }
    }
}

/* The codes of a tile of one width, four channels at a time. */
INLINE void uniform_codes(int bits, const uint8_t *src, size_t n_k, int8_t *codes) {
    for (; n_k; n_k -= GROUP, codes += TN_TILE_N * GROUP) {
#pragma GCC unroll 2
        for (int i0 = 0; i0 < WEIGHTLET_PAIRS; i0 += 2) {
            int8_t *lo_at[2], *hi_at[2];
            const uint8_t *from = src;
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                lo_at[j] = codes + (i0 + j) * TILE_PIECE_BYTES;
                hi_at[j] = codes + (WEIGHTLET_PAIRS + i0 + j) * TILE_PIECE_BYTES;
            }
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++, from += 4 * 16 * bits) {
                weightlet_regs w[2][4];
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) {
                    w[0][c] = weightlet_load(from + c * 16 * bits, bits, i0);
                    w[1][c] = weightlet_load(from + c * 16 * bits, bits, i0 + 1);
                    if (bits & 4) __asm__("" : "+w"(w[0][c].four), "+w"(w[1][c].four)); /* one instruction */
                }
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    int8x16x4_t lo, hi;
                    pair_two(w[j]), pair_two(w[j] + 2);
#pragma GCC unroll 4
                    for (int c = 0; c < 4; c++) {
                        uint8x16_t l, h;
                        weightlet_codes(w[j][c], bits, i0 + j, &l, &h);
                        lo.val[c] = vreinterpretq_s8_u8(l), hi.val[c] = vreinterpretq_s8_u8(h);
                    }
                    vst1q_s8_x4(lo_at[j], lo);
                    vst1q_s8_x4(hi_at[j], hi);
                    lo_at[j] += PIECE_BYTES, hi_at[j] += PIECE_BYTES;
                    __asm__("" : "+r"(lo_at[j]), "+r"(hi_at[j])); /* as in next_piece */
                }
            }
        }
        src += TN_TILE_N * 16 * bits;
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

BY_WIDTH(codes_of, channel_codes, (const uint8_t *src, size_t step, size_t n_k, int8_t *to, size_t c), src,
         step, n_k, to, c)
#ifndef TERN_MINIMAL
BY_WIDTH(uniform_codes_of, uniform_codes, (const uint8_t *src, size_t n_k, int8_t *codes), src, n_k, codes)
#endif

/* A tile's codes of n_k inputs, whole groups. */
static void tile_codes(const tile *t, const uint8_t *src, size_t n_k, int8_t *codes) {
#ifndef TERN_MINIMAL
    if (t->uniform) {
        uniform_codes_of[t->width[0]](src, n_k, codes);
        return;
    }
#endif
    if (t->n_cols < TN_TILE_N) memset(codes, 0, TN_TILE_N * n_k);
    for (size_t c = 0; c < t->n_cols; c++)
        codes_of[t->width[c]](src + tile_off(t, c), t->step, n_k, codes + c / 4 * PIECE_BYTES, c % 4);
}

/* The barrier makes one instruction of the load and the step; gcc would add to a base for each load. */
INLINE int8x16x4_t next_piece(const int8_t **from) {
    const int8x16x4_t v = vld1q_s8_x4(*from);
    *from += PIECE_BYTES;
    __asm__("" : "+r"(*from));
    return v;
}

/* Four rows and a tile; add: to the sums of the inputs before. */
INLINE void four_rows(bool add, size_t n_k, const int8_t *codes, const int8_t *a, int32_t *sums) {
    int32x4_t acc[4][4], row[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) row[r] = add ? vld1q_s32(sums + c * QUAD + 4 * r) : vdupq_n_s32(0);
        sums_by_row(row, acc[c]);
    }
    for (const int8_t *end = a + 4 * n_k; a < end;) {
        const int8x16x4_t x = next_piece(&a);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const int8x16x4_t y = next_piece(&codes);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) multiply(acc[c], 4, x.val, y.val[i], i);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        sums_by_row(acc[c], row);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) vst1q_s32(sums + c * QUAD + 4 * r, row[r]);
    }
}

/* R rows and eight channels of one width, 16 * bits bytes apart: registers j and j + 1 of each, whose codes go
 * to the product without a store, and their 64 inputs at a. The barriers keep instructions in this order:
 * pairs of loads become one, and gcc does not move sums between registers. */
INLINE void uniform_step(int bits, int R, int j, const uint8_t *src, const int8_t *a, int32x4_t (*acc)[4]) {
    int8x16_t x[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* two pieces of low codes, two of high ones */
        const int8_t *from = a + (i / 2 * WEIGHTLET_PAIRS + i % 2) * PIECE_BYTES;
#pragma GCC unroll 2
        for (int p = 0; p < R; p += 2) {
            x[i][p] = vld1q_s8(from + 16 * p), x[i][p + 1] = vld1q_s8(from + 16 * p + 16);
            __asm__ volatile("" : "+w"(x[i][p]), "+w"(x[i][p + 1]));
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 8; c += 2, src += 2 * 16 * bits) {
        weightlet_regs w[2][2];
#pragma GCC unroll 2
        for (int e = 0; e < 2; e++) {
            w[0][e] = weightlet_load(src + e * 16 * bits, bits, j);
            w[1][e] = weightlet_load(src + e * 16 * bits, bits, j + 1);
            if (bits & 4) __asm__ volatile("" : "+w"(w[0][e].four), "+w"(w[1][e].four));
        }
#pragma GCC unroll 2
        for (int e = 0; e < 2; e++) {
            pair_two(w[e]);
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                uint8x16_t lo, hi;
                weightlet_codes(w[e][i], bits, j + e, &lo, &hi);
                multiply(acc[c / 4], R, x[e], vreinterpretq_s8_u8(lo), c % 4 + i);
                multiply(acc[c / 4], R, x[2 + e], vreinterpretq_s8_u8(hi), c % 4 + i);
                __asm__ volatile("" ::: "memory");
            }
        }
    }
}

/* The outputs of R rows and the eight channels at n, of one width. Steps row on. */
INLINE void uniform_finish(const tn_gemm_s8_args *g, int bits, int R, bool biased, size_t n,
                           int32x4_t (*sum)[4], const int32_t *row_sum, float **row) {
    columns4 to[2];
#pragma GCC unroll 2
    for (size_t q = 0; q < 2; q++) {
        to[q].scale = vld1q_f32(g->scale + n + 4 * q);
        if (biased) to[q].bias = vld1q_f32(g->bias + n + 4 * q);
    }
    const int32x4_t a = vld1q_s32(row_sum), less = vdupq_n_s32((1 << bits) - 1);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int q = 0; q < 2; q++) {
            int32x4_t s = sum[q][r];
            if (bits < 8) s = summed(s, vdupq_n_s32(1), less, a[r]);
            vst1q_f32(row[r] + 4 * q, scaled(&to[q], biased, s));
        }
        row[r] += 8;
    }
}

/* R rows and a tile of one width, to float outputs. Where g has fewer rows copy_rows repeats the last one, and
 * its outputs are written again. */
INLINE void uniform_rows(int bits, int R, const tn_gemm_s8_args *g, size_t n, const uint8_t *src,
                         const int8_t *a, const int32_t *row_sum) {
    const size_t k_up = (g->k + GROUP - 1) / GROUP * GROUP;
    float *row[4];
#pragma GCC unroll 4
    for (size_t r = 0; r < (size_t)R; r++) row[r] = g->out_f32 + n + (r < g->m ? r : g->m - 1) * g->ldo;
#pragma GCC unroll 1
    for (int half = 0; half < 2; half++, n += 8, src += 8 * 16 * bits) {
        int32x4_t acc[2][4], sum[2][4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) acc[0][i] = acc[1][i] = vdupq_n_s32(0);
        const uint8_t *from = src;
        const int8_t *x = a;
        for (size_t k = k_up; k; k -= GROUP, from += TN_TILE_N * 16 * bits, x += 4 * GROUP) {
            uniform_step(bits, R, 0, from, x, acc);
            uniform_step(bits, R, 2, from, x + 2 * PIECE_BYTES, acc);
        }
        sums_by_row(acc[0], sum[0]);
        sums_by_row(acc[1], sum[1]);
        if (g->bias) uniform_finish(g, bits, R, true, n, sum, row_sum, row);
        else uniform_finish(g, bits, R, false, n, sum, row_sum, row);
    }
}

typedef void (*uniform_fn)(const tn_gemm_s8_args *g, size_t n, const uint8_t *src, const int8_t *a,
                           const int32_t *row_sum);
#define UNIFORM(name, R)                                                                                     \
    BY_WIDTH(                                                                                                \
        name, uniform_rows,                                                                                  \
        (const tn_gemm_s8_args *g, size_t n, const uint8_t *src, const int8_t *a, const int32_t *row_sum),   \
        R, g, n, src, a, row_sum)

/* The most rows whose codes go from registers to the product. With four, clang 14 stores and reloads so much that
 * unpacking to L1 takes a fifth (SDOT) to a quarter (SMMLA) fewer instructions there. */
#ifdef __clang__
enum { MOST_UNIFORM = 2 };
#else
enum { MOST_UNIFORM = 4 };
#endif

/* Products of n_rows for tiles of each width; NULL: a tile's codes are unpacked once for all of them. */
static const uniform_fn *uniform_of(size_t n_rows);

static void several_rows(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, int8_t *a) {
    const size_t k_up = (g->k + GROUP - 1) / GROUP * GROUP, n_rows = (g->m + 3) / 4 * 4;
    int32_t row_sum[MOST_ROWS] = {0}, sums[MOST_ROWS * TN_TILE_N];
    int8_t codes[TN_TILE_N * BLOCK_K];
    for (size_t k0 = 0; k0 < k_up; k0 += BLOCK_K) {
        const size_t n_k = k_up - k0 < BLOCK_K ? k_up - k0 : BLOCK_K;
        for (size_t r = 0; r < n_rows; r += 4)
            copy_rows(g, r, k0, n_k, a + k0 * n_rows + r * n_k, row_sum + r);
    }
    const uniform_fn *uniform = g->out_f32 ? uniform_of(g->m) : NULL;
    tile t = {0};
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N, packed += k_up / GROUP * t.step) {
        next_tile(&t, g, bits, n);
        if (t.uniform && uniform) {
            uniform[t.width[0]](g, n, packed, a, row_sum);
            continue;
        }
        for (size_t k0 = 0; k0 < k_up; k0 += BLOCK_K) {
            const size_t n_k = k_up - k0 < BLOCK_K ? k_up - k0 : BLOCK_K;
            tile_codes(&t, packed + k0 / GROUP * t.step, n_k, codes);
            for (size_t r = 0; r < n_rows; r += 4) {
                const int8_t *x = a + k0 * n_rows + r * n_k;
                if (k0) four_rows(true, n_k, codes, x, sums + sum_at(r, 0));
                else four_rows(false, n_k, codes, x, sums + sum_at(r, 0));
            }
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
