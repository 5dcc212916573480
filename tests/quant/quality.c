/* Does a byte buy what it should: with scheme gram, is no package with more bits worse than one with
 * fewer, from little calibration text too; do rows of a packed output layer read the same packed and
 * unpacked, and are packages the same bytes each time? */
#include "measure/eval.h"
#include "quant/pack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define MODEL TN_SOURCE_DIR "/models/tern-tiny"

static char package[1024], other[1024];
static const char *calib = MODEL "/calib.txt";
static bool quick; /* under a sanitizer, where a package takes a minute: three of them */

static void pack(const char *path, tn_scheme scheme, double bits, int32_t tokens, double quality,
                 tn_pack_report *report) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = scheme;
    o.bits = bits;
    o.quality = quality;
    o.calib_path = calib;
    o.calib_tokens = tokens;
    tern_error err = {0};
    if (tn_pack(&ctx, MODEL, path, &o, report, &err) != TERN_OK) fail_msg("%s", err.message);
}

static tn_eval_result evaluate(const char *path, tern_engine *source, const char *weights) {
    tern_options *o = NULL;
    tern_engine *e = NULL;
    tern_error err = {0};
    if (tern_options_new(&o, &err) != TERN_OK ||
        tern_options_set(o, "attention", "full", &err) != TERN_OK || /* what is measured is the weights */
        (weights && tern_options_set(o, "weights", weights, &err) != TERN_OK) ||
        tern_engine_open(path, o, &e, &err) != TERN_OK)
        fail_msg("%s", err.message);
    tern_options_free(&o);
    const tn_eval_options eo = {.task = "ppl",
                                .data = MODEL "/eval/english.txt",
                                .n_ctx = 256,
                                .limit = quick ? 1 : 6,
                                .source = source};
    tn_eval_result r;
    if (tn_eval(e, &eo, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_engine_close(&e);
    return r;
}

static void more_bits_are_never_worse(void **state) {
    (void)state;
    tern_engine *source = NULL;
    tern_error err = {0};
    if (tern_engine_open(MODEL, NULL, &source, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_estimate before = {0};
    double size = 0;
    for (int bits = 3; bits <= 8; bits += fixture_level(5, bits == 3 ? 2 : 3, 1)) {
        tn_pack_report report;
        pack(package, TN_SCHEME_GRAM, bits, quick ? 256 : 512, 0, &report);
        tn_estimate kl = evaluate(package, source, NULL).loss.kl;
        print_message("%d bits: %.1f KB, KL %.5f +- %.5f\n", bits, (double)report.package_bytes / 1e3,
                      kl.value, kl.stderr_);
        /* both were measured on the same tokens: what is left of the noise is small beside their own
         * errors */
        if (bits > 3 && !(kl.value <= before.value + 2 * (kl.stderr_ + before.stderr_)))
            fail_msg("%d bits: KL %g, with fewer bits %g", bits, kl.value, before.value);
        if (bits == 3) assert_true(kl.value > 0.01); /* the measure sees errors */
        if (bits == 8 && !quick && !(kl.value < 0.004)) fail_msg("8 bits: KL %g", kl.value);
        assert_true((double)report.package_bytes > size);
        size = (double)report.package_bytes;
        before = kl;
    }
    tern_engine_close(&source);
}

/* A wanted loss gives bits: no more than it is lost, and with a quarter of a bit less more is. */
static void loss_names_bits(void **state) {
    (void)state;
    if (quick) skip();
    const double wanted = 0.004;
    tn_pack_report report, less;
    pack(package, TN_SCHEME_GRAM, 0, 512, wanted, &report);
    print_message("%g %%: %.2f bits, KL %.5f\n", 100 * wanted, report.bits, report.kl);
    assert_true(report.kl > 0 && report.kl <= log1p(wanted) && !report.not_enough);
    assert_true(report.bits > 3.2 && report.bits < 7.8);
    pack(package, TN_SCHEME_GRAM, floor(4 * report.bits + 0.5) / 4 - 0.25, 512, 0, &less);
    assert_true(less.kl > log1p(wanted));
    pack(package, TN_SCHEME_GRAM, 0, 128, 0.0001, &report); /* what nothing reaches */
    assert_true(report.not_enough && report.bits == 8 && report.kl > 0.0001);
}

/* The loss that packing prints is what evaluation finds, on text of the same kind. */
static void judged_as_evaluated(void **state) {
    (void)state;
    if (quick) skip();
    tern_engine *source = NULL;
    tern_error err = {0};
    if (tern_engine_open(MODEL, NULL, &source, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_pack_report report;
    calib = MODEL "/eval/english.txt"; /* windows of 2048 tokens for both */
    pack(package, TN_SCHEME_GRAM, 4, 2048, 0, &report);
    calib = MODEL "/calib.txt";
    tn_estimate kl = evaluate(package, source, NULL).loss.kl;
    print_message("judged %.5f +- %.5f, evaluated %.5f +- %.5f\n", report.kl, report.kl_stderr, kl.value,
                  kl.stderr_);
    /* The text kept apart is a part of what is evaluated, in shorter windows: their errors, and a fifth. */
    if (!(fabs(report.kl - kl.value) < 3 * (report.kl_stderr + kl.stderr_) + 0.2 * kl.value))
        fail_msg("judged %g, evaluated %g", report.kl, kl.value);
    assert_true(report.n_held_tokens > 200);
    tern_engine_close(&source);
}

static void packed_or_not_and_again(void **state) {
    (void)state;
    pack(package, TN_SCHEME_GRAM, 5, quick ? 128 : 256, 0, NULL);
    tn_eval_result tiles = evaluate(package, NULL, "tiles"), packed = evaluate(package, NULL, "packed");
    assert_true(tiles.value > 1 && tiles.value == packed.value);
    if (quick) return;
    pack(other, TN_SCHEME_GRAM, 5, 256, 0, NULL); /* once more: the same bytes */
    FILE *a = fopen(package, "rb"), *b = fopen(other, "rb");
    assert_true(a && b);
    long at = 0;
    for (int x, y; (x = getc(a)) == (y = getc(b)) && x != EOF;) at++;
    assert_true(at > 100000 && feof(a) && feof(b));
    fclose(a);
    fclose(b);
}

int main(void) {
    struct stat st;
    if (stat(MODEL, &st)) {
        printf("no %s; skipped\n", MODEL);
        return 77;
    }
    quick = getenv("TERN_TEST_QUICK") != NULL;
    snprintf(package, sizeof package, TN_BINARY_DIR "/quality.%d.tern", (int)getpid());
    snprintf(other, sizeof other, TN_BINARY_DIR "/quality-other.%d.tern", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_bits_are_never_worse),
        cmocka_unit_test(loss_names_bits),
        cmocka_unit_test(judged_as_evaluated),
        cmocka_unit_test(packed_or_not_and_again),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(package);
    unlink(other);
    return rc;
}
