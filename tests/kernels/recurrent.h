/* tests/kernels/recurrent.h - tests of a recurrence, which is their state: does every variant give the reference's bits, all rows in one call, row
 * by row, and from one memory to another? Does the reference give what the definition in double precision does? */
#ifndef TN_TESTS_KERNELS_RECURRENT_H
#define TN_TESTS_KERNELS_RECURRENT_H

#include "check.h"
#include "f32_variants.h"

#include <math.h>

typedef struct inputs {
    size_t d_key, n_cols, n_rows, stride; /* of rows */
    bool mamba;                           /* of delta_f32 */
    check_buf rows, gates, state;         /* gates: of recurrences that have them apart */
} inputs;

typedef struct recurrence {
    size_t n_shapes;
    inputs (*inputs_of)(size_t shape, tn_rng *rng);
    /* Rows t0 .. t1 - 1. */
    void (*run)(const tn_kernels *k, const inputs *in, size_t t0, size_t t1, const float *from, float *state,
                float *out);
    /* Changes column c of s as row t does, and returns what comes out. */
    double (*defined)(const inputs *in, size_t t, size_t c, double *s);
} recurrence;

static inline void inputs_free(inputs *in) {
    check_free(&in->rows);
    check_free(&in->gates);
    check_free(&in->state);
}

static inline void recurrent_same_bits(void **state) {
    const recurrence *r = *state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (size_t i = 0; i < r->n_shapes; i++) {
        inputs in = r->inputs_of(i, &rng);
        size_t n_state = in.d_key * in.n_cols, n_out = in.n_rows * in.n_cols;
        check_buf want = check_new(n_out * 4), want_state = check_new(n_state * 4);
        memcpy(want_state.p, in.state.p, n_state * 4);
        r->run(&v[0].k, &in, 0, in.n_rows, want_state.p, want_state.p, want.p);
        for (int k = 0; k < 3 * n_v; k++) {
            const int how = k % 3; /* all at once, row by row, or from the first memory to another */
            check_buf got = check_new(n_out * 4), got_state = check_new(n_state * 4);
            if (how < 2) memcpy(got_state.p, in.state.p, n_state * 4);
            const size_t step = how == 1 ? 1 : in.n_rows;
            for (size_t t = 0; t < in.n_rows; t += step)
                r->run(&v[k / 3].k, &in, t, t + step, how < 2 ? got_state.p : in.state.p, got_state.p, got.p);
            if (memcmp(got.p, want.p, n_out * 4) || memcmp(got_state.p, want_state.p, n_state * 4))
                fail_msg("%s (%d) gives other bits at %zu keys, %zu values, %zu rows", v[k / 3].name, how,
                         in.d_key, in.n_cols, in.n_rows);
            check_free(&got);
            check_free(&got_state);
        }
        check_free(&want);
        check_free(&want_state);
        inputs_free(&in);
    }
}

static inline void recurrent_as_defined(void **state) {
    const recurrence *r = *state;
    tn_kernels k;
    tn_kernels_init(&k, 0);
    tn_rng rng = {check_seed() + 1};
    for (size_t i = 0; i < r->n_shapes; i++) {
        inputs in = r->inputs_of(i, &rng);
        const size_t n_state = in.d_key * in.n_cols;
        float *s32 = malloc(n_state * 4), *out = malloc(in.n_rows * in.n_cols * 4);
        double *s = malloc(n_state * sizeof *s);
        assert_true(s32 && out && s);
        memcpy(s32, in.state.p, n_state * 4);
        for (size_t j = 0; j < n_state; j++) s[j] = (double)s32[j];
        r->run(&k, &in, 0, in.n_rows, s32, s32, out);
        for (size_t at = 0; at < in.n_rows * in.n_cols; at++) {
            const size_t t = at / in.n_cols, c = at % in.n_cols;
            const double want = r->defined(&in, t, c, s);
            if (fabs((double)out[at] - want) > 1e-4 * (1 + fabs(want)))
                fail_msg("row %zu, channel %zu: %g, want %g", t, c, (double)out[at], want);
        }
        free(s32);
        free(out);
        free(s);
        inputs_free(&in);
    }
}

#endif
