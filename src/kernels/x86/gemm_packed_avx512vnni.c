/* kernels/x86/gemm_packed_avx512vnni.c - few rows against weightlets. A channel's group of 128 weights
 * becomes two registers, each of which meets the same 64 activations of every row; a tile's sums are added up
 * across the registers at its end. Blocks of k keep a tile's packed bytes and the activations in L1 while its
 * channels pass one by one, so that a channel's width is decided once per block. More than eight rows are
 * first copied block by block: at a fixed distance they need one pointer, not sixteen. */
#include "kernels/gemm_packed.h"

#include "kernels/x86/epilogue_avx512.h"
#include "kernels/x86/weightlets_avx512.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, FEW_GROUPS = 16, WIDE_GROUPS = 8, WIDE_BYTES = WIDE_GROUPS * GROUP };

typedef struct span {
    const uint8_t *src; /* the channel's first group */
    size_t step;        /* to its next one: the groups of all channels */
    size_t n_groups;    /* whole ones */
    uintptr_t next; /* is prefetched: the channel's share of the block that follows in memory, in the order of
                       its addresses */
    const uint8_t *const *a; /* [R] rows, at the first group */
    uint64_t tail[2];        /* activations of the group behind; zero: there is none */
    const uint8_t *block;    /* more than eight rows: the block's, WIDE_BYTES apart, with zeroes behind k */
} span;

/* acc[r] += one channel's products with R <= 8 rows. */
INLINE void narrow(int R, int bits, const span *s, __m512i *acc) {
    __m512i lo[TN_PACKED_NARROW], hi[TN_PACKED_NARROW], w[2];
    const uint8_t *src = s->src, *a[TN_PACKED_NARROW];
    uintptr_t next = s->next; /* may lie behind the matrix: a prefetch is not a read */
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        lo[r] = acc[r];
        hi[r] = _mm512_setzero_si512();
        a[r] = s->a[r];
    }
    for (size_t g = 0; g < s->n_groups; g++, src += s->step) {
        weightlets_avx512(src, bits, w);
        _mm_prefetch((const char *)next, _MM_HINT_T0);
        if (bits > 4) _mm_prefetch((const char *)(next + 64), _MM_HINT_T0);
        next += GROUP / 8 * (uintptr_t)bits;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            lo[r] = _mm512_dpbusd_epi32(lo[r], _mm512_loadu_si512(a[r] + g * GROUP), w[0]);
            hi[r] = _mm512_dpbusd_epi32(hi[r], _mm512_loadu_si512(a[r] + g * GROUP + 64), w[1]);
        }
    }
    if (s->tail[0]) { /* codes that stand for no weight meet zeroes */
        weightlets_avx512(src, bits, w);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            lo[r] = _mm512_dpbusd_epi32(
                lo[r], _mm512_maskz_loadu_epi8(s->tail[0], a[r] + s->n_groups * GROUP), w[0]);
            hi[r] = _mm512_dpbusd_epi32(
                hi[r], _mm512_maskz_loadu_epi8(s->tail[1], a[r] + s->n_groups * GROUP + 64), w[1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) acc[r] = _mm512_add_epi32(lo[r], hi[r]);
}

/* The same with more rows: enough sums to hide the latency of vpdpbusd without a second one for each. */
INLINE void wide(int R, int bits, const span *s, __m512i *acc) {
    __m512i sum[TN_PACKED_FEW], w[2];
    const uint8_t *src = s->src, *a = s->block;
    uintptr_t next = s->next;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sum[r] = acc[r];
    for (size_t g = 0; g < s->n_groups; g++, src += s->step, a += GROUP) {
        weightlets_avx512(src, bits, w);
        _mm_prefetch((const char *)next, _MM_HINT_T0);
        if (bits > 4) _mm_prefetch((const char *)(next + 64), _MM_HINT_T0);
        next += GROUP / 8 * (uintptr_t)bits;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
            sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_loadu_si512(a + r * WIDE_BYTES), w[0]);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
            sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_loadu_si512(a + r * WIDE_BYTES + 64), w[1]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) acc[r] = sum[r];
}

#define CHANNEL(R, SHAPE)                                                                                    \
    static void channel_##R(unsigned bits, const span *s, __m512i *acc) {                                    \
        switch (bits) {                                                                                      \
        case 1: SHAPE(R, 1, s, acc); break;                                                                  \
        case 2: SHAPE(R, 2, s, acc); break;                                                                  \
        case 3: SHAPE(R, 3, s, acc); break;                                                                  \
        case 4: SHAPE(R, 4, s, acc); break;                                                                  \
        case 5: SHAPE(R, 5, s, acc); break;                                                                  \
        case 6: SHAPE(R, 6, s, acc); break;                                                                  \
        case 7: SHAPE(R, 7, s, acc); break;                                                                  \
        default: SHAPE(R, 8, s, acc); break;                                                                 \
        }                                                                                                    \
    }
