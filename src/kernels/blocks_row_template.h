/* kernels/blocks_row_template.h - the product of blocks_s8.h for one row, as in decoding, and for a few. Reading
 * the weights is the bottleneck, so values go from the file's form to the product within registers. Part of
 * blocks_template.h. Integer sums are exact and groups are added in the same order, so the bits equal those
 * of the product of many rows.
 *
 * R rows, a constant after inlining, have their activations side by side: those of a chunk at a[0..R). */

enum {
    ROW_AHEAD = 8192, /* bytes: how far ahead weights are prefetched */
    R_MOST = 8,       /* rows that meet a value while it is in a register */
};
/* Vectors of a line handled together in registers. With two of NEON's four, the code of types with whole
 * chunks, whose groups are all unrolled, would be twice as large. */
#define AT_ONCE(whole) (VECTORS == 4 && !(whole) ? 4 : VECTORS == 2 ? 2 : 1)

/* sum [R] + the products of G / 4 lines from line l on with the activations from the at-th on. by: added to all values, or
 * NULL. */
INLINE void group_sums(int R, tn_blocks_type type, size_t G, int width, const uint8_t *src,
                       const uint8_t *high, int half, int l, size_t o, const slice *by,
                       const tn_blocks_act *a, size_t at, vi *sum) {
    const int n_lines = (int)G / 4;
    (void)width;
#pragma GCC unroll 2
    for (int line = 0; line < n_lines; line += 4, at += 16) {
        slice w[4];
        four_lines(type, src, high, half, l + line, o, w);
#pragma GCC unroll 4
        for (int i = 0; i < 4 && by; i++) w[i] += *by;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const int8_t *x = a[r].q + at;
#if PAIRS
            if (width == SMALL) { /* values below 32 in groups of 32, below 64 in groups of 16 (micro) */
                vi pair = pairs_of((vi)w[0], act_load(x)), next;
                pair = pairs_add(pair, pairs_of((vi)w[1], act_load(x + 4)));
                next = pairs_of((vi)w[2], act_load(x + 8));
                next = pairs_add(next, pairs_of((vi)w[3], act_load(x + 12)));
                sum[r] = G == 32 ? pairs_widen(sum[r], pairs_add(pair, next))
                                 : pairs_widen(pairs_widen(sum[r], pair), next);
                continue;
            }
#endif
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
#ifdef SIXTEEN
                sum[r] = dot(sum[r], (vi)w[i], act_load(x), width == WIDE, i);
#else
                sum[r] = dot(sum[r], (vi)w[i], act_load(x + i * 4), width == WIDE);
#endif
            }
        }
    }
}

/* A group's part of p [R][AT_ONCE], for AT_ONCE vectors from v on. g: the group's number in the chunk; l: its first
 * line in src. */
INLINE void add_group(int R, tn_blocks_type type, size_t G, bool min, int width, const uint8_t *src,
                      const uint8_t *high, meaning m, int half, int l, const tn_blocks_act *a, size_t g,
                      const panel *s, size_t v, bool whole, vf (*p)[AT_ONCE(false)]) {
    const size_t n_v = AT_ONCE(whole);
#pragma GCC unroll 4
    for (size_t i = 0; i < n_v; i++) {
        vi sum[R_MOST];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            sum[r] = min || (width == WIDE && SIGNED) ? i_zero() : i_set1(a[r].of.start[g]);
        slice by = {0};
        if (m.second) by = moved(m, g * G / 16, (v + i) * SLICE);
        group_sums(R, type, G, width, src, high, half, l, (v + i) * SLICE, m.second ? &by : NULL, a, g * G,
                   sum);
        const vf scale = f_load(s->s[g] + (v + i) * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            p[r][i] = f_fma(f_cvt(sum[r]), scale, p[r][i]);
            if (min) p[r][i] = f_fma(f_load(s->b[g] + (v + i) * LANES), f_set1(a[r].of.sum[g]), p[r][i]);
        }
        if (i % 2) in_turn();
    }
}

INLINE void prefetch_row(uintptr_t at, size_t n_bytes) {
    for (size_t o = 0; o < n_bytes; o += LINE) __builtin_prefetch((const void *)(at + o), 0, 2);
}

