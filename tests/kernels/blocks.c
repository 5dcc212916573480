/* Products over ggml's blocks. Tiles mean, bit for bit, what the file's blocks mean (tn_dequantise, which has
 * its own oracle); every instruction set gives the reference's bits, whatever the rows and the part of the
 * columns; and the reference is the product of dequantised numbers within the rounding of its own additions.
 * Nothing beside the operands is read or written. */
#include "base/cpu.h"
#include "base/half.h"
#include "formats/code_books.h"
#include "formats/ik_types.h"
#include "kernels/kernels.h"

#include "check.h"

#include <math.h>

/* The file's types of code books that become a form of tiles: how many, and which. */
static size_t code_types_of(tn_blocks_type type, tn_dtype out[4]) {
    static const struct {
        tn_blocks_type type;
        tn_dtype d[5]; /* F32: no more */
    } all[] = {{TN_BLOCKS_IQ1, {TN_IQ1_S, TN_IQ1_M}},
               {TN_BLOCKS_IQ2, {TN_IQ2_XXS, TN_IQ2_XS, TN_IQ2_S}},
               {TN_BLOCKS_IQ3_XXS, {TN_IQ3_XXS}},
               {TN_BLOCKS_IQ3_S, {TN_IQ3_S}},
               {TN_BLOCKS_TQ, {TN_TQ1_0, TN_TQ2_0}},
               {TN_BLOCKS_IQ4_KS, {TN_IQ4_KS, TN_IQ4_KSS}},
               {TN_BLOCKS_IQ5_KS, {TN_IQ5_KS}},
               {TN_BLOCKS_IQ2_KS, {TN_IQ2_KS}},
               {TN_BLOCKS_IQ3_KS, {TN_IQ3_KS, TN_IQ2_KL}},
               {TN_BLOCKS_KT, {TN_IQ1_KT, TN_IQ2_KT, TN_IQ3_KT, TN_IQ4_KT}}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        while (all[i].type == type && all[i].d[n] != TN_F32) out[n] = all[i].d[n], n++;
    return n;
}

static tn_dtype dtype_of(tn_rng *r, tn_blocks_type type) {
    tn_dtype d = TN_F32, code[4];
    size_t n = code_types_of(type, code);
    if (n) return code[tn_rng_below(r, n)];
    while (strcmp(tn_dtype_name(d), tn_blocks_traits_of[type].name)) d++;
    assert_int_equal(tn_dtype_block(d), tn_blocks_traits_of[type].block);
    assert_int_equal(tn_dtype_block_bytes(d), tn_blocks_traits_of[type].bytes);
    return d;
}

static bool numbers_ok(tn_blocks_type type, tn_dtype d, const uint8_t *src, size_t n_bytes) {
    if (tn_dtype_head_bytes(d)) return tn_ik_finite(d, src, n_bytes);
    return tn_code_type(d) ? tn_code_finite(d, src, n_bytes) : tn_blocks_finite(type, src, n_bytes);
}

static uint16_t random_half(tn_rng *r) {
    return tn_f32_f16(tn_rng_below(r, 16)  ? check_rand_f32(r, -0.1f, 0.1f)
                      : tn_rng_below(r, 2) ? 3e-7f
                                           : 0.0f);
}

/* Random blocks whose halves are finite, subnormal ones and zeros among them. largest: every other bit is
 * set. */
static void random_blocks(tn_rng *r, tn_blocks_type type, tn_dtype d, bool largest, uint8_t *b,
                          size_t n_bytes, size_t row_bytes) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    int at[2] = {0, t->has_min ? 2 : -1};
    if (type == TN_BLOCKS_Q2_K) at[0] = 80, at[1] = 82;
    if (type == TN_BLOCKS_Q3_K) at[0] = 108;
    if (type == TN_BLOCKS_Q6_K) at[0] = 208;
    for (size_t i = 0; i < n_bytes; i++) b[i] = largest ? 255 : (uint8_t)tn_rng_below(r, 256);
    if (tn_code_type(d)) {
        for (size_t i = 0; i < n_bytes; i += (size_t)tn_dtype_block_bytes(d))
            tn_code_set_d(d, b + i, random_half(r));
        return;
    }
    for (size_t i = 0; tn_dtype_head_bytes(d) && i < n_bytes; i += row_bytes)
        tn_ik_set_d(d, b + i, check_rand_f32(r, -0.1f, 0.1f));
    if (tn_dtype_head_bytes(d)) return;
    for (size_t i = 0; i < n_bytes; i += t->bytes) {
        if (type == TN_BLOCKS_NVFP4) continue;
        if (type == TN_BLOCKS_MXFP4) {
            b[i] = (uint8_t)(tn_rng_below(r, 8) ? 110 + tn_rng_below(r, 20) : tn_rng_below(r, 4));
            continue;
        }
        for (int h = 0; h < 2; h++) {
            if (at[h] < 0) continue;
            uint16_t half = random_half(r);
            memcpy(b + i + at[h], &half, 2);
        }
    }
}

