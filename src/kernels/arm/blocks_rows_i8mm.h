/* kernels/arm/blocks_rows_i8mm.h - several rows of a tile on SMMLA, for blocks_template.h: 4 rows x a whole
 * tile, whose 16 float sums stay in registers. Two pairs of channels at a time compute the sums of a group
 * and add them. Weights come from a panel or, with few rows, in the file's form. */

enum { CHANNEL_PAIRS = N / 2 };

static inline int8x16_t low_halves(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
static inline int8x16_t high_halves(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
typedef double two_floats __attribute__((may_alias, aligned(4)));
static inline float32x4_t twice(const float *p) {
    return vreinterpretq_f32_f64(vdupq_n_f64(*(const two_floats *)p));
}

/* A chunk of two pairs of rows. A row without a partner is paired with itself: both results are the same and
 * go to the same place. */
typedef struct row_pairs {
    int8_t q[TN_BLOCKS_CHUNK / 32][2][4][16]; /* [pair] eight of each row */
    int32_t of[TN_BLOCKS_GROUPS][2][4];       /* tn_blocks_act.of of a pair: r0 r0 r1 r1 */
    float scale[TN_BLOCKS_CHUNK / TN_BLOCKS_ACT][4];
    float *out[4];
} row_pairs;

INLINE void pair_up(int P, size_t n_rows, size_t n32, size_t G, const tn_blocks_act *a, const sums *to,
                    row_pairs *rows) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
        const size_t i = 2 * (size_t)p, j = i + 1 < n_rows ? i + 1 : i;
#pragma GCC unroll 2
        for (size_t k = 0; k < TN_BLOCKS_CHUNK / TN_BLOCKS_ACT; k++)
            rows->scale[k][i] = a[i].scale[k], rows->scale[k][i + 1] = a[j].scale[k];
        rows->out[i] = to->p + i * to->ld, rows->out[i + 1] = to->p + j * to->ld;
        for (size_t k = 0; k < n32; k++) {
            const int8_t *x = a[i].q + 32 * k, *y = a[j].q + 32 * k;
            const int8x16_t x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16), y0 = vld1q_s8(y), y1 = vld1q_s8(y + 16);
            vst1q_s8(rows->q[k][p][0], low_halves(x0, y0));
            vst1q_s8(rows->q[k][p][1], high_halves(x0, y0));
            vst1q_s8(rows->q[k][p][2], low_halves(x1, y1));
            vst1q_s8(rows->q[k][p][3], high_halves(x1, y1));
        }
        for (size_t g = 0; g < n32 * 32 / G; g += 4) {
            const int32x4_t x = vld1q_s32(a[i].of.start + g), y = vld1q_s32(a[j].of.start + g),
                            lo = vzip1q_s32(x, y), hi = vzip2q_s32(x, y);
            vst1q_s32(rows->of[g][p], vzip1q_s32(lo, lo));
            vst1q_s32(rows->of[g + 1][p], vzip2q_s32(lo, lo));
            vst1q_s32(rows->of[g + 2][p], vzip1q_s32(hi, hi));
            vst1q_s32(rows->of[g + 3][p], vzip2q_s32(hi, hi));
        }
    }
}

/* part (128 input channels) to the outputs of a pair of rows. */
INLINE void add_part(const float32x4_t *part, float *even, float *odd, const float *scale) {
    const float32x2_t s = vld1_f32(scale);
    float32x4_t x[4], y[4];
    __asm__("" : "+r"(even), "+r"(odd));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) x[i] = f_load(even + 4 * i);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) y[i] = f_load(odd + 4 * i);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const float64x2_t a = vreinterpretq_f64_f32(part[2 * i]), b = vreinterpretq_f64_f32(part[2 * i + 1]);
        x[i] = vfmaq_lane_f32(x[i], vreinterpretq_f32_f64(vzip1q_f64(a, b)), s, 0);
        y[i] = vfmaq_lane_f32(y[i], vreinterpretq_f32_f64(vzip2q_f64(a, b)), s, 1);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) f_store(even + 4 * i, x[i]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) f_store(odd + 4 * i, y[i]);
}

/* The rows' outputs before the first chunk and after the last. */
static void start_rows(const row_pairs *rows, int n, size_t at) {
    for (int r = 0; r < n; r++) memset(rows->out[r] + at, 0, N * sizeof(float));
}
static void add_bias(const row_pairs *rows, int n, size_t at, const float *bias) {
    for (int r = 0; r < n; r++) {
        if (r % 2 && rows->out[r] == rows->out[r - 1]) continue; /* its own partner */
        for (size_t i = 0; i < N; i++) rows->out[r][at + i] += bias[i];
    }
}

/* Where the weights of a chunk lie: in a panel, or in the fields of a type whose groups are its blocks. */
typedef struct weights {
    const uint8_t *q, *high;
    const panel *scales;
    uintptr_t next; /* share bytes of it are prefetched for each group */
    size_t share;
} weights;

enum { PANEL = TN_BLOCKS_N_TYPES };

