/* kernels/x86/gemm_packed_avx2.c - any number of rows against weightlets, without VNNI.
 *
 * A code u of B < 8 bits is the unsigned operand of vpmaddubsw, an activation a = u8 - 128 the signed one. A
 * pair is at most 2 * (2^B - 1) * 128, so int16 holds four pairs up to 5 bits, two with 6, one with 7: sums
 * of four registers, a whole group of 128 weights, are widened by one vpmaddwd. With 8 bits the sign moves to
 * the weight, as in gemm_s8_avx2.c. A weight is 2u - (2^B - 1), hence
 *     sum a w = (sum a u) * 2 - (2^B - 1) * sum a         (8 bits: as it is)
 * which fits int32 for k <= TN_S8_MAX_K. Products run along k and are added up across a register once.
 *
 * Up to ROWS rows: codes never leave the registers. A block of k of all rows stays in L1 while the channels
 * of a tile pass one by one. More rows: a tile's codes of a block of k are unpacked once, into L1, and the
 * rows pass ROWS at a time. That needs fewer instructions a product than 8-bit tiles do, so prompts are read
 * from weightlets too. */
#include "kernels/gemm_packed.h"

#include "kernels/x86/packed_tile.h"
#include "kernels/x86/weightlets_avx2.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/x86/epilogue_ymm.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    GROUP = TN_WEIGHTLET_GROUP,
    ROWS = TN_PACKED_ROWS, /* of one pass, whose sums fit the registers */
    FEW_GROUPS = 16,       /* of a block of k, up to ROWS rows */
    MANY_GROUPS = 8,       /* with more: a tile's codes and the rows of a pass stay in L1 */
    LINE = 64,
    FEW_ROOM = FEW_GROUPS * GROUP + LINE, /* of a row in a block: rows do not begin in the same set of L1 */
    MANY_ROOM = MANY_GROUPS * GROUP + LINE
};

/* A tile over a block of k. */
typedef struct span {
    const uint8_t *src; /* weightlets: the tile's first group of the block; else codes [channel][MANY_ROOM] */
    size_t step;        /* to the next group of a channel */
    size_t n_groups;
    uintptr_t next;  /* prefetched: the block that follows in memory, each channel its share. It may lie after
                        the matrix: a prefetch does not read */
    size_t share;    /* codes: bytes of it, or 0 */
    const int8_t *a; /* of R rows, each padded to a block */
    bool first;      /* the first block of k: sums start here */
} span;

/* sum[l] += the products of a group's codes and one row's activations. */
INLINE __m256i group_dot(int bits, const __m256i *w, const int8_t *a, __m256i sum) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i m[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i x = _mm256_load_si256((const __m256i *)(a + 32 * i));
        m[i] = bits < 8 ? _mm256_maddubs_epi16(w[i], x)
                        : _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w[i], x));
    }
    if (bits <= 6) {
        m[0] = _mm256_add_epi16(m[0], m[1]);
        m[2] = _mm256_add_epi16(m[2], m[3]);
    }
    if (bits <= 5) return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(m[0], m[2]), one));
    __m256i s = _mm256_add_epi32(_mm256_madd_epi16(m[0], one), _mm256_madd_epi16(m[2], one));
    if (bits > 6) {
        __m256i t = _mm256_add_epi32(_mm256_madd_epi16(m[1], one), _mm256_madd_epi16(m[3], one));
        s = _mm256_add_epi32(s, t);
    }
    return _mm256_add_epi32(sum, s);
}

/* One channel and R rows over a block. in_codes: src holds one code per byte (8 bits: the weights).
 * partial [R]: the sums so far. */