typedef struct matrix {
    tn_blocks_type type;
    tn_dtype dtype;
    size_t n, k, row_bytes;
    uint8_t *rows; /* the file's */
    check_buf tiles;
} matrix;

/* Rows of a type of code books, or one whose rows have a head, as tn_blocks_repack takes them. largest: the largest values instead. */
static uint8_t *turned_rows(const matrix *w, bool largest) {
    static const uint8_t top[TN_BLOCKS_N_TYPES] = {
        [TN_BLOCKS_IQ1] = 2,    [TN_BLOCKS_IQ2] = 2,    [TN_BLOCKS_IQ3_XXS] = 7,
        [TN_BLOCKS_IQ3_S] = 7,  [TN_BLOCKS_TQ] = 3,     [TN_BLOCKS_IQ5_KS] = 31,
        [TN_BLOCKS_IQ2_KS] = 3, [TN_BLOCKS_IQ3_KS] = 7, [TN_BLOCKS_KT] = 254};
    size_t bytes = tn_blocks_traits_of[w->type].bytes, n_blocks = w->n * w->k / TN_CODE_BLOCK;
    uint8_t *out = malloc(n_blocks * bytes);
    const size_t head = (size_t)tn_dtype_head_bytes(w->dtype), per_row = w->k / TN_CODE_BLOCK;
    for (size_t i = 0; head && i < n_blocks; i++) {
        const uint8_t *row = w->rows + i / per_row * w->row_bytes;
        tn_ik_block b;
        tn_ik_read(w->dtype, row + head + i % per_row * (size_t)tn_dtype_block_bytes(w->dtype), &b);
        if (largest) memset(b.code, top[w->type], sizeof b.code); /* of IQ4_KS the lowest is the largest */
        tn_blocks_from_ik(w->type, b.code, b.scale, b.second, tn_ik_d(w->dtype, row), out + i * bytes);
    }
    if (head) return out;
    for (size_t i = 0; i < n_blocks; i++) {
        tn_code_block b;
        tn_code_read(w->dtype, w->rows + i * (size_t)tn_dtype_block_bytes(w->dtype), &b);
        if (largest) memset(b.code, top[w->type], sizeof b.code);
        tn_blocks_from_codes(w->type, b.code, b.scale, b.d, out + i * bytes);
    }
    return out;
}

static matrix new_matrix(tn_rng *r, tn_blocks_type type, bool largest, size_t n, size_t k) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    matrix w = {.type = type, .dtype = dtype_of(r, type), .n = n, .k = k};
    w.row_bytes = (size_t)tn_dtype_row_bytes(w.dtype, k);
    w.rows = malloc(n * w.row_bytes);
    random_blocks(r, type, w.dtype, largest, w.rows, n * w.row_bytes, w.row_bytes);
    for (size_t i = 0; i < n; i++)
        assert_true(numbers_ok(type, w.dtype, w.rows + i * w.row_bytes, w.row_bytes));
    const bool other = tn_code_type(w.dtype) || tn_dtype_head_bytes(w.dtype);
    uint8_t *turned = other ? turned_rows(&w, largest) : NULL;
    w.tiles = check_new(tn_blocks_bytes(type, n, k));
    for (size_t n0 = 0; n0 < n; n0 += TN_BLOCKS_N) {
        const uint8_t *rows[TN_BLOCKS_N];
        size_t n_rows = n - n0 < TN_BLOCKS_N ? n - n0 : TN_BLOCKS_N;
        for (size_t i = 0; i < n_rows; i++)
            rows[i] =
                turned ? turned + (n0 + i) * (k / t->block * t->bytes) : w.rows + (n0 + i) * w.row_bytes;
        tn_blocks_repack(type, rows, n_rows, k, (uint8_t *)w.tiles.p + tn_blocks_bytes(type, n0, k));
    }
    free(turned);
    return w;
}