/* Channel pair c of the group at q in a panel, eight input channels to a register. */
INLINE void panel_pair(size_t G, const uint8_t *q, int c, slice *v) {
#pragma GCC unroll 4
    for (size_t k = 0; k < G / 8; k++) v[k] = load(q + (size_t)c * LINE + k * 16);
}

/* Pairs c and c + 1 of the group at w as the file has it. */
INLINE void two_pairs(int type, const weights *w, int c, slice (*v)[4]) {
    const size_t o = (size_t)c / 2 * SLICE;
    slice lo[4], hi[4];
    if (type == TN_BLOCKS_Q4_0 || type == TN_BLOCKS_Q4_1) { /* zipped before their fields are separated */
        slice both[4];
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) both[i] = load(w->q + i * LINE + o);
        arrange(both);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) lo[i] = both[i] & 15, hi[i] = both[i] >> 4;
    } else {
        four_lines((tn_blocks_type)type, w->q, w->high, 0, 0, o, lo);
        four_lines((tn_blocks_type)type, w->q, w->high, 0, 4, o, hi);
        arrange(lo);
        arrange(hi);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        v[i][0] = lo[2 * i], v[i][1] = lo[2 * i + 1], v[i][2] = hi[2 * i], v[i][3] = hi[2 * i + 1];
}

/* Adds a group's part to every sum. */
INLINE void add_group_of(int type, int P, size_t G, bool min, bool wide, const weights *w,
                         const row_pairs *rows, size_t g, float32x4_t (*part)[CHANNEL_PAIRS]) {
    const size_t n_k = G / 8;
    const int8_t *q = rows->q[g * G / 32][0][g * G % 32 / 8];
    const float *scale = w->scales->s[g], *bias = w->scales->b[g];
    const int32_t *start = rows->of[g][0];
    weights at = *w;
    if (type == PANEL) {
        at.q += g * G / 32 * (8 * LINE) + g * G % 32 * 2;
    } else {
        const fields f = fields_of((tn_blocks_type)type);
        at.q += g * f.lines * LINE, at.high += g * f.high_lines * LINE;
    }
    __asm__("" : "+r"(q), "+r"(at.q), "+r"(scale), "+r"(start)); /* one address for all loads from each */
    int8x16_t x[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < P; r++) {
#pragma GCC unroll 4
        for (size_t k = 0; k < n_k; k++) x[r][k] = vld1q_s8(q + 64 * r + 16 * k);
    }
#pragma GCC unroll 4
    for (int c = 0; c < CHANNEL_PAIRS; c += 2) {
        slice v[2][4];
        if (type != PANEL) two_pairs(type, &at, c, v);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            if (type == PANEL) panel_pair(G, at.q, c + i, v[i]);
            const float32x4_t s2 = twice(scale), b2 = min ? twice(bias) : s2;
            scale += 2, bias += 2;
            __asm__("" : "+r"(scale)); /* the load moves it on */
            int32x4_t sum[2] = {i_zero(), i_zero()};
            if (!min && !wide && P == 1) sum[0] = vld1q_s32(start);
            if (!min && !wide && P == 2) {
                sum[0] = vld1q_s32(start), sum[1] = vld1q_s32(start + 4);
            }
#pragma GCC unroll 2
            for (int r = 0; r < P; r++) {
#pragma GCC unroll 4
                for (size_t k = 0; k < n_k; k++) sum[r] = vmmlaq_s32(sum[r], x[r][k], (int8x16_t)v[i][k]);
                part[r][c + i] = f_fma(f_cvt(sum[r]), s2, part[r][c + i]);
                if (min)
                    part[r][c + i] =
                        f_fma(b2, vreinterpretq_f32_s32(vld1q_s32(rows->of[g][r])), part[r][c + i]);
            }
            in_turn();
        }
    }
}

/* A tile's channels, from `at` on in the rows' outputs. */
INLINE void tile_rows(int type, int P, size_t G, bool min, bool wide, const weights *w, size_t n32,
                      const row_pairs *rows, size_t at, const sums *to) {
    const size_t n_groups = n32 * 32 / G, per_act = TN_BLOCKS_ACT / G;
    if (to->first) start_rows(rows, 2 * P, at);
    for (size_t i = 0, g = 0; g < n_groups; i++) {
        float32x4_t part[2][CHANNEL_PAIRS];
#pragma GCC unroll 2
        for (int r = 0; r < P; r++) {
#pragma GCC unroll 8
            for (int c = 0; c < CHANNEL_PAIRS; c++) part[r][c] = f_zero();
        }
        const size_t end = g + per_act < n_groups ? g + per_act : n_groups;
        for (size_t o = g * w->share; type != PANEL && o < end * w->share; o += 4 * LINE) {
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; j++) __builtin_prefetch((const void *)(w->next + o + j * LINE), 0, 2);
        }
        for (; g < end; g++) add_group_of(type, P, G, min, wide, w, rows, g, part);
#pragma GCC unroll 2
        for (int r = 0; r < P; r++)
            add_part(part[r], rows->out[2 * r] + at, rows->out[2 * r + 1] + at, rows->scale[i] + 2 * r);
    }
    if (to->last && to->bias) add_bias(rows, 2 * P, at, to->bias + at);
}

