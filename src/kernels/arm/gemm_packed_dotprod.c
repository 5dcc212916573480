/* kernels/arm/gemm_packed_dotprod.c - rows against weightlets on SDOT. One and two rows: codes go from
 * registers to the product, four channels of a width at a time, which share the loads of activations; sums run
 * along k, four to a register, and are added across it at the end. More rows: one instruction is four rows,
 * interleaved by four k, and four k of one channel. So codes stay in the order of weightlets, and nothing is
 * added across a register. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

static inline void put_rows(int8_t *to, const int8x16_t *x) {
    vst4q_s32((int32_t *)to, ((int32x4x4_t){{vreinterpretq_s32_s8(x[0]), vreinterpretq_s32_s8(x[1]),
                                             vreinterpretq_s32_s8(x[2]), vreinterpretq_s32_s8(x[3])}}));
}
static inline void put_code(int8_t *to, size_t c, int8x16_t x) { vst1q_s8(to + c * 16, x); }
#define pair_two(w) (void)(w)

/* acc[c]: four rows of channel c. */
static inline __attribute__((always_inline)) void multiply(int32x4_t *acc, int R, const int8x16_t *x,
                                                           int8x16_t y, int c) {
    (void)R;
    acc[c] = vdotq_laneq_s32(acc[c], x[0], y, 0);
    acc[c] = vdotq_laneq_s32(acc[c], x[1], y, 1);
    acc[c] = vdotq_laneq_s32(acc[c], x[2], y, 2);
    acc[c] = vdotq_laneq_s32(acc[c], x[3], y, 3);
}
static inline __attribute__((always_inline)) void sums_by_row(const int32x4_t *acc, int32x4_t *sum) {
    const int32x4_t a = vzip1q_s32(acc[0], acc[2]), b = vzip1q_s32(acc[1], acc[3]),
                    c = vzip2q_s32(acc[0], acc[2]), d = vzip2q_s32(acc[1], acc[3]);
    sum[0] = vzip1q_s32(a, b), sum[1] = vzip2q_s32(a, b);
    sum[2] = vzip1q_s32(c, d), sum[3] = vzip2q_s32(c, d);
}
#include "kernels/arm/gemm_packed_neon.h"

/* ---- few rows -------------------------------------------------------------------------------------- */

#ifdef TERN_MINIMAL /* without the code for two rows and for tiles of one width */
enum { FEW = 1 };
#else
enum { FEW = 2 };
#endif

/* Writes a group of a row, minus 128 and in the order of codes: inputs 16 i .. and 64 + 16 i .. by turns.
 * Returns sum plus its activations. */
INLINE int32x4_t copy_group(const uint8_t *group, int8_t *to, size_t unit, int32x4_t sum) {
    const uint8x16_t flip = vdupq_n_u8(0x80);
#pragma GCC unroll 4
    for (int i = 0; i < WEIGHTLET_PAIRS; i++, to += unit) {
        int8x16_t lo = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + 16 * i), flip)),
                  hi = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + 64 + 16 * i), flip));
        vst1q_s8(to, lo);
        vst1q_s8(to + 16, hi);
        sum = vdotq_s32(vdotq_s32(sum, lo, vdupq_n_s8(1)), hi, vdupq_n_s8(1));
    }
    return sum;
}

/* A row of k activations in whole groups, zero after its end; returns their sum. */
static int32_t copy_row(const uint8_t *row, size_t k, int8_t *to, size_t unit) {
    int32x4_t sum = vdupq_n_s32(0);
    for (; k >= GROUP; k -= GROUP, row += GROUP, to += WEIGHTLET_PAIRS * unit)
        sum = copy_group(row, to, unit, sum);
    if (k) {
        uint8_t last[GROUP];
        memset(last, 0x80, sizeof last);
        memcpy(last, row, k);
        sum = copy_group(last, to, unit, sum);
    }
    return vaddvq_s32(sum);
}

/* A tile against few rows. */
typedef struct span {
    const tile *t;
    const uint8_t *src;
    size_t n_groups;
    const int8_t *a; /* of all rows, 32 of each in turn, in the order of codes */
    uintptr_t next;  /* prefetched while weights are read; may lie after the matrix, since a prefetch does not
                        read */
} span;

/* sum_at of row 0, in one instruction. */
static const uint8_t place_of[TN_TILE_N] = {0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51};

