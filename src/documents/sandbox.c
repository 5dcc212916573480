#include "documents/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <linux/sockios.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef ARCH

/* Newer than many systems' headers; every architecture has these numbers. */
enum { FCHMODAT2 = 452, SETXATTRAT = 463, REMOVEXATTRAT = 466, FILE_SETATTR = 469 };

static const int refused[] = {
    /* other programs and processes; clone and signals are looked at more closely below */
    SYS_execve,
    SYS_execveat,
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_kcmp,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_setpgid, /* whoever leaves its group is not ended with it */
    SYS_setsid,
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semctl,
    SYS_semop,
    SYS_mq_open,
    SYS_mq_unlink,
    /* other connections: those of clients come from accept4 */
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_io_uring_setup, /* a ring opens sockets and connects them where no filter looks; files are read by threads */
    /* other rights and namespaces */
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_unshare,
    SYS_setns,
    SYS_chroot,
    SYS_pivot_root,
    SYS_mount,
    SYS_umount2,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_mknodat,
    /* the kernel's own machinery */
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_open_by_handle_at,
    SYS_quotactl,
    SYS_syslog,
    SYS_acct,
    SYS_personality,
/* what Landlock does not look at: owners and attributes of files by their names; modes are looked at below */
#ifdef SYS_chown
    SYS_chown,
    SYS_lchown,
#endif
    SYS_fchownat,
    FCHMODAT2,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
};

/* All that a process does while it looks into a document: it reads files, takes memory, tells what it found, and ends.
 * Whatever is not named is refused, a call that comes with a later kernel, too. */
static const int allowed_reading[] = {
    SYS_read,
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
    SYS_rseq, /* with the next: a thread that begins, as the thread sanitizer's does */
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
};

enum {
    N_REFUSED = sizeof refused / sizeof refused[0],
    N_READING = sizeof allowed_reading / sizeof allowed_reading[0],
    N_FILTER = 2 * (N_REFUSED + N_READING) + 90
};

typedef struct program {
    struct sock_filter at[N_FILTER];
    unsigned short n;
} program;

static void add(program *p, uint16_t code, uint32_t k, uint8_t yes, uint8_t no) {
    p->at[p->n++] = (struct sock_filter){code, yes, no, k};
}

static void answer(program *p, uint32_t what) { add(p, BPF_RET | BPF_K, what, 0, 0); }
static void load(program *p, size_t off) { add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)off, 0, 0); }

/* The call is allowed where none of these bits is set in its argument number `which`. The low 32 bits of each are
 * looked at: the kernel uses no others of these. */
static void without(program *p, int call, int which, uint32_t bits) {
    add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4);
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)which);
    add(p, BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    answer(p, SECCOMP_RET_ERRNO | EPERM);
    answer(p, SECCOMP_RET_ALLOW);
}

/* The call is `yes` where the argument has this value, and `no` elsewhere. */
static void where(program *p, int call, int which, uint32_t value, uint32_t yes, uint32_t no) {
    add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4);
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)which);
    add(p, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    answer(p, yes);
    answer(p, no);
}

/* Opening a file for anything but reading. */
static void only_reading(program *p, int call, int which) {
    without(p, call, which, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
}

/* The call is refused where its argument has one of these values. */
static void not_with(program *p, int call, int which, const uint32_t *values, uint8_t n) {
    add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, (uint8_t)(n + 3));
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)which);
    for (uint8_t i = 0; i < n; i++) add(p, BPF_JMP | BPF_JEQ | BPF_K, values[i], (uint8_t)(n - i), 0);
    answer(p, SECCOMP_RET_ALLOW);
    answer(p, SECCOMP_RET_ERRNO | EPERM);
}

/* What a program types into a terminal is as if its person had: the shell runs it when tern has ended. And a
 * file can be told to send signals to whoever its owner is. */
static void no_typing(program *p) {
    static const uint32_t ioctls[] = {TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP},
                          fcntls[] = {F_SETOWN, F_SETOWN_EX};
    not_with(p, SYS_ioctl, 1, ioctls, sizeof ioctls / sizeof *ioctls);
    not_with(p, SYS_fcntl, 1, fcntls, sizeof fcntls / sizeof *fcntls);
}

/* Modes by which others than the owner have no part in a file. */
static void own_modes(program *p) {
    const uint32_t others = 07077;
#ifdef SYS_chmod
    without(p, SYS_chmod, 1, others);
#endif
    without(p, SYS_fchmodat, 2, others);
}

/* What starting a program takes. */
static bool starts(int call) {
#ifdef SYS_fork
    if (call == SYS_fork || call == SYS_vfork) return true;
#endif
    return call == SYS_execve || call == SYS_execveat;
}

/* The number of the call is loaded. */
static void build_reader(program *p) {
    const uint32_t yes = SECCOMP_RET_ALLOW, no = SECCOMP_RET_ERRNO | EPERM;
    for (int i = 0; i < N_READING; i++) {
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed_reading[i], 0, 1);
        answer(p, yes);
    }
#ifdef SYS_open
    only_reading(p, SYS_open, 1);
#endif
    only_reading(p, SYS_openat, 2);
    where(p, SYS_tgkill, 0, (uint32_t)getpid(), yes, no); /* abort() */
    where(p, SYS_fcntl, 1, F_GETFL, yes, no);
    where(p, SYS_ioctl, 1, TCGETS, yes, no); /* whether a file is a terminal */
    where(p, SYS_prctl, 0, PR_GET_DUMPABLE, yes, no);
    answer(p, no);
}

