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
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <linux/sockios.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <dirent.h>
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

static bool is_refused(long result) { return result == -1 && errno == EPERM; }

/* What needs no other file, program or connection, and reaches what is not this process's all the same. */
static void no_other_way(void) {
    int none = -1;
    WANT(is_refused(ioctl(none, TIOCSTI, "x"))); /* a shell would run what is typed into its terminal */
    WANT(is_refused(ioctl(none, TIOCLINUX, "x")));
    WANT(is_refused(ioctl(none, FIOSETOWN, &none)) && is_refused(fcntl(none, F_SETOWN, getppid())));
    WANT(is_refused(kill(getppid(), 0)));
    WANT(is_refused(syscall(SYS_tgkill, getppid(), getppid(), 0)));
    WANT(is_refused(syscall(SYS_tkill, getppid(), 0)));
    WANT(is_refused(syscall(SYS_rt_sigqueueinfo, getppid(), 0, NULL)));
    WANT(is_refused(syscall(SYS_rt_tgsigqueueinfo, getppid(), getppid(), 0, NULL)));
    WANT(is_refused(syscall(SYS_pidfd_send_signal, none, 0, NULL, 0)));
    WANT(is_refused(setpgid(0, 0)) && is_refused(setsid()));
    WANT(is_refused(shmget(IPC_PRIVATE, 4096, 0600)));
    WANT(is_refused(msgget(IPC_PRIVATE, 0600)) || is_refused(msgrcv(none, NULL, 0, 0, 0)));
    WANT(is_refused(syscall(SYS_mq_open, "x", O_RDONLY, 0, NULL)));
    WANT(is_refused(chmod("/no/such/file", 0644)) &&
         is_refused(fchmodat(AT_FDCWD, "/no/such/file", 04700, 0)));
    WANT(is_refused(lchown("/no/such/file", 0, 0)) && is_refused(chown("/no/such/file", 0, 0)));
    WANT(is_refused(syscall(452, AT_FDCWD, "/no/such/file", 0600, 0)));                      /* fchmodat2 */
    WANT(is_refused(syscall(463, AT_FDCWD, "/no/such/file", 0, "user.x", NULL, (size_t)0))); /* setxattrat */
    WANT(is_refused(syscall(SYS_setxattr, "/no/such/file", "user.x", "x", (size_t)1, 0)));
    WANT(is_refused(syscall(SYS_lremovexattr, "/no/such/file", "user.x")));
    WANT(!syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), 0)); /* its own threads are */
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
    int ends[2], pair[2];
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
    no_other_way();
    WANT(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair)); /* of a connection of TLS */
    WANT(is_refused(socketpair(AF_INET, SOCK_STREAM, 0, pair)));
    WANT(chmod("/no/such/file", 0700) == -1 && errno == ENOENT); /* a folder of its own is kept private */
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

/* Of all numbers that calls have, and of those that they do not have yet, a reader of documents has these and no
 * others. Only what is refused is called. */
static void nothing_unknown(void) {
    static const int known[] = {SYS_read,
                                SYS_readv,
                                SYS_pread64,
                                SYS_write,
                                SYS_writev,
                                SYS_close,
                                SYS_lseek,
                                SYS_fstat,
                                SYS_newfstatat,
                                SYS_statx,
                                SYS_faccessat,
                                SYS_readlinkat,
                                SYS_getdents64,
                                SYS_getcwd,
                                SYS_dup,
                                SYS_ppoll,
#ifdef SYS_stat
                                SYS_stat,
                                SYS_lstat,
                                SYS_access,
                                SYS_readlink,
                                SYS_poll,
                                SYS_time,
#endif
                                SYS_mmap,
                                SYS_munmap,
                                SYS_mprotect,
                                SYS_mremap,
                                SYS_madvise,
                                SYS_brk,
                                SYS_rt_sigaction,
                                SYS_rt_sigprocmask,
                                SYS_rt_sigreturn,
                                SYS_sigaltstack,
                                SYS_futex,
                                SYS_sched_yield,
                                SYS_sched_getaffinity,
                                SYS_rseq,
                                SYS_set_robust_list,
                                SYS_nanosleep,
                                SYS_clock_nanosleep,
                                SYS_clock_gettime,
                                SYS_gettimeofday,
                                SYS_getrandom,
                                SYS_getrlimit,
                                SYS_getrusage,
                                SYS_sysinfo,
                                SYS_uname,
                                SYS_getpid,
                                SYS_getppid,
                                SYS_gettid,
                                SYS_getuid,
                                SYS_geteuid,
                                SYS_getgid,
                                SYS_getegid,
                                SYS_restart_syscall,
                                SYS_exit,
                                SYS_exit_group,
                                SYS_clone3 /* "there is none", so that the C library takes clone */};
    for (int n = 0; n < 1024; n++) {
        bool is_known = n >= 335 && n < 424; /* no calls, but for the two of probes_do_nothing */
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= known[i] == n;
        /* arguments of which none is open to reading, a thread of ours, or a question about ourselves */
        if (!is_known && !is_refused(syscall(n, -1L, -1L, -1L, -1L, -1L, -1L))) {
            failures++;
            fprintf(stderr, "call %d is not refused\n", n);
        }
    }
}

