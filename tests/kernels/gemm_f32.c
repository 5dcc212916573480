/* The float product: packing, widening, and every variant against the scalar reference bit for bit. */
#include "check.h"
#include "f32_variants.h"

#include "base/half.h"

#include <math.h>

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

static void *aligned(check_buf *b) { /* panels end at the guard page; their size is a multiple of 64 */
    assert_int_equal((uintptr_t)b->p % 64, 0);
    return b->p;
}

typedef struct shape {
    size_t m, n, k;
} shape;

static void check_shape(const f32_variant *v, int n_v, shape s, tn_rng *rng, check_fill fill,
                        tn_panel_dtype dtype, int with_bias) {
    size_t lda = s.k + tn_rng_below(rng, 3), ldo = s.n + tn_rng_below(rng, 5);
    check_buf a = check_new(((s.m - 1) * lda + s.k) * 4),
              panels = check_new(tn_panels_bytes(dtype, s.n, s.k));
    check_buf bias = check_new(s.n * 4);
    float *w = malloc((s.n * s.k + 1) * sizeof *w);
    check_fill_f32(rng, fill, w, s.n * s.k);
    check_fill_f32(rng, fill, a.p, a.n_bytes / 4);
    check_fill_f32(rng, fill, bias.p, s.n);
    tn_panels_pack(dtype, aligned(&panels), w, 0, s.n, s.k);
    size_t n_out = (s.m - 1) * ldo + s.n;
    check_buf want = check_new(n_out * 4);
    v[0].k.gemm_f32[dtype](a.p, lda, panels.p, with_bias ? bias.p : NULL, want.p, ldo, s.m, 0, s.n, s.k);
    for (int i = 1; i < n_v; i++) {
        check_buf got = check_new(n_out * 4);
        /* in two column ranges, as threads do, the second first */
        size_t cut = (s.n / 2 + TN_PANEL_N - 1) / TN_PANEL_N * TN_PANEL_N;
        if (cut > s.n) cut = 0;
        tn_gemm_f32_fn fn = v[i].k.gemm_f32[dtype];
        fn(a.p, lda, panels.p, with_bias ? bias.p : NULL, got.p, ldo, s.m, cut, s.n, s.k);
        if (cut) fn(a.p, lda, panels.p, with_bias ? bias.p : NULL, got.p, ldo, s.m, 0, cut, s.k);
        for (size_t j = 0; j < n_out; j++) {
            float x = ((float *)want.p)[j],
                  y = ((float *)got.p)[j]; /* the gap between rows keeps its poison in both */
            if (!check_same_f32(x, y)) {
                fail_msg("%s %s m=%zu n=%zu k=%zu fill=%d bias=%d: out[%zu][%zu] = %a, reference %a",
                         v[i].name, dtype_names[dtype], s.m, s.n, s.k, (int)fill, with_bias, j / ldo, j % ldo,
                         (double)y, (double)x);
            }
        }
        check_free(&got);
    }
    check_free(&want);
    check_free(&a);
    check_free(&bias);
    check_free(&panels);
    free(w);
}

static void test_variants(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static const size_t ms[] = {1, 2, 3, 4, 5, 6, 7, 12, 13, 18, 23},
                        ns[] = {1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 130, 160},
                        ks[] = {1, 2, 31, 64, 127, 128, 129, 260};
    for (int dtype = 0; dtype < TN_PANEL_N_DTYPES; dtype++) {
        for (size_t i = 0; i < 11; i++) {
            for (size_t j = 0; j < 14; j++) {
                size_t k = ks[tn_rng_below(&rng, 8)];
                check_shape(v, n_v, (shape){ms[i], ns[j], k}, &rng,
                            (check_fill)tn_rng_below(&rng, CHECK_N_FILLS), (tn_panel_dtype)dtype,
                            (int)tn_rng_below(&rng, 2));
            }
        }
        for (size_t i = 0; i < 8; i++)
            check_shape(v, n_v, (shape){13, 64, ks[i]}, &rng, CHECK_RANDOM, (tn_panel_dtype)dtype, 1);
    }
}