/* C channels of one width, numbers [C]; their sums go to sums by channel. */
INLINE void channels_row(int C, int bits, span *s, const uint8_t *numbers, int32_t *sums) {
    const uint8_t *src[4];
    const int8_t *a = s->a;
    const size_t step = s->t->step;
    uintptr_t next = s->next;
    int32x4_t acc[4][2];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        src[c] = s->src + tile_off(s->t, numbers[c]);
        acc[c][0] = acc[c][1] = vdupq_n_s32(0);
    }
    for (size_t i = s->n_groups; i; i--, a += GROUP) {
#pragma GCC unroll 8
        for (int j = 0; j < C * bits * 16; j += 64)
            __builtin_prefetch((const void *)(next + (size_t)j), 0, 2);
        next += (uintptr_t)(C * bits * 16);
#pragma GCC unroll 2
        for (int half = 0; half < WEIGHTLET_PAIRS; half += 2) {
            int8x16_t x[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) x[j] = vld1q_s8(a + 32 * half + 16 * j);
            __asm__(""
                    : "+w"(x[0]), "+w"(x[1]), "+w"(x[2]), "+w"(x[3])); /* loaded together: two instructions */
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) {
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    uint8x16_t lo, hi;
                    weightlet_pair(src[c], bits, half + j, &lo, &hi);
                    acc[c][0] = vdotq_s32(acc[c][0], vreinterpretq_s8_u8(lo), x[2 * j]);
                    acc[c][1] = vdotq_s32(acc[c][1], vreinterpretq_s8_u8(hi), x[2 * j + 1]);
                }
            }
            __asm__ volatile(
                "" ::
                    : "memory"); /* otherwise gcc loads everything first, more than fits the registers */
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) src[c] += step;
    }
    s->next = next;
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) sums[place_of[numbers[c]]] = vaddvq_s32(vaddq_s32(acc[c][0], acc[c][1]));
}

/* The same for R rows, into sums[r]. */
INLINE void channels_rows(int C, int R, int bits, span *s, const uint8_t *numbers, int32_t *sums) {
    const uint8_t *src[4];
    const int8_t *a = s->a;
    const size_t step = s->t->step;
    uintptr_t next = s->next;
    int32x4_t acc[4][FEW];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        src[c] = s->src + tile_off(s->t, numbers[c]);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) acc[c][r] = vdupq_n_s32(0);
    }
    for (size_t i = s->n_groups; i; i--, a += GROUP * R) {
#pragma GCC unroll 8
        for (int j = 0; j < C * bits * 16; j += 64)
            __builtin_prefetch((const void *)(next + (size_t)j), 0, 2);
        next += (uintptr_t)(C * bits * 16);
#pragma GCC unroll 2
        for (int i_pair = 0; i_pair < WEIGHTLET_PAIRS; i_pair += 2) {
            weightlet_regs w[4][2]; /* one load for two registers of a channel */
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) {
                w[c][0] = weightlet_load(src[c], bits, i_pair);
                w[c][1] = weightlet_load(src[c], bits, i_pair + 1);
                if (bits & 4 || bits == 8) __asm__("" : "+w"(w[c][0].four), "+w"(w[c][1].four));
            }
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                uint8x16_t lo[4], hi[4];
#pragma GCC unroll 4
                for (int c = 0; c < C; c++) weightlet_codes(w[c][j], bits, i_pair + j, &lo[c], &hi[c]);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    const int8_t *from = a + ((i_pair + j) * R + r) * 32;
                    int8x16_t x = vld1q_s8(from), y = vld1q_s8(from + 16);
                    __asm__("" : "+w"(x), "+w"(y));
#pragma GCC unroll 4
                    for (int c = 0; c < C; c++)
                        acc[c][r] = vdotq_s32(acc[c][r], vreinterpretq_s8_u8(lo[c]), x);
#pragma GCC unroll 4
                    for (int c = 0; c < C; c++)
                        acc[c][r] = vdotq_s32(acc[c][r], vreinterpretq_s8_u8(hi[c]), y);
                    __asm__ volatile("" ::: "memory");
                }
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) src[c] += step;
    }
    s->next = next;
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) sums[place_of[numbers[c]] + 4 * r] = vaddvq_s32(acc[c][r]);
    }
}

#ifndef TERN_MINIMAL
/* One row and all channels of a tile of one width: they are read one after another, and the next tile follows
 * them, so nothing needs prefetching. */
