/* Models are suggested that leave three quarters of a machine's memory, the largest first, and none where none fits. */
#include "cli/suggest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void fits(void **state) {
    (void)state;
    char text[256];
    for (double gb = 0.25; gb < 300; gb *= 1.1) {
        int n = cli_suggest((uint64_t)(gb * 1e9), text, sizeof text), lines = 0;
        double before = 1e9;
        for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1, lines++) {
            *end = 0;
            char *size = strrchr(p, ' ');
            assert_non_null(size);
            assert_memory_equal(p, "  tern pull ", 12);
            *size = 0;
            double want = atof(strrchr(p, ' '));
            assert_true(want > 0 && want < before && want < gb / 4);
            before = want;
        }
        assert_int_equal(n, lines);
        assert_int_equal(n > 0, gb >= 2.4);
        assert_true(n <= 3);
    }
    assert_int_equal(cli_suggest(0, text, sizeof text), 0);
    assert_int_equal(*text, 0);
}

static void short_buffer(void **state) {
    (void)state;
    char text[40];
    assert_int_equal(cli_suggest(UINT64_C(1) << 40, text, sizeof text), 1);
    assert_int_equal(cli_suggest(UINT64_C(1) << 40, text, 5), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fits), cmocka_unit_test(short_buffer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
