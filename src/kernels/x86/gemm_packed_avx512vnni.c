/* kernels/x86/gemm_packed_avx512vnni.c - few rows against weightlets. A channel's group of 128 weights
 * becomes two registers of codes, each of which meets the same 64 activations of up to 16 rows. Both run
 * along k, so nothing is transposed: sums stay in registers for a whole block of k and are reduced once, at
 * the end of k. Blocks of k keep the activations of all rows in L1 while the channels of a tile pass one by
 * one. The rows lie at a fixed distance, so that a product and the load of its activations are one
 * instruction.
 *
 * A register is loaded in the time of a product (Zen 4), so that three rows and more wait for loads. The
 * channels of a tile that have one narrow width pass in bunches of four with four rows at a time: eight loads
 * of activations do for thirty-two products.
 *
 * The codes u are the unsigned operand of vpdpbusd and activations a = u8 - 128 the signed one. A weight is
 * 2u - (2^B - 1), or u - 128 with 8 bits, so that
 *     sum a w = (sum a u) * 2 - (2^B - 1) * sum a         (8 bits: sum a u - 128 * sum a)
 * which fits int32 for k <= TN_S8_MAX_K; unpacking is a shift and a mask. Where a group's halves are summed
 * separately, the second half's narrow codes stay 16 times as large, and the sum is shifted once. */
#include "kernels/gemm_packed.h"

#include "kernels/x86/epilogue_avx512.h"
#include "kernels/x86/packed_tile.h"
#include "kernels/x86/transpose_avx512.h"
#include "kernels/x86/weightlets_avx512.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum {
    GROUP = TN_WEIGHTLET_GROUP,
    NARROW_GROUPS = 24, /* of a block of k, with up to NARROW rows: 3072 inputs */
    WIDE_GROUPS = 12,
    LINE = 64,
    ROWS = 16, /* of one pass */
    BUNCH = 4, /* channels that pass together, and rows that they meet */
    BUNCHES = TN_TILE_N / BUNCH,
    BUNCH_BITS = 6, /* up to this width; wider channels take as long to be read anew for every four rows */
    NARROW = 8,     /* up to this many rows sums are reduced once a tile, not once a channel */
};

_Static_assert(NARROW *NARROW_GROUPS <= (int)TN_PACKED_FEW * WIDE_GROUPS &&
                   WIDE_GROUPS * GROUP <= (int)TN_PACKED_ROOM,
               "the rows' copies fit the scratch");

struct kind;

/* Rows that pass together. */
typedef struct pass {
    const tn_gemm_s8_args *g;
    size_t n_groups, n_blocks, block_bytes, row0, n_rows;
    const struct kind *kind; /* the last of its rows may be missing */
    int8_t *a;               /* [n_blocks][kind->n_rows][block_bytes]: activations less 128, zero after k */
    _Alignas(64) int32_t row_sum[ROWS];
} pass;

typedef struct span {
    const uint8_t *src; /* the tile's first group of the block */
    size_t step;        /* to the next one */
    size_t n_groups;
    uintptr_t next;  /* prefetched: the block that follows in memory, each channel its share. It may lie after
                        the matrix: a prefetch does not read */
    const int8_t *a; /* of R rows, each padded to a block */
    bool first, last; /* of the blocks of k */
} span;