/* A chunk of one tile against the rows' chunks; block: values of a file's block. ahead: prefetched meanwhile,
 * share bytes for 128 input channels. */
INLINE void row_chunk(int R, tn_blocks_type type, size_t G, bool min, int width, int block,
                      const uint8_t *src, size_t n32, const tn_blocks_act *a, uintptr_t ahead, size_t share,
                      vf (*acc)[VECTORS]) {
    const fields f = fields_of(type);
    const int n_groups = TN_BLOCKS_ACT / (int)G, n_lines = (int)G / 4;
    const bool whole = block == TN_BLOCKS_CHUNK;
    const size_t n_v = AT_ONCE(whole);
    const uint8_t *high = src + n32 * f.lines * LINE, *after = high + n32 * f.high_lines * LINE;
    const meaning m = meaning_of(type, after);
    panel s;
    scales(type, after, n32, &s);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        if (!whole && (size_t)half * 4 >= n32) break;
        prefetch_row(ahead + (size_t)half * share, share);
        const size_t g0 = (size_t)half * TN_BLOCKS_ACT / G;
#pragma GCC unroll 1
        for (size_t v = 0; v < VECTORS; v += n_v) {
            vf p[R_MOST][AT_ONCE(false)];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
                for (size_t i = 0; i < n_v; i++) p[r][i] = f_zero();
            }
            const uint8_t *lines = src + (size_t)half * 4 * f.lines * LINE,
                          *more = high + (f.high_shared ? 0 : (size_t)half * 4 * f.high_lines * LINE);
            if (whole) {
#pragma GCC unroll 8
                for (int g = 0; g < n_groups; g++)
                    add_group(R, type, G, min, width, lines, more, m, half, g * n_lines, a, g0 + (size_t)g,
                              &s, v, whole, p);
            } else {
                const size_t blocks = (size_t)block / 32, half32 = (size_t)half * 4;
                for (size_t k = half32; k < half32 + 4 && k < n32;
                     k += blocks, lines += blocks * f.lines * LINE, more += blocks * f.high_lines * LINE) {
#pragma GCC unroll 4
                    for (int g = 0; g < 4; g++) {
                        if (g >= block / (int)G) break;
                        add_group(R, type, G, min, width, lines, more, m, 0, g * n_lines, a,
                                  k * 32 / G + (size_t)g, &s, v, whole, p);
                    }
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
                for (size_t i = 0; i < n_v; i++)
                    acc[r][v + i] = f_fma(p[r][i], f_set1(a[r].scale[half]), acc[r][v + i]);
            }
        }
    }
}

/* R rows, from row0 on, against the tile of channel n on, whose bytes are at src. ahead: of its prefetch, 0: none. */
INLINE void row_tile(int R, tn_blocks_type type, size_t G, bool min, int width, int block,
                     const tn_blocks_args *g, size_t n, size_t row0, const uint8_t *src, size_t ahead) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    const size_t block_bytes =
        (size_t)t->bytes * N * (TN_BLOCKS_CHUNK / t->block) / 8; /* 32 input channels */
    vf acc[R_MOST][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) acc[r][v] = f_zero();
    }
    const tn_blocks_act *a = g->a + row0;
    for (size_t left = g->k / 32; left; a += g->m) {
        size_t n32 = block == TN_BLOCKS_CHUNK || left >= 8 ? 8 : left;
        row_chunk(R, type, G, min, width, block, src, n32, a, (uintptr_t)src + ahead,
                  ahead ? 4 * block_bytes : 0, acc);
        src += n32 * block_bytes;
        left -= n32;
    }
    const size_t n_cols = g->n1 - n < N ? g->n1 - n : N;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        float *row = g->out + (row0 + (size_t)r) * g->ldo + n, out[N], *to = n_cols < N ? out : row;
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) f_store(to + v * LANES, acc[r][v]);
        if (to == out) memcpy(row, out, n_cols * sizeof *out);
        if (!g->bias) continue;
        for (size_t i = 0; i < n_cols; i++) row[i] += g->bias[n + i];
    }
}

