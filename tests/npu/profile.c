/* Profiling gives times that make sense, keeps nothing, and chooses an equivalent shape that changes no bits
 * (conformance.c runs random rows_per_run; here only the choice). */
#include "kernels/kernels.h"
#include "npu/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

static tn_npu_graph_desc linears(int32_t m) {
    tn_npu_graph_desc g = {.kind = TN_NPU_LINEARS, .m = m, .k = 64, .n_ops = 2};
    g.ops[0] = (tn_npu_op){.n = 96, .act_scale = 1, .has_bias = true};
    g.ops[1] = (tn_npu_op){.n = 48, .act_scale = 1, .out = TN_NPU_OUT_U8, .out_scale = 1};
    return g;
}

static void with_device(const char *backend, uint64_t cap_bytes, const tn_kernels *k,
                        void (*fn)(tn_npu_device *)) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_npu_options opt;
    tn_npu_options_defaults(&opt);
    opt.memory_cap_bytes = cap_bytes;
    opt.kernels = k;
    tn_npu_device *d;
    assert_int_equal(tn_npu_open(&ctx, backend, &opt, &d, NULL), TERN_OK);
    fn(d);
    assert_int_equal(tn_npu_used_bytes(d), 0);
    tn_npu_close(&d);
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(ctx.live_bytes[i], 0);
}

/* The tests' own clock: it stands still but for 1 us a look and what an emulated kernel says that it took. */
static atomic_long clock_us;

static double look(void *user) {
    (void)user;
    return (double)atomic_fetch_add(&clock_us, 1) * 1e-6;
}

static tn_npu_profile_options quick(void) {
    tn_npu_profile_options o;
    tn_npu_profile_defaults(&o);
    o.n_runs = 3;
    o.evict_bytes = 1 << 20;
    o.now_s = look;
    return o;
}

static void times(tn_npu_device *d) {
    tn_npu_profile_options o = quick();
    tn_npu_graph_desc g = linears(32);
    tn_npu_timing t;
    assert_int_equal(tn_npu_profile(d, &g, &o, &t, NULL), TERN_OK);
    assert_int_equal(t.n_runs, 3);
    assert_true(t.min_s > 0 && t.min_s <= t.median_s);
    tn_npu_graph_desc qk = {.kind = TN_NPU_QK, .m = 16, .k = 64, .n_ops = 2};
    qk.ops[0] = qk.ops[1] = (tn_npu_op){.n = 70, .act_scale = 1, .k_scale = 1, .out = TN_NPU_OUT_S32};
    assert_int_equal(tn_npu_profile(d, &qk, &o, &t, NULL), TERN_OK);
    o.max_s = 0; /* at least one */
    assert_int_equal(tn_npu_profile(d, &g, &o, &t, NULL), TERN_OK);
    assert_int_equal(t.n_runs, 1);
    tern_error err;
    g.m = TN_NPU_DYNAMIC;
    assert_int_equal(tn_npu_profile(d, &g, &o, &t, &err), TERN_E_UNSUPPORTED);
    assert_int_equal(tn_npu_best_split(d, &g, &o, &t, &err), TERN_E_UNSUPPORTED);
    assert_int_equal(g.rows_per_run, 0);
}

static void beyond_the_cap(tn_npu_device *d) {
    tn_npu_profile_options o = quick();
    tn_npu_graph_desc g = linears(32);
    tn_npu_timing t;
    tern_error err;
    assert_int_equal(tn_npu_profile(d, &g, &o, &t, &err), TERN_E_LIMIT);
    assert_int_equal(tn_npu_best_split(d, &g, &o, &t, &err), TERN_E_LIMIT);
}

static void test_profile(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        with_device(tn_npu_backend_name(i), 0, NULL, times);
        with_device(tn_npu_backend_name(i), 16000, NULL, beyond_the_cap);
    }
}

/* A product that takes 2 ms a run, and much longer for more than 64 rows: 64 rows a run is the best by a
 * factor of 2. */
static void grumpy_gemm(const tn_gemm_s8_args *g) {
    atomic_fetch_add(&clock_us, 2000 + (g->m > 64 ? (long)g->m * 80 : 0));
}

static void picks_64(tn_npu_device *d) {
    tn_npu_profile_options o = quick();
    tn_npu_graph_desc g = {.kind = TN_NPU_LINEARS, .m = 256, .k = 8, .n_ops = 1};
    g.ops[0] = (tn_npu_op){.n = 16, .act_scale = 1};
    tn_npu_timing whole, best;
    assert_int_equal(tn_npu_profile(d, &g, &o, &whole, NULL), TERN_OK);
    assert_int_equal(tn_npu_best_split(d, &g, &o, &best, NULL), TERN_OK);
    assert_int_equal(g.rows_per_run, 64);
    assert_true(best.min_s < whole.min_s);
    g.m = 16; /* nothing smaller to try */
    assert_int_equal(tn_npu_best_split(d, &g, &o, NULL, NULL), TERN_OK);
    assert_int_equal(g.rows_per_run, 16);
}

static void test_best_split(void **state) {
    (void)state;
    tn_kernels k;
    memset(&k, 0, sizeof k);
    k.gemm_s8 = grumpy_gemm;
    with_device("host", 0, &k, picks_64);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_profile), cmocka_unit_test(test_best_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