static void free_matrix(matrix *w) {
    free(w->rows);
    check_free(&w->tiles);
}

static void tiles_mean_what_the_file_means(void **state) {
    (void)state;
    tn_rng r = {check_seed()};
    for (tn_blocks_type type = 0; type < TN_BLOCKS_N_TYPES; type++) {
        size_t block = tn_blocks_traits_of[type].block;
        static const size_t ns[] = {1, 15, 16, 17, 40}, blocks[] = {1, 3, 7, 8, 9, 16, 27};
        for (size_t i = 0; i < sizeof ns / sizeof *ns * (sizeof blocks / sizeof *blocks); i++) {
            size_t n = ns[i % 5], k = blocks[i / 5] * block;
            matrix w = new_matrix(&r, type, false, n, k);
            float *want = malloc(k * 4), *got = malloc(k * 4);
            for (size_t row = 0; row < n; row++) {
                tn_dequantise(w.dtype, w.rows + row * w.row_bytes, want, k);
                tn_blocks_row(type, w.tiles.p, row, k, got);
                for (size_t j = 0; j < k; j++) {
                    if (memcmp(&want[j], &got[j], 4) && (want[j] != 0 || got[j] != 0))
                        fail_msg("%s: [%zu][%zu] is %a, not %a", tn_blocks_traits_of[type].name, row, j,
                                 (double)got[j], (double)want[j]);
                }
            }
            free(want), free(got);
            free_matrix(&w);
        }
    }
}

static void numbers_that_are_none(void **state) {
    (void)state;
    tn_rng r = {check_seed()};
    for (tn_blocks_type type = 0; type < TN_BLOCKS_N_TYPES; type++) {
        const tn_blocks_traits *t = &tn_blocks_traits_of[type];
        uint8_t b[4 * 212 + 4];
        for (int round = 0; round < 200; round++) {
            const tn_dtype d = dtype_of(&r, type);
            const size_t n_bytes = (size_t)tn_dtype_row_bytes(d, 4u * t->block);
            for (size_t i = 0; i < n_bytes; i++) b[i] = (uint8_t)tn_rng_below(&r, 256);
            float y[4 * 256];
            tn_dequantise(d, b, y, 4u * t->block);
            bool all_finite = true;
            for (size_t i = 0; i < 4u * t->block; i++) all_finite = all_finite && isfinite(y[i]);
            /* a number that no value uses may be refused, one that is used may not pass */
            if (numbers_ok(type, d, b, n_bytes)) assert_true(all_finite);
        }
    }
}

static tn_blocks_act *activations(const tn_kernels *kern, tn_blocks_type type, const float *x, size_t m,
                                  size_t k, check_buf *buf) {
    *buf = check_new(tn_blocks_n_chunks(k) * m * sizeof(tn_blocks_act));
    memset(buf->p, 0, buf->n_bytes);
    for (size_t i = 0; i < m; i++) kern->blocks_quantise(type, x + i * k, k, (tn_blocks_act *)buf->p + i, m);
    return buf->p;
}

