/* Element-wise float operators: every variant against the scalar reference bit for bit, the reference against
 * libm. */
#include "check.h"
#include "f32_variants.h"

#include "base/half.h"

#include <math.h>

static const size_t lengths[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 200, 896};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths, N_ACTS = TN_ACT_SIGMOID + 1, N_OPS = 12 };

static void check_same(const char *variant, const char *what, size_t n, const check_buf *want,
                       const check_buf *got) {
    for (size_t i = 0; i < want->n_bytes / 4; i++) {
        float x = ((const float *)want->p)[i], y = ((const float *)got->p)[i];
        if (!check_same_f32(x, y))
            fail_msg("%s %s n=%zu: [%zu] = %a, reference %a", variant, what, n, i, (double)y, (double)x);
    }
}

typedef struct inputs {
    check_buf x, w, b;
} inputs;

static void run(const tn_kernels *k, int op, size_t n, const inputs *in, float *out) {
    memcpy(out, in->x.p, n * 4);
    switch (op) {
    case 0: k->rmsnorm_f32(in->x.p, in->w.p, 1e-6f, out, n); break;
    case 1: k->rmsnorm_f32(out, NULL, 1e-6f, out, n); break;
    case 2: k->layernorm_f32(in->x.p, in->w.p, in->b.p, 1e-5f, out, n); break;
    case 3: k->layernorm_f32(out, in->w.p, NULL, 1e-5f, out, n); break;
    case 4: k->rope_f32(out, in->w.p, n / 2 * 2); break;
    case 5: k->add_f32(out, in->b.p, 0.37f, n); break;
    case 6: k->softmax_f32(out, n); break;
    case 7: out[n / 2] = k->softmax_f32(out, n); break;
    case 8: out[0] = k->absmax_f32(out, n); break;
    case 9: out[0] = k->absmax_f32(out, 0); break;
    case 10: k->shares_u8(in->x.p, (uint8_t *)out, n); break;
    case 11: k->shares_u8(in->w.p, (uint8_t *)out, n); break;
    default:
        if (op % 2) k->glu_f32((tn_act)((op - N_OPS) / 2), out, in->w.p, out, n);
        else k->act_f32((tn_act)((op - N_OPS) / 2), out, n);
    }
}

static void test_variants(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (int fill = 0; fill < CHECK_N_FILLS; fill++) {
        for (size_t l = 0; l < N_LENGTHS; l++) {
            size_t n = lengths[l];
            inputs in = {check_new(n * 4), check_new(n * 4), check_new(n * 4)};
            check_fill_f32(&rng, (check_fill)fill, in.x.p, n);
            check_fill_f32(&rng, CHECK_RANDOM, in.w.p, n);
            check_fill_f32(&rng, CHECK_RANDOM, in.b.p, n);
            for (int op = 0; op < N_OPS + 2 * N_ACTS; op++) {
                check_buf want = check_new(n * 4);
                run(&v[0].k, op, n, &in, want.p);
                for (int i = 1; i < n_v; i++) {
                    check_buf got = check_new(n * 4);
                    char what[16];
                    snprintf(what, sizeof what, "operator %d", op);
                    run(&v[i].k, op, n, &in, got.p);
                    check_same(v[i].name, what, n, &want, &got);
                    check_free(&got);
                }
                check_free(&want);
            }
            check_free(&in.x);
            check_free(&in.w);
            check_free(&in.b);
        }
    }
}

/* Every activation at one float in 4099 (in 40009 under an emulator or a sanitizer) of all there are, NaNs
 * and infinities included. */
static void test_activations_everywhere(void **state) {
    (void)state;
    enum { BATCH = 4096 };
    const uint64_t step = getenv("TERN_TEST_QUICK") ? 40009 : 4099;
    f32_variant v[4];
    int n_v = f32_variants(v);
    for (int act = 0; act < N_ACTS; act++) {
        for (uint64_t u = 0; u < 1ull << 32; u += BATCH * step) {
            static float x[BATCH], want[BATCH], got[BATCH];
            for (int i = 0; i < BATCH; i++) x[i] = tn_bits_f32((uint32_t)(u + (uint64_t)i * step));
            memcpy(want, x, sizeof x);
            v[0].k.act_f32((tn_act)act, want, BATCH);
            for (int j = 1; j < n_v; j++) {
                memcpy(got, x, sizeof x);
                v[j].k.act_f32((tn_act)act, got, BATCH);
                for (int i = 0; i < BATCH; i++) {
                    if (!check_same_f32(want[i], got[i])) {
                        fail_msg("%s act %d of %a = %a, reference %a", v[j].name, act, (double)x[i],
                                 (double)got[i], (double)want[i]);
                    }
                }
            }
        }
    }
}

/* Distance in units of the last place of the correctly rounded value. */
static double ulps(float got, double want) {
    int e;
    frexp(want, &e);
    double ulp = ldexp(1, (e - 24 < -149 ? -149 : e - 24));
    return fabs((double)got - want) / ulp;
}

