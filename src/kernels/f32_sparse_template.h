/* kernels/f32_sparse_template.h - the part of f32_template.h that attends sparsely: at listed positions,
 * and by tiles. */

#ifndef TERN_MINIMAL /* for heads that select for themselves, used in comparisons */
/* ---- attention at listed positions ------------------------------------------------------------------
 *
 * By spans of positions: their keys are turned from panels into rows inside L1, every query row takes the dot
 * products it wants from them, and later, span by span again, the values. A span's keys and values are so
 * read from memory once for all rows of a KV head. */

/* Keys of positions p0..p0+n-1 as rows of `row` floats; n a multiple of TN_KV_PANEL. */
static void key_rows(const tn_attn_sparse_args *a, size_t p0, size_t n, size_t row, float *rows) {
    const float *panel = a->k_panels + p0 * a->d_head;
    for (size_t p = 0; p < n; p += TN_KV_PANEL, panel += a->d_head * TN_KV_PANEL, rows += TN_KV_PANEL * row) {
        size_t d = 0;
#ifdef f_transpose16
        for (; d + 16 <= a->d_head; d += 16) {
            f_transpose16(panel + d * TN_KV_PANEL, TN_KV_PANEL, rows + d, row);
            f_transpose16(panel + d * TN_KV_PANEL + 16, TN_KV_PANEL, rows + 16 * row + d, row);
        }
#endif
        for (; d < a->d_head; d++) {
            for (size_t i = 0; i < TN_KV_PANEL; i++) rows[i * row + d] = panel[d * TN_KV_PANEL + i];
        }
    }
}

/* Dot products of q with n <= 16 key rows (of 16 * n16 floats) at k + idx[i] * row; writes 16 values. */
INLINE void sparse_scores(size_t n16, const float *q, const float *k, const uint32_t *idx, float *s) {
#ifdef f_fold16
    vf acc[16];
    UNROLL for (int i = 0; i < 16; i++) {
        const float *key = k + (size_t)idx[i] * n16 * 16;
        acc[i] = f_mul(
            f_load(q),
            f_load(key)); /* fma onto +0 except for the sign of a zero, which does not affect any weight */
        UNROLL_SOME for (size_t j = 1; j < n16; j++) acc[i] =
            f_fma(f_load(q + j * 16), f_load(key + j * 16), acc[i]);
    }
    f_store(s, f_fold16(acc));
#else
    for (int i = 0; i < 16; i++) {
        const float *key = k + (size_t)idx[i] * n16 * 16;
        lanes l = lanes_zero();
        for (size_t j = 0; j < n16; j++) {
            UNROLL for (int r = 0; r < N_LANE_REGS; r++) l.v[r] =
                f_fma(f_load(q + j * 16 + (size_t)r * W), f_load(key + j * 16 + (size_t)r * W), l.v[r]);
        }
        s[i] = fold(&l, NULL, 0);
    }
#endif
}

/* Scores of list entries c0..c1-1 of one row, all inside the span whose key rows begin at position p0. Writes
 * up to 15 beyond c1. */
INLINE void span_scores(size_t n16, const float *q, const float *rows, size_t p0, const uint32_t *idx,
                        size_t c0, size_t c1, float *s) {
    const float *k = rows - p0 * n16 * 16;
    size_t c = c0;
    for (; c + 16 <= c1; c += 16) sparse_scores(n16, q, k, idx + c, s + c);
    if (c == c1) return;
    uint32_t last[16];
    uint32_t lo = idx[c], hi = idx[c1 - 1];
    for (size_t j = 0; j < 16; j++) { /* entries after the list may hold anything */
        uint32_t p = idx[c + j] < hi ? idx[c + j] : hi;
        last[j] = p > lo ? p : lo;
    }
    sparse_scores(n16, q, k, last, s + c);
}