static void build(program *p, tn_sandbox_kind kind) {
    const uint32_t no = SECCOMP_RET_ERRNO | EPERM;
    load(p, offsetof(struct seccomp_data, arch)); /* another ABI has other numbers */
    add(p, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    answer(p, SECCOMP_RET_KILL_PROCESS);
    load(p, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
    add(p, BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1); /* x32 */
    answer(p, no);
#endif
    /* the flags of clone3 lie in memory: the C library then uses clone, as on older kernels */
    add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
    answer(p, SECCOMP_RET_ERRNO | ENOSYS);
    if (kind == TN_SANDBOX_READER) {
        build_reader(p);
        return;
    }
    for (int i = 0; i < N_REFUSED; i++) {
        if (kind == TN_SANDBOX_STARTER && starts(refused[i])) continue;
        if (kind == TN_SANDBOX_SERVER && refused[i] == SYS_socketpair) continue; /* looked at below */
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused[i], 0, 1);
        answer(p, no);
    }
    no_typing(p);
    own_modes(p);
    if (kind == TN_SANDBOX_SERVER) {
        /* the two ends of a pair lead to each other and nowhere else: a connection of TLS has one (server/tls.c) */
        where(p, SYS_socketpair, 0, AF_UNIX, SECCOMP_RET_ALLOW, no);
        where(p, SYS_tgkill, 0, (uint32_t)getpid(), SECCOMP_RET_ALLOW, no); /* a thread of this process */
        add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_kill, 1, 0);
        add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_tkill, 0, 1);
        answer(p, no);
        add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0);
        answer(p, SECCOMP_RET_ALLOW);
        load(p, offsetof(struct seccomp_data, args)); /* a thread of this process, or nothing */
        add(p, BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
        answer(p, no);
    }
    answer(p, SECCOMP_RET_ALLOW);
}

tern_status tn_sandbox_enter(tn_sandbox_kind kind, tern_error *err) {
    program p = {.n = 0};
    build(&p, kind);
    struct sock_fprog prog = {.len = p.n, .filter = p.at};
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    TN_FAIL_IF(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), err, TERN_E_UNSUPPORTED,
               "this kernel has no filters of system calls: %s", strerror(errno));
    long rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog);
    TN_FAIL_IF(rc, err, TERN_E_UNSUPPORTED, "this kernel has no filters of system calls: %s",
               rc > 0 ? "a thread has one of its own" : strerror(errno));
    return TERN_OK;
}

#else

tern_status tn_sandbox_enter(tn_sandbox_kind kind, tern_error *err) {
    (void)kind;
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "filters of system calls are written for x86-64 and AArch64 only");
}

#endif

/* ---- files ------------------------------------------------------------------------------------------- */

/* The kernel's interface (landlock(7)), which is newer than many systems' headers. Rights are numbered as they came with
 * its versions. */
enum {
    CREATE_RULESET = 444,
    ADD_RULE = 445,
    RESTRICT_SELF = 446,
    RULE_PATH = 1,
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_VERSION_1 = (1 << 13) - 1,
    FS_REFER = 1 << 13,
    FS_TRUNCATE = 1 << 14,
    NET_TCP = 3,
    SCOPE_ABSTRACT_AND_SIGNAL = 3
};

typedef struct ruleset {
    uint64_t fs, net, scoped;
} ruleset;

typedef struct __attribute__((packed)) rule {
    uint64_t allowed;
    int32_t fd;
} rule;

static long version(void) { return syscall(CREATE_RULESET, NULL, 0, 1); }

bool tn_sandbox_has_files(void) { return version() > 0; }

static bool allow(int rules, const tn_sandbox_path *p, uint64_t handled) {
    struct stat sb;
    uint64_t allowed = FS_READ_FILE | FS_READ_DIR | FS_EXECUTE;
    int fd = open(p->path, O_PATH | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP;
    if (p->writes) allowed = ~(uint64_t)0;
    if (fstat(fd, &sb) || !S_ISDIR(sb.st_mode))
        allowed &= FS_READ_FILE | FS_EXECUTE | FS_WRITE_FILE | FS_TRUNCATE;
    rule r = {.allowed = allowed & handled, .fd = fd};
    long rc = syscall(ADD_RULE, rules, RULE_PATH, &r, 0);
    close(fd);
    return !rc;
}

tern_status tn_sandbox_files(const tn_sandbox_path *paths, size_t n, bool alone, tern_error *err) {
    const long v = version();
    TN_FAIL_IF(v < 1, err, TERN_E_UNSUPPORTED, "this kernel has no Landlock: %s", strerror(errno));
    const ruleset a = {.fs = FS_VERSION_1 | (v >= 2 ? FS_REFER : 0) | (v >= 3 ? FS_TRUNCATE : 0),
                       .net = alone && v >= 4 ? NET_TCP : 0,
                       .scoped = v >= 6 ? SCOPE_ABSTRACT_AND_SIGNAL : 0};
    const size_t size = v >= 6 ? 24 : v >= 4 ? 16 : 8; /* what this version knows */
    int rules = (int)syscall(CREATE_RULESET, &a, size, 0);
    TN_FAIL_IF(rules < 0, err, TERN_E_UNSUPPORTED, "this kernel's Landlock gives no rules: %s",
               strerror(errno));
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) ok = allow(rules, &paths[i], a.fs);
    ok = ok && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !syscall(RESTRICT_SELF, rules, 0);
    int why = errno;
    close(rules);
    TN_FAIL_IF(!ok, err, TERN_E_UNSUPPORTED, "this kernel's Landlock takes no rules: %s", strerror(why));
    return TERN_OK;
}
