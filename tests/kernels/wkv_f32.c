/* The recurrence of RWKV-7: every variant against the scalar reference bit for bit, in one call and row by row, in
 * place and from one memory to another; the reference against the definition in double precision. */
#include "recurrent.h"

static const size_t shapes[][3] = /* keys, values, rows */
    {{2, 16, 1}, {16, 16, 3}, {32, 32, 7}, {64, 64, 5}, {64, 48, 4}, {30, 80, 2}, {128, 96, 9}, {64, 16, 33}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_KEYS = 5 }; /* q, k, w, z, b; then v */

static inputs inputs_of(size_t shape, tn_rng *rng) {
    const size_t *of = shapes[shape], d = of[0];
    inputs in = {.d_key = d, .n_cols = of[1], .n_rows = of[2], .stride = N_KEYS * d + of[1] + 3};
    in.rows = check_new(in.n_rows * in.stride * 4);
    in.state = check_new(d * in.n_cols * 4);
    check_fill_f32(rng, CHECK_RANDOM, in.rows.p, in.n_rows * in.stride);
    check_fill_f32(rng, CHECK_RANDOM, in.state.p, d * in.n_cols);
    for (size_t t = 0; t < in.n_rows; t++) {
        float *x = (float *)in.rows.p + t * in.stride, *w = x + 2 * d, *z = x + 3 * d, *b = x + 4 * d,
              sum = 0;
        for (size_t i = 0; i < d; i++) sum += z[i] * z[i];
        for (size_t i = 0; i < d; i++) { /* a direction of length 1 of which a share is taken back */
            w[i] = 0.55f + 0.45f * (float)(tn_rng_u64(rng) % 1000) / 1000;
            z[i] /= -(sqrtf(sum) + 1e-9f);
            b[i] = -z[i] * (float)(tn_rng_u64(rng) % 1000) / 1000;
        }
    }
    return in;
}

static void run(const tn_kernels *k, const inputs *in, size_t t0, size_t t1, const float *from, float *state,
                float *out) {
    const float *x = (const float *)in->rows.p + t0 * in->stride;
    const size_t d = in->d_key;
    k->wkv_f32(&(tn_wkv_f32_args){.q = x,
                                  .k = x + d,
                                  .w = x + 2 * d,
                                  .z = x + 3 * d,
                                  .b = x + 4 * d,
                                  .v = x + N_KEYS * d,
                                  .stride = in->stride,
                                  .from = from,
                                  .state = state,
                                  .state_stride = in->n_cols,
                                  .out = out + t0 * in->n_cols,
                                  .out_stride = in->n_cols,
                                  .n_rows = t1 - t0,
                                  .d_key = d,
                                  .n_cols = in->n_cols});
}

/* S = diag(w) S + b (z^T S) + k v^T. */
static double defined(const inputs *in, size_t t, size_t c, double *s) {
    const float *x = (const float *)in->rows.p + t * in->stride;
    const size_t d = in->d_key, n = in->n_cols;
    double u = 0, out = 0;
    for (size_t j = 0; j < d; j++) u += s[j * n + c] * (double)x[3 * d + j];
    for (size_t j = 0; j < d; j++) {
        s[j * n + c] = (double)x[2 * d + j] * s[j * n + c] + (double)x[4 * d + j] * u +
                       (double)x[d + j] * (double)x[N_KEYS * d + c];
        out += s[j * n + c] * (double)x[j];
    }
    return out;
}

static recurrence wkv = {N_SHAPES, inputs_of, run, defined};

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(recurrent_same_bits, &wkv),
                                       cmocka_unit_test_prestate(recurrent_as_defined, &wkv)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