static void test_shares(void **state) {
    (void)state;
    enum { N = 20000 };
    static float x[N];
    static uint8_t codes[N];
    for (int i = 0; i < N; i++) x[i] = 3 - (float)i * 1e-3f; /* down to a share of 6e-9 */
    x[7] = NAN;
    tn_shares_u8_ref(x, codes, N);
    for (int i = 0; i < N; i++) {
        const double share = i == 7 ? 0 : TN_SHARES * exp((double)x[i] - 3);
        assert_true(fabs(codes[i] - 1 - share) < 0.5 + 1e-4);
    }
    assert_true(codes[0] == 255 && codes[7] == 1 && codes[N - 1] == 1);
}

static void test_accuracy(void **state) {
    (void)state;
    double worst_exp = 0, worst_tanh = 0, worst_silu = 0, worst_gelu_tanh = 0, worst_gelu_erf = 0;
    for (int i = -870000; i <= 880000; i++) {
        float x = (float)i * 1e-4f;
        worst_exp = fmax(worst_exp, ulps(tn_expf(x), exp((double)x)));
    }
    for (int i = -1000000; i <= 1000000; i++) {
        float x = (float)i * 1e-5f, y = x;
        if (i) worst_tanh = fmax(worst_tanh, ulps(tn_tanhf(x), tanh((double)x)));
        tn_act_f32_ref(TN_ACT_SILU, &y, 1);
        if (i) worst_silu = fmax(worst_silu, ulps(y, (double)x / (1 + exp(-(double)x))));
        y = x;
        tn_act_f32_ref(TN_ACT_GELU_TANH, &y, 1);
        double g = 0.5 * (double)x * (1 + tanh(sqrt(2 / M_PI) * ((double)x + 0.044715 * pow((double)x, 3))));
        worst_gelu_tanh = fmax(worst_gelu_tanh, fabs((double)y - g) / fmax(1, fabs((double)x)));
        y = x;
        tn_act_f32_ref(TN_ACT_GELU_ERF, &y, 1);
        g = 0.5 * (double)x * (1 + erf((double)x * M_SQRT1_2));
        worst_gelu_erf = fmax(worst_gelu_erf, fabs((double)y - g) / fmax(1, fabs((double)x)));
    }
    print_message("exp %.2f ulp, tanh %.2f ulp, silu %.2f ulp, gelu_tanh %.1e, gelu_erf %.1e\n", worst_exp,
                  worst_tanh, worst_silu, worst_gelu_tanh, worst_gelu_erf);
    assert_true(worst_exp <= 2);
    assert_true(worst_tanh <= 4);
    assert_true(worst_silu <= 4);
    assert_true(worst_gelu_tanh <=
                2.5e-7); /* 1 + tanh cancels for negative x: absolute, in units of max(1, |x|) */
    assert_true(worst_gelu_erf <= 2.5e-7);
    assert_true(tn_expf(-INFINITY) == 0 && tn_expf(-100) == 0 && isinf(tn_expf(89)) && isnan(tn_expf(NAN)));
    assert_true(tn_tanhf(INFINITY) == 1 && tn_tanhf(-INFINITY) == -1 && isnan(tn_tanhf(NAN)) &&
                tn_tanhf(0) == 0);
}

/* Sums of n terms in 16 lanes err by n/16 + 4 roundings at most. */
static void test_norms(void **state) {
    (void)state;
    enum { N = 1000 };
    tn_rng rng = {check_seed()};
    float x[N], w[N], b[N], out[N];
    check_fill_f32(&rng, CHECK_RANDOM, x, N);
    check_fill_f32(&rng, CHECK_RANDOM, w, N);
    check_fill_f32(&rng, CHECK_RANDOM, b, N);
    double sum = 0, squares = 0, var = 0, bound = (N / 16 + 8) * 0x1p-23;
    for (int i = 0; i < N; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    for (int i = 0; i < N; i++) var += pow((double)x[i] - sum / N, 2);
    tn_rmsnorm_f32_ref(x, w, 1e-6f, out, N);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)out[i] - (double)x[i] / sqrt(squares / N + 1e-6) * (double)w[i]) <=
                    2 * bound);
    tn_layernorm_f32_ref(x, w, b, 1e-5f, out, N);
    for (int i = 0; i < N; i++) {
        double want = ((double)x[i] - sum / N) / sqrt(var / N + 1e-5) * (double)w[i] + (double)b[i];
        assert_true(fabs((double)out[i] - want) <= 4 * bound);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants), cmocka_unit_test(test_activations_everywhere),
        cmocka_unit_test(test_shares), cmocka_unit_test(test_accuracy), cmocka_unit_test(test_norms)};
    return cmocka_run_group_tests_name("elem_f32", tests, NULL, NULL);
}
