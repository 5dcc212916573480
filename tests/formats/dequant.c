/* Do the stored types widen, bit for bit, to the values their definition gives
 * (tests/oracle/dequant_oracle.py, an independent implementation) and to those of ggml's reference
 * (dequant_vectors.bin; regenerate with tests/oracle/dequant_vectors.py), ik_llama.cpp's own types to those of its
 * reference (ik_vectors.bin, tests/oracle/ik_vectors.py), and do values survive the way to
 * Q8_0 and back within half a step? */
#include "base/half.h"
#include "base/rng.h"
#include "formats/gguf.h"
#include "formats/ik_types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t u32_of(FILE *f) {
    uint32_t v;
    assert_int_equal(fread(&v, 4, 1, f), 1);
    return v;
}

static void every_type_matches_its_definition(void **state) {
    (void)state;
    FILE *f = fopen(TN_SOURCE_DIR "/tests/oracle/dequant.bin", "rb");
    assert_non_null(f);
    bool seen[TN_N_DTYPES] = {false};
    char name[9] = {0};
    while (fread(name, 8, 1, f) == 1) {
        uint32_t n_bytes = u32_of(f), n_values = u32_of(f), n = u32_of(f);
        tn_dtype d = TN_F32;
        while (d < TN_N_DTYPES && strcmp(tn_dtype_name(d), name)) d++;
        assert_in_range(d, 0, TN_N_DTYPES - 1);
        assert_int_equal(tn_dtype_block(d), n_values);
        assert_int_equal(tn_dtype_block_bytes(d), n_bytes);
        size_t total = (size_t)n * n_values;
        uint8_t *raw = malloc((size_t)n * n_bytes); /* exact: reads beyond it are seen by ASan */
        float *want = malloc(total * 4), *got = malloc(total * 4);
        assert_true(raw && want && got);
        assert_int_equal(fread(raw, n_bytes, n, f), n);
        assert_int_equal(fread(want, 4, total, f), total);
        tn_dequantise(d, raw, got, total);
        for (size_t i = 0; i < total; i++) {
            if (memcmp(&got[i], &want[i], 4))
                fail_msg("%s: value %zu is %a, not %a", name, i, (double)got[i], (double)want[i]);
        }
        seen[d] = true;
        free(raw);
        free(want);
        free(got);
    }
    fclose(f);
    for (int d = 0; d < TN_Q6_0; d++) assert_true(seen[d]);
}