/* Weights exp(score - max) of n scores in place; returns their sum. Room up to the next multiple of 16. */
static float sparse_softmax(const tn_attn_sparse_args *a, float *s, size_t n) {
    size_t n_pad = (n + 15) / 16 * 16;
    vf scale = f_set1(a->scale), cap = f_set1(a->soft_cap), max = f_set1(-INFINITY);
    for (size_t i = n; i < n_pad; i++) s[i] = 0;
    for (size_t i = 0; i < n_pad; i += W) {
        vf x = f_mul(f_load(s + i), scale);
        if (a->soft_cap > 0) x = f_mul(cap, v_tanh(f_div(x, cap)));
        f_store(s + i, x);
    }
    for (size_t i = n; i < n_pad; i++) s[i] = -INFINITY;
    for (size_t i = 0; i < n_pad; i += W) max = f_max(f_load(s + i), max);
    float lane[W], m = -INFINITY;
    f_store(lane, max);
    for (int i = 0; i < W; i++) m = lane[i] > m ? lane[i] : m;
    lanes l = lanes_zero();
    for (size_t i = 0; i < n_pad; i += 16) {
        UNROLL for (int j = 0; j < N_LANE_REGS; j++) {
            float *at = s + i + (size_t)j * W;
            vf w = v_exp_neg(f_sub(f_load(at), f_set1(m)));
            f_store(at, w);
            l.v[j] = f_add(l.v[j], w);
        }
    }
    return fold(&l, NULL, 0);
}

/* Continues the even and odd chains of nv vectors of one row's result over list entries c0..c1-1. */
INLINE void sparse_values(int nv, const float *v, size_t d_head, const uint32_t *idx, const float *w,
                          size_t c0, size_t c1, float *even, float *odd) {
    vf e[8], o[8];
    UNROLL for (int j = 0; j < nv; j++) {
        e[j] = f_load(even + j * W);
        o[j] = f_load(odd + j * W);
    }
    size_t c = c0;
    if (c % 2 && c < c1) {
        UNROLL for (int j = 0; j < nv; j++) o[j] =
            f_fma(f_set1(w[c]), f_load(v + (size_t)idx[c] * d_head + j * W), o[j]);
        c++;
    }
    for (; c + 2 <= c1; c += 2) {
        const float *v0 = v + (size_t)idx[c] * d_head, *v1 = v + (size_t)idx[c + 1] * d_head;
        vf w0 = f_set1(w[c]), w1 = f_set1(w[c + 1]);
        UNROLL for (int j = 0; j < nv; j++) {
            e[j] = f_fma(w0, f_load(v0 + j * W), e[j]);
            o[j] = f_fma(w1, f_load(v1 + j * W), o[j]);
        }
    }
    if (c < c1) {
        UNROLL for (int j = 0; j < nv; j++) e[j] =
            f_fma(f_set1(w[c]), f_load(v + (size_t)idx[c] * d_head + j * W), e[j]);
    }
    UNROLL for (int j = 0; j < nv; j++) {
        f_store(even + j * W, e[j]);
        f_store(odd + j * W, o[j]);
    }
}

static void span_values(const tn_attn_sparse_args *a, const uint32_t *idx, const float *w, size_t c0,
                        size_t c1, float *even, float *odd) {
    size_t d = 0, n = a->d_head;
    if (W == 16) {
        for (; d + 8 * W <= n; d += 8 * W)
            sparse_values(W == 16 ? 8 : 1, a->v + d, n, idx, w, c0, c1, even + d, odd + d);
    }
    for (; d + 4 * W <= n; d += 4 * W) sparse_values(4, a->v + d, n, idx, w, c0, c1, even + d, odd + d);
    for (; d + W <= n; d += W) sparse_values(1, a->v + d, n, idx, w, c0, c1, even + d, odd + d);
    for (; d < n; d++) {
        for (size_t c = c0; c < c1; c++) {
            float *acc = c % 2 ? odd : even;
            acc[d] = fmaf(w[c], a->v[(size_t)idx[c] * n + d], acc[d]);
        }
    }
}