INLINE void channel(int R, int bits, bool in_codes, const span *s, const uint8_t *src, uintptr_t next,
                    __m256i *partial) {
    __m256i sum[ROWS], w[4];
    const int8_t *a = s->a;
    const size_t step = in_codes ? GROUP : s->step, half = s->n_groups * step / 2,
                 room = in_codes ? MANY_ROOM : FEW_ROOM;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sum[r] = in_codes || s->first ? _mm256_setzero_si256() : partial[r];
    for (size_t g = s->n_groups; g; g--, src += step, a += GROUP) {
        if (in_codes || bits == 8) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) w[i] = _mm256_loadu_si256((const __m256i *)(src + 32 * i));
        } else {
            weightlets_placed_avx2(src, bits, 0, w);
        }
        if (!in_codes) { /* into L2, which has more outstanding misses; by two streams, as one does not reach
                            the full rate */
            _mm_prefetch((const char *)next, _MM_HINT_T1);
            _mm_prefetch((const char *)(next + half), _MM_HINT_T1);
            next += GROUP / 16 * (uintptr_t)bits;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sum[r] = group_dot(bits, w, a + (size_t)r * room, sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) partial[r] = sum[r];
}

/* A tile's channels over a block of k, from weightlets. */
INLINE void channels(int R, const tile *t, const span *s, __m256i (*partial)[ROWS]) {
    for (size_t c = 0; c < t->n_cols; c++) {
        const uint8_t *src = s->src + t->off[c];
        uintptr_t next = s->next + t->off[c] * s->n_groups / 2;
        switch (t->width[c]) {
        case 1: channel(R, 1, false, s, src, next, partial[c]); break;
        case 2: channel(R, 2, false, s, src, next, partial[c]); break;
        case 3: channel(R, 3, false, s, src, next, partial[c]); break;
        case 4: channel(R, 4, false, s, src, next, partial[c]); break;
        case 5: channel(R, 5, false, s, src, next, partial[c]); break;
        case 6: channel(R, 6, false, s, src, next, partial[c]); break;
        case 7: channel(R, 7, false, s, src, next, partial[c]); break;
        default: channel(R, 8, false, s, src, next, partial[c]); break;
        }
    }
}

/* The same from codes; bits: the largest width of channels c0..c1-1. */
INLINE void run_of_channels(int R, int bits, const span *s, size_t c0, size_t c1, __m256i (*partial)[ROWS]) {
    for (size_t c = c0; c < c1; c++) {
        uintptr_t next = s->next + c * s->share;
        for (size_t i = 0; i < s->share; i += LINE) _mm_prefetch((const char *)(next + i), _MM_HINT_T1);
        channel(R, bits, true, s, s->src + c * MANY_ROOM, 0, partial[c]);
    }
}

INLINE void coded_channels(int R, const tile *t, const span *s, __m256i (*partial)[ROWS]) {
    for (size_t c = 0, end; c < t->n_cols; c = end) {
        unsigned width = t->width[c] < 5 ? 5 : t->width[c];
        for (end = c + 1; end < t->n_cols && (t->width[end] < 5 ? 5 : t->width[end]) == width;) end++;
        switch (width) {
        case 8: run_of_channels(R, 8, s, c, end, partial); break;
        case 7: run_of_channels(R, 7, s, c, end, partial); break;
        case 6: run_of_channels(R, 6, s, c, end, partial); break;
        default: run_of_channels(R, 5, s, c, end, partial); break;
        }
    }
}

#define CHANNELS(R)                                                                                          \
    static void channels_##R(const tile *t, const span *s, __m256i(*partial)[ROWS]) {                        \
        channels(R, t, s, partial);                                                                          \
    }                                                                                                        \
    static void coded_##R(const tile *t, const span *s, __m256i(*partial)[ROWS]) {                           \
        coded_channels(R, t, s, partial);                                                                    \
    }
CHANNELS(1)
CHANNELS(2)
CHANNELS(3)
CHANNELS(4)
CHANNELS(5)
CHANNELS(6)
CHANNELS(7)
CHANNELS(8)
typedef void (*channels_fn)(const tile *, const span *, __m256i (*)[ROWS]);
static const channels_fn packed_fns[] = {channels_1, channels_2, channels_3, channels_4,
                                         channels_5, channels_6, channels_7, channels_8},
                         coded_fns[] = {coded_1, coded_2, coded_3, coded_4,
                                        coded_5, coded_6, coded_7, coded_8};

