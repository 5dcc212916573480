/* Block formats against ggml's reference (dequant_vectors.bin; regenerate with tests/oracle/dequant_vectors.py), bit for bit. */
#include "formats/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void every_type_equals_ggml(void **state) {
    (void)state;
    FILE *f = fopen(TN_SOURCE_DIR "/tests/formats/dequant_vectors.bin", "rb");
    assert_non_null(f);
    for (int t = TN_Q8_0; t < TN_N_DTYPES; t++) {
        tn_dtype d = (tn_dtype)t;
        uint8_t blocks[512];
        float want[512], got[512];
        size_t n_bytes = 2 * (size_t)tn_dtype_block_bytes(d), n = 2 * (size_t)tn_dtype_block(d);
        assert_int_equal(fread(blocks, 1, n_bytes, f), n_bytes);
        assert_int_equal(fread(want, 4, n, f), n);
        tn_dequantise(d, blocks, got, n);
        for (size_t i = 0; i < n; i++) {
            /* the same products, perhaps in another order: one rounding apart at most */
            if (fabsf(got[i] - want[i]) > 2e-6f * fabsf(want[i]) + 1e-7f) fail_msg("%s value %zu: %.9g, want %.9g", tn_dtype_name(d), i, (double)got[i], (double)want[i]);
        }
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_equals_ggml), cmocka_unit_test(plain_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