/* Lane r = sum of the lanes of s[r], r < 16. */
INLINE __m512i add_across(const __m512i *s, size_t step) {
    __m512i quad[4];
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++) { /* 4q..4q+3 within each 128 bits */
        __m512i a = s[4 * q * step], b = s[(4 * q + 1) * step], c = s[(4 * q + 2) * step],
                d = s[(4 * q + 3) * step];
        __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        quad[q] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    __m512i x = _mm512_add_epi32(_mm512_shuffle_i32x4(quad[0], quad[1], 0x88),
                                 _mm512_shuffle_i32x4(quad[0], quad[1], 0xdd));
    __m512i y = _mm512_add_epi32(_mm512_shuffle_i32x4(quad[2], quad[3], 0x88),
                                 _mm512_shuffle_i32x4(quad[2], quad[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(x, y, 0x88), _mm512_shuffle_i32x4(x, y, 0xdd));
}

/* One channel and R rows over a block, from src and next on. partial [R]: the sums so far. With more than
 * NARROW rows, at the last block, *sums gets the reduced sums, row r in lane r. */
INLINE void channel(int R, int bits, const span *s, const uint8_t *src, uintptr_t next, __m512i *partial,
                    __m512i *sums) {
    enum { TWO = 4 }; /* rows up to which a second sum hides the latency of vpdpbusd */
    __m512i lo[ROWS], hi[TWO], w[2], zero = _mm512_setzero_si512();
    const int8_t *a = s->a;
    const size_t step = s->step, half = s->n_groups * step / 2,
                 stride = R <= NARROW ? NARROW_GROUPS * GROUP : WIDE_GROUPS * GROUP;
    if (s->first) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) lo[r] = zero;
    } else {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) lo[r] = r < R ? partial[r] : zero;
    }
#pragma GCC unroll 4
    for (int r = 0; r < TWO; r++) hi[r] = zero;
    for (size_t g = s->n_groups; g; g--, src += step, a += GROUP) {
        weightlet_codes_avx512(src, bits, R <= TWO, w);
        /* Into L2: L1 has too few outstanding misses to read at the rate of memory (Zen 4: 12 of 25 GB/s).
         * Two streams: one loses a tenth of the rate. */
        _mm_prefetch((const char *)next, _MM_HINT_T1);
        _mm_prefetch((const char *)(next + half), _MM_HINT_T1);
        next += GROUP / 16 * (uintptr_t)bits;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
            lo[r] = _mm512_dpbusd_epi32(lo[r], w[0], _mm512_load_si512(a + (size_t)r * stride));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            __m512i *d = R <= TWO ? &hi[r < TWO ? r : 0] : &lo[r];
            *d = _mm512_dpbusd_epi32(*d, w[1], _mm512_load_si512(a + (size_t)r * stride + 64));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; R <= TWO && r < R; r++)
        lo[r] = _mm512_add_epi32(lo[r], bits <= 4 ? _mm512_srai_epi32(hi[r], 4) : hi[r]);
    if (R > NARROW && s->last) {
        *sums = add_across(lo, 1);
    } else {
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) partial[r] = lo[r];
    }
}

/* BUNCH channels of one width from src on and R rows over a block. partial [channel][row]: the sums so far. At the last block
 * all are reduced together: lane BUNCH c + r of *sums is that of channel c and row r. next: prefetched;
 * 0: nothing is. */
INLINE void bunch(int R, int bits, const span *s, const uint8_t *src, uintptr_t next, size_t stride,
                  __m512i (*partial)[BUNCH], __m512i *sums) {
    const __m512i zero = _mm512_setzero_si512();
    const size_t each = GROUP / 8 * (size_t)bits, step = s->step, half = s->n_groups * step / 2;
    __m512i sum[BUNCH * BUNCH];
#pragma GCC unroll 16
    for (int i = 0; i < BUNCH * BUNCH; i++)
        sum[i] = s->first || i % BUNCH >= R ? zero : partial[i / BUNCH][i % BUNCH];
    const int8_t *a = s->a;
    for (size_t g = s->n_groups; g; g--, src += step, a += GROUP) {
        __m512i w[BUNCH][2];
#pragma GCC unroll 4
        for (size_t c = 0; c < BUNCH; c++) weightlet_codes_avx512(src + c * each, bits, false, w[c]);
        if (next) { /* as for one channel */
#pragma GCC unroll 8
            for (size_t line = 0; line < BUNCH * each / 2; line += LINE / 2) {
                _mm_prefetch((const char *)(next + line), _MM_HINT_T1);
                _mm_prefetch((const char *)(next + line + half), _MM_HINT_T1);
            }
            next += BUNCH * each / 2;
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const __m512i x = _mm512_load_si512(a + (size_t)r * stride + LINE * h);
#pragma GCC unroll 4
                for (int c = 0; c < BUNCH; c++)
                    sum[c * BUNCH + r] = _mm512_dpbusd_epi32(sum[c * BUNCH + r], w[c][h], x);
            }
    }
    if (s->last) {
        *sums = add_across(sum, 1);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < BUNCH * BUNCH; i++)
        if (i % BUNCH < R) partial[i / BUNCH][i % BUNCH] = sum[i];
}