static void NAME(tn_attn_sparse)(const tn_attn_sparse_args *a) {
    size_t row = tn_attn_sparse_row(a->d_head), n_all = a->n_rows * a->n_group, longest = 0,
           step = row <= 64 ? 2 : 1; /* rows of a span inside L1 */
    for (size_t r = 0; r < n_all; r++) {
        size_t n = a->cuts[r * a->cut_stride + a->n_blocks];
        longest = n > longest ? n : longest;
    }
    size_t ld = tn_attn_sparse_ld(longest);
    float *rows = a->scratch, *q = rows + TN_SPARSE_SPAN * row, *even = q + n_all * row,
          *odd = even + n_all * row, *s = odd + n_all * row;
    memset(q, 0, 3 * n_all * row * sizeof *q); /* even and odd as well */
    for (size_t r = 0; r < n_all; r++)
        memcpy(q + r * row, a->q + r % a->n_rows * a->q_stride + r / a->n_rows * a->d_head,
               a->d_head * sizeof *q);
    if (row != a->d_head) memset(rows, 0, TN_SPARSE_SPAN * row * sizeof *rows);
    for (size_t b = 0; b < a->n_blocks; b += step) {
        size_t b1 = b + step < a->n_blocks ? b + step : a->n_blocks, p0 = b * TN_SPARSE_BLOCK;
        size_t used = 0;
        for (size_t r = 0; r < n_all; r++)
            used += a->cuts[r * a->cut_stride + b1] - a->cuts[r * a->cut_stride + b];
        if (!used) continue;
        size_t p1 = b1 * TN_SPARSE_BLOCK, end = (a->n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
        key_rows(a, p0, (p1 < end ? p1 : end) - p0, row, rows);
        for (size_t r = 0; r < n_all; r++) {
            const uint32_t *cuts = a->cuts + r * a->cut_stride, *idx = a->idx + r * a->idx_stride;
            switch (row) {
            case 64: span_scores(4, q + r * row, rows, p0, idx, cuts[b], cuts[b1], s + r * ld); break;
            case 128: span_scores(8, q + r * row, rows, p0, idx, cuts[b], cuts[b1], s + r * ld); break;
            default: span_scores(row / 16, q + r * row, rows, p0, idx, cuts[b], cuts[b1], s + r * ld); break;
            }
        }
    }
    for (size_t r = 0; r < n_all; r++)
        q[r * row] = sparse_softmax(
            a, s + r * ld,
            a->cuts[r * a->cut_stride + a->n_blocks]); /* q is no longer needed: its place holds the sums */
    for (size_t b = 0; b < a->n_blocks; b += step) {
        size_t b1 = b + step < a->n_blocks ? b + step : a->n_blocks;
        for (size_t r = 0; r < n_all; r++) {
            const uint32_t *cuts = a->cuts + r * a->cut_stride;
            if (cuts[b] < cuts[b1])
                span_values(a, a->idx + r * a->idx_stride, s + r * ld, cuts[b], cuts[b1], even + r * row,
                            odd + r * row);
        }
    }
    for (size_t r = 0; r < n_all; r++) {
        float *out = a->out + r % a->n_rows * a->out_stride + r / a->n_rows * a->d_head;
        for (size_t d = 0; d < a->d_head; d++) out[d] = (even[r * row + d] + odd[r * row + d]) / q[r * row];
    }
}

#endif

/* ---- attention of tiles --------------------------------------------------------------------------------
 *
 * The rows of a tile are lanes: position by position their scores lie beside each other. So keys and values
 * are read where they lie in the cache, a key one broadcast after the other, a value as a vector: nothing is
 * copied or turned, and no sum goes across lanes. Tiles walk over the cache together, SPAN_POS positions at a
 * time, so that what one has brought near the others find there. */

enum {
    SPAN_POS = 512,
    TILES = 64,
    TILE_STEP = TN_ATTN_TILE_STEP, /* entries of a list whose values stay in L1 while all rows use them */
    TILE_POS = W == 16 ? 12 : 5,   /* positions scored together, */
    TILE_VECS =
        W == 4 ? 4 : 2, /* by this many vectors of rows: accumulators and operands fit the registers */
};

typedef struct tile_space {
    size_t n_lanes, scored, added;  /* rows rounded up; entries of the list that are finished */
    size_t lo, hi;                  /* entries that all rows see */
    float *qt, *scores, *max, *sum; /* [d][n_lanes], [n_idx][n_lanes], [n_lanes], [n_lanes] */
    float *wide;                    /* [TILE_STEP][d]: a part of the cache as floats */
} tile_space;

/* Rows x + idx[i] * d are the entries of a list, beginning with the current one. */
typedef struct listed {
    const float *x;
    const uint32_t *idx;
} listed;

static const uint32_t in_order[TILE_STEP] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                             16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                             32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                             48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
_Static_assert(TILE_STEP == 64, "in_order has them all");

/* Keys or values of n <= TILE_STEP positions: in the cache itself, or as floats in `wide`. */
static listed take(const tn_attn_tiles_args *a, const void *cells, const uint32_t *idx, size_t n,
                   float *wide) {
    if (a->kv == TN_KV_F32) return (listed){cells, idx};
    for (size_t i = 0; i < n; i++)
        widen_rows(a->kv, a->d_head, cells, idx[i], 1, wide + i * a->d_head, false);
    return (listed){wide, in_order};
}

/* Prefetches the keys or values of n positions. Scales are few and share lines with their neighbours. */
static void prefetch_cells(const tn_attn_tiles_args *a, const void *cells, const uint32_t *idx, size_t n) {
    size_t panel = tn_kv_panel_bytes(a->kv, a->d_head),
           scales = a->kv <= TN_KV_F16 ? 0 : TN_KV_PANEL * tn_kv_groups(a->d_head) * sizeof(uint16_t),
           row = (panel - scales) / TN_KV_PANEL;
    for (size_t i = 0; i < n; i++) {
        const char *at =
            (const char *)cells + idx[i] / TN_KV_PANEL * panel + scales + idx[i] % TN_KV_PANEL * row;
        for (size_t b = 0; b < row; b += 64) __builtin_prefetch(at + b);
    }
}

/* The rare cases: caps the scores of n entries at `at`, rows r0..r1-1, and sets -inf where a row does not see
 * the position. */
static void odd_scores(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t at,
                       size_t n, size_t r0, size_t r1) {
    float *s = w->scores + at * w->n_lanes;
    vf cap = f_set1(a->soft_cap);
    for (size_t p = 0; p < n; p++, s += w->n_lanes) {
        for (size_t r = r0; r < r1 && a->soft_cap > 0; r += W)
            f_store(s + r, f_mul(cap, v_tanh(f_div(f_load(s + r), cap))));
        for (size_t r = r0; r < r1 && r < t->n_rows; r++) {
            if ((int32_t)(at + p) < t->first[r] || (int32_t)(at + p) >= t->end[r]) s[r] = -INFINITY;
        }
        for (size_t r = r0; r < r1; r += W) f_store(w->max + r, f_max(f_load(s + r), f_load(w->max + r)));
    }
}

/* Scores of n <= TILE_POS adjacent list entries (the last is repeated), rows r0.. of nv vectors; masked: some
 * rows do not see some of them. */
INLINE void score_block(int nv, const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w,
                        const listed *keys, size_t at, size_t n, size_t r0, bool masked) {
    const float *key[TILE_POS], *qt = w->qt + r0;
    vf acc[TILE_POS][TILE_VECS], scale = f_set1(a->scale);
    UNROLL for (int p = 0; p < TILE_POS; p++) {
        key[p] = keys->x + keys->idx[(size_t)p < n ? (size_t)p : n - 1] * a->d_head;
        UNROLL for (int j = 0; j < nv; j++) acc[p][j] = f_set1(0.0f);
    }
    for (size_t i = 0; i < a->d_head; i++, qt += w->n_lanes) {
        vf q[TILE_VECS];
        UNROLL for (int j = 0; j < nv; j++) q[j] = f_load(qt + j * W);
        UNROLL for (int p = 0; p < TILE_POS; p++) {
            vf k = f_set1(key[p][i]);
            UNROLL for (int j = 0; j < nv; j++) acc[p][j] = f_fma(k, q[j], acc[p][j]);
        }
    }
    float *s = w->scores + at * w->n_lanes + r0, *top = w->max + r0;
    bool plain = !masked && !(a->soft_cap > 0);
    vf max[TILE_VECS];
    UNROLL for (int j = 0; j < nv; j++) max[j] = f_load(top + j * W);
    UNROLL for (int p = 0; p < TILE_POS; p++) {
        UNROLL for (int j = 0; j < nv; j++) {
            vf x = f_mul(acc[p][j], scale);
            f_store(s + (size_t)p * w->n_lanes + (size_t)j * W, x);
            max[j] = f_max(x, max[j]);
        }
    }
    if (plain) {
        UNROLL for (int j = 0; j < nv; j++) f_store(top + j * W, max[j]);
    } else {
        odd_scores(a, t, w, at, n, r0, r0 + (size_t)nv * W);
    }
}

static void score_tile(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t at,
                       size_t n) {
    bool masked = at < w->lo || at + n > w->hi;
    size_t next = clip(at + TILE_POS, 0, t->n_idx), last = clip(at + 2 * TILE_POS, 0, t->n_idx);
    prefetch_cells(a, a->k, t->idx + next, last - next);
    const listed keys = take(a, a->k, t->idx + at, n, w->wide);
    for (size_t r = 0, nv; r < w->n_lanes; r += nv * W) {
        nv = (w->n_lanes - r) / W;
        nv = nv <= TILE_VECS ? nv : nv < 2 * TILE_VECS ? (nv + 1) / 2 : TILE_VECS; /* of nearly equal size */
        switch (nv) {
        case 1: score_block(1, a, t, w, &keys, at, n, r, masked); break;
        case 2: score_block(2, a, t, w, &keys, at, n, r, masked); break;
        case 3: score_block(TILE_VECS >= 3 ? 3 : 1, a, t, w, &keys, at, n, r, masked); break;
        default: score_block(TILE_VECS >= 4 ? 4 : 1, a, t, w, &keys, at, n, r, masked); break;
        }
    }
}

/* Scores become exp(score - max); their sums as attn_f32.h has them: 16 lanes by place in the list. */
static void softmax_tile(const tn_attn_tile *t, const tile_space *w) {
    for (size_t r = 0; r < w->n_lanes; r += W) {
        vf max = f_load(w->max + r), lane[16];
        float *s = w->scores + r;
        size_t i = 0;
        UNROLL for (int j = 0; j < 16; j++) lane[j] = f_set1(0.0f);
        for (; i + 16 <= t->n_idx; i += 16) {
            UNROLL for (int j = 0; j < 16; j++, s += w->n_lanes) {
                vf x = v_exp_neg(f_sub(f_load(s), max));
                f_store(s, x);
                lane[j] = f_add(lane[j], x);
            }
        }
        for (size_t j = 0; i + j < t->n_idx; j++, s += w->n_lanes) {
            vf x = v_exp_neg(f_sub(f_load(s), max));
            f_store(s, x);
            lane[j] = f_add(lane[j], x);
        }
        UNROLL for (int stride = 8; stride; stride /= 2) {
            UNROLL for (int j = 0; j < stride; j++) lane[j] = f_add(lane[j], lane[j + stride]);
        }
        f_store(w->sum + r, lane[0]);
    }
}

/* out[r][0..nv * W) continues its chains over n entries of the list, weights w[entry * ldw + r * ldr]. */
INLINE void value_block(int rows, int nv, const float *w, size_t ldw, size_t ldr, const uint32_t *idx,
                        const float *v, size_t d, size_t n, float *out) {
    vf acc[MR][MANY];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < nv; j++) acc[r][j] = f_load(out + (size_t)r * d + j * W);
    }
    for (size_t i = 0; i < n; i++, w += ldw) {
        const float *from = v + idx[i] * d;
        __asm__("" : "+r"(from)); /* one address for all vectors: gcc would compute each separately */
        vf x[MANY];
        UNROLL for (int j = 0; j < nv; j++) x[j] = f_load(from + j * W);
        UNROLL for (int r = 0; r < rows; r++) {
            vf y = f_set1(w[(size_t)r * ldr]);
            UNROLL for (int j = 0; j < nv; j++) acc[r][j] = f_fma(y, x[j], acc[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < nv; j++) f_store(out + (size_t)r * d + j * W, acc[r][j]);
    }
}

/* Adds the values of entries i0..i1-1, which all see, to up to MR rows from r0 on. v: values of entries from
 * `first` on. */
static void add_listed(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w,
                       const listed *v, size_t first, size_t r0, size_t rows, size_t i0, size_t i1) {
    if (i0 >= i1) return;
    size_t d = a->d_head, n = i1 - i0, c = 0;
    const uint32_t *idx = v->idx + (i0 - first);
    const float *s = w->scores + i0 * w->n_lanes + r0;
    float *out = t->out + r0 * d;
    for (; c + FULL_N <= d; c += FULL_N) {
        switch (rows) {
        case 1: value_block(1, MANY, s, w->n_lanes, 1, idx, v->x + c, d, n, out + c); break;
        case 2: value_block(2, MANY, s, w->n_lanes, 1, idx, v->x + c, d, n, out + c); break;
        case 3: value_block(3, MANY, s, w->n_lanes, 1, idx, v->x + c, d, n, out + c); break;
        case 4: value_block(4, MANY, s, w->n_lanes, 1, idx, v->x + c, d, n, out + c); break;
        case 5: value_block(5, MANY, s, w->n_lanes, 1, idx, v->x + c, d, n, out + c); break;
        default: value_block(MR, MANY, s, w->n_lanes, 1, idx, v->x + c, d, n, out + c); break;
        }
    }
    for (; c + W <= d; c += W) {
        for (size_t r = 0; r < rows; r++)
            value_block(1, 1, s + r, w->n_lanes, 1, idx, v->x + c, d, n, out + r * d + c);
    }
    for (; c < d; c++) {
        for (size_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < n; i++)
                out[r * d + c] = fmaf(s[i * w->n_lanes + r], v->x[idx[i] * d + c], out[r * d + c]);
        }
    }
}

