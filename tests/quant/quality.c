/* Do more bits make better packages, and does measured allocation earn its name? Judged by the KL divergence from
 * the source on text that was not calibrated on. */
#include "lab/eval.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL TN_SOURCE_DIR "/models/tern-tiny"

static tern_engine *source;
static char package[1024];

static double divergence(double bits, tn_allocation allocation, uint64_t *n_bytes) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    assert_int_equal(o.scheme, TN_SCHEME_GRAM);
    o.bits = bits;
    o.allocation = allocation;
    o.calib_tokens = 1024;
    tern_error err = {0};
    tn_pack_report r;
    if (tn_pack(&ctx, MODEL, package, &o, &r, &err) != TERN_OK) fail_msg("%g bits: %s", bits, err.message);
    tern_engine *e = NULL;
    if (tern_engine_open(package, NULL, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_eval_options eo = {.task = "ppl", .data = MODEL "/eval/english.txt", .limit = 4, .source = source};
    tn_eval_result res;
    if (tn_eval(e, &eo, &res, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_engine_close(&e);
    remove(package);
    *n_bytes = r.package_bytes;
    print_message("%g bits: %llu bytes, KL %.5f +- %.5f\n", bits, (unsigned long long)r.package_bytes,
                  res.loss.kl.value, res.loss.kl.stderr_);
    return res.loss.kl.value;
}

static void more_bits_are_better(void **state) {
    (void)state;
    static const double bits[] = {3, 3.5, 4, 5, 6, 8};
    double before = 1, at_4 = 0;
    uint64_t bytes_before = 0, bytes;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        double kl = divergence(bits[i], TN_ALLOCATE_DEFAULT, &bytes);
        if (!(kl > 0 && kl < before)) fail_msg("%g bits diverge by %g, fewer by %g", bits[i], kl, before);
        assert_true(bytes > bytes_before);
        before = kl;
        bytes_before = bytes;
        if (bits[i] == 4) at_4 = kl;
    }
    double uniform = divergence(4, TN_ALLOCATE_UNIFORM, &bytes);
    if (!(at_4 < 0.6 * uniform))
        fail_msg("4 bits by loss diverge by %g, everywhere the same by %g", at_4, uniform);
}

static void refused(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tern_error err = {0};
    tn_pack_defaults(&o);
    o.shadow = TN_SHADOW_ON; /* it has no outlier paths */
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.allocation = TN_ALLOCATE_RE;
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.bits = 1.5; /* by loss no channel has fewer than 2 */
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_EDGEFLOW;
    o.allocation = TN_ALLOCATE_LOSS;
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
}

int main(void) {
    struct stat st;
    if (stat(MODEL, &st)) {
        printf("no %s; skipped\n", MODEL);
        return 77;
    }
    snprintf(package, sizeof package, TN_BINARY_DIR "/quality.%d.tern", (int)getpid());
    tern_error err;
    if (tern_engine_open(MODEL, NULL, &source, &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_bits_are_better), cmocka_unit_test(refused)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tern_engine_close(&source);
    return rc;
}
