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
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef ARCH

static const int refused[] = {
    /* other programs and processes; clone is looked at more closely below */
    SYS_execve,
    SYS_execveat,
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
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
};

/* Of one that reads a document, too: changes of files, signals, threads. */
static const int refused_reading[] = {
#ifdef SYS_unlink
    SYS_unlink,
    SYS_rmdir,
    SYS_rename,
    SYS_mkdir,
    SYS_link,
    SYS_symlink,
    SYS_chmod,
    SYS_chown,
    SYS_creat,
    SYS_mknod,
    SYS_utime,
#endif
    SYS_unlinkat,
    SYS_renameat2,
#ifdef SYS_renameat
    SYS_renameat,
#endif
    SYS_mkdirat,
    SYS_linkat,
    SYS_symlinkat,
    SYS_truncate,
    SYS_fchmodat,
    SYS_fchownat,
    SYS_utimensat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_openat2,
    SYS_kill,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_prlimit64 /* of others; its own are read by getrlimit or not at all */,
    SYS_clone,
};

enum {
    N_REFUSED = sizeof refused / sizeof refused[0],
    N_READING = sizeof refused_reading / sizeof refused_reading[0],
    N_FILTER = 2 * (N_REFUSED + N_READING) + 40
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

/* Opening a file for anything but reading: flags are the call's argument number `which`. */
static void only_reading(program *p, int call, int which) {
    add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4);
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)which);
    add(p, BPF_JMP | BPF_JSET | BPF_K, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, 0, 1);
    answer(p, SECCOMP_RET_ERRNO | EPERM);
    answer(p, SECCOMP_RET_ALLOW);
}

/* What starting a program takes. */
static bool starts(int call) {
#ifdef SYS_fork
    if (call == SYS_fork || call == SYS_vfork) return true;
#endif
    return call == SYS_execve || call == SYS_execveat;
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
    for (int i = 0; i < N_REFUSED; i++) {
        if (kind == TN_SANDBOX_STARTER && starts(refused[i])) continue;
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused[i], 0, 1);
        answer(p, no);
    }
    for (int i = 0; kind == TN_SANDBOX_READER && i < N_READING; i++) {
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused_reading[i], 0, 1);
        answer(p, no);
    }
    if (kind == TN_SANDBOX_READER) {
#ifdef SYS_open
        only_reading(p, SYS_open, 1);
#endif
        only_reading(p, SYS_openat, 2);
    }
    if (kind == TN_SANDBOX_SERVER) {
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
                       .scoped = alone && v >= 6 ? SCOPE_ABSTRACT_AND_SIGNAL : 0};
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
