/* The recurrence of a gated delta net and of Mamba 2: every variant against the scalar reference bit for bit, the
 * reference against the definition in double precision, and rows in one call against rows one by one. */
#include "check.h"
#include "f32_variants.h"

#include <math.h>

typedef struct shape {
    size_t d_key, n_cols, n_rows;
    bool mamba;
} shape;

static const shape shapes[] = {
    {2, 16, 1, false},  {16, 16, 3, false}, {32, 32, 7, false}, {64, 48, 5, false}, {128, 128, 9, false},
    {30, 80, 2, false}, {2, 16, 1, true},   {64, 48, 5, true},  {128, 64, 9, true}, {30, 80, 2, true}};
static const float past = 0.75f; /* of Mamba 2 */
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct inputs {
    shape s;
    size_t stride;
    check_buf rows, gates, state;
} inputs;

static inputs inputs_of(shape s, tn_rng *rng) {
    inputs in = {.s = s, .stride = 2 * s.d_key + s.n_cols + 3};
    in.rows = check_new(s.n_rows * in.stride * 4);
    in.gates = check_new(s.n_rows * 2 * 4);
    in.state = check_new(s.d_key * s.n_cols * 4);
    check_fill_f32(rng, CHECK_RANDOM, in.rows.p, s.n_rows * in.stride);
    check_fill_f32(rng, CHECK_RANDOM, in.state.p, s.d_key * s.n_cols);
    float *g = in.gates.p, *x = in.rows.p;
    for (size_t t = 0; t < s.n_rows; t++) {
        float sum = 0;
        for (size_t i = 0; i < s.d_key; i++) sum += x[t * in.stride + i] * x[t * in.stride + i];
        for (size_t i = 0; i < s.d_key; i++)
            x[t * in.stride + i] /= sqrtf(sum) + 1e-9f; /* keys have length 1 */
        g[2 * t] = 0.5f + 0.5f * (float)(tn_rng_u64(rng) % 1000) / 1000;
        g[2 * t + 1] = (float)(tn_rng_u64(rng) % 1000) / 1000;
    }
    return in;
}

static void inputs_free(inputs *in) {
    check_free(&in->rows);
    check_free(&in->gates);
    check_free(&in->state);
}

/* Rows t0 .. t1 - 1. */
static void run_from(const tn_kernels *k, const inputs *in, size_t t0, size_t t1, const float *from,
                     float *state, bool far, float *out) {
    const float *x = (const float *)in->rows.p + t0 * in->stride, *g = (const float *)in->gates.p + 2 * t0;
    tn_delta_f32_args a = {.k = x,
                           .q = x + in->s.d_key,
                           .v = x + 2 * in->s.d_key,
                           .stride = in->stride,
                           .decay = g,
                           .rate = g + 1,
                           .gate_stride = 2,
                           .from = from,
                           .state = state,
                           .far = far,
                           .state_stride = in->s.n_cols,
                           .out = out + t0 * in->s.n_cols,
                           .out_stride = in->s.n_cols,
                           .n_rows = t1 - t0,
                           .d_key = in->s.d_key,
                           .n_cols = in->s.n_cols,
                           .mamba = in->s.mamba,
                           .past = past};
    k->delta_f32(&a);
}

static void run(const tn_kernels *k, const inputs *in, size_t t0, size_t t1, float *state, float *out) {
    run_from(k, in, t0, t1, state, state, false, out);
}

static void same_bits(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (size_t i = 0; i < N_SHAPES; i++) {
        inputs in = inputs_of(shapes[i], &rng);
        size_t n_state = in.s.d_key * in.s.n_cols, n_out = in.s.n_rows * in.s.n_cols;
        check_buf want = check_new(n_out * 4), want_state = check_new(n_state * 4);
        memcpy(want_state.p, in.state.p, n_state * 4);
        run(&v[0].k, &in, 0, in.s.n_rows, want_state.p, want.p);
        for (int k = 0; k < n_v; k++) {
            for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
                check_buf got = check_new(n_out * 4), got_state = check_new(n_state * 4);
                memcpy(got_state.p, in.state.p, n_state * 4);
                size_t step = one_by_one ? 1 : in.s.n_rows;
                for (size_t t = 0; t < in.s.n_rows; t += step)
                    run(&v[k].k, &in, t, t + step, got_state.p, got.p);
                if (memcmp(got.p, want.p, n_out * 4) || memcmp(got_state.p, want_state.p, n_state * 4))
                    fail_msg("%s gives other bits at %zu keys, %zu values, %zu rows", v[k].name, in.s.d_key,
                             in.s.n_cols, in.s.n_rows);
                check_free(&got);
                check_free(&got_state);
            }
        }
        check_free(&want);
        check_free(&want_state);
        inputs_free(&in);
    }
}