/* A tile of one width over a block of k, R rows at a time. partial [rows / R][channel][row], sums [rows / R][bunch]. */
INLINE void bunches(int R, size_t n_rows, const tile *t, const span *all, __m512i (*partial)[BUNCH],
                    __m512i *sums) {
    const size_t stride = n_rows <= NARROW ? NARROW_GROUPS * GROUP : WIDE_GROUPS * GROUP;
    span s = *all;
    for (size_t row = 0; row < n_rows; row += (size_t)R, s.a += (size_t)R * stride)
        for (size_t c = 0; c < TN_TILE_N; c += BUNCH, partial += BUNCH, sums++) {
            const uint8_t *src = s.src + t->off[c];
            const uintptr_t next = row ? 0 : s.next + t->off[c] * s.n_groups / 2;
            switch (t->one_width) {
            case 1: bunch(R, 1, &s, src, next, stride, partial, sums); break;
            case 2: bunch(R, 2, &s, src, next, stride, partial, sums); break;
            case 3: bunch(R, 3, &s, src, next, stride, partial, sums); break;
            case 4: bunch(R, 4, &s, src, next, stride, partial, sums); break;
            case 5: bunch(R, 5, &s, src, next, stride, partial, sums); break;
            default: bunch(R, 6, &s, src, next, stride, partial, sums); break;
            }
        }
}

/* Lane c of by_row[r] is the sum of channel c. */
INLINE void rows_of_bunches(const __m512i sums[static BUNCHES], __m512i by_row[static BUNCH]) {
    const __m512i turned = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i b[BUNCHES]; /* lane BUNCH r + c */
#pragma GCC unroll 4
    for (int i = 0; i < BUNCHES; i++) b[i] = _mm512_permutexvar_epi32(turned, sums[i]);
    const __m512i even0 = _mm512_shuffle_i32x4(b[0], b[1], 0x88),
                  even1 = _mm512_shuffle_i32x4(b[2], b[3], 0x88),
                  odd0 = _mm512_shuffle_i32x4(b[0], b[1], 0xdd),
                  odd1 = _mm512_shuffle_i32x4(b[2], b[3], 0xdd);
    by_row[0] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    by_row[1] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    by_row[2] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
    by_row[3] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
}

/* A tile's channels over a block of k. */
INLINE void channels(int R, const tile *t, const span *s, __m512i (*partial)[ROWS], __m512i *sums) {
    for (size_t c = 0; c < t->n_cols; c++) {
        const uint8_t *src = s->src + t->off[c];
        uintptr_t next = s->next + t->off[c] * s->n_groups / 2;
        switch (t->width[c]) {
        case 1: channel(R, 1, s, src, next, partial[c], &sums[c]); break;
        case 2: channel(R, 2, s, src, next, partial[c], &sums[c]); break;
        case 3: channel(R, 3, s, src, next, partial[c], &sums[c]); break;
        case 4: channel(R, 4, s, src, next, partial[c], &sums[c]); break;
        case 5: channel(R, 5, s, src, next, partial[c], &sums[c]); break;
        case 6: channel(R, 6, s, src, next, partial[c], &sums[c]); break;
        case 7: channel(R, 7, s, src, next, partial[c], &sums[c]); break;
        default: channel(R, 8, s, src, next, partial[c], &sums[c]); break;
        }
    }
}