/* Lane c = sum of the lanes of s[c * step], c < 8. */
INLINE __m256i add_across(const __m256i *s, size_t step) {
    __m256i quad[2];
#pragma GCC unroll 2
    for (size_t q = 0; q < 2; q++) { /* 4q..4q+3 within each 128 bits */
        __m256i a = s[4 * q * step], b = s[(4 * q + 1) * step], c = s[(4 * q + 2) * step],
                d = s[(4 * q + 3) * step];
        __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        quad[q] = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(quad[0], quad[1], 0x20),
                            _mm256_permute2x128_si256(quad[0], quad[1], 0x31));
}

/* A product's blocks of k. */
typedef struct blocks {
    size_t n_groups, n;
} blocks;

static blocks blocks_of(size_t k, size_t most) {
    size_t n_groups = (k + GROUP - 1) / GROUP;
    return (blocks){n_groups, (n_groups + most - 1) / most};
}

static size_t block_begin(const blocks *b, size_t i) { return b->n_groups * i / b->n; }

/* Block i of n_rows rows from row0 on to out, `room` apart: less 128, zero after k. row_sum [n_rows]
 * grows by their sums. */
static void copy_rows(const tn_gemm_s8_args *g, size_t row0, size_t n_rows, const blocks *b, size_t i,
                      size_t room, int8_t *out, int32_t *row_sum) {
    const size_t k0 = block_begin(b, i) * GROUP, k1 = block_begin(b, i + 1) * GROUP;
    const __m256i flip = _mm256_set1_epi8((char)0x80), one = _mm256_set1_epi16(1), ones = _mm256_set1_epi8(1);
    for (size_t r = 0; r < n_rows; r++, out += room) {
        const uint8_t *row = g->a + (row0 + r) * g->lda;
        __m256i sum = _mm256_setzero_si256();
        size_t k = k0;
        for (; k < k1; k += 32) {
            __m256i x;
            if (k + 32 <= g->k) {
                x = _mm256_loadu_si256((const __m256i *)(row + k));
            } else {
                uint8_t last[32];
                memset(last, 0x80, sizeof last);
                if (k < g->k) memcpy(last, row + k, g->k - k);
                x = _mm256_loadu_si256((const __m256i *)last);
            }
            x = _mm256_xor_si256(x, flip);
            _mm256_store_si256((__m256i *)(out + k - k0), x);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(ones, x), one));
        }
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        row_sum[r] += _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    }
}

/* Sums of codes of eight channels from c on of a row to its outputs. */
INLINE void finish(const tn_gemm_s8_args *g, const tile *t, size_t m, size_t n, size_t c, int32_t row_sum,
                   __m256i sum) {
    const __m256i width = _mm256_loadu_si256((const __m256i *)(t->width + c)), one = _mm256_set1_epi32(1);
    const __m256i narrow = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), width); /* fewer than 8 bits */
    __m256i row = _mm256_and_si256(_mm256_set1_epi32(row_sum), narrow);
    __m256i less = _mm256_sub_epi32(_mm256_sllv_epi32(row, width), row); /* (2^B - 1) row_sum, or 0 */
    __m256i acc = _mm256_sub_epi32(_mm256_sllv_epi32(sum, _mm256_and_si256(narrow, one)), less);
    store8(g, m, n + c, t->n_cols - c < 8 ? t->n_cols - c : 8, acc);
}

