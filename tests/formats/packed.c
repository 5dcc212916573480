/* Do blocks made of packed weights hold the values that these stand for? */
#include "formats/packed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/half.h"
#include "base/rng.h"

#define STEP_OF_8_BITS                                                                                       \
    (1.13f / 254) /* half a step, whose scale has 16 bits, as a share of the largest value */

enum { ROWS = 64, COLS = 192, N_WORDS = ROWS * COLS / 4 };

typedef struct weights {
    tn_packed p;
    uint32_t q[N_WORDS], zeros[N_WORDS], indices[COLS];
    uint16_t scales[ROWS * COLS];
    uint16_t biases[ROWS * COLS];
} weights;

static tn_tensor words(uint32_t *w, uint64_t n0, uint64_t n1) {
    return (tn_tensor){.name = "w",
                       .file = "f",
                       .dtype = TN_N_DTYPES,
                       .n_dims = 2,
                       .dims = {n0, n1, 1, 1},
                       .size_bytes = n0 * n1 * 4,
                       .data = (uint8_t *)w};
}

static tn_tensor halves(uint16_t *h, uint64_t n0, uint64_t n1) {
    return (tn_tensor){.name = "s",
                       .file = "f",
                       .dtype = TN_F16,
                       .n_dims = 2,
                       .dims = {n0, n1, 1, 1},
                       .size_bytes = n0 * n1 * 2,
                       .data = (uint8_t *)h};
}

/* A matrix of random codes; zero: of every group and row, -1: random ones. */
static weights *make(tn_packing kind, int32_t bits, uint64_t group, int64_t zero, uint32_t seed) {
    weights *w = calloc(1, sizeof *w);
    assert_non_null(w);
    tn_rng rng = {seed};
    const uint64_t b = (uint64_t)bits, n_groups = (COLS - 1) / group + 1;
    const bool mlx = kind == TN_PACKING_MLX, awq = kind == TN_PACKING_AWQ;
    for (int i = 0; i < N_WORDS; i++) {
        w->q[i] = (uint32_t)tn_rng_u64(&rng);
        w->zeros[i] = zero < 0 ? (uint32_t)tn_rng_u64(&rng) : (uint32_t)zero * 0x11111111u;
    }
    for (int i = 0; i < ROWS * COLS; i++) {
        w->scales[i] = tn_f32_f16(0.001f + 0.05f * (float)((uint32_t)tn_rng_u64(&rng) % 1000) / 1000);
        w->biases[i] = tn_f32_f16(-0.3f * (float)((uint32_t)tn_rng_u64(&rng) % 1000) / 1000);
    }
    w->p = (tn_packed){.kind = kind, .bits = bits, .group = group};
    w->p.q = mlx   ? words(w->q, ROWS, COLS * b / 32)
             : awq ? words(w->q, COLS, ROWS * b / 32)
                   : words(w->q, COLS * b / 32, ROWS);
    w->p.scales = mlx ? halves(w->scales, ROWS, n_groups) : halves(w->scales, n_groups, ROWS);
    w->p.zeros = mlx ? halves(w->biases, ROWS, n_groups) : words(w->zeros, n_groups, ROWS * b / 32);
    return w;
}

/* The largest difference between a row and its blocks, in the largest scale of a row. */
static float worst(const tn_packed *p, tn_dtype type, bool *equal) {
    static float row[COLS], got[COLS], values[COLS];
    static uint8_t blocks[ROWS * COLS * 2];
    const uint64_t row_bytes = tn_dtype_row_bytes(type, COLS);
    float most = 0;
    *equal = true;
    memset(blocks, 0xa5, sizeof blocks);
    tn_packed_blocks(p, 3, ROWS - 5, type, values, blocks);
    for (uint64_t r = 3; r < ROWS - 2; r++) {
        float step = 0;
        tn_packed_row(p, r, row);
        tn_dequantise(type, blocks + (r - 3) * row_bytes, got, COLS);
        for (int k = 0; k < COLS; k++) step = fmaxf(step, fabsf(row[k]));
        for (int k = 0; k < COLS; k++) {
            most = fmaxf(most, fabsf(got[k] - row[k]) / step);
            *equal = *equal && got[k] == row[k];
        }
    }
    for (uint64_t i = (ROWS - 5) * row_bytes; i < sizeof blocks; i++) assert_int_equal(blocks[i], 0xa5);
    return most;
}

