/* A line of progress is no wider than its terminal, which could not clear the rest; a terminal that is dumb
 * has none; texts of help end their lines between words. */
#include "cli/live.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void fits(void **state) {
    (void)state;
    assert_int_equal(cli_live_fit("packing", 80), 7);
    assert_int_equal(cli_live_fit("packing", 7), 7);
    assert_int_equal(cli_live_fit("packing", 6), 6);
    assert_int_equal(cli_live_fit("packing", 0), 0);
    assert_int_equal(cli_live_fit("", 5), 0);
    assert_int_equal(cli_live_fit("größer", 4), 6);     /* two letters of two bytes */
    assert_int_equal(cli_live_fit("項目 x", 4), 6);     /* two letters, four columns */
    assert_int_equal(cli_live_fit("項目 x", 3), 3);     /* no half of a letter */
    assert_int_equal(cli_live_fit("\xff\xc3", 80), 2);  /* what is no character takes a column */
    assert_int_equal(cli_live_fit("a\xe9\xa0", 80), 3); /* nor is what was cut */
}

/* Starts a child on a terminal of so many columns. It returns the child's exit status, and what the terminal showed. */
static int on_terminal(int columns, const char *term, int (*run)(void), char *out, size_t cap) {
    struct winsize w = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int fd;
    pid_t pid = forkpty(&fd, NULL, NULL, &w);
    if (!pid) {
        setenv("TERM", term, 1);
        _exit(run());
    }
    assert_true(pid > 0);
    size_t n = 0;
    for (ssize_t got; n + 1 < cap && (got = read(fd, out + n, cap - 1 - n)) > 0;) n += (size_t)got;
    out[n] = 0;
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(fd);
    return WEXITSTATUS(status);
}

static int say(void) {
    if (cli_live()) cli_live_line("%s", "packing: 63 %, about 1 s left (rounding the weights)");
    return cli_live();
}

static void narrow(void **state) {
    (void)state;
    char out[512];
    assert_int_equal(on_terminal(20, "xterm", say, out, sizeof out), 1);
    assert_string_equal(out, "\r\033[Kpacking: 63 %, abou");
    assert_int_equal(on_terminal(0, "xterm", say, out, sizeof out), 1); /* it does not say */
    assert_string_equal(out, "\r\033[Kpacking: 63 %, about 1 s left (rounding the weights)");
    assert_int_equal(on_terminal(80, "dumb", say, out, sizeof out), 0);
    assert_string_equal(out, "");
}

/* Words as a help text has them, from a margin on. */
static void wraps(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int margin, columns;
        const char *want;
    } cases[] = {
        {"one two three four five six seven", 0, 24, "one two three four five\nsix seven\n"},
        {"one two three four five six seven", 2, 26, "one two three four five\n  six seven\n"},
        {"one two three four five six seven", 0, 0, "one two three four five six seven\n"}, /* no terminal */
        {"one two three four five six seven", 20, 40, "one two three four five six seven\n"}, /* too narrow */
        {"first line\nsecond line", 4, 80, "first line\n    second line\n"},
        {"a-word-that-is-longer-than-the-line-is and more", 0, 24,
         "a-word-that-is-longer-than-the-line-is\nand more\n"},
        {"one two three four five  six", 0, 24, "one two three four five \nsix\n"},
        {"one two three four five.  six", 0, 24,
         "one two three four five.\nsix\n"}, /* two spaces where the line ends */
        {"  one\n  two ", 0, 24, "one\ntwo \n"},
        {"", 0, 80, "\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        FILE *f = fmemopen(out, sizeof out, "w");
        cli_print_wrapped(f, cases[i].text, cases[i].margin, cases[i].columns);
        fclose(f);
        assert_string_equal(out, cases[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fits), cmocka_unit_test(narrow),
                                       cmocka_unit_test(wraps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