#define CHANNELS(R)                                                                                          \
    static void channels_##R(const tile *t, const span *s, __m512i(*partial)[ROWS], __m512i *sums) {         \
        channels(R, t, s, partial, sums);                                                                    \
    }
#define BUNCHES_OF(R)                                                                                        \
    static void bunches_##R(size_t n_rows, const tile *t, const span *s, __m512i(*partial)[BUNCH],           \
                            __m512i *sums) {                                                                 \
        bunches(R, n_rows, t, s, partial, sums);                                                             \
    }
BUNCHES_OF(3)
BUNCHES_OF(4)

CHANNELS(1)
CHANNELS(2)
CHANNELS(3)
CHANNELS(4)
CHANNELS(6)
CHANNELS(8)
CHANNELS(12)
CHANNELS(16)

/* ---- one row, fetched otherwise ---------------------------------------------------------------------
 * How weights come fastest from memory is a matter of the machine. With the loops above they are asked for in
 * L2, by two streams, some lines twice. On some processors (Zen 5) it is a fifth faster to ask for every line
 * once, some KB ahead, into L1; on others that takes twice as long (Intel's servers, non-temporal). So there
 * are both, and what is faster is measured. */
enum fetch { FETCH_L1, FETCH_L2, FETCH_ONCE, FETCH_TWO /* into L2, by two streams */ };

INLINE void fetch(enum fetch how, uintptr_t line) {
    if (how == FETCH_L1) _mm_prefetch((const char *)line, _MM_HINT_T0);
    else if (how == FETCH_ONCE) _mm_prefetch((const char *)line, _MM_HINT_NTA);
    else _mm_prefetch((const char *)line, _MM_HINT_T1);
}

/* 16 channels of one width, eight at a time, group by group: activations are loaded once for eight, and lines
 * are prefetched at an even pace. */