/* Rows of a tile that are multiplied together: groups of nearly equal size, at most MR. */
static size_t group_rows(size_t n_rows) {
    size_t n_groups = (n_rows + MR - 1) / MR;
    return (n_rows + n_groups - 1) / n_groups;
}

/* Entries i0..i1-1: those that all rows see together, the edges row by row, so that no row touches a value it
 * must not see. */
static void value_tile(const tn_attn_tiles_args *a, const tn_attn_tile *t, const tile_space *w, size_t i0,
                       size_t i1) {
    size_t lo = clip(w->lo, i0, i1), hi = clip(w->hi, lo, i1), step = group_rows(t->n_rows);
    prefetch_cells(a, a->v, t->idx + i1, clip(i1 + TILE_STEP, 0, t->n_idx) - i1);
    const listed v = take(a, a->v, t->idx + i0, i1 - i0, w->wide);
    for (size_t r = 0; r < t->n_rows && lo > i0; r++)
        add_listed(a, t, w, &v, i0, r, 1, clip((size_t)t->first[r], i0, lo), clip((size_t)t->end[r], i0, lo));
    for (size_t r = 0; r < t->n_rows; r += step)
        add_listed(a, t, w, &v, i0, r, t->n_rows - r < step ? t->n_rows - r : step, lo, hi);
    for (size_t r = 0; r < t->n_rows && hi < i1; r++)
        add_listed(a, t, w, &v, i0, r, 1, clip((size_t)t->first[r], hi, i1), clip((size_t)t->end[r], hi, i1));
}