static int reads(void) {
    tern_error err;
    char *const argv[] = {"/bin/false", NULL};
    if (!files_are_closed()) return SKIPPED;
    if (tn_sandbox_enter(TN_SANDBOX_READER, &err) == TERN_E_UNSUPPORTED) return SKIPPED;
    refused_here();
    no_other_way();
    nothing_unknown();
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

/* Two calls of x86-64 pass every filter, by the kernel's own exception for the probes that it places in programs. From
 * anywhere but such a probe they are no way to anything: an error, or this process's end. */
static void probes_do_nothing(void **state) {
    (void)state;
#ifdef __x86_64__
    for (long n = 335; n <= 336; n++) {
        tern_error err;
        int status;
        fflush(NULL);
        pid_t pid = fork();
        if (!pid) {
            for (int i = 1; i < 32; i++) (void)signal(i, SIG_DFL); /* the test's own come back */
            (void)tn_sandbox_enter(TN_SANDBOX_READER, &err);
            _exit(syscall(n, -1L, -1L, -1L, -1L, -1L, -1L) == -1 ? 0 : AFTER_ENTRY);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) || !WEXITSTATUS(status));
    }
#endif
}

static void starter(void **state) {
    (void)state;
    in_a_child(starts);
}

/* Open descriptors of a process, of which only root may know. */
static int n_open(int pid) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) n += f->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* As many as `n` of them are left at last: a process that has just started another closes its end of the pipe between them
 * when it runs again, which may be after the other has come far. */
