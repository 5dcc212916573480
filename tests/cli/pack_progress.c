/* The line that packing shows: one measure of all its stages, which never goes back, and words that say what happens. */
#include "cli/pack_progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void never_goes_back(void **state) {
    (void)state;
    static const char *const stages[] = {"load",      "text",      "sense", "calibrate",
                                         "calibrate", "calibrate", "pack"};
    pack_progress p = {0};
    double last = 0, done = 0;
    for (size_t s = 0; s < sizeof stages / sizeof stages[0]; s++) {
        for (int i = 1; i <= 4; i++) {
            done = cli_pack_progress(&p, stages[s], i / 4.0);
            assert_true(done > last && done < 1);
            last = done;
        }
    }
    assert_true(last > 0.95);
}

static void one_estimate(void **state) {
    (void)state;
    char line[160];
    pack_progress p = {0};
    assert_string_equal(cli_pack_progress_line(&p, "sense", 0.5, 100, line, sizeof line),
                        "packing: 19 % (measuring which weights matter)");
    assert_string_equal(cli_pack_progress_line(&p, "sense", 1, 110, line, sizeof line),
                        "packing: 38 %, about 16 s left (measuring which weights matter)");
    cli_pack_progress_line(&p, "calibrate", 0.5, 120, line, sizeof line);
    assert_non_null(strstr(line, "about 15 s left (rounding the weights)"));
    cli_pack_progress_line(&p, "unheard", 0.5, 1000, line, sizeof line);
    assert_non_null(strstr(line, "min left (working)"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_goes_back), cmocka_unit_test(one_estimate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
