/* kernels/blocks_template.h - the product of blocks_s8.h over vectors of any width. Included once by each
 * instruction set's file, which first defines, besides what blocks_unpack.h needs:
 *   LANES             floats of a vector: 4, 8 or 16
 *   MAX_ROWS, TILES   rows and tiles handled together in registers
 *   SIGNED            1: dot takes signed weights, so values of eight bits become s8 when they are unpacked
 *   vf, vi            vectors of float and of int32
 *   f_load f_store f_set1 f_fma(a,b,c) f_cvt (from int32) f_zero()   i_set1 i_zero()
 *   struct act, act_load(p)      four activations, in all lanes
 *   dot(acc, w, act, wide)       acc[n] += sum over 4 input channels, exact; wide: values of eight bits
 *   SIXTEEN                      if defined, act_load loads sixteen activations, and dot also takes the
 *                                number
 *                                of the line that selects four of them
 *   MICRO                        if defined, the file that defines micro
 *   ONE_ROW                      if defined, the product of one row
 *   FEW_ROWS(g)                  if defined, computes tiles for few rows from n0 on and returns the channel
 *                                after them
 *   FEW_MOST                     if defined, so many rows have a product like that of one row
 *   in_turn()                    if defined, keeps later loads after this point
 *   PAIRS                        1: for values that are not wide there are pairs_of(w, act), sums of two
 *                                input
 *                                channels in 16 bits; pairs_add; and pairs_widen(acc, pairs) */
#include "kernels/blocks_unpack.h"

#include <assert.h>

#ifndef in_turn
#define in_turn() (void)0
#endif

enum { VECTORS = N / LANES, SLAB_ROWS = 32 };

/* The range of values: below 32, or below 64 in groups of 16; below 128; eight bits around 128. */
enum { SMALL, MIDDLE, WIDE };

#ifndef MICRO
/* Vector v of a line of panels side by side. */
INLINE vi panel_weights(const panel *p, int v, size_t line) {
    return (vi)load(p[v / VECTORS].q[line] + v % VECTORS * SLICE);
}
#endif

/* Where the sums of some rows go: [row][TILES * 16]. */
typedef struct sums {
    float *p;
    size_t ld;
    const float *bias; /* added after the last chunk; NULL: none */
    bool first, last;  /* chunk */
} sums;

/* The first pass of rows prefetches the chunk after next of each tile, a share per group. It may lie after
 * the matrix: a prefetch does not read. It goes into L2, because L1 has too few outstanding misses to read at
 * the rate of memory, and not in a burst, which would delay later loads. */
typedef struct ahead {
    uintptr_t at[TILES];
    size_t share;
} ahead;

INLINE void prefetch_share(const ahead *next, int C, size_t g) {
    for (size_t o = g * next->share; o < (g + 1) * next->share; o += LINE) {
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) __builtin_prefetch((const void *)(next->at[c] + o), 0, 2);
    }
}

/* R rows of C tiles over n32 x 32 input channels. */
#ifdef MICRO
#include MICRO
#else
INLINE void micro(int R, int C, size_t G, bool min, int width, const panel *p, size_t n32,
                  const tn_blocks_act *a, const sums *to, const ahead *next) {
    size_t n_groups = n32 * 32 / G, per_act = TN_BLOCKS_ACT / G;
    const int V = C * VECTORS;
    for (size_t b = 0, g = 0; g < n_groups; b++) {
        vf part[MAX_ROWS][TILES * VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) part[r][v] = f_zero();
        }
        for (size_t end = g + per_act < n_groups ? g + per_act : n_groups; g < end; g++) {
            prefetch_share(next, C, g);
            vi sum[MAX_ROWS][TILES * VECTORS];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
                for (int v = 0; v < V; v++)
                    sum[r][v] = min || (width == WIDE && SIGNED) ? i_zero() : i_set1(a[r].of.start[g]);
            }
            /* values are below 32, or 64: 2 * 31 * 127 fits 16 bits four times, 2 * 63 * 127 twice */
            const size_t fold = !PAIRS || width != SMALL ? 0 : G == 32 ? 4 : 2;
#if PAIRS
            for (size_t l0 = 0; fold && l0 < G / 4; l0 += fold) {
                vi pair[MAX_ROWS][TILES * VECTORS];
#pragma GCC unroll 8
                for (size_t l = 0; l < fold; l++) {
                    struct act x[MAX_ROWS];
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) x[r] = act_load(a[r].q + (g * G + (l0 + l) * 4));
#pragma GCC unroll 8
                    for (int v = 0; v < V; v++) {
                        vi w = panel_weights(p, v, g * G / 4 + l0 + l);
#pragma GCC unroll 8
                        for (int r = 0; r < R; r++)
                            pair[r][v] = l ? pairs_add(pair[r][v], pairs_of(w, x[r])) : pairs_of(w, x[r]);
                    }
                }
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
                    for (int v = 0; v < V; v++) sum[r][v] = pairs_widen(sum[r][v], pair[r][v]);
                }
            }
