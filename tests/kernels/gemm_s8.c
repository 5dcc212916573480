/* Every variant of the int8 product, its quantisation, the scores and the outlier product against the scalar
 * reference, bit for bit. */
#include "check.h"

#include "base/cpu.h"
#include "kernels/gemm_s8.h"
#include "kernels/qk_s8.h"
#include "kernels/outlier_f32.h"

#include <math.h>

typedef struct variant {
    const char *name;
    uint32_t needs;
    tn_gemm_s8_fn gemm;
} variant;

static const variant variants[] = {
#if defined(__x86_64__)
    {"avx2", TN_CPU_AVX2, tn_gemm_s8_avx2},
    {"avxvnni", TN_CPU_AVXVNNI, tn_gemm_s8_avxvnni},
    {"avx512vnni", TN_CPU_AVX512VNNI, tn_gemm_s8_avx512vnni},
    {"amxint8", TN_CPU_AMXINT8, tn_gemm_s8_amxint8},
#elif defined(__aarch64__)
    {"neon", TN_CPU_NEON, tn_gemm_s8_neon},
    {"dotprod", TN_CPU_DOTPROD, tn_gemm_s8_dotprod},
    {"i8mm", TN_CPU_I8MM, tn_gemm_s8_i8mm},
#endif
    {"ref", 0, tn_gemm_s8_ref},
};

static const struct {
    const char *name;
    uint32_t needs;
    tn_quantise_s8_fn quantise;
    tn_quantise_outliers_fn outliers;
    tn_outlier_f32_fn product;
} float_variants[] = {
#if defined(__x86_64__)
    {"avx2", TN_CPU_AVX2, tn_quantise_s8_avx2, tn_quantise_outliers_avx2, tn_outlier_f32_avx2},
    {"avx512", TN_CPU_AVX512, tn_quantise_s8_avx512, tn_quantise_outliers_avx512, tn_outlier_f32_avx512},
#elif defined(__aarch64__)
    {"neon", TN_CPU_NEON, tn_quantise_s8_neon, tn_quantise_outliers_neon, tn_outlier_f32_neon},
#endif
    {"ref", 0, tn_quantise_s8_ref, tn_quantise_outliers_ref, tn_outlier_f32_ref},
};

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

typedef enum fill { FILL_RANDOM, FILL_EXTREME, FILL_ALTERNATING, N_FILLS } fill;

/* Weights in [-127,127], activations any byte: the product is exact for all of them. */
static int8_t fill_w(fill f, tn_rng *r, size_t i) {
    if (f == FILL_EXTREME) return 127;
    if (f == FILL_ALTERNATING) return i % 2 ? 127 : -127;
    return (int8_t)((int)tn_rng_below(r, 255) - 127);
}

static uint8_t fill_a(fill f, tn_rng *r, size_t i) {
    if (f == FILL_EXTREME) return tn_rng_below(r, 8) ? 255 : 0;
    if (f == FILL_ALTERNATING) return i % 2 ? 255 : 0;
    return (uint8_t)tn_rng_below(r, 256);
}

