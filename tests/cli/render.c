/* tests/cli/render.c - what an answer becomes on a terminal: the same however it is cut into tokens; no
 * byte of it is a command. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/harmful.h"
#include "cli/render.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static char *rendered(const char *text, size_t n, bool colours, size_t step) {
    char *out = NULL;
    size_t n_out;
    FILE *f = open_memstream(&out, &n_out);
    render r;
    cli_render_begin(&r, f, colours);
    for (size_t i = 0; i < n; i += step) cli_render_put(&r, text + i, n - i < step ? n - i : step);
    cli_render_end(&r);
    fclose(f);
    return out;
}

static void is(const char *text, bool colours, const char *want) {
    for (size_t step = 1; step < 9; step++) {
        char *got = rendered(text, strlen(text), colours, step);
        assert_string_equal(got, want);
        free(got);
    }
}

#define B "\033[0;1m"
#define C "\033[0;36m"
#define D "\033[0;2m"
#define N "\033[0m"

static void styles(void **state) {
    (void)state;
    is("plain *text* <thing> 2 * 3 # no", true, "plain *text* <thing> 2 * 3 # no");
    is("a **bold** b", true, "a " B "bold" N " b");
    is("a `co**de` b", true, "a " C "co**de" N " b");
    is("`x` y", true, C "x" N " y");
    is("# Title\ntext", true, B "# Title\n" N "text");
    is("####### no", true, "####### no");
    is("x\n```c\na **b** `c`\n```\ny", true, "x\n" C "```c\na **b** `c`\n" N "```\ny");
    is("<think>hm</think>yes", true, D "hm" N "yes");
    is("<thi", true, "<thi");
    is("é **ü** \xe2\x82\xac", true, "é " B "ü" N " \xe2\x82\xac");
    is("open **end", true, "open " B "end" N);
    is("# a **b** <think>`c`", false, "# a **b** <think>`c`");
}

static void harmless(void **state) {
    (void)state;
    is("a\033[2Jb\rc\ad\x7f", false,
       "a\xef\xbf\xbd[2Jb\xef\xbf\xbd"
       "c\xef\xbf\xbd"
       "d\xef\xbf\xbd");
    is("\xc2\x9b"
       "31m \xe2\x80\xae x\ty\n",
       false,
       "\xef\xbf\xbd"
       "31m \xef\xbf\xbd x\ty\n");
    is("\xff\xe2\x82", false, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

static void which_are_harmful(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"\x01", 1},
                 {"\033", 1},
                 {"\n", 1},
                 {"\x7f", 1},
                 {" ", 0},
                 {"~", 0},
                 {"\xc2\x80", 2},
                 {"\xc2\x9f", 2},
                 {"\xc2\xa0", 0},
                 {"\xc3\x80", 0},
                 {"\xe2\x80\xa9", 0},
                 {"\xe2\x80\xaa", 3},
                 {"\xe2\x80\xae", 3},
                 {"\xe2\x80\xaf", 0},
                 {"\xe2\x81\xa5", 0},
                 {"\xe2\x81\xa6", 3},
                 {"\xe2\x81\xa9", 3},
                 {"\xe2\x81\xaa", 0},
                 {"\xe2\x82\xac", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        assert_int_equal(harmful_bytes(cases[i].text, n), cases[i].n);
        if (n > 1) assert_int_equal(harmful_bytes(cases[i].text, n - 1), 0); /* not whole */
    }
}

/* What nobody sees, besides. */
static void unseen(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {{"a", 0},
                 {"\n", 1},
                 {"\xe2\x80\xae", 3},
                 {"\xc2\xad", 2},
                 {"\xc2\xae", 0},
                 {"\xd8\x9b", 0},
                 {"\xd8\x9c", 2},
                 {"\xe1\x85\x9e", 0},
                 {"\xe1\x85\x9f", 3},
                 {"\xe1\xa0\x8b", 3},
                 {"\xe1\xa0\x90", 0},
                 {"\xe2\x80\x8a", 0},
                 {"\xe2\x80\x8b", 3},
                 {"\xe2\x80\x8f", 3},
                 {"\xe2\x80\x90", 0},
                 {"\xe2\x80\xa8", 3},
                 {"\xe2\x80\xa9", 3},
                 {"\xe2\x80\xaf", 0},
                 {"\xe2\x81\x9f", 0},
                 {"\xe2\x81\xa0", 3},
                 {"\xe2\x81\xaf", 3},
                 {"\xe3\x85\xa3", 0},
                 {"\xe3\x85\xa4", 3},
                 {"\xef\xbb\xbf", 3},
                 {"\xef\xbe\xa0", 3},
                 {"\xef\xbe\xa1", 0},
                 {"\xf3\xa0\x80\x80", 4},
                 {"\xf3\xa0\x81\xbf", 4},
                 {"\xf3\xa0\x82\x80", 0},
                 {"\xf0\x9f\x98\x80", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        assert_int_equal(unseen_bytes(cases[i].text, n), cases[i].n);
        if (n > 1) assert_int_equal(unseen_bytes(cases[i].text, n - 1), 0); /* not whole */
    }
}

/* Random bytes, cut at random: the escapes are the renderer's own, and cutting changes nothing. */
static void random_bytes(void **state) {
    (void)state;
    tn_rng rng = {11};
    static const char pieces[] = "**``###  <think></think>\n\n\033\xc2\x9b\xe2\x80\xae"
                                 "ab";
    for (int round = 0; round < 2000; round++) {
        char text[64];
        for (size_t i = 0; i < sizeof text; i++) text[i] = pieces[tn_rng_below(&rng, sizeof pieces - 1)];
        char *whole = rendered(text, sizeof text, true, sizeof text),
             *cut = rendered(text, sizeof text, true, 1 + tn_rng_below(&rng, 7));
        assert_string_equal(whole, cut);
        for (const char *p = whole; (p = strchr(p, '\033')); p++) {
            size_t n = strspn(p + 1, "[0123456789;");
            assert_true(p[1] == '[' && p[1 + n] == 'm');
        }
        free(whole);
        free(cut);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(styles), cmocka_unit_test(harmless),
                                       cmocka_unit_test(which_are_harmful), cmocka_unit_test(unseen),
                                       cmocka_unit_test(random_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
