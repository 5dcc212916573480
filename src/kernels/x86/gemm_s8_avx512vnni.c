/* kernels/x86/gemm_s8_avx512vnni.c - gemm_s8 on 512-bit VNNI: one tile line is one register, vpdpbusd takes
 * the u8 activation as broadcast operand.
 *
 * Two shapes of loop over the same tiles:
 *   block:  5..6 rows x 4 tiles, 24 accumulators, 10 loads per 24 products. The weights of 4 tiles stay in L2
 *           while all rows pass; meanwhile the next 4 tiles are prefetched there, so they are read from
 *           memory once and in time.
 *   stream: up to 19 rows x 1 tile. The weights are one sequential stream, read once, prefetched 8 KiB ahead:
 *           M = 1..8 run at the
 *           speed of memory. With few rows the accumulators are split over k to cover the latency of
 *           vpdpbusd. */
#include "kernels/x86/epilogue_avx512.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { STREAM_MAX_M = 19, STREAM_AHEAD_BYTES = 8192, BLOCK_TILES = 4, BLOCK_ROWS = 6, AHEAD_GROUPS = 16 };

static inline __m512i load_a(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/* R rows from m, T tiles from column n. Prefetches from `ahead` to L2, `per_k` bytes a step of k. The
 * accumulators have names (acc_rt) because compilers keep an array of 24 registers in memory; those beyond R
 * and T are never live. */
INLINE void block(int R, int T, const tn_gemm_s8_args *g, size_t m, size_t n, const char *ahead,
                  size_t per_k) {
    size_t k4 = (g->k + 3) / 4, tile_bytes = k4 * 64, lda = g->lda;
    const int8_t *w = g->tiles + n / TN_TILE_N * tile_bytes;
    const uint8_t *a = g->a + m * lda;
#define OFFSET(t)                                                                                            \
    __m512i offset_##t = T > t ? load_consts(g, n + t * TN_TILE_N).offset : _mm512_setzero_si512();
#define START(r)                                                                                             \
    __m512i acc_##r##0 = offset_0, acc_##r##1 = offset_1, acc_##r##2 = offset_2, acc_##r##3 = offset_3;
#define STEP(r)                                                                                              \
    if (R > r) {                                                                                             \
        __m512i x = load_a(a + r * lda + k * 4);                                                             \
        acc_##r##0 = _mm512_dpbusd_epi32(acc_##r##0, x, b_0);                                                \
        if (T > 1) acc_##r##1 = _mm512_dpbusd_epi32(acc_##r##1, x, b_1);                                     \
        if (T > 2) acc_##r##2 = _mm512_dpbusd_epi32(acc_##r##2, x, b_2);                                     \
        if (T > 3) acc_##r##3 = _mm512_dpbusd_epi32(acc_##r##3, x, b_3);                                     \
    }
/* Ends the life of the loop's values here: without it gcc 12 keeps second copies of the accumulators on the
 * stack. */
#define PIN(r)                                                                                               \
    if (R > r) __asm__("" : "+v"(acc_##r##0), "+v"(acc_##r##1), "+v"(acc_##r##2), "+v"(acc_##r##3));
#define STORE(r, t)                                                                                          \
    if (R > r) store(g, m + r, n + t * TN_TILE_N, acc_##r##t, &c);
#define FINISH(t)                                                                                            \
    if (T > t) {                                                                                             \
        column_consts c = load_consts(g, n + t * TN_TILE_N);                                                 \
        STORE(0, t) STORE(1, t) STORE(2, t) STORE(3, t) STORE(4, t) STORE(5, t)                              \
    }
    /* clang-format off */
    OFFSET(0) OFFSET(1) OFFSET(2) OFFSET(3)
    START(0) START(1) START(2) START(3) START(4) START(5)
        /* clang-format on */
        for (size_t k = 0; k < k4; k++) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += per_k;
        __m512i b_0 = _mm512_load_si512(w + k * 64), b_1 = b_0, b_2 = b_0, b_3 = b_0;
        if (T > 1) b_1 = _mm512_load_si512(w + tile_bytes + k * 64);
        if (T > 2) b_2 = _mm512_load_si512(w + 2 * tile_bytes + k * 64);
        if (T > 3) b_3 = _mm512_load_si512(w + 3 * tile_bytes + k * 64);
        STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5)
    }
    PIN(0) PIN(1) PIN(2) PIN(3) PIN(4) PIN(5) FINISH(0) FINISH(1) FINISH(2) FINISH(3)
}

#define BLOCK(R, T)                                                                                          \
    static void block_##R##x##T(const tn_gemm_s8_args *g, size_t m, size_t n, const char *ahead,             \
                                size_t per_k) {                                                              \
        block(R, T, g, m, n, ahead, per_k);                                                                  \
    }
/* clang-format off */
BLOCK(5, 1) BLOCK(5, 2) BLOCK(5, 3) BLOCK(5, 4) BLOCK(6, 1) BLOCK(6, 2) BLOCK(6, 3) BLOCK(6, 4)
    /* clang-format on */

    static void gemm_blocked(const tn_gemm_s8_args *g) {
    static void (*const blocks[2][BLOCK_TILES])(const tn_gemm_s8_args *, size_t, size_t, const char *,
                                                size_t) = {
        {block_5x1, block_5x2, block_5x3, block_5x4},
        {block_6x1, block_6x2, block_6x3, block_6x4},
    };
    size_t k4 = (g->k + 3) / 4, tile_bytes = k4 * 64;
    /* Rows are dealt evenly: n_groups groups of 6 or 5, which M >= 20 always allows. */
    size_t n_groups = (g->m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (size_t n = g->n0; n < g->n1; n += BLOCK_TILES * TN_TILE_N) {
        size_t n_tiles = (g->n1 - n + TN_TILE_N - 1) / TN_TILE_N;
        if (n_tiles > BLOCK_TILES) n_tiles = BLOCK_TILES;
        /* The next data are the tiles right after these, or lie elsewhere, or are unknown. The last groups
         * prefetch a share each: data fetched earlier would be evicted from L2 before its use, and useless
         * data would evict activations. */
        bool more = n + n_tiles * TN_TILE_N < g->n1;
        uintptr_t next = (uintptr_t)(more      ? g->tiles + (n / TN_TILE_N + n_tiles) * tile_bytes
                                     : g->next ? g->next
                                               : g->tiles + n / TN_TILE_N * tile_bytes);
        size_t n_next = more      ? n_tiles * tile_bytes
                        : g->next ? g->next_bytes
                                  : 0,
               n_ahead = n_groups < AHEAD_GROUPS ? n_groups : AHEAD_GROUPS,
               per_k = (n_next / n_ahead + k4 - 1) / k4;
        for (size_t i = 0, m = 0; i < n_groups; i++) {
            size_t n_rows = (g->m - m) / (n_groups - i);
            assert(n_rows >= 5 && n_rows <= BLOCK_ROWS);
            bool ahead = i + n_ahead >= n_groups;
            blocks[n_rows - 5][n_tiles - 1](
                g, m, n, (const char *)(ahead ? next + (i + n_ahead - n_groups) * per_k * k4 : next),
                ahead ? per_k : 0);
            m += n_rows;
        }
    }
}

/* All R = M rows over one tile; V steps of k at a time, S sets of accumulators (R * S chains). */
INLINE void stream(int R, int V, int S, const tn_gemm_s8_args *g, size_t n) {
    size_t k4 = (g->k + 3) / 4, k = 0;
    const int8_t *w = g->tiles + n / TN_TILE_N * k4 * 64;
    const uint8_t *a[STREAM_MAX_M];
    column_consts c = load_consts(g, n);
    __m512i acc[STREAM_MAX_M];
#pragma GCC unroll 20
    for (int r = 0; r < R; r++) {
        a[r] = g->a + (size_t)r * g->lda;
        acc[r] = c.offset;
#pragma GCC unroll 8
        for (int s = 1; s < S; s++) acc[s * R + r] = _mm512_setzero_si512();
    }
    for (; k + (size_t)V <= k4; k += (size_t)V) {
        __m512i b[8];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            b[v] = _mm512_load_si512(w + (k + (size_t)v) * 64);
            if (R > 1)
                _mm_prefetch((const char *)((uintptr_t)w + (k + (size_t)v) * 64 + STREAM_AHEAD_BYTES),
                             _MM_HINT_T1);
        }
#pragma GCC unroll 20
        for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) {
                __m512i *d = &acc[v % S * R + r];
                *d = _mm512_dpbusd_epi32(*d, load_a(a[r] + (k + (size_t)v) * 4), b[v]);
            }
        }
    }
    for (; k < k4; k++) {
        __m512i b = _mm512_load_si512(w + k * 64);
#pragma GCC unroll 20
        for (int r = 0; r < R; r++) acc[r] = _mm512_dpbusd_epi32(acc[r], load_a(a[r] + k * 4), b);
    }