static void few(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, uint8_t *scratch) {
    const blocks b = blocks_of(g->k, FEW_GROUPS);
    int8_t *a = (int8_t *)scratch; /* [block][row][FEW_ROOM] */
    int32_t row_sum[ROWS] = {0};
    for (size_t i = 0; i < b.n; i++) copy_rows(g, 0, g->m, &b, i, FEW_ROOM, a + i * g->m * FEW_ROOM, row_sum);
    __m256i partial[TN_TILE_N][ROWS];
    if (g->n1 % TN_TILE_N) memset(partial, 0, sizeof partial); /* channels that do not exist */
    tile t = {0};
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        next_tile(g, bits, n, &t);
        for (size_t i = 0; i < b.n; i++) {
            size_t g0 = block_begin(&b, i), g1 = block_begin(&b, i + 1);
            span s = {.src = packed + g0 * t.step,
                      .step = t.step,
                      .n_groups = g1 - g0,
                      .next = (uintptr_t)packed + g1 * t.step,
                      .a = a + i * g->m * FEW_ROOM,
                      .first = i == 0};
            packed_fns[g->m - 1](&t, &s, partial);
        }
        for (size_t r = 0; r < g->m; r++) {
            for (size_t c = 0; c < t.n_cols; c += 8)
                finish(g, &t, r, n, c, row_sum[r], add_across(&partial[c][r], ROWS));
        }
        packed += t.step * b.n_groups;
    }
}

/* ---- many rows ------------------------------------------------------------------------------------- */

INLINE void codes(int bits, const uint8_t *src, size_t step, size_t n_groups, uint8_t *out) {
    for (size_t i = 0; i < n_groups; i++, src += step, out += GROUP) {
        __m256i w[4];
        if (bits == 8) {
            memcpy(out, src, GROUP);
            continue;
        }
        weightlets_placed_avx2(src, bits, 0, w);
        for (int j = 0; j < 4; j++) _mm256_store_si256((__m256i *)(out + 32 * j), w[j]);
    }
}

static void tile_codes(const tile *t, const uint8_t *src, size_t n_groups, uint8_t *out) {
    for (size_t c = 0; c < t->n_cols; c++, out += MANY_ROOM) {
        const uint8_t *from = src + t->off[c];
        switch (t->width[c]) {
        case 1: codes(1, from, t->step, n_groups, out); break;
        case 2: codes(2, from, t->step, n_groups, out); break;
        case 3: codes(3, from, t->step, n_groups, out); break;
        case 4: codes(4, from, t->step, n_groups, out); break;
        case 5: codes(5, from, t->step, n_groups, out); break;
        case 6: codes(6, from, t->step, n_groups, out); break;
        case 7: codes(7, from, t->step, n_groups, out); break;
        default: codes(8, from, t->step, n_groups, out); break;
        }
    }
}

enum {
    MANY = 128,      /* rows that meet a tile's codes */
    MANY_SLOTS = 512 /* rows times blocks of k that have room */
};

/* The scratch of many rows. */
typedef struct room {
    uint8_t codes[TN_TILE_N][MANY_ROOM];
    int8_t a[MANY_SLOTS][MANY_ROOM];
    int32_t sums[MANY][TN_PACKED_BLOCK]; /* of codes, over the blocks of k so far */
    int32_t row_sum[MANY];
} room;
_Static_assert(sizeof(room) <= TN_PACKED_MANY_BYTES && MANY_SLOTS >= MANY, "many rows fit the scratch");

/* A tile whose codes of a block of k are unpacked: all rows, pass by pass. The first passes prefetch what
 * follows in memory. */
static void pass_rows(const tile *t, span *s, room *o, const int8_t *a, size_t n_rows, size_t i_col) {
    __m256i partial[TN_TILE_N][ROWS];
    if (t->n_cols < TN_TILE_N) memset(partial, 0, sizeof partial);
    size_t n_passes = (n_rows + ROWS - 1) / ROWS;
    for (size_t p = 0, row = 0, n; p < n_passes; p++, row += n) {
        n = (n_rows - row) / (n_passes - p);
        s->a = a + row * MANY_ROOM;
        coded_fns[n - 1](t, s, partial);
        s->share = 0;
        for (size_t r = 0; r < n; r++) {
            for (size_t c = 0; c < t->n_cols; c += 8) {
                __m256i *sum = (__m256i *)(o->sums[row + r] + i_col + c);
                _mm256_store_si256(sum, _mm256_add_epi32(*sum, add_across(&partial[c][r], ROWS)));
            }
        }
    }
}