#endif
#pragma GCC unroll 8
            for (size_t l = fold ? G / 4 : 0; l < G / 4; l++) {
                struct act x[MAX_ROWS];
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) x[r] = act_load(a[r].q + (g * G + l * 4));
#pragma GCC unroll 8
                for (int v = 0; v < V; v++) {
                    vi w = panel_weights(p, v, g * G / 4 + l);
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) sum[r][v] = dot(sum[r][v], w, x[r], width == WIDE);
                }
            }
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) {
                vf s = f_load(p[v / VECTORS].s[g] + v % VECTORS * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) part[r][v] = f_fma(f_cvt(sum[r][v]), s, part[r][v]);
                if (!min) continue;
                vf m = f_load(p[v / VECTORS].b[g] + v % VECTORS * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) part[r][v] = f_fma(m, f_set1(a[r].of.sum[g]), part[r][v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vf scale = f_set1(a[r].scale[b]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) {
                float *out = to->p + (size_t)r * to->ld + v * LANES;
                vf acc = f_fma(part[r][v], scale, to->first && b == 0 ? f_zero() : f_load(out));
                if (to->last && g == n_groups && to->bias) acc = f_add(acc, f_load(to->bias + v * LANES));
                f_store(out, acc);
            }
        }
    }
}

#endif

#define ROWS(R, C, G, min, width)                                                                            \
    case R:                                                                                                  \
        micro(R, C, G, min, width, p, n32, a, &part, &ahead_of);                                             \
        break
#ifdef ALL_ROWS /* in the order of MICRO */
#elif MAX_ROWS == 6
#define ALL_ROWS(...)                                                                                        \
    ROWS(1, __VA_ARGS__);                                                                                    \
    ROWS(2, __VA_ARGS__);                                                                                    \
    ROWS(3, __VA_ARGS__);                                                                                    \
    ROWS(4, __VA_ARGS__);                                                                                    \
    ROWS(5, __VA_ARGS__);                                                                                    \
    ROWS(6, __VA_ARGS__)
#elif MAX_ROWS == 4
#define ALL_ROWS(...)                                                                                        \
    ROWS(1, __VA_ARGS__);                                                                                    \
    ROWS(2, __VA_ARGS__);                                                                                    \
    ROWS(3, __VA_ARGS__);                                                                                    \
    ROWS(4, __VA_ARGS__)
#elif MAX_ROWS == 3
#define ALL_ROWS(...)                                                                                        \
    ROWS(1, __VA_ARGS__);                                                                                    \
    ROWS(2, __VA_ARGS__);                                                                                    \
    ROWS(3, __VA_ARGS__)
#else
#define ALL_ROWS(...) ROWS(1, __VA_ARGS__)
#endif

/* The rows of the next pass, of m rows left for n passes of at most MAX_ROWS: dealt evenly, unless MICRO
 * overrides it. */
#ifndef DEALT
#define DEALT(m, n) ((m) / (n))
#endif

/* All rows of one shape. */
#define SHAPE(name, C, G, min, width)                                                                        \
    static void name(const panel *p, size_t n32, const tn_blocks_act *a, size_t m, const sums *to,           \
                     const ahead *next) {                                                                    \
        sums part = *to;                                                                                     \
        ahead ahead_of = *next;                                                                              \
        for (size_t i = (m + MAX_ROWS - 1) / MAX_ROWS, n_rows; i; i--, m -= n_rows, a += n_rows) {           \
            n_rows = DEALT(m, i);                                                                            \
            switch (n_rows) { ALL_ROWS(C, G, min, width); }                                                  \
            part.p += n_rows * part.ld;                                                                      \
            ahead_of.share = 0;                                                                              \
        }                                                                                                    \
    }