#pragma GCC unroll 20
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int s = 1; s < S; s++) acc[r] = _mm512_add_epi32(acc[r], acc[s * R + r]);
        store(g, (size_t)r, n, acc[r], &c);
    }
}

#define STREAM(R, V, S)                                                                                      \
    case R:                                                                                                  \
        for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) stream(R, V, S, g, n);                             \
        break;

static void gemm_streamed(const tn_gemm_s8_args *g) {
    switch (g->m) {
        STREAM(1, 8, 8)
        STREAM(2, 8, 8)
        STREAM(3, 4, 4)
        STREAM(4, 4, 4)
        STREAM(5, 4, 2)
        STREAM(6, 4, 2)
        STREAM(7, 4, 2)
        STREAM(8, 4, 2)
        STREAM(9, 4, 1)
        STREAM(10, 4, 1)
        STREAM(11, 4, 1)
        STREAM(12, 4, 1)
        STREAM(13, 4, 1)
        STREAM(14, 4, 1)
        STREAM(15, 4, 1)
        STREAM(16, 4, 1)
        STREAM(17, 4, 1)
        STREAM(18, 4, 1)
        STREAM(19, 4, 1)
    }
}

void tn_gemm_s8_avx512vnni(const tn_gemm_s8_args *g) {
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n && (g->n1 % TN_TILE_N == 0 || g->n1 == g->n));
    assert((g->out_s32 != NULL) + (g->out_f32 != NULL) + (g->out_u8 != NULL) == 1);
    if (g->m <= STREAM_MAX_M) gemm_streamed(g);
    else gemm_blocked(g);
}
