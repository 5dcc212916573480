/* What goes on in the background takes what nobody else wants, whether it was prepared or not: it runs at the lowest
 * priority, and so does its session where Linux shares processors among sessions first. */
#include "base/background.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const words[] = {"report", NULL};

static void session_of(char *line, size_t n) {
    FILE *f = fopen("/proc/self/autogroup", "re");
    *line = 0;
    if (f && !fgets(line, (int)n, f)) *line = 0;
    if (f) (void)fclose(f);
}

/* In the background: says where it stands, in a file that is there once it is whole. */
static int report(const char *to) {
    char part[128], line[80];
    (void)snprintf(part, sizeof part, "%s.part", to);
    FILE *f = fopen(part, "we");
    if (!f) return 1;
    session_of(line, sizeof line);
    (void)fprintf(f, "nice %d session %s", getpriority(PRIO_PROCESS, 0), line);
    return fclose(f) || rename(part, to);
}

static void stands_back(const char *to) {
    char here[80], line[120] = "";
    FILE *f = NULL;
    for (int i = 0; i < 6000 && !(f = fopen(to, "re")); i++) usleep(10000);
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    (void)fclose(f);
    (void)unlink(to);
    assert_non_null(strstr(line, "nice 19 "));
    session_of(here, sizeof here);
    if (*here) assert_non_null(strstr(line, " nice 19\n")); /* /autogroup-N nice 19 */
}

static void at_once_and_prepared(void **state) {
    (void)state;
    if (getenv("TERN_EMULATED")) skip(); /* QEMU starts itself again */
    char to[64];
    (void)snprintf(to, sizeof to, "/tmp/tern-background-%d", (int)getpid());
    assert_true(tn_background_run(words, to));
    stands_back(to);
    pid_t child = fork(); /* what was prepared begins when this one has ended */
    if (!child) {
        tn_background_prepare(words);
        _exit(!tn_background_run(words, to));
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    stands_back(to);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], words[0])) return report(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(at_once_and_prepared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