static void has_open(int pid, int n) {
    for (int i = 0; i < 60000 && n_open(pid) > n; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(n_open(pid), n);
}

static int child_of(int pid) {
    char path[80];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%d", &child) != 1) child = 0;
    if (f) fclose(f);
    return child;
}

static void *reads_slowly(void *r) {
    char path[300], *text;
    size_t n;
    tern_error err;
    snprintf(path, sizeof path, "%s/slow.pdf", allowed);
    if (tn_reader_text(r, path, 100, &text, &n, &err) != TERN_OK)
        return err.message[0] ? strdup(err.message) : NULL;
    return text;
}

/* Processes that read have their own pipes and nothing else that was open when they began: no terminal, no store, no pipe
 * of another of them. What looks into a document has the one end that its text goes to. */
static void they_hold_nothing_else(void **state) {
    (void)state;
    tn_reader *r;
    tern_error err;
    char *text, path[300], program[300], gate[300], *search = strdup(getenv("PATH")), all[4096];
    size_t n;
    int ends[2];
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(tn_reader_open(1, TN_READER_WAIT_S, &r, &err), TERN_OK);
    assert_int_equal(close(ends[1]), 0);
    assert_int_equal(tn_reader_text(r, written, 100, &text, &n, &err),
                     TERN_OK); /* it has closed what it got */
    free(text);
    char byte;
    assert_int_equal(read(ends[0], &byte, 1),
                     0); /* the end, where somebody held the pipe there would be none yet */
    tn_reader_close(&r);
    close(ends[0]);

    snprintf(path, sizeof path, "%s/slow.pdf", allowed);
    snprintf(program, sizeof program, "%s/pdftotext", allowed);
    snprintf(gate, sizeof gate, "%s/gate", allowed);
    put(path, "%PDF-1.4");
    put(program, "#!/bin/sh\nfor i in 3 4 5 6 7 8 9; do (: <&$i) 2>/dev/null && echo $i; done\nread x "
                 "<\"${0%/*}/gate\"\necho end\n");
    assert_int_equal(chmod(program, 0700), 0);
    assert_int_equal(mkfifo(gate, 0600), 0);
    snprintf(all, sizeof all, "%s:%s", allowed, search);
    setenv("PATH", all, 1);
    assert_int_equal(tn_reader_open(1, TN_READER_WAIT_S, &r, &err), TERN_OK);
    pthread_t slow;
    assert_int_equal(pthread_create(&slow, NULL, reads_slowly, r), 0);
    int fd = open(gate, O_WRONLY); /* the program has come to its gate */
    int lane = child_of((int)getpid()), looks = lane ? child_of(lane) : 0;
    if (looks && !geteuid()) {
        has_open(lane, 3 + 3);  /* requests, replies, the pipe of the one that looks */
        has_open(looks, 3 + 3); /* its reply, the document, the text of its program */
    }
    assert_int_equal(write(fd, "\n", 1), 1);
    close(fd);
    assert_int_equal(pthread_join(slow, (void **)&text), 0);
    assert_string_equal(text, "end\n");
    free(text);
    tn_reader_close(&r);
    setenv("PATH", search, 1);
    free(search);
    remove(path), remove(program), remove(gate);
}

/* One that sleeps whatever its own limits are, as one that was taken over could, is ended with all that it started, and the
 * next document is read. Nothing is asked of time but that it passes. */
static void sleepers_are_ended(void **state) {
    (void)state;
    tn_reader *r;
    tern_error err;
    char path[300], program[300], gate[300], *search = strdup(getenv("PATH")), all[4096], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/slow.pdf", allowed);
    snprintf(program, sizeof program, "%s/pdftotext", allowed);
    snprintf(gate, sizeof gate, "%s/gate", allowed);
    put(path, "%PDF-1.4");
    put(program, "#!/bin/sh\nread x <\"${0%/*}/gate\"\n");
    assert_int_equal(chmod(program, 0700), 0);
    assert_int_equal(mkfifo(gate, 0600), 0);
    snprintf(all, sizeof all, "%s:%s", allowed, search);
    setenv("PATH", all, 1);
    assert_int_equal(tn_reader_open(1, 2, &r, &err), TERN_OK);
    pthread_t slow;
    assert_int_equal(pthread_create(&slow, NULL, reads_slowly, r), 0);
    int fd = open(gate, O_WRONLY); /* the program has come to its gate */
    int lane = child_of((int)getpid()), looks = lane ? child_of(lane) : 0;
    if (looks) assert_int_equal(kill(looks, SIGSTOP), 0);
    assert_int_equal(pthread_join(slow, (void **)&text), 0);
    assert_string_equal(text, "the document takes too long to read");
    free(text);
    while (write(fd, "\n", 1) == 1)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* nobody reads it */
    assert_int_equal(errno, EPIPE);
    close(fd);
    assert_int_equal(tn_reader_text(r, written, 100, &text, &n, &err), TERN_OK);
    assert_string_equal(text, "text");
    free(text);
    tn_reader_close(&r);
    setenv("PATH", search, 1);
    free(search);
    remove(path), remove(program), remove(gate);
}

/* The process that waits for documents is not dumpable: another of its user cannot write to its memory. */
static void nobody_writes_to_it(void **state) {
    (void)state;
    tn_reader *r;
    tern_error err;
    char *text, path[300];
    size_t n;
    assert_int_equal(tn_reader_open(1, TN_READER_WAIT_S, &r, &err), TERN_OK);
    assert_int_equal(tn_reader_text(r, written, 100, &text, &n, &err), TERN_OK);
    assert_string_equal(text, "text");
    free(text);
    assert_int_equal(tn_reader_text(r, "/no/where: file", 100, &text, &n, &err), TERN_E_IO);
    assert_null(strstr(err.message, "where")); /* where it lies is not told */
    const int pid = child_of((int)getpid());
    struct stat sb;
    if (pid) {
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_uid, 0); /* files of a process that is not dumpable belong to root */
        assert_true(!geteuid() || !opens(path, O_RDWR));
    }
    tn_reader_close(&r);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sandbox),
        cmocka_unit_test(reader),
        cmocka_unit_test(reader_without_rules),
        cmocka_unit_test(starter),
        cmocka_unit_test(probes_do_nothing),
        cmocka_unit_test(nobody_writes_to_it),
        cmocka_unit_test(they_hold_nothing_else),
        cmocka_unit_test(sleepers_are_ended),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
