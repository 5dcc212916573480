/* The recurrence of a gated delta net and of Mamba 2: every variant against the scalar reference bit for bit, the
 * reference against the definition in double precision, and rows in one call against rows one by one. */
#include "recurrent.h"

static const struct {
    size_t d_key, n_cols, n_rows;
    bool mamba;
} shapes[] = {{2, 16, 1, false},    {16, 16, 3, false}, {32, 32, 7, false}, {64, 48, 5, false},
              {128, 128, 9, false}, {30, 80, 2, false}, {2, 16, 1, true},   {64, 48, 5, true},
              {128, 64, 9, true},   {30, 80, 2, true}};
static const float past = 0.75f; /* of Mamba 2 */
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static inputs inputs_of(size_t i_shape, tn_rng *rng) {
    inputs in = {.d_key = shapes[i_shape].d_key,
                 .n_cols = shapes[i_shape].n_cols,
                 .n_rows = shapes[i_shape].n_rows,
                 .mamba = shapes[i_shape].mamba};
    in.stride = 2 * in.d_key + in.n_cols + 3;
    in.rows = check_new(in.n_rows * in.stride * 4);
    in.gates = check_new(in.n_rows * 2 * 4);
    in.state = check_new(in.d_key * in.n_cols * 4);
    check_fill_f32(rng, CHECK_RANDOM, in.rows.p, in.n_rows * in.stride);
    check_fill_f32(rng, CHECK_RANDOM, in.state.p, in.d_key * in.n_cols);
    float *g = in.gates.p, *x = in.rows.p;
    for (size_t t = 0; t < in.n_rows; t++) {
        float sum = 0;
        for (size_t i = 0; i < in.d_key; i++) sum += x[t * in.stride + i] * x[t * in.stride + i];
        for (size_t i = 0; i < in.d_key; i++)
            x[t * in.stride + i] /= sqrtf(sum) + 1e-9f; /* keys have length 1 */
        g[2 * t] = 0.5f + 0.5f * (float)(tn_rng_u64(rng) % 1000) / 1000;
        g[2 * t + 1] = (float)(tn_rng_u64(rng) % 1000) / 1000;
    }
    return in;
}

/* Rows t0 .. t1 - 1. */
static void run_from(const tn_kernels *k, const inputs *in, size_t t0, size_t t1, const float *from,
                     float *state, bool far, float *out) {
    const float *x = (const float *)in->rows.p + t0 * in->stride, *g = (const float *)in->gates.p + 2 * t0;
    tn_delta_f32_args a = {.k = x,
                           .q = x + in->d_key,
                           .v = x + 2 * in->d_key,
                           .stride = in->stride,
                           .decay = g,
                           .rate = g + 1,
                           .gate_stride = 2,
                           .from = from,
                           .state = state,
                           .far = far,
                           .state_stride = in->n_cols,
                           .out = out + t0 * in->n_cols,
                           .out_stride = in->n_cols,
                           .n_rows = t1 - t0,
                           .d_key = in->d_key,
                           .n_cols = in->n_cols,
                           .mamba = in->mamba,
                           .past = past};
    k->delta_f32(&a);
}

static void run(const tn_kernels *k, const inputs *in, size_t t0, size_t t1, const float *from, float *state,
                float *out) {
    run_from(k, in, t0, t1, from, state, false, out);
}

/* What is read from one place and written to another, around the caches or not, is what is changed in place. */
static void elsewhere(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed() + 2};
    for (size_t i = 0; i < N_SHAPES; i++) {
        inputs in = inputs_of(i, &rng);
        size_t n_state = in.d_key * in.n_cols, n_out = in.n_rows * in.n_cols;
        float *want_out = malloc(n_out * 4), *out = malloc(n_out * 4), *want = malloc(n_state * 4),
              *got = aligned_alloc(64, (n_state * 4 + 63) / 64 * 64);
        assert_true(want_out && out && want && got);
        for (size_t n_rows = 1; n_rows <= in.n_rows; n_rows += in.n_rows > 1 ? in.n_rows - 1 : 1) {
            memcpy(want, in.state.p, n_state * 4);
            run(&v[0].k, &in, 0, n_rows, want, want, want_out);
            for (int k = 0; k < 2 * n_v; k++) {
                memset(got, 0xff, n_state * 4);
                run_from(&v[k / 2].k, &in, 0, n_rows, in.state.p, got, k % 2, out);
                if (memcmp(out, want_out, n_rows * in.n_cols * 4) || memcmp(got, want, n_state * 4))
                    fail_msg("%s (far %d) gives other bits at %zu keys, %zu values, %zu rows", v[k / 2].name,
                             k % 2, in.d_key, in.n_cols, n_rows);
            }
        }
        free(want_out);
        free(out);
        free(want);
        free(got);
        inputs_free(&in);
    }
}

/* S, then S (1 - b k k^T) decayed + b v k^T, or S decayed + b v k^T of Mamba 2. */
static double defined(const inputs *in, size_t t, size_t c, double *s) {
    const float *x = (const float *)in->rows.p + t * in->stride, *g = (const float *)in->gates.p + 2 * t;
    const size_t dk = in->d_key, dv = in->n_cols;
    double known = 0, out = 0;
    for (size_t j = 0; j < dk; j++) s[j * dv + c] *= (double)g[0];
    for (size_t j = 0; j < dk; j++) known += s[j * dv + c] * (double)x[j];
    double v = (double)x[2 * dk + c], r = (double)g[1] * (in->mamba ? v : v - known);
    for (size_t j = 0; j < dk; j++) s[j * dv + c] += (double)x[j] * r;
    for (size_t j = 0; j < dk; j++) out += s[j * dv + c] * (double)x[dk + j];
    return in->mamba ? out + (double)past * v : out;
}

static recurrence delta = {N_SHAPES, inputs_of, run, defined};

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(recurrent_same_bits, &delta),
                                       cmocka_unit_test(elsewhere),
                                       cmocka_unit_test_prestate(recurrent_as_defined, &delta)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
