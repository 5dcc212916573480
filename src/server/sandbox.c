#include "server/sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
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

enum { N_REFUSED = sizeof refused / sizeof refused[0], N_FILTER = 2 * N_REFUSED + 24 };

typedef struct program {
    struct sock_filter at[N_FILTER];
    unsigned short n;
} program;

static void add(program *p, uint16_t code, uint32_t k, uint8_t yes, uint8_t no) {
    p->at[p->n++] = (struct sock_filter){code, yes, no, k};
}

static void answer(program *p, uint32_t what) { add(p, BPF_RET | BPF_K, what, 0, 0); }
static void load(program *p, size_t off) { add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)off, 0, 0); }

static void build(program *p) {
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
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused[i], 0, 1);
        answer(p, no);
    }
    add(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0);
    answer(p, SECCOMP_RET_ALLOW);
    load(p, offsetof(struct seccomp_data, args)); /* a thread of this process, or nothing */
    add(p, BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
    answer(p, no);
    answer(p, SECCOMP_RET_ALLOW);
}

tern_status tn_sandbox_enter(tern_error *err) {
    program p = {.n = 0};
    build(&p);
    struct sock_fprog prog = {.len = p.n, .filter = p.at};
    TN_FAIL_IF(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), err, TERN_E_UNSUPPORTED,
               "this kernel has no filters of system calls: %s", strerror(errno));
    long rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog);
    TN_FAIL_IF(rc, err, TERN_E_UNSUPPORTED, "this kernel has no filters of system calls: %s",
               rc > 0 ? "a thread has one of its own" : strerror(errno));
    return TERN_OK;
}

#else

tern_status tn_sandbox_enter(tern_error *err) {
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "filters of system calls are written for x86-64 and AArch64 only");
}

#endif