/* Lays out a tile in scratch; returns the floats it takes. */
static size_t open_tile(const tn_attn_tiles_args *a, const tn_attn_tile *t, float *scratch, tile_space *w) {
    size_t d = a->d_head, n = tn_attn_tile_lanes(t->n_rows);
    *w = (tile_space){.wide = a->scratch,
                      .n_lanes = n,
                      .hi = t->n_idx,
                      .qt = scratch,
                      .max = scratch + d * n,
                      .sum = scratch + (d + 1) * n,
                      .scores = scratch + (d + 2) * n};
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) w->qt[i * n + r] = r < t->n_rows ? t->q[r * d + i] : 0;
        w->max[r] = -INFINITY;
        if (r >= t->n_rows) continue;
        w->lo = (size_t)t->first[r] > w->lo ? (size_t)t->first[r] : w->lo;
        w->hi = (size_t)t->end[r] < w->hi ? (size_t)t->end[r] : w->hi;
    }
    if (w->lo > w->hi) w->lo = w->hi; /* nothing in common */
    memset(t->out, 0, t->n_rows * d * sizeof *t->out);
    return tn_attn_tile_floats(t->n_rows, t->n_idx, d);
}

#ifdef f_transpose_rows16
/* One tile of few rows, as in decoding, would leave most lanes idle. So lanes are positions here: keys are
 * transposed, a panel of the list at a time, and multiplied with all rows; the rest is as in full attention.
 * Every step prefetches the next. */