static void few_bits_keep_their_codes(void **state) {
    (void)state;
    static const struct {
        tn_packing kind;
        int32_t bits;
        uint64_t group;
        int64_t zero;
    } cases[] = {{TN_PACKING_GPTQ, 4, 64, 8},  {TN_PACKING_GPTQ, 4, 64, -1},
                 {TN_PACKING_GPTQ, 2, 32, -1}, {TN_PACKING_GPTQ, 3, UINT64_MAX, -1},
                 {TN_PACKING_GPTQ, 4, 96, -1}, {TN_PACKING_AWQ, 4, 64, 8},
                 {TN_PACKING_AWQ, 4, 32, -1},  {TN_PACKING_MLX, 4, 64, -1},
                 {TN_PACKING_MLX, 2, 32, -1},  {TN_PACKING_MLX, 3, 64, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weights *w = make(cases[i].kind, cases[i].bits, cases[i].group, cases[i].zero, (uint32_t)i + 1);
        bool equal;
        assert_int_equal(tn_packed_check(&w->p, NULL), TERN_OK);
        assert_int_equal(w->p.blocks, TN_Q4_1);
        const float most = worst(&w->p, TN_Q4_1, &equal);
        if (cases[i].zero == 8) assert_true(equal); /* every number is one of 16 bits */
        assert_true(most < 0x1p-11f);               /* offsets are rounded to 11 bits */
        assert_true(worst(&w->p, TN_Q8_0, &equal) < STEP_OF_8_BITS);
        free(w);
    }
}

static void other_weights_are_rounded_to_8_bits(void **state) {
    (void)state;
    static const struct {
        tn_packing kind;
        int32_t bits;
        uint64_t group;
    } cases[] = {{TN_PACKING_GPTQ, 8, 64}, {TN_PACKING_GPTQ, 6, 64}, {TN_PACKING_GPTQ, 4, 48},
                 {TN_PACKING_MLX, 5, 64},  {TN_PACKING_MLX, 6, 32},  {TN_PACKING_MLX, 8, 64},
                 {TN_PACKING_MLX, 4, 48}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weights *w = make(cases[i].kind, cases[i].bits, cases[i].group, -1, (uint32_t)i + 1);
        bool equal;
        assert_int_equal(tn_packed_check(&w->p, NULL), TERN_OK);
        assert_int_equal(w->p.blocks, TN_Q8_0);
        assert_true(worst(&w->p, TN_Q8_0, &equal) < STEP_OF_8_BITS);
        free(w);
    }
}

/* desc_act: a block may be of one group, or not. */
static void groups_in_another_order(void **state) {
    (void)state;
    weights *w = make(TN_PACKING_GPTQ, 4, 32, -1, 7);
    bool equal;
    for (uint32_t k = 0; k < COLS; k++) w->indices[k] = (COLS - 1 - k) / 32;
    w->p.indices = words(w->indices, COLS, 1);
    assert_int_equal(tn_packed_check(&w->p, NULL), TERN_OK);
    assert_int_equal(w->p.blocks, TN_Q4_1);
    assert_true(worst(&w->p, TN_Q4_1, &equal) < 0x1p-11f);
    w->indices[COLS - 1] = 1;
    assert_int_equal(tn_packed_check(&w->p, NULL), TERN_OK);
    assert_int_equal(w->p.blocks, TN_Q8_0);
    assert_true(worst(&w->p, TN_Q8_0, &equal) < STEP_OF_8_BITS);
    free(w);
}

/* A scale that is no number stays none, so that the model is refused. */
static void no_numbers(void **state) {
    (void)state;
    const uint16_t bad[] = {0x7c00, 0x7e01, 0xfc00};
    for (int i = 0; i < 6; i++) {
        weights *w = make(i < 3 ? TN_PACKING_GPTQ : TN_PACKING_MLX, 4, 64, -1, 9);
        uint8_t row[COLS * 2];
        float values[COLS], got[COLS];
        w->scales[i < 3 ? 5 : 5 * 3] = bad[i % 3];
        assert_int_equal(tn_packed_check(&w->p, NULL), TERN_OK);
        for (int type = 0; type < 2; type++) {
            const tn_dtype d = type ? TN_Q8_0 : TN_Q4_1;
            tn_packed_blocks(&w->p, 5, 1, d, values, row);
            tn_dequantise(d, row, got, 32);
            int n = 0;
            for (int k = 0; k < 32; k++) n += !isfinite(got[k]);
            assert_true(n > 16); /* a code of 0 times an infinity is no number either */
        }
        free(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_bits_keep_their_codes), cmocka_unit_test(other_weights_are_rounded_to_8_bits),
        cmocka_unit_test(groups_in_another_order), cmocka_unit_test(no_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