#define SHAPES(C)                                                                                            \
    SHAPE(g32_##C, C, 32, false, SMALL)                                                                      \
    SHAPE(wide_##C, C, 32, false, WIDE)                                                                      \
    SHAPE(min_##C, C, 32, true, SMALL)                                                                       \
    SHAPE(g16_##C, C, 16, false, SMALL)                                                                      \
    SHAPE(g16_min_##C, C, 16, true, SMALL)
#if PAIRS && !defined TERN_MINIMAL
#define MIDDLE_SHAPES(C)                                                                                     \
    SHAPE(mid_##C, C, 32, false, MIDDLE)                                                                     \
    SHAPE(g16_mid_##C, C, 16, false, MIDDLE)
#define MIDDLE_OF(name, C) mid ? name##mid_##C:
#else /* the smallest range */
#define MIDDLE_SHAPES(C)
#define MIDDLE_OF(name, C)
#endif
#ifndef TERN_MINIMAL
#define WIDE_SHAPES(C) SHAPE(g16_wide_##C, C, 16, false, WIDE)
#define WIDE_OF(C) wide ? g16_wide_##C:
#else
#define WIDE_SHAPES(C)
#define WIDE_OF(C)
#endif
typedef void (*shape_fn)(const panel *p, size_t n32, const tn_blocks_act *a, size_t m, const sums *to,
                         const ahead *next);
SHAPES(1)
MIDDLE_SHAPES(1)
WIDE_SHAPES(1)
#if TILES > 1
SHAPES(2)
MIDDLE_SHAPES(2)
WIDE_SHAPES(2)
#endif

#define SHAPE_OF(C)                                                                                          \
    (t->group == 16 ? (t->has_min ? g16_min_##C : WIDE_OF(C) MIDDLE_OF(g16_, C) g16_##C)                     \
     : t->has_min   ? min_##C                                                                                \
     : wide         ? wide_##C                                                                               \
                    : MIDDLE_OF(, C) g32_##C)
static shape_fn shape_of(const tn_blocks_traits *t, int tiles) {
    const bool wide = t->offset == 128, mid = !wide && t->offset > 32;
    (void)mid;
#if TILES > 1
    if (tiles > 1) return SHAPE_OF(2);
#endif
    (void)tiles;
    return SHAPE_OF(1);
}

/* Columns n.. of n_tiles whole tiles to out; m rows from a, whose chunks lie a_chunk apart.
 */
static void columns(const tn_blocks_args *g, size_t n, int n_tiles, const tn_blocks_act *a, size_t m,
                    float *out, size_t ldo, const float *bias) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[g->type];
    size_t n_chunks = tn_blocks_n_chunks(g->k), tile_bytes = tn_blocks_bytes(g->type, N, g->k),
           chunk_bytes = (size_t)(TN_BLOCKS_CHUNK / t->block) * t->bytes * N;
    const uint8_t *tile = g->tiles + n / N * tile_bytes;
    shape_fn shape = shape_of(t, n_tiles);
    panel p[TILES] __attribute__((aligned(64)));
    ahead next;
    for (size_t c = 0; c < n_chunks; c++) {
        size_t n32 = (c + 1 < n_chunks ? TN_BLOCKS_CHUNK : g->k - c * TN_BLOCKS_CHUNK) / 32;
        for (int i = 0; i < n_tiles; i++) {
            const uint8_t *src = tile + (size_t)i * tile_bytes + c * chunk_bytes;
            size_t at = c + 2 < n_chunks ? (c + 2) * chunk_bytes
                                         : (size_t)n_tiles * tile_bytes + (c + 2 - n_chunks) * chunk_bytes;
            next.at[i] = (uintptr_t)tile + (size_t)i * tile_bytes + at;
            unpack(g->type, src, n32, &p[i]);
        }
        next.share = (chunk_bytes / (n32 * 32 / t->group) + LINE - 1) / LINE * LINE;
        sums to = {.p = out, .ld = ldo, .bias = bias, .first = c == 0, .last = c + 1 == n_chunks};
        shape(p, n32, a + c * g->m, m, &to, &next);
    }
}

#ifndef ONE_ROW
#define ONE_ROW one_row
#include "kernels/blocks_row_template.h"
#endif

#ifndef FEW_ROWS
#define FEW_ROWS(g) ((g)->n0)
#endif

static void gemm(const tn_blocks_args *g) {
    assert(g->n0 % N == 0 && g->n1 <= g->n && (g->n1 % N == 0 || g->n1 == g->n) && g->k % 32 == 0);
    if (g->m == 1) {
        ONE_ROW(g);
        return;
    }
#ifdef FEW_MOST
    if (few_rows(g)) return;
#endif
    for (size_t n = FEW_ROWS(g); n < g->n1;) {
        size_t left = g->n1 - n;
        if (left >= N) {
            int n_tiles = left >= TILES * N ? TILES : 1;
            columns(g, n, n_tiles, g->a, g->m, g->out + n, g->ldo, g->bias ? g->bias + n : NULL);
            n += (size_t)n_tiles * N;
            continue;
        }
        /* the last tile has fewer channels: its sums go through a buffer */
        float bias[N] = {0}, out[SLAB_ROWS * N];
        if (g->bias) memcpy(bias, g->bias + n, left * sizeof *bias);
        for (size_t m = 0; m < g->m; m += SLAB_ROWS) {
            size_t n_rows = g->m - m < SLAB_ROWS ? g->m - m : SLAB_ROWS;
            columns(g, n, 1, g->a + m, n_rows, out, N, g->bias ? bias : NULL);
            for (size_t r = 0; r < n_rows; r++)
                memcpy(g->out + (m + r) * g->ldo + n, out + r * N, left * sizeof *out);
        }
        break;
    }
}
