/* Words that two answers' last lines share. */
#include "cli/common_words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

static void common_words(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        double want;
    } all[] = {{"The answer is 18.", "the answer is: 18", 1},
               {"so 18", "so 20", .5},
               {"18 + 2 is 20\n\nAnswer: 20\n", "It has 12 and 8.\nanswer 20", 1},
               {"a a b", "a b b", 2.0 / 3}, /* as often as in both */
               {"", "", 1},
               {"...\n", "", 1},
               {"word", "", 0},
               {"Straße 5", "Straße 6", .5},
               {"x", "xx", 0},
               {"one\ntwo\n ... \n", "two", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const double got = cli_common_words(all[i].a, all[i].b), back = cli_common_words(all[i].b, all[i].a);
        if (fabs(got - all[i].want) > 1e-12 || got != back)
            fail_msg("%s | %s: %g, want %g", all[i].a, all[i].b, got, all[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(common_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