_Static_assert(W == 16, "a panel is two vectors");
enum {
    FEW_STEP = 4,
    FEW_AHEAD = 24
}; /* entries of the list whose values are added at a time; prefetch distance */

static bool is_few(const tn_attn_tiles_args *a) {
    const tn_attn_tile *t = a->tiles;
    bool few = a->n_tiles == 1 && t->n_rows <= TALL && a->d_head % FULL_N == 0;
    for (size_t r = 0; few && r < t->n_rows; r++) few = t->first[r] == 0 && (size_t)t->end[r] == t->n_idx;
    return few;
}

/* Keys of n <= TN_KV_PANEL list entries as a panel; the last entry is repeated. */
static void turn_keys(const tn_attn_tiles_args *a, const uint32_t *idx, size_t n, float *wide, float *panel) {
    const listed k = take(a, a->k, idx, n, wide);
    for (size_t i = 0; i < TN_KV_PANEL; i += 16) {
        const float *row[16];
        for (size_t j = 0; j < 16; j++) row[j] = k.x + k.idx[i + j < n ? i + j : n - 1] * a->d_head;
        for (size_t x = 0; x < a->d_head; x += 16)
            f_transpose_rows16(row, x, panel + x * TN_KV_PANEL + i, TN_KV_PANEL);
    }
}

