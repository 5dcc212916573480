/* In the server's sandbox: what serving needs works, in threads that were there before and in new ones;
 * the rest is refused. */
#include "server/sandbox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, AFTER_ENTRY = 1 };

static int failures;
#define WANT(what)                                                                                           \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            failures++;                                                                                      \
            fprintf(stderr, "not so: %s (%s)\n", #what, strerror(errno));                                    \
        }                                                                                                    \
    } while (0)

static void refused_here(void) {
    char *const argv[] = {"/bin/false", NULL}; /* whose exit status tells that it ran in our place */
    errno = 0;
    WANT(execv(argv[0], argv) == -1 && errno == EPERM);
    WANT(syscall(SYS_execveat, AT_FDCWD, argv[0], argv, NULL, 0) == -1 && errno == EPERM);
    WANT(syscall(SYS_io_uring_setup, 4, NULL) == -1 && errno == EPERM);
    pid_t pid = fork();
    if (!pid) _exit(0);
    WANT(pid == -1 && errno == EPERM);
    WANT(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EPERM);
    WANT(ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && errno == EPERM);
    WANT(setuid(getuid()) == -1 && errno == EPERM);
    WANT(unshare(CLONE_NEWNS) == -1 && errno == EPERM);
}

static pthread_barrier_t entered;

static void *was_there(void *arg) {
    (void)arg;
    pthread_barrier_wait(&entered);
    pthread_barrier_wait(&entered);
    refused_here();
    return NULL;
}

static void *is_new(void *arg) {
    char byte = 1;
    refused_here();
    WANT(write(*(int *)arg, &byte, 1) == 1);
    return NULL;
}

static int in_child(void) {
    pthread_t old, new;
    int ends[2];
    char byte = 0;
    tern_error err = {0};
    pthread_barrier_init(&entered, NULL, 2);
    WANT(!pipe(ends) && !pthread_create(&old, NULL, was_there, NULL));
    pthread_barrier_wait(&entered);
    tern_status st = tn_sandbox_enter(&err);
    if (st == TERN_E_UNSUPPORTED) {
        fprintf(stderr, "skipped: %s\n", err.message);
        _exit(SKIPPED);
    }
    WANT(st == TERN_OK);
    pthread_barrier_wait(&entered);
    pthread_join(old, NULL);
    refused_here();
    WANT(!pthread_create(&new, NULL, is_new, &ends[1]));
    WANT(read(ends[0], &byte, 1) == 1 && byte == 1);
    pthread_join(new, NULL);
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    WANT(fd >= 0 && read(fd, &byte, 1) == 1);
    WANT(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    return failures ? AFTER_ENTRY : 0;
}

static void sandbox(void **state) {
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) _exit(in_child());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) exit(SKIPPED);
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sandbox)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