/* The reference against double arithmetic. k fused steps and the bias round k + 1 times, each at most half an
 * ulp (2^-24) of a partial sum that the sum S of the absolute terms bounds (up to the same factor): |error|
 * <= (k + 1) 2^-24 S (1 + k 2^-23). */
static void test_reference_is_the_product(void **state) {
    (void)state;
    tn_rng rng = {check_seed()};
    static const tn_gemm_f32_fn refs[] = {tn_gemm_f32_ref, tn_gemm_f16_ref, tn_gemm_bf16_ref};
    for (int dtype = 0; dtype < TN_PANEL_N_DTYPES; dtype++) {
        for (size_t k = 1; k < 2000; k = k * 3 + 1) {
            enum { M = 3, N = 37 };
            check_buf a = check_new(M * k * 4),
                      panels = check_new(tn_panels_bytes((tn_panel_dtype)dtype, N, k));
            float *w = malloc(N * k * sizeof *w), *row = malloc(k * sizeof *row), bias[N], out[M * N];
            check_fill_f32(&rng, CHECK_RANDOM, a.p, M * k);
            check_fill_f32(&rng, CHECK_RANDOM, w, N * k);
            check_fill_f32(&rng, CHECK_RANDOM, bias, N);
            tn_panels_pack((tn_panel_dtype)dtype, aligned(&panels), w, 0, N, k);
            refs[dtype](a.p, k, panels.p, bias, out, N, M, 0, N, k);
            for (size_t n = 0; n < N; n++) {
                tn_panels_row((tn_panel_dtype)dtype, panels.p, n, k, row);
                for (size_t m = 0; m < M; m++) {
                    double want = (double)bias[n], abs_sum = fabs(want);
                    for (size_t i = 0; i < k; i++) {
                        double t = (double)((float *)a.p)[m * k + i] * (double)row[i];
                        want += t;
                        abs_sum += fabs(t);
                    }
                    double steps = (double)k + 1, bound = steps * 0x1p-24 * abs_sum * (1 + steps * 0x1p-23);
                    if (!(fabs((double)out[m * N + n] - want) <= bound)) {
                        fail_msg("%s k=%zu: out[%zu][%zu] = %a, product %a, bound %a", dtype_names[dtype], k,
                                 m, n, (double)out[m * N + n], want, bound);
                    }
                }
            }
            free(w);
            free(row);
            check_free(&a);
            check_free(&panels);
        }
    }
}

/* Row m of a product of many rows is the product of row m alone. */
static void test_rows_do_not_depend_on_batch(void **state) {
    (void)state;
    enum { M = 37, N = 96, K = 300 };
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static float a[M * K], w[N * K], all[M * N], some[M * N];
    _Alignas(64) static float panels[N * K]; /* as many bytes as the widest type takes */
    check_fill_f32(&rng, CHECK_RANDOM, a, M * K);
    check_fill_f32(&rng, CHECK_RANDOM, w, N * K);
    for (int dtype = 0; dtype < TN_PANEL_N_DTYPES; dtype++) {
        tn_panels_pack((tn_panel_dtype)dtype, panels, w, 0, N, K);
        for (int i = 0; i < n_v; i++) {
            v[i].k.gemm_f32[dtype](a, K, panels, NULL, all, N, M, 0, N, K);
            for (size_t n_rows = 1; n_rows <= 17; n_rows += n_rows == 1 ? 6 : 5) {
                for (size_t m = 0; m + n_rows <= M; m++) {
                    v[i].k.gemm_f32[dtype](a + m * K, K, panels, NULL, some, N, n_rows, 0, N, K);
                    assert_memory_equal(some, all + m * N, n_rows * N * sizeof(float));
                }
            }
        }
    }
}