/* What is read from one place and written to another, around the caches or not, is what is changed in place. */
static void elsewhere(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed() + 2};
    for (size_t i = 0; i < N_SHAPES; i++) {
        inputs in = inputs_of(shapes[i], &rng);
        size_t n_state = in.s.d_key * in.s.n_cols, n_out = in.s.n_rows * in.s.n_cols;
        float *want_out = malloc(n_out * 4), *out = malloc(n_out * 4), *want = malloc(n_state * 4),
              *got = aligned_alloc(64, (n_state * 4 + 63) / 64 * 64);
        assert_true(want_out && out && want && got);
        for (size_t n_rows = 1; n_rows <= in.s.n_rows; n_rows += in.s.n_rows > 1 ? in.s.n_rows - 1 : 1) {
            memcpy(want, in.state.p, n_state * 4);
            run(&v[0].k, &in, 0, n_rows, want, want_out);
            for (int k = 0; k < 2 * n_v; k++) {
                memset(got, 0xff, n_state * 4);
                run_from(&v[k / 2].k, &in, 0, n_rows, in.state.p, got, k % 2, out);
                if (memcmp(out, want_out, n_rows * in.s.n_cols * 4) || memcmp(got, want, n_state * 4))
                    fail_msg("%s (far %d) gives other bits at %zu keys, %zu values, %zu rows", v[k / 2].name,
                             k % 2, in.s.d_key, in.s.n_cols, n_rows);
            }
        }
        free(want_out);
        free(out);
        free(want);
        free(got);
        inputs_free(&in);
    }
}

/* S, then S (1 - b k k^T) decayed + b v k^T, or S decayed + b v k^T of Mamba 2, in double precision. */
static void as_defined(void **state) {
    (void)state;
    tn_kernels k;
    tn_kernels_init(&k, 0);
    tn_rng rng = {check_seed() + 1};
    for (size_t i = 0; i < N_SHAPES; i++) {
        inputs in = inputs_of(shapes[i], &rng);
        size_t dk = in.s.d_key, dv = in.s.n_cols;
        float *s32 = malloc(dk * dv * 4), *out = malloc(in.s.n_rows * dv * 4);
        double *s = malloc(dk * dv * sizeof *s);
        assert_true(s32 && out && s);
        memcpy(s32, in.state.p, dk * dv * 4);
        for (size_t j = 0; j < dk * dv; j++) s[j] = (double)s32[j];
        run(&k, &in, 0, in.s.n_rows, s32, out);
        for (size_t t = 0; t < in.s.n_rows; t++) {
            const float *x = (const float *)in.rows.p + t * in.stride, *g = (const float *)in.gates.p + 2 * t;
            for (size_t c = 0; c < dv; c++) {
                double known = 0, want = 0;
                for (size_t j = 0; j < dk; j++) s[j * dv + c] *= (double)g[0];
                for (size_t j = 0; j < dk; j++) known += s[j * dv + c] * (double)x[j];
                double v = (double)x[2 * dk + c], r = (double)g[1] * (in.s.mamba ? v : v - known);
                for (size_t j = 0; j < dk; j++) s[j * dv + c] += (double)x[j] * r;
                for (size_t j = 0; j < dk; j++) want += s[j * dv + c] * (double)x[dk + j];
                if (in.s.mamba) want += (double)past * v;
                if (fabs((double)out[t * dv + c] - want) > 1e-4 * (1 + fabs(want)))
                    fail_msg("row %zu, channel %zu: %g, want %g", t, c, (double)out[t * dv + c], want);
            }
        }
        free(s32);
        free(out);
        free(s);
        inputs_free(&in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(elsewhere),
                                       cmocka_unit_test(as_defined)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