/* Products of all rows with a panel, while the keys of the next n entries are prefetched, two lines per step.
 */
INLINE void few_scores(int rows, const float *q, size_t d, const float *panel, const float *k,
                       const uint32_t *next, size_t n, float *s, size_t ld) {
    vf acc[TALL][2];
    size_t i_next = 0, line = 0;
    UNROLL for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = f_set1(0.0f);
    for (size_t i = 0; i < d; i++, panel += TN_KV_PANEL) {
        if (i_next < n) {
            const float *ahead = k + next[i_next] * d + line;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 16);
            line += 32;
            if (line == d) line = 0, i_next++;
        }
        vf x0 = f_load(panel), x1 = f_load(panel + 16);
        UNROLL for (int r = 0; r < rows; r++) {
            vf y = f_set1(q[(size_t)r * d + i]);
            acc[r][0] = f_fma(y, x0, acc[r][0]);
            acc[r][1] = f_fma(y, x1, acc[r][1]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        f_store(s + (size_t)r * ld, acc[r][0]);
        f_store(s + (size_t)r * ld + 16, acc[r][1]);
    }
}

static void few_rows(const tn_attn_tiles_args *a) {
    const tn_attn_tile *t = a->tiles;
    size_t d = a->d_head, n = t->n_idx, n_rows = t->n_rows,
           ld = (n + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL + 16, step = group_rows(n_rows);
    float *wide = a->scratch, *panel = wide + TILE_STEP * d, *s = panel + TN_KV_PANEL * d, sum[TALL];
    for (size_t at = 0; at < n; at += TN_KV_PANEL) {
        size_t m = n - at < TN_KV_PANEL ? n - at : TN_KV_PANEL,
               n_next = n - at - m < TN_KV_PANEL ? n - at - m : TN_KV_PANEL;
        const uint32_t *next = t->idx + at + m;
        turn_keys(a, t->idx + at, m, wide, panel);
        if (a->kv != TN_KV_F32) { /* there is less to fetch than few_scores has steps */
            prefetch_cells(a, a->k, next, n_next);
            n_next = 0;
        }
        switch (n_rows) {
        case 1: few_scores(1, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 2: few_scores(2, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 3: few_scores(3, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 4: few_scores(4, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 5: few_scores(5, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 6: few_scores(6, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        case 7: few_scores(7, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        default: few_scores(8, t->q, d, panel, a->k, next, n_next, s + at, ld); break;
        }
    }
    prefetch_cells(a, a->v, t->idx, n < FEW_AHEAD ? n : FEW_AHEAD);
    const tn_attn_f32_args full = {.d_head = d, .scale = a->scale, .soft_cap = a->soft_cap};
    for (size_t r = 0; r < n_rows; r++) {
        seen all = {.end = n, .tree_end = n, .panel1 = ld - 16};
        sum[r] = softmax_row(&full, &all, s + r * ld, 0);
    }
    memset(t->out, 0, n_rows * d * sizeof *t->out);
    for (size_t at = 0; at < n; at += FEW_STEP) {
        size_t m = n - at < FEW_STEP ? n - at : FEW_STEP, next = at + FEW_AHEAD;
        if (next < n) prefetch_cells(a, a->v, t->idx + next, n - next < FEW_STEP ? n - next : FEW_STEP);
        const listed v = take(a, a->v, t->idx + at, m, wide);
        for (size_t r = 0, rows; r < n_rows; r += rows) {
            rows = n_rows - r < step ? n_rows - r : step;
            const float *w = s + r * ld + at;
            for (size_t c = 0; c < d; c += FULL_N) {
                float *out = t->out + r * d + c;
                switch (rows) {
                case 1: value_block(1, MANY, w, 1, ld, v.idx, v.x + c, d, m, out); break;
                case 2: value_block(2, MANY, w, 1, ld, v.idx, v.x + c, d, m, out); break;
                case 3: value_block(3, MANY, w, 1, ld, v.idx, v.x + c, d, m, out); break;
                case 4: value_block(4, MANY, w, 1, ld, v.idx, v.x + c, d, m, out); break;
                case 5: value_block(5, MANY, w, 1, ld, v.idx, v.x + c, d, m, out); break;
                default: value_block(MR, MANY, w, 1, ld, v.idx, v.x + c, d, m, out); break;
                }
            }
        }
    }
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t x = 0; x < d; x += W)
            f_store(t->out + r * d + x, f_div(f_load(t->out + r * d + x), f_set1(sum[r])));
    }
}
#endif

static void NAME(tn_attn_tiles)(const tn_attn_tiles_args *a) {
#ifdef f_transpose_rows16
    if (is_few(a)) {
        few_rows(a);
        return;
    }
#endif
    size_t end_pos = 0, d = a->d_head;
    for (const tn_attn_tile *t = a->tiles; t < a->tiles + a->n_tiles; t++)
        end_pos = t->idx[t->n_idx - 1] + 1 > end_pos ? t->idx[t->n_idx - 1] + 1 : end_pos;
    for (size_t t0 = 0, n_tiles; t0 < a->n_tiles; t0 += n_tiles) {
        const tn_attn_tile *tiles = a->tiles + t0;
        tile_space space[TILES];
        size_t used = 0;
        float *scratch = a->scratch + TILE_STEP * d;
        for (n_tiles = 0; n_tiles < TILES && t0 + n_tiles < a->n_tiles; n_tiles++) {
            const tn_attn_tile *t = &tiles[n_tiles];
            if (n_tiles && used + tn_attn_tile_floats(t->n_rows, t->n_idx, d) > TN_ATTN_TILES_TOGETHER) break;
            used += open_tile(a, t, scratch + used, &space[n_tiles]);
        }
        for (size_t p1 = SPAN_POS; p1 < end_pos + SPAN_POS; p1 += SPAN_POS) {
            for (size_t i = 0; i < n_tiles; i++) {
                const tn_attn_tile *t = &tiles[i];
                for (size_t *at = &space[i].scored, n; *at < t->n_idx && t->idx[*at] < p1; *at += n) {
                    n = t->n_idx - *at < TILE_POS ? t->n_idx - *at : TILE_POS;
                    score_tile(a, t, &space[i], *at, n);
                }
            }
        }
        for (size_t i = 0; i < n_tiles; i++) softmax_tile(&tiles[i], &space[i]);
        for (size_t p1 = SPAN_POS; p1 < end_pos + SPAN_POS; p1 += SPAN_POS) {
            for (size_t i = 0; i < n_tiles; i++) {
                const tn_attn_tile *t = &tiles[i];
                for (size_t *at = &space[i].added, n; *at < t->n_idx && t->idx[*at] < p1; *at += n) {
                    n = t->n_idx - *at < TILE_STEP ? t->n_idx - *at : TILE_STEP;
                    value_tile(a, t, &space[i], *at, *at + n);
                }
            }
        }
        for (size_t i = 0; i < n_tiles; i++) {
            for (size_t r = 0; r < tiles[i].n_rows; r++) {
                float *o = tiles[i].out + r * d, total = space[i].sum[r];
                size_t x = 0;
                for (; x + W <= d; x += W) f_store(o + x, f_div(f_load(o + x), f_set1(total)));
                for (; x < d; x++) o[x] /= total;
            }
        }
    }
}