static void test_pack(void **state) {
    (void)state;
    enum { N = 45, K = 7 };
    tn_rng rng = {check_seed()};
    float w[N * K], row[K];
    check_fill_f32(&rng, CHECK_EXTREME, w, N * K);
    for (int dtype = 0; dtype < TN_PANEL_N_DTYPES; dtype++) {
        check_buf b = check_new(tn_panels_bytes((tn_panel_dtype)dtype, N, K));
        tn_panels_pack((tn_panel_dtype)dtype, b.p, w, 0, 32, K);
        size_t panel_bytes = b.n_bytes / 2;
        tn_panels_pack((tn_panel_dtype)dtype, b.p, w + (size_t)32 * K, 32, N, K); /* by parts, in place */
        assert_int_equal(panel_bytes * 2, b.n_bytes);
        for (size_t n = 0; n < N; n++) {
            tn_panels_row((tn_panel_dtype)dtype, b.p, n, K, row);
            for (size_t k = 0; k < K; k++) {
                float x = w[n * K + k];
                float want = dtype == TN_PANEL_F16    ? tn_f16_f32(tn_f32_f16(x))
                             : dtype == TN_PANEL_BF16 ? tn_bf16_f32(tn_f32_bf16(x))
                                                      : x;
                assert_true(check_same_f32(row[k], want));
            }
        }
        for (size_t n = N; n < 64; n++) {
            tn_panels_row((tn_panel_dtype)dtype, b.p, n, K, row);
            for (size_t k = 0; k < K; k++) assert_true(check_same_f32(row[k], 0.0f));
        }
        check_free(&b);
    }
}

/* Elements of two bytes come where the same values come as floats. */
static void test_pack_halves(void **state) {
    (void)state;
    enum { N = 77, K = 37 };
    tn_rng rng = {check_seed()};
    uint16_t h[N * K];
    float w[N * K];
    for (size_t i = 0; i < N * K; i++) {
        h[i] = (uint16_t)(tn_rng_u64(&rng) & 0xbfffu); /* finite */
        w[i] = tn_f16_f32(h[i]);
    }
    check_buf a = check_new(tn_panels_bytes(TN_PANEL_F16, N, K)), b = check_new(a.n_bytes);
    tn_panels_pack(TN_PANEL_F16, a.p, w, 0, N, K);
    tn_panels_pack_halves((uint16_t *)b.p, h, 0, 64, K);
    tn_panels_pack_halves((uint16_t *)b.p, h + (size_t)64 * K, 64, N, K);
    assert_memory_equal(a.p, b.p, a.n_bytes);
    check_free(&a);
    check_free(&b);
}

/* Every 16-bit pattern survives the way to float and back, and rounding goes to the nearest neighbour, ties
 * to even. */
static void test_half(void **state) {
    (void)state;
    for (uint32_t u = 0; u < 65536; u++) {
        float f = tn_f16_f32((uint16_t)u), b = tn_bf16_f32((uint16_t)u);
        if (f == f) assert_int_equal(tn_f32_f16(f), u);
        else assert_true((tn_f32_f16(f) & 0x7fff) > 0x7c00);
        if (b == b) assert_int_equal(tn_f32_bf16(b), u);
        else assert_true((tn_f32_bf16(b) & 0x7fff) > 0x7f80);
    }
    for (uint32_t u = 0; u < 0x7bffu; u++) { /* neighbours of one sign below infinity */
        float lo = tn_f16_f32((uint16_t)u), hi = tn_f16_f32((uint16_t)(u + 1)),
              mid = 0.5f * (lo + hi); /* exact */
        assert_int_equal(tn_f32_f16(mid), u % 2 ? u + 1 : u);
        assert_int_equal(tn_f32_f16(tn_bits_f32(tn_f32_bits(mid) - 1)), u);
        assert_int_equal(tn_f32_f16(tn_bits_f32(tn_f32_bits(mid) + 1)), u + 1);
        assert_int_equal(tn_f32_f16(-mid), 0x8000u + (u % 2 ? u + 1 : u));
    }
    assert_int_equal(tn_f32_f16(65519.996f), 0x7bff);
    assert_int_equal(tn_f32_f16(65520.0f), 0x7c00);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants),
                                       cmocka_unit_test(test_reference_is_the_product),
                                       cmocka_unit_test(test_rows_do_not_depend_on_batch),
                                       cmocka_unit_test(test_pack),
                                       cmocka_unit_test(test_pack_halves),
                                       cmocka_unit_test(test_half)};
    return cmocka_run_group_tests_name("gemm_f32", tests, NULL, NULL);
}