/* One shape through all variants: three output forms, column range n0..n1, with and without bias. */
static void check_shape(tn_rng *r, size_t m, size_t n, size_t k, size_t n0, size_t n1, fill f) {
    size_t k4 = (k + 3) / 4 * 4, n16 = (n + 15) / 16 * 16;
    size_t lda = k4 + tn_rng_below(r, 9), ldo = n + tn_rng_below(r, 20);
    check_buf w = check_new(n * k), tiles = check_new(tn_tiles_s8_bytes(n, k)),
              sum = check_new(n16 * sizeof(int32_t));
    check_buf a = check_new((m - 1) * lda + k4);
    check_buf scale = check_new(n * sizeof(float)), bias = check_new(n * sizeof(float));
    int8_t *wp = w.p;
    for (size_t i = 0; i < n * k; i++) wp[i] = fill_w(f, r, i);
    uint8_t *ap = a.p;
    for (size_t i = 0; i < a.n_bytes; i++) ap[i] = fill_a(f, r, i);
    for (size_t i = 0; i < n; i++) {
        ((float *)scale.p)[i] = check_rand_f32(r, -1e-3f, 1e-3f);
        ((float *)bias.p)[i] = check_rand_f32(r, -10, 10);
    }
    if (f == FILL_EXTREME) {
        ((float *)scale.p)[n - 1] = NAN;
        ((float *)scale.p)[0] = 1e35f;
    }
    tn_tiles_s8_pack(tiles.p, sum.p, wp, 0, n, k);

    for (int form = 0; form < 3; form++) {
        size_t size = form == 2 ? 1 : 4;
        size_t n_out = ((m - 1) * ldo + n) * size;
        tn_gemm_s8_args g = {.a = ap,
                             .lda = lda,
                             .tiles = tiles.p,
                             .col_sum = sum.p,
                             .m = m,
                             .n = n,
                             .k = k,
                             .n0 = n0,
                             .n1 = n1,
                             .ldo = ldo,
                             .scale = form ? scale.p : NULL,
                             .bias = form && tn_rng_below(r, 2) ? bias.p : NULL};
        check_buf want = check_new(n_out);
        for (size_t v = N_OF(variants);
             v-- > 0;) { /* the reference is last in the table, so it comes first */
            if ((tn_cpu_detect() & variants[v].needs) != variants[v].needs) continue;
            int is_ref = variants[v].gemm == tn_gemm_s8_ref;
            check_buf got = check_new(n_out);
            void *out = is_ref ? want.p : got.p;
            g.out_s32 = form == 0 ? out : NULL;
            g.out_f32 = form == 1 ? out : NULL;
            g.out_u8 = form == 2 ? out : NULL;
            variants[v].gemm(&g);
            if (is_ref) {
                /* The specification itself, by the definition, at a few points. */
                for (int i = 0; i < 4 && form == 0 && n1 > n0; i++) {
                    size_t row = tn_rng_below(r, m), col = n0 + tn_rng_below(r, n1 - n0);
                    int64_t s = 0;
                    for (size_t j = 0; j < k; j++) s += ((int64_t)ap[row * lda + j] - 128) * wp[col * k + j];
                    assert_int_equal(((int32_t *)out)[row * ldo + col], s);
                }
            } else if (form == 1) { /* NaN payloads and signs are not part of the contract */
                for (size_t i = 0; i < n_out / 4; i++) {
                    float x = ((float *)want.p)[i], y = ((float *)got.p)[i];
                    if (x != x && y != y) ((float *)got.p)[i] = x;
                }
            }
            if (!is_ref && memcmp(got.p, want.p, n_out)) {
                fail_msg("%s form %d m %zu n %zu k %zu range %zu..%zu fill %d", variants[v].name, form, m, n,
                         k, n0, n1, (int)f);
            }
            check_free(&got);
        }
        /* The reference touches nothing outside its columns. */
        for (size_t i = 0; i < n_out; i++) {
            size_t col = i / size % ldo;
            if (col < n0 || col >= n1) assert_int_equal(((uint8_t *)want.p)[i], CHECK_POISON);
        }
        check_free(&want);
    }
    check_free(&w);
    check_free(&tiles);
    check_free(&sum);
    check_free(&a);
    check_free(&scale);
    check_free(&bias);
}

static void gemm_edges(void **state) {
    (void)state;
    tn_rng r = {check_seed()};
    static const size_t edge_n[] = {1, 15, 16, 17, 48, 63, 64, 65, 129},
                        edge_k[] = {1, 3, 4, 5, 15, 16, 31, 32, 33, 65};
    for (size_t m = 1; m <= 26; m++) {
        for (size_t i = 0; i < 6; i++) {
            size_t n = edge_n[tn_rng_below(&r, N_OF(edge_n))], k = edge_k[tn_rng_below(&r, N_OF(edge_k))];
            check_shape(&r, m, n, k, 0, n, (fill)tn_rng_below(&r, N_FILLS));
        }
    }
}

static void gemm_random(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 1};
    for (int i = 0; i < 150; i++) {
        size_t m = 1 + tn_rng_below(&r, 48), n = 1 + tn_rng_below(&r, 150), k = 1 + tn_rng_below(&r, 260);
        size_t n0 = tn_rng_below(&r, (n + 15) / 16) * 16;
        size_t n1 = n0 + tn_rng_below(&r, (n - n0 + 15) / 16 + 1) * 16;
        check_shape(&r, m, n, k, n0, n1 > n ? n : n1, (fill)tn_rng_below(&r, N_FILLS));
    }
}

static void gemm_longest_k(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 2};
    for (int f = 0; f < N_FILLS; f++) {
        check_shape(&r, 1, 17, TN_S8_MAX_K, 0, 17, (fill)f);
        check_shape(&r, 17, 16, TN_S8_MAX_K, 0, 16, (fill)f);
    }
}