INLINE void uniform_row(int bits, span *s, int32_t *sums) {
    const uint8_t *src = s->src;
    const int8_t *a = s->a;
    int32x4_t acc[TN_TILE_N];
#pragma GCC unroll 16
    for (int c = 0; c < TN_TILE_N; c++) acc[c] = vdupq_n_s32(0);
    for (size_t i = s->n_groups; i; i--, a += GROUP, src += TN_TILE_N * 16 * bits) {
        int8x16_t x[2 * WEIGHTLET_PAIRS];
#pragma GCC unroll 8
        for (int j = 0; j < 2 * WEIGHTLET_PAIRS; j++) x[j] = vld1q_s8(a + 16 * j);
#pragma GCC unroll 16
        for (int c = 0; c < TN_TILE_N; c++) {
#pragma GCC unroll 4
            for (int j = 0; j < WEIGHTLET_PAIRS; j++) {
                uint8x16_t lo, hi;
                weightlet_pair(src + c * 16 * bits, bits, j, &lo, &hi);
                acc[c] = vdotq_s32(acc[c], vreinterpretq_s8_u8(lo), x[2 * j]);
                acc[c] = vdotq_s32(acc[c], vreinterpretq_s8_u8(hi), x[2 * j + 1]);
            }
            __asm__ volatile("" ::: "memory");
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < TN_TILE_N; c += 4)
        vst1q_s32(sums + sum_at(0, (size_t)c),
                  vpaddq_s32(vpaddq_s32(acc[c], acc[c + 1]), vpaddq_s32(acc[c + 2], acc[c + 3])));
}
BY_WIDTH(uniform_row_of, uniform_row, (span * s, int32_t *sums), s, sums)
#endif

INLINE void channels_of(int bits, span *s, const uint8_t *numbers, size_t n, int32_t *sums, int R) {
    for (; n >= 4; n -= 4, numbers += 4) {
        if (R == 1) channels_row(4, bits, s, numbers, sums);
        else channels_rows(4, R, bits, s, numbers, sums);
    }
    for (; n; n--, numbers++) {
        if (R == 1) channels_row(1, bits, s, numbers, sums);
        else channels_rows(1, R, bits, s, numbers, sums);
    }
}

#define RUN(name, R)                                                                                         \
    BY_WIDTH(name, channels_of, (span * s, const uint8_t *numbers, size_t n, int32_t *sums), s, numbers, n,  \
             sums, R)
typedef void (*run_fn)(span *, const uint8_t *, size_t, int32_t *);
RUN(run1, 1)
#ifdef TERN_MINIMAL
static run_fn const *const runs[FEW] = {run1};
#else
RUN(run2, 2)
static run_fn const *const runs[FEW] = {run1, run2};
#endif

/* Passes a tile's channels, by width, to their products. */
static void runs_of(span *s, run_fn const *run, int32_t *sums) {
    const tile *t = s->t;
    uint8_t numbers[TN_TILE_N];
    if (t->uniform) {
        for (size_t c = 0; c < TN_TILE_N; c++) numbers[c] = (uint8_t)c;
        run[t->width[0]](s, numbers, t->n_cols, sums);
        return;
    }
    uint64_t count = 0, at; /* a byte for each width */
    for (size_t c = 0; c < t->n_cols; c++) count += 1ull << (t->width[c] - 1) * 8;
    at = count * 0x0101010101010100u; /* the place of the first of each width */
    for (size_t c = 0; c < t->n_cols; c++) {
        const int shift = (t->width[c] - 1) * 8;
        numbers[at >> shift & 15] = (uint8_t)c;
        at += 1ull << shift;
    }
    const uint8_t *from = numbers;
    for (int width = 1; count; width++, count >>= 8) {
        const size_t n = count & 31;
        if (n) run[width](s, from, n, sums);
        from += n;
    }
}

static void few_rows(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits, uint8_t *scratch) {
    int8_t *a = (int8_t *)scratch;
    const size_t n_groups = (g->k + GROUP - 1) / GROUP;
    int32_t sums[4 * TN_TILE_N] = {0}, row_sum[FEW] = {0};
    for (size_t r = 0; r < g->m; r++) row_sum[r] = copy_row(g->a + r * g->lda, g->k, a + r * 32, g->m * 32);
    tile t = {0};
    for (size_t n = g->n0; n < g->n1; n += TN_TILE_N) {
        next_tile(&t, g, bits, n);
        span s = {.t = &t, .src = packed, .n_groups = n_groups, .a = a};
        packed += t.step * n_groups;
        s.next = (uintptr_t)packed;
#ifndef TERN_MINIMAL
        if (t.uniform && g->m == 1) uniform_row_of[t.width[0]](&s, sums);
        else
#endif
            runs_of(&s, runs[g->m - 1], sums);
        finish(g, &t, n, g->m, sums, row_sum);
    }
}

#ifndef TERN_MINIMAL
UNIFORM(uniform4, 4)
#endif

static const uniform_fn *uniform_of(size_t n_rows) {
#ifndef TERN_MINIMAL
    if (n_rows <= MOST_UNIFORM) return uniform4;
#endif
    (void)n_rows;
    return NULL;
}

void tn_gemm_packed_dotprod(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                            uint8_t *scratch) {
    in_parts(g, packed, bits, scratch, few_rows, FEW);
}