/* Columns n..end-1, at most TN_PACKED_BLOCK, of n_rows <= MANY rows. all: the rows' blocks are ready. */
static void column_block(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         const blocks *b, bool all, room *o, size_t row0, size_t n_rows, size_t n,
                         size_t end) {
    tile t[TN_PACKED_BLOCK / TN_TILE_N];
    const uint8_t *src[TN_PACKED_BLOCK / TN_TILE_N];
    size_t n_tiles = 0;
    for (size_t i = n; i < end; i += TN_TILE_N, n_tiles++) {
        t[n_tiles] = n_tiles ? t[n_tiles - 1] : (tile){0};
        next_tile(g, bits, i, &t[n_tiles]);
        src[n_tiles] = packed;
        packed += t[n_tiles].step * b->n_groups;
    }
    memset(o->sums, 0, n_rows * sizeof *o->sums);
    if (!all) memset(o->row_sum, 0, n_rows * sizeof *o->row_sum);
    for (size_t i = 0; i < b->n; i++) {
        size_t g0 = block_begin(b, i), n_groups = block_begin(b, i + 1) - g0;
        const int8_t *a = all ? o->a[i * n_rows] : o->a[0];
        if (!all) copy_rows(g, row0, n_rows, b, i, MANY_ROOM, o->a[0], o->row_sum);
        for (size_t j = 0; j < n_tiles; j++) {
            const uint8_t *next = j + 1 < n_tiles ? src[j + 1] + g0 * t[j + 1].step
                                  : i + 1 < b->n  ? src[0] + (g0 + n_groups) * t[0].step
                                                  : packed;
            tile_codes(&t[j], src[j] + g0 * t[j].step, n_groups, o->codes[0]);
            span s = {.src = o->codes[0],
                      .n_groups = n_groups,
                      .next = (uintptr_t)next,
                      .share = t[j].step * n_groups / TN_TILE_N};
            pass_rows(&t[j], &s, o, a, n_rows, j * TN_TILE_N);
        }
    }
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t j = 0; j < n_tiles; j++) {
            for (size_t c = 0; c < t[j].n_cols; c += 8) {
                __m256i sum = _mm256_load_si256((const __m256i *)(o->sums[r] + j * TN_TILE_N + c));
                finish(g, &t[j], row0 + r, n + j * TN_TILE_N, c, o->row_sum[r], sum);
            }
        }
    }
}

static void many(const tn_gemm_s8_args *g, size_t row0, size_t n_rows, const uint8_t *packed,
                 const uint8_t *bits, room *o) {
    const blocks b = blocks_of(g->k, MANY_GROUPS);
    const bool all = n_rows * b.n <= MANY_SLOTS;
    memset(o->row_sum, 0, sizeof o->row_sum);
    for (size_t i = 0; all && i < b.n; i++)
        copy_rows(g, row0, n_rows, &b, i, MANY_ROOM, o->a[i * n_rows], o->row_sum);
    for (size_t n = g->n0, end; n < g->n1; n = end) {
        end = g->n1 - n < TN_PACKED_BLOCK ? g->n1 : n + TN_PACKED_BLOCK;
        column_block(g, packed, bits, &b, all, o, row0, n_rows, n, end);
        packed += tn_weightlets_bytes(bits, n, end, g->k);
    }
}

void tn_gemm_packed_avx2(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch) {
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n);
    if (!g->m) return;
    if (g->m <= ROWS) {
        few(g, packed, bits, scratch);
        return;
    }
    size_t n_runs = (g->m + MANY - 1) / MANY;
    for (size_t i = 0; i < n_runs; i++) {
        size_t m0 = g->m * i / n_runs, m1 = g->m * (i + 1) / n_runs;
        many(g, m0, m1 - m0, packed, bits, (room *)(void *)scratch);
    }
}