INLINE void eights(enum fetch how, int bits, const span *s, __m512i (*partial)[ROWS]) {
    enum { EIGHT = 8 };
    const size_t each = GROUP / 8 * (size_t)bits, n_streams = how == FETCH_TWO ? 2 : 1,
                 n_lines = EIGHT * each / LINE / n_streams, apart = s->n_groups * s->step / 2;
    uintptr_t next = s->next & ~(uintptr_t)(LINE - 1);
    for (size_t half = 0; half < TN_TILE_N / EIGHT; half++, partial += EIGHT) {
        const uint8_t *src = s->src + half * EIGHT * each;
        const int8_t *a = s->a;
        __m512i lo[EIGHT], hi[EIGHT], w[2];
#pragma GCC unroll 8
        for (int c = 0; c < EIGHT; c++) {
            lo[c] = s->first ? _mm512_setzero_si512() : partial[c][0];
            hi[c] = _mm512_setzero_si512();
        }
        for (size_t g = s->n_groups; g; g--, src += s->step, a += GROUP, next += n_lines * LINE) {
            const __m512i a0 = _mm512_load_si512(a), a1 = _mm512_load_si512(a + 64);
#pragma GCC unroll 16
            for (size_t l = 0; l < n_lines; l++) {
                fetch(how, next + l * LINE);
                if (how == FETCH_TWO) fetch(how, next + apart + l * LINE);
            }
#pragma GCC unroll 8
            for (int c = 0; c < EIGHT; c++) {
                weightlet_codes_avx512(src + (size_t)c * each, bits, true, w);
                lo[c] = _mm512_dpbusd_epi32(lo[c], w[0], a0);
                hi[c] = _mm512_dpbusd_epi32(hi[c], w[1], a1);
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < EIGHT; c++)
            partial[c][0] = _mm512_add_epi32(lo[c], bits <= 4 ? _mm512_srai_epi32(hi[c], 4) : hi[c]);
    }
}

/* One channel of a tile of several widths; its share of the lines is prefetched first. */
INLINE void single(enum fetch how, int bits, const span *s, size_t off, __m512i *partial) {
    const uint8_t *src = s->src + off;
    const int8_t *a = s->a;
    const uintptr_t end = s->next + (off + GROUP / 8 * (size_t)bits) * s->n_groups;
    for (uintptr_t line = (s->next + off * s->n_groups + LINE - 1) & ~(uintptr_t)(LINE - 1); line < end;
         line += LINE)
        fetch(how, line);
    __m512i lo = s->first ? _mm512_setzero_si512() : *partial, hi = _mm512_setzero_si512(), w[2];
    for (size_t g = s->n_groups; g; g--, src += s->step, a += GROUP) {
        weightlet_codes_avx512(src, bits, true, w);
        lo = _mm512_dpbusd_epi32(lo, w[0], _mm512_load_si512(a));
        hi = _mm512_dpbusd_epi32(hi, w[1], _mm512_load_si512(a + 64));
    }
    *partial = _mm512_add_epi32(lo, bits <= 4 ? _mm512_srai_epi32(hi, 4) : hi);
}

INLINE void one_row(enum fetch how, const tile *t, const span *s, __m512i (*partial)[ROWS], __m512i *sums) {
    switch (t->one_width) {
    case 1: eights(how, 1, s, partial); return;
    case 2: eights(how, 2, s, partial); return;
    case 3: eights(how, 3, s, partial); return;
    case 4: eights(how, 4, s, partial); return;
    case 5: eights(how, 5, s, partial); return;
    case 6: eights(how, 6, s, partial); return;
    case 7: eights(how, 7, s, partial); return;
    case 8: eights(how, 8, s, partial); return;
    default: break;
    }
    if (how == FETCH_TWO) {
        channels(1, t, s, partial, sums);
        return;
    }
    for (size_t c = 0; c < t->n_cols; c++) {
        switch (t->width[c]) {
        case 1: single(how, 1, s, t->off[c], partial[c]); break;
        case 2: single(how, 2, s, t->off[c], partial[c]); break;
        case 3: single(how, 3, s, t->off[c], partial[c]); break;
        case 4: single(how, 4, s, t->off[c], partial[c]); break;
        case 5: single(how, 5, s, t->off[c], partial[c]); break;
        case 6: single(how, 6, s, t->off[c], partial[c]); break;
        case 7: single(how, 7, s, t->off[c], partial[c]); break;
        default: single(how, 8, s, t->off[c], partial[c]); break;
        }
    }
}

#define ONE_ROW(name, how)                                                                                   \
    static void one_row_##name(const tile *t, const span *s, __m512i(*partial)[ROWS], __m512i *sums) {       \
        one_row(how, t, s, partial, sums);                                                                   \
    }
ONE_ROW(l1, FETCH_L1)
ONE_ROW(l2, FETCH_L2)
ONE_ROW(two, FETCH_TWO)
ONE_ROW(once, FETCH_ONCE)

/* ---- any rows ---------------------------------------------------------------------------------------- */

static const struct kind {
    void (*channels)(const tile *, const span *, __m512i (*)[ROWS], __m512i *);
    size_t n_rows;
    /* a tile of one narrow width, so many rows at a time; NULL: as any tile */
    void (*bunches)(size_t n_rows, const tile *, const span *, __m512i (*)[BUNCH], __m512i *);
    size_t at_a_time;
} kinds[] = {{channels_1, 1, NULL, 0},        {channels_2, 2, NULL, 0},       {channels_3, 3, bunches_3, 3},
             {channels_4, 4, bunches_4, 4},   {channels_6, 6, bunches_3, 3},  {channels_8, 8, bunches_4, 4},
             {channels_12, 12, bunches_4, 4}, {channels_16, 16, bunches_4, 4}};

static bool in_bunches(const struct kind *k, const tile *t) {
    return k->bunches && t->one_width && t->one_width <= BUNCH_BITS;
}