/* clang-format off */
CHANNEL(1, narrow) CHANNEL(2, narrow) CHANNEL(3, narrow) CHANNEL(4, narrow) CHANNEL(6, narrow) CHANNEL(8, narrow)
CHANNEL(12, wide) CHANNEL(16, wide)
    /* clang-format on */

    /* Lane c = sum of the lanes of acc[c][r]. */
    INLINE __m512i add_across(__m512i (*acc)[TN_PACKED_FEW], int r) {
    __m512i quad[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) { /* channels 4q..4q+3 within each 128 bits */
        __m512i a = acc[4 * q][r], b = acc[4 * q + 1][r], c = acc[4 * q + 2][r], d = acc[4 * q + 3][r];
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

/* scratch[block][row][WIDE_BYTES] */
static void copy_rows(const tn_gemm_s8_args *g, size_t n_rows, uint8_t *scratch) {
    for (size_t k = 0; k < g->k; k += WIDE_BYTES) {
        size_t n = g->k - k < WIDE_BYTES ? g->k - k : WIDE_BYTES;
        for (size_t r = 0; r < n_rows; r++, scratch += WIDE_BYTES) {
            if (r < g->m) memcpy(scratch, g->a + r * g->lda + k, n);
            memset(scratch + (r < g->m ? n : 0), 0, WIDE_BYTES - (r < g->m ? n : 0));
        }
    }
}

void tn_gemm_few_avx512vnni(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                            uint8_t *scratch) {
    static const struct {
        void (*channel)(unsigned, const span *, __m512i *);
        size_t n_rows;
    } kinds[] = {{channel_1, 1}, {channel_2, 2}, {channel_3, 3},   {channel_4, 4},
                 {channel_6, 6}, {channel_8, 8}, {channel_12, 12}, {channel_16, 16}};
    assert(g->m <= TN_PACKED_FEW && g->n0 % TN_TILE_N == 0 && g->n1 <= g->n);
    if (!g->m) return;
    size_t kind = 0;
    while (kinds[kind].n_rows < g->m) kind++;
    const size_t n_rows = kinds[kind].n_rows, n_whole = g->k / GROUP, left = g->k % GROUP,
                 n_groups = n_whole + (left != 0);
    const bool is_wide = n_rows > TN_PACKED_NARROW;
    const size_t block_groups = is_wide ? WIDE_GROUPS : FEW_GROUPS;
    if (is_wide) copy_rows(g, n_rows, scratch);
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        size_t n_cols = g->n1 - n < TN_TILE_N ? g->n1 - n : TN_TILE_N, off[TN_TILE_N], step = 0;
        unsigned width[TN_TILE_N];
        for (size_t c = 0; c < n_cols; c++) {
            width[c] = tn_channel_bits_get(bits, n + c);
            off[c] = step;
            step += GROUP / 8 * width[c];
        }
        __m512i acc[TN_TILE_N][TN_PACKED_FEW];
        for (size_t c = 0; c < TN_TILE_N; c++) {
            for (size_t r = 0; r < n_rows; r++) acc[c][r] = _mm512_setzero_si512();
        }
        for (size_t g0 = 0; g0 < n_groups; g0 += block_groups) {
            size_t g1 = n_groups - g0 < block_groups ? n_groups : g0 + block_groups;
            bool last = left && g1 == n_groups && !is_wide;
            const uint8_t *rows[TN_PACKED_NARROW]; /* rows that do not exist repeat the last one */
            for (size_t r = 0; r < TN_PACKED_NARROW; r++)
                rows[r] = g->a + (r < g->m ? r : g->m - 1) * g->lda + g0 * GROUP;
            span s = {.step = step,
                      .n_groups = g1 - g0 - last,
                      .a = rows,
                      .block = is_wide ? scratch + g0 / block_groups * n_rows * WIDE_BYTES : NULL};
            if (last)
                s.tail[0] = left >= 64 ? ~0ull : (1ull << left) - 1,
                s.tail[1] = left > 64 ? (1ull << (left - 64)) - 1 : 0;
            for (size_t c = 0; c < n_cols; c++) {
                s.src = packed + off[c] + g0 * step;
                s.next = (uintptr_t)packed + g1 * step + off[c] * (g1 - g0);
                kinds[kind].channel(width[c], &s, acc[c]);
            }
        }
        column_consts consts = load_consts(g, n);
        for (size_t r = 0; r < g->m; r++)
            store(g, r, n, _mm512_add_epi32(consts.offset, add_across(acc, (int)r)), &consts);
        packed += step * n_groups;
    }
}
