/* The measured limits: plausible where the processor has the instruction, zero or an error where it cannot be. */
#include "check.h"

#include "base/cpu.h"
#include "kernels/limits.h"

static void test_compute(void **state) {
    (void)state;
    uint32_t cpu = tn_cpu_detect();
    int has_vectors = (cpu & (TN_CPU_AVX2 | TN_CPU_NEON)) != 0;
    assert_int_equal(tn_limit_compute(TN_LIMIT_FP32, cpu, 1) > 1e6, has_vectors);
    assert_int_equal(tn_limit_compute(TN_LIMIT_INT8, cpu, 2) > 1e6, has_vectors);
    assert_true(tn_limit_compute(TN_LIMIT_FP32, 0, 1) == 0);
    assert_true(tn_limit_compute(TN_LIMIT_BF16, cpu & ~(uint32_t)(TN_CPU_AVX512BF16 | TN_CPU_BF16), 1) == 0);
    assert_true(tn_limit_compute(TN_LIMIT_FP32, cpu, 0) == 0);
}

static void test_memory(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    assert_true(tn_limit_memory(&ctx, 2, (size_t)8 << 20) > 1e6);
    assert_true(tn_limit_memory(&ctx, 2, 100) == 0);
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(ctx.live_bytes[i], 0);
}

static void test_disk(void **state) {
    (void)state;
    enum { MIB = 3 };
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    char path[] = TN_BINARY_DIR "/limits-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static uint8_t block[1 << 20];
    for (int i = 0; i < MIB; i++) assert_int_equal(write(fd, block, sizeof block), sizeof block);
    close(fd);
    tern_error err;
    double rate = 0;
    for (int readers = 1; readers <= 4; readers += 3) {
        assert_int_equal(tn_limit_disk(&ctx, path, false, readers, (uint64_t)1 << 30, &rate, &err), TERN_OK);
        assert_true(rate > 0);
        tern_status st = tn_limit_disk(&ctx, path, true, readers, (uint64_t)1 << 30, &rate, &err);
        assert_true(st == TERN_OK || st == TERN_E_UNSUPPORTED);
    }
    assert_int_equal(tn_limit_disk(&ctx, path, false, 1, 1000, &rate, &err), TERN_E_INVALID);
    assert_int_equal(tn_limit_disk(&ctx, path, false, 0, 1 << 20, &rate, &err), TERN_E_INVALID);
    unlink(path);
    assert_int_equal(tn_limit_disk(&ctx, path, false, 1, 1 << 20, &rate, &err), TERN_E_IO);
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(ctx.live_bytes[i], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compute), cmocka_unit_test(test_memory), cmocka_unit_test(test_disk)};
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
