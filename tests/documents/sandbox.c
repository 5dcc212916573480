/* In the server's sandbox: what serving needs works, in threads that were there before and in new ones;
 * the rest is refused. */
#include "documents/reader.h"
#include "documents/sandbox.h"

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
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
    tern_status st = tn_sandbox_enter(TN_SANDBOX_SERVER, &err);
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

/* ---- processes that read documents ------------------------------------------------------------------- */

/* Runs a check in a child of its own; what it returns is its exit status. */
static void in_a_child(int (*check)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) _exit(check());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static char folder[64], allowed[80], secret[80], written[80];

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && !fclose(f));
}

/* A folder whose part "allowed" may be read. */
static int make_files(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tern-sandbox-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(allowed, sizeof allowed, "%s/allowed", folder);
    assert_int_equal(mkdir(allowed, 0700), 0);
    snprintf(written, sizeof written, "%s/allowed/text", folder);
    snprintf(secret, sizeof secret, "%s/secret", folder);
    put(written, "text");
    put(secret, "secret");
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    remove(written), remove(secret), remove(allowed);
    return remove(folder);
}

static bool opens(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static bool files_are_closed(void) {
    const tn_sandbox_path paths[] = {{"/usr", false}, {"/lib", false},  {"/lib64", false},
                                     {"/bin", false}, {allowed, false}, {"/no/such/folder", true}};
    tern_error err;
    char memory[32];
    snprintf(memory, sizeof memory, "/proc/%d/mem", (int)getppid());
    WANT(opens(memory, O_RDWR)); /* else what follows tells nothing */
    tern_status st = tn_sandbox_files(paths, sizeof paths / sizeof *paths, true, &err);
    if (st == TERN_E_UNSUPPORTED) return false;
    WANT(st == TERN_OK);
    WANT(opens(written, O_RDONLY));
    WANT(!opens(secret, O_RDONLY) && errno == EACCES);
    WANT(!opens(written, O_WRONLY) && errno == EACCES);
    WANT(!opens(written, O_RDONLY | O_TRUNC));
    WANT(unlink(written) && errno == EACCES);
    WANT(!opens(memory, O_RDONLY));
    WANT(!opens("/etc/passwd", O_RDONLY));
    return true;
}

static int reads(void) {
    tern_error err;
    char *const argv[] = {"/bin/false", NULL};
    if (!files_are_closed()) return SKIPPED;
    if (tn_sandbox_enter(TN_SANDBOX_READER, &err) == TERN_E_UNSUPPORTED) return SKIPPED;
    refused_here();
    WANT(opens(written, O_RDONLY));
    WANT(!opens(written, O_WRONLY) && errno == EPERM);
    WANT(kill(getppid(), 0) && errno == EPERM);
    WANT(execv(argv[0], argv) == -1 && errno == EPERM);
    WANT(malloc(1 << 20) != NULL);
    WANT(!prctl(PR_GET_DUMPABLE));
    return failures ? AFTER_ENTRY : 0;
}

/* Calls alone, as on a kernel without Landlock. */
static int reads_without_rules(void) {
    tern_error err;
    if (tn_sandbox_enter(TN_SANDBOX_READER, &err) == TERN_E_UNSUPPORTED) return SKIPPED;
    WANT(opens(secret, O_RDONLY));
    WANT(!opens(secret, O_WRONLY) && !opens(secret, O_RDWR) && !opens(secret, O_RDONLY | O_TRUNC));
    WANT(!opens("/tmp/tern-sandbox-new", O_RDONLY | O_CREAT));
    WANT(unlink(secret) && rename(secret, written) && chmod(secret, 0777) &&
         mkdir("/tmp/tern-sandbox-new", 0700));
    return failures ? AFTER_ENTRY : 0;
}

/* A program that is started to read a document is held to the same files. */
static int starts(void) {
    tern_error err;
    int status;
    if (!files_are_closed()) return SKIPPED;
    if (tn_sandbox_enter(TN_SANDBOX_STARTER, &err) == TERN_E_UNSUPPORTED) return SKIPPED;
    pid_t pid = fork();
    if (!pid) {
        execl("/bin/sh", "sh", "-c",
              "exec 2>&-; read x <\"$1\" || [ \"$x\" = text ] || exit 3; (read x <\"$0\") && exit 4; (: "
              ">\"$1\") && exit 5; exit 0",
              secret, written, NULL);
        _exit(9);
    }
    WANT(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    WANT(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EPERM);
    return failures ? AFTER_ENTRY : 0;
}

static void reader(void **state) {
    (void)state;
    in_a_child(reads);
}

static void reader_without_rules(void **state) {
    (void)state;
    in_a_child(reads_without_rules);
}

static void starter(void **state) {
    (void)state;
    in_a_child(starts);
}

/* The process that waits for documents is not dumpable: another of its user cannot write to its memory. */
static void nobody_writes_to_it(void **state) {
    (void)state;
    tn_reader *r;
    tern_error err;
    char *text, path[300];
    size_t n;
    assert_int_equal(tn_reader_open(1, &r, &err), TERN_OK);
    assert_int_equal(tn_reader_text(r, written, 100, &text, &n, &err), TERN_OK);
    assert_string_equal(text, "text");
    free(text);
    assert_int_equal(tn_reader_text(r, "/no/where: file", 100, &text, &n, &err), TERN_E_IO);
    assert_null(strstr(err.message, "where")); /* where it lies is not told */
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    int pid = 0;
    struct stat sb;
    if (f && fscanf(f, "%d", &pid) == 1) {
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_uid, 0); /* files of a process that is not dumpable belong to root */
        assert_true(!geteuid() || !opens(path, O_RDWR));
        snprintf(path, sizeof path, "/proc/%d/status", pid);
    }
    if (f) fclose(f);
    tn_reader_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sandbox),
        cmocka_unit_test(reader),
        cmocka_unit_test(reader_without_rules),
        cmocka_unit_test(starter),
        cmocka_unit_test(nobody_writes_to_it),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