INLINE void micro(int P, size_t n_rows, int C, size_t G, bool min, int width, const panel *p, size_t n32,
                  const tn_blocks_act *a, const sums *to, const ahead *next) {
    row_pairs rows;
    pair_up(P, n_rows, n32, G, a, to, &rows);
    for (size_t t = 0; t < (C == 1 ? 1 : TILES); t++) {
        const weights w = {p[t].q[0], NULL, &p[t], next->at[t], next->share};
        tile_rows(PANEL, P, G, min, width == WIDE, &w, n32, &rows, t * N, to);
    }
}

/* Groups of four, then the rest: a pair of rows costs half as much as four. */
#define DEALT(m, n) ((m) < 4 ? (m) : 4)
#define ALL_ROWS(...)                                                                                        \
    case 1:                                                                                                  \
    case 2: micro(1, n_rows, __VA_ARGS__, p, n32, a, &part, &ahead_of); break;                               \
    default: micro(2, n_rows, __VA_ARGS__, p, n32, a, &part, &ahead_of)

/* ---- few rows: of types whose groups are blocks, values go from the file's form to the product in registers
 * ---- */

enum { FEW_TILES = 8 /* share the rows of a chunk */ };

INLINE void few_rows_of(tn_blocks_type type, bool min, bool wide, int P, const tn_blocks_args *g, size_t n,
                        size_t n_tiles) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    const size_t tile_bytes = tn_blocks_bytes(type, N, g->k), group_bytes = (size_t)t->bytes * N;
    const fields f = fields_of(type);
    const uint8_t *tiles = g->tiles + n / N * tile_bytes;
    for (size_t k = 0, n32; k < g->k; k += 32 * n32) {
        const tn_blocks_act *a = g->a + k / TN_BLOCKS_CHUNK * g->m;
        n32 = g->k - k < TN_BLOCKS_CHUNK ? (g->k - k) / 32 : TN_BLOCKS_CHUNK / 32;
        const sums to = {g->out + n, g->ldo, g->bias ? g->bias + n : NULL, k == 0, k + 32 * n32 == g->k};
        row_pairs rows;
        pair_up(P, g->m, n32, 32, a, &to, &rows);
        for (size_t i = 0; i < n_tiles; i++) {
            const uint8_t *src = tiles + i * tile_bytes + k / 32 * group_bytes,
                          *high = src + n32 * f.lines * LINE;
            panel s;
            scales(type, high + n32 * f.high_lines * LINE, n32, &s);
            const uintptr_t next =
                (uintptr_t)src + (i + 1 < n_tiles ? tile_bytes : n32 * group_bytes - i * tile_bytes);
            const weights w = {src, high, &s, next, (group_bytes + LINE - 1) / LINE * LINE};
            tile_rows((int)type, P, 32, min, wide, &w, n32, &rows, i * N, &to);
        }
    }
}

#define FEW_OF(T, min, wide)                                                                                 \
    static void few_##T(const tn_blocks_args *g, size_t n, size_t n_tiles) {                                 \
        if (g->m <= 2) few_rows_of(TN_BLOCKS_##T, min, wide, 1, g, n, n_tiles);                              \
        else few_rows_of(TN_BLOCKS_##T, min, wide, 2, g, n, n_tiles);                                        \
    }
FEW_OF(Q8_0, false, true)
FEW_OF(Q4_0, false, false)
FEW_OF(Q4_1, true, false)
FEW_OF(Q5_0, false, false)
FEW_OF(Q5_1, true, false)
FEW_OF(IQ4_NL, false, true)
FEW_OF(MXFP4, false, false)

/* All whole tiles, for few rows of such a type. Returns the first channel left. */
static size_t few_rows(const tn_blocks_args *g) {
    static void (*const of[TN_BLOCKS_N_TYPES])(const tn_blocks_args *, size_t, size_t) = {
        [TN_BLOCKS_Q8_0] = few_Q8_0,   [TN_BLOCKS_Q4_0] = few_Q4_0, [TN_BLOCKS_Q4_1] = few_Q4_1,
        [TN_BLOCKS_Q5_0] = few_Q5_0,   [TN_BLOCKS_Q5_1] = few_Q5_1, [TN_BLOCKS_IQ4_NL] = few_IQ4_NL,
        [TN_BLOCKS_MXFP4] = few_MXFP4,
    };
    size_t n = g->n0;
    if (g->m > MAX_ROWS || !of[g->type]) return n;
    for (size_t n_tiles; n + N <= g->n1; n += n_tiles * N) {
        n_tiles = (g->n1 - n) / N < FEW_TILES ? (g->n1 - n) / N : FEW_TILES;
        of[g->type](g, n, n_tiles);
    }
    return n;
}
