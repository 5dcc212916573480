/* A word that is not known means the nearest that is, within two letters. */
#include "cli/spelling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static const char *meant(const char *word, spelling *s) {
    static const char *const known[] = {"--temp",
                                        "--temperature",
                                        "--prompt",
                                        "--prompt-cache",
                                        "--top-k",
                                        "--top-p",
                                        "run",
                                        "chat",
                                        "-a-name-that-is-longer-than-any-is"};
    cli_spelling_begin(s, word);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        cli_spelling_try(s, known[i], strlen(known[i]));
    return s->meant;
}

static void near(void **state) {
    (void)state;
    spelling s;
    assert_string_equal(meant("--temprature", &s), "--temperature");
    assert_string_equal(meant("--tmp", &s), "--temp");
    assert_string_equal(meant("--propmt", &s), "--prompt"); /* two letters swapped are two changes */
    assert_string_equal(meant("--top-kk", &s), "--top-k");
    assert_string_equal(meant("--top-q", &s), "--top-k"); /* of two the first */
    assert_string_equal(meant("chatt", &s), "chat");
    assert_string_equal(meant("rum", &s), "run");
    assert_string_equal(meant("cap", &s), ""); /* two letters of three are another word */
    assert_string_equal(meant("un", &s), "");  /* and one of two is, too */
    assert_string_equal(meant("--tempus", &s), "--temp");
    assert_string_equal(meant("--temus", &s), ""); /* two of five */
    assert_string_equal(meant("rmm", &s), "");     /* two letters of three are another word */
    assert_string_equal(meant("--xyzzy", &s), "");
    assert_string_equal(meant("", &s), "");
    assert_string_equal(meant("-a-name-that-is-longer-than-any-is", &s), "");
    assert_string_equal(meant("--prompt-that-is-longer-than-any-word-may-be", &s), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(near)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
