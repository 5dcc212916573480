/* tests/libraries/loaded.c - a program that loads libraries: every thread may call one after it asked, what it calls cannot be changed, and who
 * does not ask is ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "libraries/library.h"

#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if TN_LOADS

enum { THREADS = 8 };

extern void *tn_slot_sqlite3_step, *tn_slot_MHD_stop_daemon; /* of src/libraries/stubs.h */

static bool is_writable(const void *p) {
    char line[512];
    bool writable = false, found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (!found && fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        char how[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, how) == 3 && (uintptr_t)p >= from && (uintptr_t)p < to)
            found = true, writable = how[1] == 'w';
    }
    fclose(f);
    assert_true(found);
    return writable;
}

static int add(void *sum, int n, char **values, char **names) {
    (void)n, (void)names;
    *(int *)sum += atoi(values[0]);
    return 0;
}

static void *use(void *sum) {
    sqlite3 *db;
    tern_error err;
    if (tn_library_need(TN_LIBRARY_SQLITE, &err) != TERN_OK) return NULL;
    if (sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK)
        (void)sqlite3_exec(db, "SELECT 40 + 2", add, sum, NULL);
    (void)sqlite3_close(db);
    return NULL;
}

static void every_thread_calls_it(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    int sums[THREADS] = {0};
    assert_false(is_writable(&tn_slot_sqlite3_step));
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, use, &sums[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(sums[i], 42);
    }
    assert_false(is_writable(&tn_slot_sqlite3_step));
}

static void who_does_not_ask_is_ended(void **state) {
    (void)state;
    assert_false(is_writable(&tn_slot_MHD_stop_daemon));
    if (getenv("TERN_EMULATED")) skip(); /* qemu's child of a fork hangs */
    int said[2], status = 0;
    char line[128] = "";
    assert_int_equal(pipe(said), 0);
    pid_t pid = fork();
    if (!pid) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(said[1], STDERR_FILENO);
        MHD_stop_daemon(NULL);
        _exit(0);
    }
    close(said[1]);
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(read(said[0], line, sizeof line - 1) > 0);
    close(said[0]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(line, "before it was asked for"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_does_not_ask_is_ended),
                                       cmocka_unit_test(every_thread_calls_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    puts("skipped: programs are linked with their libraries here");
    return 77;
}

#endif
