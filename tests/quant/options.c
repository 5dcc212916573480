/* Are options that do not go together refused before anything is measured? */
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL TN_SOURCE_DIR "/models/tern-tiny"

static char package[1024];

static void refused(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tern_error err = {0};
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_GRAM;
    o.outliers = TN_OUTLIERS_ON; /* it has no outlier paths */
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_GRAM;
    o.allocation = TN_ALLOCATE_RE;
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_GRAM;
    o.bits = 1.5; /* by loss no channel has fewer than 2 */
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.quick = true;
    o.quality = 0.01; /* quick has one pass */
    assert_int_equal(tn_pack(&ctx, MODEL, package, &o, NULL, &err), TERN_E_INVALID);
    tn_pack_defaults(&o);
    o.quick = true;
    o.scheme = TN_SCHEME_EDGEFLOW;
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
    snprintf(package, sizeof package, TN_BINARY_DIR "/options.%d.tern", (int)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