/* largest: the largest values meet the largest activations, so that sums of 16 bits just fit. */
static void one(tn_rng *r, const tn_kernels *kern, tn_blocks_type type, bool largest, size_t m, size_t n,
                size_t k) {
    size_t ldo = n + 3, half = n / 32 * 16;
    matrix w = new_matrix(r, type, largest, n, k);
    tn_kernels ref;
    tn_kernels_init(&ref, 0);
    check_buf x = check_new(m * k * 4), bias = check_new(n * 4), want = check_new(m * ldo * 4),
              got = check_new(m * ldo * 4), a, b;
    check_fill_f32(r, (check_fill)tn_rng_below(r, CHECK_N_FILLS), x.p, m * k);
    for (size_t i = 0; largest && i < m * k; i++) ((float *)x.p)[i] = i / k % 2 ? 1.0f : -1.0f;
    if (!tn_rng_below(r, 8)) ((float *)x.p)[tn_rng_below(r, m * k)] = tn_rng_below(r, 2) ? NAN : INFINITY;
    check_fill_f32(r, CHECK_RANDOM, bias.p, n);
    tn_blocks_args g = {.type = type,
                        .tiles = w.tiles.p,
                        .a = activations(&ref, type, x.p, m, k, &a),
                        .bias = tn_rng_below(r, 2) ? bias.p : NULL,
                        .out = want.p,
                        .ldo = ldo,
                        .m = m,
                        .n = n,
                        .k = k,
                        .n1 = n};
    tn_blocks_gemm_ref(&g);
    g.a = activations(kern, type, x.p, m, k, &b);
    if (memcmp(a.p, b.p, a.n_bytes)) fail_msg("%s: activations differ", tn_blocks_traits_of[type].name);
    g.out = got.p;
    for (int part = 1; part >= 0; part--) { /* in two parts, the second first */
        g.n0 = part ? half : 0;
        g.n1 = part ? n : half;
        kern->blocks_gemm(&g);
    }
    for (size_t i = 0; i < m * ldo; i++) {
        float u = ((float *)want.p)[i], v = ((float *)got.p)[i];
        if (!check_same_f32(u, v))
            fail_msg("%s, m %zu n %zu k %zu: [%zu][%zu] is %a, not %a", tn_blocks_traits_of[type].name, m, n,
                     k, i / ldo, i % ldo, (double)v, (double)u);
    }
    check_free(&x), check_free(&bias), check_free(&want), check_free(&got), check_free(&a), check_free(&b);
    free_matrix(&w);
}

static void variants(void **state) {
    (void)state;
    static const size_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 33, 35}, ns[] = {1, 15, 16, 17, 32, 48, 70},
                        ks[] = {32, 64, 128, 160, 224, 256, 288, 512, 896};
    const uint32_t cpu = tn_cpu_flags(NULL),
                   masks[] = {cpu, cpu & (TN_CPU_AVX2 | TN_CPU_AVXVNNI), cpu & (TN_CPU_AVX2 | TN_CPU_NEON),
                              cpu & (TN_CPU_AVX2 | TN_CPU_NEON | TN_CPU_DOTPROD)};
    tn_rng r = {check_seed()};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        tn_kernels kern;
        tn_kernels_init(&kern, masks[i]);
        for (tn_blocks_type type = 0; type < TN_BLOCKS_N_TYPES; type++) {
            size_t block = tn_blocks_traits_of[type].block;
            for (size_t m = 0; m < sizeof ms / sizeof *ms; m++) {
                for (size_t n = 0; n < sizeof ns / sizeof *ns; n++) {
                    size_t k = ks[tn_rng_below(&r, sizeof ks / sizeof *ks)];
                    one(&r, &kern, type, n == 1, ms[m], ns[n], (k + block - 1) / block * block);
                }
            }
        }
    }
}

/* A row's bits are the same alone and among others. */
static void rows_do_not_depend_on_the_batch(void **state) {
    (void)state;
    enum { M = 23, N = 40, K = 768 };
    tn_rng r = {check_seed()};
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    float *x = malloc(M * K * 4), *all = malloc(M * N * 4), row[N];
    check_fill_f32(&r, CHECK_RANDOM, x, M * K);
    for (tn_blocks_type type = 0; type < TN_BLOCKS_N_TYPES; type++) {
        matrix w = new_matrix(&r, type, false, N, K);
        check_buf a, b;
        tn_blocks_args g = {
            .type = type, .tiles = w.tiles.p, .n = N, .n1 = N, .k = K, .ldo = N, .m = M, .out = all};
        g.a = activations(&kern, type, x, M, K, &a);
        kern.blocks_gemm(&g);
        for (g.m = 2; g.m <= 9; g.m++) {
            float few[9 * N];
            g.a = activations(&kern, type, x, g.m, K, &b);
            g.out = few;
            kern.blocks_gemm(&g);
            assert_memory_equal(few, all, g.m * N * sizeof *few);
            check_free(&b);
        }
        g.m = 1;
        g.out = row;
        for (size_t m = 0; m < M; m++) {
            g.a = activations(&kern, type, x + m * K, 1, K, &b);
            kern.blocks_gemm(&g);
            assert_memory_equal(row, all + m * N, sizeof row);
            check_free(&b);
        }
        check_free(&a);
        free_matrix(&w);
    }
    free(x), free(all);
}

