/* tests/cli/terminal.c - what a person types into a terminal becomes which messages. A child has the
 * terminal; the test types when it sees a prompt, so nothing depends on time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/terminal.h"

#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static char history[300];

/* The child: messages go to a pipe, one a line, their ends of line as '|'. A message "/" asks for a
 * suggestion, "forget" that what was typed leaves the history. */
static void child(int out) {
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    terminal *t = cli_terminal_open(history, NULL);
    terminal_event e;
    do {
        const char *text = "";
        e = cli_terminal_read(t, &text);
        if (e == TERMINAL_TEXT && !strcmp(text, "/")) {
            cli_terminal_suggest(t, "old\nü");
            text = "(suggested)";
        }
        if (e == TERMINAL_TEXT && !strcmp(text, "forget")) cli_terminal_forget(t);
        char line[4096];
        int n = snprintf(line, sizeof line, "%s\n",
                         e == TERMINAL_TEXT    ? text
                         : e == TERMINAL_CLEAR ? "(clear)"
                                               : "(end)");
        for (int i = 0; i + 1 < n; i++)
            if (line[i] == '\n') line[i] = '|';
        if (write(out, line, (size_t)n) != n) _exit(1);
    } while (e != TERMINAL_END);
    cli_terminal_close(&t);
    _exit(0);
}

/* What the child said, and where its terminal is. */
typedef struct person {
    int screen, pipe;
    char said[4096];
    size_t n;
} person;

/* Reads the screen and what the child says until it has said another line, or asks for one more of the
 * same message; the first time: until it asks for the first. Then until the terminal takes keys as they
 * come, since before that the kernel would obey some of them. false: the child is gone. */
static bool wait_for(person *w, bool first) {
    char last[4] = "", c;
    for (size_t n = w->n;;) {
        bool asked = !memcmp(last, "... ", 4) || (first && !memcmp(last + 2, "> ", 2));
        if (asked || (w->n > n && w->said[w->n - 1] == '\n')) break;
        struct pollfd p[2] = {{.fd = w->screen, .events = POLLIN}, {.fd = w->pipe, .events = POLLIN}};
        poll(p, 2, -1);
        if (p[1].revents & POLLIN && read(w->pipe, &c, 1) == 1 && w->n + 1 < sizeof w->said)
            w->said[w->n++] = c;
        else if (!(p[0].revents & POLLIN) || read(w->screen, &c, 1) != 1) return false;
        else {
            memmove(last, last + 1, 3);
            last[3] = c;
        }
    }
    struct termios t;
    while (!tcgetattr(w->screen, &t) && t.c_lflag & ICANON) sched_yield();
    return true;
}

/* keys: what is typed, piece by piece; NULL ends. want: what the child says. */
static void typed(const char *const *keys, const char *want) {
    int fds[2];
    person w = {0};
    assert_int_equal(pipe(fds), 0);
    pid_t pid = forkpty(&w.screen, NULL, NULL, NULL);
    assert_true(pid >= 0);
    if (!pid) child(fds[1]);
    close(fds[1]);
    w.pipe = fds[0];
    for (bool first = true; *keys && wait_for(&w, first); keys++, first = false)
        assert_int_equal(write(w.screen, *keys, strlen(*keys)), (ssize_t)strlen(*keys));
    char c;
    while (read(w.screen, &c, 1) == 1) {
    }
    for (ssize_t k; (k = read(w.pipe, w.said + w.n, sizeof w.said - 1 - w.n)) > 0;) w.n += (size_t)k;
    close(w.pipe);
    close(w.screen);
    waitpid(pid, NULL, 0);
    assert_string_equal(w.said, want);
}

#define TYPED(want, ...) typed((const char *const[]){__VA_ARGS__, "\x04", NULL}, want "(end)\n")

static void messages(void **state) {
    (void)state;
    TYPED("hello\n", "hello\r");
    TYPED("gr\xc3\xbc\xc3\x9f \xe2\x82\xac\n", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac\r");
    TYPED("xzy\n", "xy\033[Dz\r");
    TYPED("two\n", "\r  \rtwo\r");
}

static void several_lines(void **state) {
    (void)state;
    TYPED("one|two|three x\n", "\033[200~one\ntwo\rthree\033[201~ x\r");
    TYPED("a|b\n", "a\\\r", "b\r");
    TYPED("l1|l2 \\\n", "\"\"\"\r", "l1\r", "l2 \\\r", "\"\"\"\r");
    TYPED("(suggested)\nold|\xc3\xbc more\n", "/\r", " more\r");
}

static void interrupts(void **state) {
    (void)state;
    TYPED("(clear)\ndef\n", "abc\x03", "def\r");
    TYPED("(clear)\nx\n", "a\\\r", "b\x03", "x\r");
}

/* It lasts, it is private, and what was several lines comes back so. */
static void past(void **state) {
    (void)state;
    unlink(history);
    TYPED("a|b\n", "\033[200~a\nb\033[201~\r");
    struct stat st;
    assert_int_equal(stat(history, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    TYPED("a|b\n", "\033[A\r");
    assert_int_equal(chmod(history, 0644), 0);
    TYPED("c\n", "c\r");
    assert_int_equal(stat(history, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static bool in_history(const char *text) {
    char all[4096] = "";
    FILE *f = fopen(history, "r");
    if (!f) return false;
    size_t n = fread(all, 1, sizeof all - 1, f);
    fclose(f);
    all[n] = 0;
    return strstr(all, text) != NULL;
}

/* What is no history is not written over: it may be somebody's notes. */
static void not_a_past(void **state) {
    (void)state;
    FILE *f = fopen(history, "w");
    assert_non_null(f);
    fputs("my notes\n", f);
    assert_int_equal(fclose(f), 0);
    TYPED("a\nb\n", "a\r", "b\r");
    assert_true(in_history("my notes"));
    assert_false(in_history("b"));
    unlink(history);
}

/* What was typed since the last forgetting leaves the history and its file; what was typed before stays. */
static void forgotten(void **state) {
    (void)state;
    unlink(history);
    TYPED("kept\n", "kept\r");
    TYPED("secret\nother\nforget\nlater\n", "secret\r", "other\r", "forget\r", "later\r");
    assert_true(in_history("kept") && in_history("later"));
    assert_false(in_history("secret") || in_history("other") || in_history("forget"));
    TYPED("forget\nkept\n", "forget\r", "\033[A\033[A\r"); /* nothing but itself; before it stands "later" */
    assert_true(in_history("kept") && in_history("later"));
}

static int setup(void **state) {
    (void)state;
    snprintf(history, sizeof history, TN_BINARY_DIR "/terminal-%ld.history", (long)getpid());
    signal(SIGPIPE, SIG_IGN);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    unlink(history);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages),   cmocka_unit_test(several_lines),
                                       cmocka_unit_test(interrupts), cmocka_unit_test(past),
                                       cmocka_unit_test(not_a_past), cmocka_unit_test(forgotten)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