/* A row computed alone has the same bits as in any batch (follows from exactness; checked because decoding
 * relies on it). */
static void rows_do_not_depend_on_m(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 3};
    enum { M = 40, N = 80, K = 100 };
    static int8_t w[N * K];
    static uint8_t a[M * K];
    static float scale[N], all[M * N], one[N];
    check_buf tiles = check_new(tn_tiles_s8_bytes(N, K)), sum = check_new(N * 4);
    for (size_t i = 0; i < N * K; i++) w[i] = fill_w(FILL_RANDOM, &r, i);
    for (size_t i = 0; i < M * K; i++) a[i] = fill_a(FILL_RANDOM, &r, i);
    for (size_t i = 0; i < N; i++) scale[i] = check_rand_f32(&r, 0, 1);
    tn_tiles_s8_pack(tiles.p, sum.p, w, 0, N, K);
    for (size_t v = 0; v < N_OF(variants); v++) {
        if ((tn_cpu_detect() & variants[v].needs) != variants[v].needs) continue;
        tn_gemm_s8_args g = {.a = a,
                             .lda = K,
                             .tiles = tiles.p,
                             .col_sum = sum.p,
                             .m = M,
                             .n = N,
                             .k = K,
                             .n1 = N,
                             .out_f32 = all,
                             .ldo = N,
                             .scale = scale};
        variants[v].gemm(&g);
        g.m = 1;
        g.out_f32 = one;
        for (size_t m = 0; m < M; m++) {
            g.a = a + m * K;
            variants[v].gemm(&g);
            assert_memory_equal(one, all + m * N, sizeof one);
        }
    }
    check_free(&tiles);
    check_free(&sum);
}

/* Row n, unpacked: out [K]. */
static void tiles_row(const int8_t *tiles, size_t n, size_t k, int8_t *out) {
    const int8_t *w =
        tiles + (n / TN_TILE_N) * ((k + TN_TILE_K - 1) / TN_TILE_K) * 64 + (n % TN_TILE_N) * TN_TILE_K;
    for (size_t i = 0; i < k; i++) out[i] = w[(i / TN_TILE_K) * 64 + i % TN_TILE_K];
}

/* Input channel i_k, unpacked: out[j] = W[n0 + j][i_k]. */
static void tiles_column(const int8_t *tiles, size_t i_k, size_t n0, size_t n1, size_t k, int8_t *out) {
    assert(i_k < k);
    size_t k4 = ((k + TN_TILE_K - 1) / TN_TILE_K);
    const int8_t *w = tiles + (i_k / TN_TILE_K) * 64 + i_k % TN_TILE_K;
    for (size_t n = n0; n < n1; n++) out[n - n0] = w[(n / TN_TILE_N) * k4 * 64 + (n % TN_TILE_N) * TN_TILE_K];
}

static void tiles_unpack(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 4};
    for (int i = 0; i < 40; i++) {
        size_t n = 1 + tn_rng_below(&r, 70), k = 1 + tn_rng_below(&r, 70),
               cut = tn_rng_below(&r, n / 16 + 1) * 16;
        check_buf w = check_new(n * k), tiles = check_new(tn_tiles_s8_bytes(n, k)),
                  sum = check_new((n + 15) / 16 * 64);
        check_buf row = check_new(k), col = check_new(n);
        int8_t *wp = w.p;
        for (size_t j = 0; j < n * k; j++) wp[j] = fill_w(FILL_RANDOM, &r, j);
        tn_tiles_s8_pack(tiles.p, sum.p, wp + cut * k, cut, n, k); /* in two parts, last first */
        tn_tiles_s8_pack(tiles.p, sum.p, wp, 0, cut, k);
        for (size_t j = 0; j < n; j++) {
            tiles_row(tiles.p, j, k, row.p);
            assert_memory_equal(row.p, wp + j * k, k);
            int32_t s = 0;
            for (size_t x = 0; x < k; x++) s += wp[j * k + x];
            assert_int_equal(((int32_t *)sum.p)[j], s);
        }
        for (size_t j = 0; j < k; j++) {
            tiles_column(tiles.p, j, 0, n, k, col.p);
            for (size_t x = 0; x < n; x++) assert_int_equal(((int8_t *)col.p)[x], wp[x * k + j]);
        }
        for (size_t j = n; j < (n + 15) / 16 * 16; j++) { /* padding is zero */
            tiles_row(tiles.p, j, k, row.p);
            for (size_t x = 0; x < k; x++) assert_int_equal(((int8_t *)row.p)[x], 0);
            assert_int_equal(((int32_t *)sum.p)[j], 0);
        }
        check_free(&w);
        check_free(&tiles);
        check_free(&sum);
        check_free(&row);
        check_free(&col);
    }
}