/* What a row's values would be with q = 0: b where the type has it, else anything. */
static void only_minima(const matrix *w, size_t n, float *out) {
    static const uint8_t first[TN_BLOCKS_N_TYPES] = {[TN_BLOCKS_Q4_1] = 4,
                                                     [TN_BLOCKS_Q5_1] = 4,
                                                     [TN_BLOCKS_Q2_K] = 16,
                                                     [TN_BLOCKS_Q4_K] = 16,
                                                     [TN_BLOCKS_Q5_K] = 16}; /* of the fields of values */
    size_t bytes = tn_blocks_traits_of[w->type].bytes, at = first[w->type],
           end = w->type == TN_BLOCKS_Q2_K ? 80 : bytes;
    uint8_t *row = malloc(w->row_bytes);
    memcpy(row, w->rows + n * w->row_bytes, w->row_bytes);
    for (size_t i = 0; i < w->row_bytes; i += bytes) memset(row + i + at, 0, end - at);
    tn_dequantise(w->dtype, row, out, w->k);
    free(row);
}

/* The reference against sums in double over dequantised weights and activations. Every fma rounds once, to
 * within 2^-24 of its own result, and every result is at most the sum of the terms' magnitudes S (s q and b
 * apart, for they may cancel). A term passes through at most 2 * 8 roundings inside its 128 channels and one
 * for each of the K / 128 blocks from its own on; so the error is below (K / 128 + 20) * 2^-24 * S. */
static void the_reference_is_the_product(void **state) {
    (void)state;
    enum { M = 3, N = 17, K = 1024 };
    tn_rng r = {check_seed()};
    float *x = malloc(M * K * 4), *out = malloc(M * N * 4), *y = malloc(K * 4), *minima = malloc(K * 4);
    for (tn_blocks_type type = 0; type < TN_BLOCKS_N_TYPES; type++) {
        const tn_blocks_traits *t = &tn_blocks_traits_of[type];
        tn_kernels kern;
        tn_kernels_init(&kern, 0);
        matrix w = new_matrix(&r, type, false, N, K);
        check_fill_f32(&r, CHECK_RANDOM, x, M * K);
        check_buf b;
        const tn_blocks_act *a = activations(&kern, type, x, M, K, &b);
        tn_blocks_gemm_ref(&(tn_blocks_args){
            .type = type, .tiles = w.tiles.p, .a = a, .out = out, .ldo = N, .m = M, .n = N, .k = K, .n1 = N});
        for (size_t n = 0; n < N; n++) {
            tn_dequantise(w.dtype, w.rows + n * w.row_bytes, y, K);
            if (t->has_min) only_minima(&w, n, minima);
            for (size_t m = 0; m < M; m++) {
                double sum = 0, size = 0;
                for (size_t k = 0; k < K; k++) {
                    const tn_blocks_act *c = &a[k / 256 * M + m];
                    double v = c->scale[k % 256 / 128] * (double)c->q[k % 256];
                    /* quantised within half a step, and the two roundings of the step */
                    assert_true(fabs(v - x[m * K + k]) <= c->scale[k % 256 / 128] * (0.5 + 127 * 0x1p-22));
                    sum += v * y[k];
                    double min = t->has_min ? minima[k] : 0;
                    size += fabs(v) * (fabs(y[k] - min) + fabs(min));
                }
                double error = fabs(out[m * N + n] - sum), bound = (K / 128 + 20) * 0x1p-24 * size;
                if (!(error <= bound))
                    fail_msg("%s: [%zu][%zu] is %g, not %g: off by %g, allowed %g", t->name, m, n,
                             (double)out[m * N + n], sum, error, bound);
            }
        }
        check_free(&b);
        free_matrix(&w);
    }
    free(x), free(out), free(y), free(minima);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_mean_what_the_file_means),
                                       cmocka_unit_test(numbers_that_are_none), cmocka_unit_test(variants),
                                       cmocka_unit_test(rows_do_not_depend_on_the_batch),
                                       cmocka_unit_test(the_reference_is_the_product)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