static void every_type_equals_ggml(void **state) {
    (void)state;
    FILE *f = fopen(TN_SOURCE_DIR "/tests/formats/dequant_vectors.bin", "rb");
    assert_non_null(f);
    for (int t = TN_Q8_0; t < TN_Q6_0; t++) {
        tn_dtype d = (tn_dtype)t;
        uint8_t blocks[2 * 292];
        float want[512], got[512];
        size_t n_bytes = 2 * (size_t)tn_dtype_block_bytes(d), n = 2 * (size_t)tn_dtype_block(d);
        assert_int_equal(fread(blocks, 1, n_bytes, f), n_bytes);
        assert_int_equal(fread(want, 4, n, f), n);
        tn_dequantise(d, blocks, got, n);
        for (size_t i = 0; i < n; i++) {
            if (memcmp(&got[i], &want[i], 4))
                fail_msg("%s value %zu: %.9g, want %.9g", tn_dtype_name(d), i, (double)got[i],
                         (double)want[i]);
        }
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void q6_0_equals_its_reference(FILE *f) {
    uint8_t row[3 * 26];
    float want[96], got[96];
    assert_int_equal(fread(row, 1, sizeof row, f), sizeof row);
    assert_int_equal(fread(want, 4, 96, f), 96);
    assert_int_equal(tn_dtype_row_bytes(TN_Q6_0, 96), sizeof row);
    tn_dequantise(TN_Q6_0, row, got, 96);
    for (size_t i = 0; i < 96; i++) assert_true(got[i] == want[i]);
}

/* The whole row, its beginning, and a row from its second block on where rows have no head. */
static void ik_types_equal_its_reference(void **state) {
    (void)state;
    enum { BLOCKS = 3, N = BLOCKS * TN_IK_BLOCK };
    FILE *f = fopen(TN_SOURCE_DIR "/tests/formats/ik_vectors.bin", "rb");
    assert_non_null(f);
    q6_0_equals_its_reference(f);
    for (int t = TN_IQ2_K; t < TN_N_DTYPES; t++) {
        tn_dtype d = (tn_dtype)t;
        const size_t head = (size_t)tn_dtype_head_bytes(d), block = (size_t)tn_dtype_block_bytes(d);
        const size_t n_bytes = (size_t)tn_dtype_row_bytes(d, N);
        uint8_t *row = malloc(n_bytes); /* exact: reads beyond it are seen by ASan */
        float want[N], got[N], some[TN_IK_BLOCK];
        assert_true(tn_ik_type(d));
        assert_int_equal(n_bytes, head + BLOCKS * block);
        assert_int_equal(fread(row, 1, n_bytes, f), n_bytes);
        assert_int_equal(fread(want, 4, N, f), N);
        tn_dequantise(d, row, got, N);
        for (size_t i = 0; i < N; i++) {
            tn_ik_block b;
            tn_ik_read(d, row + head + i / TN_IK_BLOCK * block, &b);
            const float unit = tn_ik_d(d, head ? row : row + i / TN_IK_BLOCK * block) *
                               (float)b.scale[i % TN_IK_BLOCK / TN_IK_GROUP];
            /* IQ6_K's reference is a polynomial within half a step of the table */
            const float off = d == TN_IQ6_K ? 0.51f * fabsf(unit) : 0;
            if (!(fabsf(got[i] - want[i]) <= off))
                fail_msg("%s value %zu: %.9g, want %.9g", tn_dtype_name(d), i, (double)got[i],
                         (double)want[i]);
        }
        tn_dequantise(d, row, some, TN_IK_BLOCK);
        assert_memory_equal(some, got, sizeof some);
        if (!head) {
            tn_dequantise(d, row + block, some, TN_IK_BLOCK);
            assert_memory_equal(some, got + TN_IK_BLOCK, sizeof some);
        }
        free(row);
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void plain_types(void **state) {
    (void)state;
    const uint16_t half[4] = {0x3c00, 0xc000, 0x0001, 0x7bff}, brain[2] = {0x3f80, 0xc040};
    float out[4];
    tn_dequantise(TN_F16, (const uint8_t *)half, out, 4);
    assert_true(out[0] == 1.0f && out[1] == -2.0f && out[2] == 0x1p-24f && out[3] == 65504.0f);
    tn_dequantise(TN_BF16, (const uint8_t *)brain, out, 2);
    assert_true(out[0] == 1.0f && out[1] == -3.0f);
}

/* Every half, many at once and one by one, whatever is left after whole vectors. */
static void every_half(void **state) {
    (void)state;
    enum { N = 65536 + 5 };
    uint16_t *half = malloc(N * sizeof *half);
    float *out = malloc(N * sizeof *out);
    for (size_t i = 0; i < N; i++) half[i] = (uint16_t)i;
    tn_dequantise(TN_F16, (const uint8_t *)half, out, N);
    for (size_t i = 0; i < N; i++) {
        float want = tn_f16_f32(half[i]);
        assert_memory_equal(&out[i], &want, sizeof want);
    }
    free(half);
    free(out);
}

static void q8_0_is_within_half_a_step(void **state) {
    (void)state;
    enum { N = 32 * 64 };
    float x[N], y[N];
    uint8_t q[N / 32 * 34];
    tn_rng r = {7};
    for (int i = 0; i < N; i++) x[i] = (float)((tn_rng_f64(&r) - 0.5) * pow(10, (double)(i / 32 % 7) - 3));
    memset(x, 0, 32 * sizeof *x); /* a block of zeros has scale zero */
    tn_quantise_q8_0(x, q, N);
    tn_dequantise(TN_Q8_0, q, y, N);
    for (int b = 0; b < N / 32; b++) {
        float max = 0;
        for (int i = 0; i < 32; i++) max = fmaxf(max, fabsf(x[b * 32 + i]));
        /* half a step of max/127, and the scale's own rounding to F16 (2^-11, or 2^-25 absolute) on up to 127
         * steps */
        float bound = max / 254 + max * 0x1p-11f + 127 * 0x1p-25f;
        for (int i = 0; i < 32; i++) assert_true(fabsf(x[b * 32 + i] - y[b * 32 + i]) <= bound);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_matches_its_definition),
                                       cmocka_unit_test(every_type_equals_ggml),
                                       cmocka_unit_test(ik_types_equal_its_reference),
                                       cmocka_unit_test(plain_types),
                                       cmocka_unit_test(every_half),
                                       cmocka_unit_test(q8_0_is_within_half_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