/* Tiles n0 .. n1 of a type against one row. */
INLINE void row_of(tn_blocks_type type, size_t G, bool min, int width, int block, const tn_blocks_args *g) {
    const size_t tile_bytes = tn_blocks_bytes(type, N, g->k);
    const uint8_t *src = g->tiles + tn_blocks_bytes(type, g->n0, g->k);
    for (size_t n = g->n0; n < g->n1; n += N, src += tile_bytes)
        row_tile(1, type, G, min, width, block, g, n, 0, src, ROW_AHEAD);
}

#define ROW_OF(T, G, min, width, block)                                                                      \
    static void row_##T(const tn_blocks_args *g) { row_of(TN_BLOCKS_##T, G, min, width, block, g); }
ROW_OF(Q8_0, 32, false, WIDE, 32)
ROW_OF(Q4_0, 32, false, SMALL, 32)
ROW_OF(Q4_1, 32, true, SMALL, 32)
ROW_OF(Q5_0, 32, false, SMALL, 32)
ROW_OF(Q5_1, 32, true, SMALL, 32)
ROW_OF(Q2_K, 16, true, SMALL, 256)
ROW_OF(Q3_K, 16, false, SMALL, 256)
ROW_OF(Q4_K, 32, true, SMALL, 256)
ROW_OF(Q5_K, 32, true, SMALL, 256)
ROW_OF(Q6_K, 16, false, SMALL, 256)
ROW_OF(IQ4_NL, 32, false, WIDE, 32)
ROW_OF(IQ4_XS, 32, false, WIDE, 256)
ROW_OF(MXFP4, 32, false, SMALL, 32)
#ifndef TERN_MINIMAL
ROW_OF(IQ1, 16, false, SMALL, 256)
ROW_OF(IQ2, 16, false, MIDDLE, 256)
ROW_OF(IQ3_XXS, 32, false, MIDDLE, 256)
ROW_OF(IQ3_S, 32, false, SMALL, 256)
ROW_OF(TQ, 32, false, SMALL, 256)
ROW_OF(Q1_0, 32, false, SMALL, 128)
ROW_OF(Q2_0, 32, false, SMALL, 64)
ROW_OF(NVFP4, 16, false, SMALL, 64)
ROW_OF(IQ2_K, 16, false, SMALL, 256)
ROW_OF(IQ3_K, 16, false, MIDDLE, 256)
ROW_OF(IQ4_K, 16, false, WIDE, 256)
ROW_OF(IQ5_K, 16, false, WIDE, 256)
ROW_OF(IQ6_K, 16, false, WIDE, 256)
ROW_OF(IQ4_KS, 32, false, WIDE, 256)
ROW_OF(IQ5_KS, 32, false, WIDE, 256)
ROW_OF(IQ2_KS, 32, false, MIDDLE, 256)
ROW_OF(IQ3_KS, 32, false, MIDDLE, 256)
ROW_OF(KT, 32, false, WIDE, 256)
#endif

/* The product for g->m == 1. */
static void one_row(const tn_blocks_args *g) {
    static void (*const rows[TN_BLOCKS_N_TYPES])(const tn_blocks_args *) = {
        [TN_BLOCKS_Q8_0] = row_Q8_0,     [TN_BLOCKS_Q4_0] = row_Q4_0,     [TN_BLOCKS_Q4_1] = row_Q4_1,
        [TN_BLOCKS_Q5_0] = row_Q5_0,     [TN_BLOCKS_Q5_1] = row_Q5_1,     [TN_BLOCKS_Q2_K] = row_Q2_K,
        [TN_BLOCKS_Q3_K] = row_Q3_K,     [TN_BLOCKS_Q4_K] = row_Q4_K,     [TN_BLOCKS_Q5_K] = row_Q5_K,
        [TN_BLOCKS_Q6_K] = row_Q6_K,     [TN_BLOCKS_IQ4_NL] = row_IQ4_NL, [TN_BLOCKS_IQ4_XS] = row_IQ4_XS,
        [TN_BLOCKS_MXFP4] = row_MXFP4,
#ifndef TERN_MINIMAL
        [TN_BLOCKS_IQ1] = row_IQ1,       [TN_BLOCKS_IQ2] = row_IQ2,       [TN_BLOCKS_IQ3_XXS] = row_IQ3_XXS,
        [TN_BLOCKS_IQ3_S] = row_IQ3_S,   [TN_BLOCKS_TQ] = row_TQ,         [TN_BLOCKS_Q1_0] = row_Q1_0,
        [TN_BLOCKS_Q2_0] = row_Q2_0,     [TN_BLOCKS_NVFP4] = row_NVFP4,   [TN_BLOCKS_IQ2_K] = row_IQ2_K,
        [TN_BLOCKS_IQ3_K] = row_IQ3_K,   [TN_BLOCKS_IQ4_K] = row_IQ4_K,   [TN_BLOCKS_IQ5_K] = row_IQ5_K,
        [TN_BLOCKS_IQ6_K] = row_IQ6_K,   [TN_BLOCKS_IQ4_KS] = row_IQ4_KS, [TN_BLOCKS_IQ5_KS] = row_IQ5_KS,
        [TN_BLOCKS_IQ2_KS] = row_IQ2_KS, [TN_BLOCKS_IQ3_KS] = row_IQ3_KS, [TN_BLOCKS_KT] = row_KT,
#endif
    };
    rows[g->type](g);
}