static size_t block_begin(const pass *p, size_t i) { return p->n_groups * i / p->n_blocks; }

/* Copies n_rows of the product's rows. Returns the free scratch after them. */
static int8_t *prepare(pass *p, const tn_gemm_s8_args *g, size_t row0, size_t n_rows, int8_t *scratch) {
    *p = (pass){.g = g, .n_groups = (g->k + GROUP - 1) / GROUP, .row0 = row0, .n_rows = n_rows, .a = scratch};
    const bool narrow = g->m <= NARROW;
    const size_t block_groups = narrow ? NARROW_GROUPS : WIDE_GROUPS;
    p->n_blocks = (p->n_groups + block_groups - 1) / block_groups;
    p->block_bytes = block_groups * GROUP;
    p->kind = kinds;
    while (p->kind->n_rows < n_rows || (!narrow && p->kind->n_rows <= NARROW)) p->kind++;
    const size_t n_kind = p->kind->n_rows;
    const __m512i flip = _mm512_set1_epi8((char)0x80), one = _mm512_set1_epi8(1);
    __m512i sum[ROWS];
    for (size_t r = 0; r < n_kind; r++) sum[r] = _mm512_setzero_si512();
    for (size_t i = 0; i < p->n_blocks; i++) {
        size_t k0 = block_begin(p, i) * GROUP, k1 = block_begin(p, i + 1) * GROUP;
        for (size_t r = 0; r < n_kind; r++, scratch += p->block_bytes) {
            const uint8_t *row = g->a + (row0 + (r < n_rows ? r : 0)) * g->lda;
            for (size_t k = k0; k < k1; k += 64) {
                __mmask64 there = k + 64 <= g->k ? ~0ull : k < g->k ? (1ull << (g->k - k)) - 1 : 0;
                __m512i x = _mm512_xor_si512(_mm512_mask_loadu_epi8(flip, there, row + k), flip);
                _mm512_store_si512(scratch + k - k0, x);
                sum[r] = _mm512_dpbusd_epi32(sum[r], one, x);
            }
        }
    }
    for (size_t r = 0; r < n_kind; r++) p->row_sum[r] = _mm512_reduce_add_epi32(sum[r]);
    return scratch;
}

/* Sums of a tile on their way through the blocks of k. */
typedef union gathered {
    struct {
        __m512i partial[TN_TILE_N][ROWS]; /* [channel][row] */
        __m512i sums[TN_TILE_N];          /* reduced, of more than NARROW rows: a row in each lane */
    } one;
    struct {
        __m512i partial[ROWS / BUNCH * TN_TILE_N][BUNCH];
        __m512i sums[ROWS / BUNCH][BUNCHES]; /* [rows / at_a_time] of them */
    } bunch;
} gathered;

/* Lane c of by_row[r] is the sum of channel c. */
INLINE void gather_rows(const pass *p, const tile *t, gathered *s, __m512i by_row[static ROWS + BUNCH]) {
    const struct kind *k = p->kind;
    if (in_bunches(k, t)) {
        for (size_t r = 0, i = 0; r < k->n_rows; r += k->at_a_time, i++)
            rows_of_bunches(s->bunch.sums[i], by_row + r);
    } else if (k->n_rows > NARROW) {
        transpose_avx512(s->one.sums, 1, by_row);
    } else {
        for (size_t r = 0; r < p->n_rows; r++) by_row[r] = add_across(&s->one.partial[0][r], ROWS);
    }
}