static void quantise(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 5};
    static const float special[] = {NAN,     INFINITY, -INFINITY, 127.0f,  -127.0f,  127.49f,   127.5f,
                                    -127.5f, 128.0f,   126.5f,    0.5f,    -0.5f,    1.5f,      2.5f,
                                    -2.5f,   -0.0f,    1e-42f,    3.4e38f, -3.4e38f, 127.00001f};
    for (size_t n = 0; n < 150; n++) {
        float scale = n % 3 ? 1.0f : 0.037f, inv = 1.0f / scale;
        check_buf x = check_new(n * 4), want = check_new(n), widx = check_new(n * 4), wres = check_new(n * 4);
        float *xp = x.p;
        for (size_t i = 0; i < n; i++) {
            xp[i] = tn_rng_below(&r, 4) ? check_rand_f32(&r, -140, 140) * scale
                                        : special[tn_rng_below(&r, N_OF(special))];
        }
        size_t cap = n % 2 ? n : n / 8;
        size_t n_want = tn_quantise_outliers_ref(xp, inv, scale, want.p, n, 1000, widx.p, wres.p, cap);
        for (size_t i = 0; i < n; i++) {
            float v = xp[i] * inv;
            int q = v != v ? 0 : (int)fmaxf(-127, fminf(127, rintf(v)));
            assert_int_equal(((uint8_t *)want.p)[i], q + 128);
        }
        for (size_t j = 0; j < n_want && j < cap; j++) {
            uint32_t i = ((uint32_t *)widx.p)[j] - 1000;
            assert_true(fabsf(xp[i] * inv) > 127);
            assert_true(j == 0 || ((uint32_t *)widx.p)[j - 1] < i + 1000);
        }
        for (size_t v = 0; v < N_OF(float_variants); v++) {
            if ((tn_cpu_detect() & float_variants[v].needs) != float_variants[v].needs) continue;
            check_buf got = check_new(n), idx = check_new(n * 4), res = check_new(n * 4);
            assert_int_equal(float_variants[v].quantise(xp, inv, got.p, n), n_want);
            assert_memory_equal(got.p, want.p, n);
            memset(got.p, CHECK_POISON, n);
            assert_int_equal(float_variants[v].outliers(xp, inv, scale, got.p, n, 1000, idx.p, res.p, cap),
                             n_want);
            assert_memory_equal(got.p, want.p, n);
            assert_memory_equal(idx.p, widx.p, n * 4);
            assert_memory_equal(res.p, wres.p, n * 4);
            check_free(&got);
            check_free(&idx);
            check_free(&res);
        }
        check_free(&x);
        check_free(&want);
        check_free(&widx);
        check_free(&wres);
    }
}

static void qk_scores(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 6};
    static const size_t pos[] = {1, 16, 31, 100, 511, 512, 513, 1100};
    for (size_t c = 0; c < N_OF(pos); c++) {
        size_t n_pos = pos[c], d = 4 * (1 + tn_rng_below(&r, 32)), m = 1 + tn_rng_below(&r, 24),
               lds = n_pos + 3;
        check_buf keys = check_new(n_pos * d), q = check_new(m * d),
                  tiles = check_new(tn_tiles_s8_bytes(n_pos, d));
        check_buf sum = check_new((n_pos + 15) / 16 * 64);
        for (size_t i = 0; i < n_pos * d; i++) ((uint8_t *)keys.p)[i] = (uint8_t)(1 + tn_rng_below(&r, 255));
        for (size_t i = 0; i < m * d; i++) ((uint8_t *)q.p)[i] = (uint8_t)(1 + tn_rng_below(&r, 255));
        memset(sum.p, 0, sum.n_bytes);
        for (size_t p = 0; p < n_pos; p++) tn_qk_s8_append(tiles.p, sum.p, p, (uint8_t *)keys.p + p * d, d);
        float scale = 127.0f / (127.0f * 30.0f * (float)d);
        for (size_t v = 0; v < N_OF(variants); v++) {
            if ((tn_cpu_detect() & variants[v].needs) != variants[v].needs) continue;
            check_buf s32 = check_new(((m - 1) * lds + n_pos) * 4), u8 = check_new((m - 1) * lds + n_pos);
            tn_qk_s8_args a = {.q = q.p,
                               .ldq = d,
                               .key_tiles = tiles.p,
                               .key_sum = sum.p,
                               .m = m,
                               .n_pos = n_pos,
                               .d = d,
                               .scores_s32 = s32.p,
                               .lds = lds,
                               .scale = scale};
            tn_qk_s8(variants[v].gemm, &a);
            a.scores_s32 = NULL;
            a.scores_u8 = u8.p;
            tn_qk_s8(variants[v].gemm, &a);
            for (size_t i = 0; i < m; i++) {
                for (size_t p = 0; p < n_pos; p++) {
                    int32_t s = 0;
                    for (size_t j = 0; j < d; j++)
                        s += (((uint8_t *)q.p)[i * d + j] - 128) * (((uint8_t *)keys.p)[p * d + j] - 128);
                    assert_int_equal(((int32_t *)s32.p)[i * lds + p], s);
                    float y = (float)s * scale;
                    assert_int_equal(((uint8_t *)u8.p)[i * lds + p],
                                     128 + (int)fmaxf(-127, fminf(127, rintf(y))));
                }
            }
            check_free(&s32);
            check_free(&u8);
        }
        check_free(&keys);
        check_free(&q);
        check_free(&tiles);
        check_free(&sum);
    }
}