#ifdef FEW_MOST
/* ---- a few rows ---------------------------------------------------------------------------------------- */

/* All rows, tile by tile. For five and seven, which take two passes, there is no code of their own: the second pass reads
 * the tile from cache. */
INLINE void rows_of(tn_blocks_type type, size_t G, bool min, int width, int block, const tn_blocks_args *g) {
    const size_t tile_bytes = tn_blocks_bytes(type, N, g->k),
                 n_first = g->m == 5 || g->m == 7 ? g->m / 2 : g->m;
    const uint8_t *src = g->tiles + tn_blocks_bytes(type, g->n0, g->k);
    for (size_t n = g->n0; n < g->n1; n += N, src += tile_bytes)
        for (size_t row = 0, n_rows = n_first; n_rows; row += n_rows, n_rows = g->m - row) {
            const size_t ahead = row ? 0 : ROW_AHEAD;
            switch (n_rows) {
            case 2: row_tile(2, type, G, min, width, block, g, n, row, src, ahead); break;
            case 3: row_tile(3, type, G, min, width, block, g, n, row, src, ahead); break;
            case 4: row_tile(4, type, G, min, width, block, g, n, row, src, ahead); break;
            case 6: row_tile(6, type, G, min, width, block, g, n, row, src, ahead); break;
            default: row_tile(8, type, G, min, width, block, g, n, row, src, ahead); break;
            }
        }
}

#define ROWS_OF(T, G, min, width, block)                                                                     \
    static void rows_##T(const tn_blocks_args *g) { rows_of(TN_BLOCKS_##T, G, min, width, block, g); }
ROWS_OF(Q4_0, 32, false, SMALL, 32)
ROWS_OF(Q5_0, 32, false, SMALL, 32)
ROWS_OF(Q4_K, 32, true, SMALL, 256)
ROWS_OF(Q5_K, 32, true, SMALL, 256)
ROWS_OF(Q6_K, 16, false, SMALL, 256)
ROWS_OF(MXFP4, 32, false, SMALL, 32)

/* The product for 2 to FEW_MOST rows; false: they are more, or of a type that it does not pay for. What it saves is that
 * unpacked values are stored and loaded, which those of Q8_0 hardly need. */
static bool few_rows(const tn_blocks_args *g) {
    static void (*const rows[TN_BLOCKS_N_TYPES])(const tn_blocks_args *) = {
        [TN_BLOCKS_Q4_0] = rows_Q4_0, [TN_BLOCKS_Q5_0] = rows_Q5_0, [TN_BLOCKS_Q4_K] = rows_Q4_K,
        [TN_BLOCKS_Q5_K] = rows_Q5_K, [TN_BLOCKS_Q6_K] = rows_Q6_K, [TN_BLOCKS_MXFP4] = rows_MXFP4};
    if (g->m > FEW_MOST || !rows[g->type]) return false;
    rows[g->type](g);
    return true;
}
#endif