/* A tile's sums to the output. */
static void finish(const pass *p, const tile *t, size_t n, gathered *s) {
    const tn_gemm_s8_args *g = p->g;
    const column_consts c = load_consts(g, n);
    const __m512i width = _mm512_loadu_si512(t->width), eight = _mm512_set1_epi32(8);
    const __mmask16 narrow = _mm512_cmplt_epi32_mask(width, eight); /* 2 sum - (2^B - 1) row_sum */
    const __m512i up = _mm512_mask_blend_epi32(narrow, _mm512_set1_epi32(7), width);
    __m512i by_row[ROWS + BUNCH];
    gather_rows(p, t, s, by_row);
    for (size_t r = 0; r < p->n_rows; r++) {
        const __m512i row_sum = _mm512_set1_epi32(p->row_sum[r]), sum = by_row[r];
        __m512i acc = _mm512_sub_epi32(sum, _mm512_sllv_epi32(row_sum, up)); /* 8 bits: sum - 128 row_sum */
        acc = _mm512_mask_add_epi32(acc, narrow, acc, _mm512_add_epi32(sum, row_sum));
        store(g, p->row0 + r, n, acc, &c);
    }
}

/* one: the kind for a single row; ahead: how many bytes after the next block its prefetch is. */
static void product(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, uint8_t *scratch,
                    const struct kind *one, size_t ahead) {
    enum { MAX_PASSES = TN_PACKED_FEW / ROWS };
    assert(g->m <= TN_PACKED_FEW && g->n0 % TN_TILE_N == 0 && g->n1 <= g->n);
    if (!g->m) return;
    pass passes[MAX_PASSES];
    size_t n_passes = (g->m + ROWS - 1) / ROWS;
    int8_t *at = (int8_t *)scratch;
    for (size_t i = 0, row = 0, n; i < n_passes; i++, row += n) {
        n = (g->m - row) / (n_passes - i);
        at = prepare(&passes[i], g, row, n, at);
    }
    if (g->m == 1) passes[0].kind = one;
    gathered sums[MAX_PASSES];
    if (g->n1 % TN_TILE_N) memset(sums, 0, sizeof sums); /* channels that do not exist */
    tile t = {0};
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        next_tile(g, bits, n, &t);
        for (size_t i = 0; i < passes[0].n_blocks; i++) {
            size_t g0 = block_begin(&passes[0], i), g1 = block_begin(&passes[0], i + 1);
            for (size_t j = 0; j < n_passes; j++) {
                span s = {.src = packed + g0 * t.step,
                          .step = t.step,
                          .n_groups = g1 - g0,
                          .next = (uintptr_t)packed + g1 * t.step + ahead,
                          .a = passes[j].a + i * passes[j].kind->n_rows * passes[j].block_bytes,
                          .first = i == 0,
                          .last = i + 1 == passes[0].n_blocks};
                const struct kind *k = passes[j].kind;
                if (in_bunches(k, &t))
                    k->bunches(k->n_rows, &t, &s, sums[j].bunch.partial, sums[j].bunch.sums[0]);
                else k->channels(&t, &s, sums[j].one.partial, sums[j].one.sums);
            }
        }
        for (size_t j = 0; j < n_passes; j++) finish(&passes[j], &t, n, &sums[j]);
        packed += t.step * passes[0].n_groups;
    }
}

void tn_gemm_packed_avx512vnni(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                               uint8_t *scratch) {
    product(g, packed, bits, scratch, kinds, 0);
}

#define FORM(name, kbytes)                                                                                   \
    static void name##_##kbytes(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,        \
                                uint8_t *scratch) {                                                          \
        static const struct kind one = {one_row_##name, 1, NULL, 0};                                         \
        product(g, packed, bits, scratch, &one, (kbytes) * (size_t)1024);                                    \
    }
FORM(two, 0)
FORM(l2, 8)
FORM(l1, 3)
FORM(l1, 6)
FORM(once, 3)
FORM(once, 6)

const tn_packed_form tn_packed_forms_avx512vnni[] = {
    {"usual", tn_gemm_packed_avx512vnni},
    {"two", two_0},
    {"l2-8k", l2_8},
    {"l1-3k", l1_3},
    {"l1-6k", l1_6},
    {"once-3k", once_3},
    {"once-6k", once_6},
    {NULL, NULL},
};