static void outlier_product(void **state) {
    (void)state;
    tn_rng r = {check_seed() + 7};
    enum { K = 40 };
    for (int c = 0; c < 120; c++) {
        size_t m = 1 + tn_rng_below(&r, 6), n = 1 + tn_rng_below(&r, 200), ldo = n + 2;
        size_t n0 = c % 2 ? 0 : tn_rng_below(&r, n), n1 = c % 2 ? n : n0 + tn_rng_below(&r, n - n0 + 1);
        check_buf rows[K];
        const int8_t *row_p[K];
        for (size_t k = 0; k < K; k++) {
            rows[k] = check_new(n);
            row_p[k] = rows[k].p;
            for (size_t i = 0; i < n; i++) ((int8_t *)rows[k].p)[i] = fill_w(FILL_RANDOM, &r, i);
        }
        uint32_t first[8] = {0}, channel[6 * K];
        float resid[6 * K];
        for (size_t i = 0; i < m; i++) {
            uint32_t j = first[i];
            for (uint32_t k = 0; k < K; k++) {
                if (tn_rng_below(&r, i % 2 ? 5 : 30)) continue;
                channel[j] = k;
                resid[j++] = check_rand_f32(&r, -50, 50);
            }
            first[i + 1] = j;
        }
        check_buf scale = check_new(n * 4), base = check_new(((m - 1) * ldo + n) * 4),
                  want = check_new(base.n_bytes);
        for (size_t i = 0; i < n; i++) ((float *)scale.p)[i] = check_rand_f32(&r, 0, 1e-2f);
        for (size_t i = 0; i < base.n_bytes / 4; i++) ((float *)base.p)[i] = check_rand_f32(&r, -1, 1);
        memcpy(want.p, base.p, base.n_bytes);
        tn_outlier_f32_args a = {.ldo = ldo,
                                 .m = m,
                                 .n0 = n0,
                                 .n1 = n1,
                                 .first = first,
                                 .channel = channel,
                                 .resid = resid,
                                 .w_rows = row_p,
                                 .scale = scale.p,
                                 .out = want.p};
        tn_outlier_f32_ref(&a);
        for (size_t v = 0; v < N_OF(float_variants); v++) {
            if ((tn_cpu_detect() & float_variants[v].needs) != float_variants[v].needs) continue;
            check_buf got = check_new(base.n_bytes);
            memcpy(got.p, base.p, base.n_bytes);
            a.out = got.p;
            float_variants[v].product(&a);
            if (memcmp(got.p, want.p, base.n_bytes))
                fail_msg("%s m %zu columns %zu..%zu", float_variants[v].name, m, n0, n1);
            check_free(&got);
        }
        for (size_t k = 0; k < K; k++) check_free(&rows[k]);
        check_free(&scale);
        check_free(&base);
        check_free(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_unpack),   cmocka_unit_test(quantise),
        cmocka_unit_test(gemm_edges),     cmocka_unit_test(gemm_random),
        cmocka_unit_test(gemm_longest_k), cmocka_unit_test(rows_do_not_depend_on_m),
        cmocka_unit_test(qk_scores),      cmocka_unit_test(outlier_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
