#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 10, GUARD_MS = 1000 };

/* The child's own side, after fork: nothing here allocates or locks. */
static void become(const char *command, const int ends[3]) {
    sigset_t none;
    static const int reset[] = {SIGPIPE, SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&none);
    for (int i = 0; i < 4; i++) (void)signal(reset[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* an end may have the number of another one's place */
    int high[3];
    for (int i = 0; i < 3; i++) high[i] = fcntl(ends[i], F_DUPFD, 3);
    for (int i = 0; i < 3; i++)
        if (high[i] < 0 || dup2(high[i], i) < 0) _exit(127);
    (void)syscall(SYS_close_range, 3, ~0U, 0);
    (void)setpgid(0, 0);
#ifdef __linux__
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

tern_status tn_child_start(const char *command, tn_child *out, tern_error *err) {
    int ends[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    *out = (tn_child){.to = -1, .from = -1, .messages = -1};
    bool ok = true;
    for (int i = 0; i < 3; i++) ok = ok && !pipe2(ends[i], O_CLOEXEC);
    pid_t pid = ok ? fork() : -1;
    const int why = errno;
    if (!pid) become(command, (int[3]){ends[0][0], ends[1][1], ends[2][1]});
    if (pid > 0) (void)setpgid(pid, pid); /* whoever comes first */
    close_end(&ends[0][0]);
    close_end(&ends[1][1]);
    close_end(&ends[2][1]);
    out->to = ends[0][1];
    out->from = ends[1][0];
    out->messages = ends[2][0];
    const int kept[3] = {out->to, out->from, out->messages};
    for (int i = 0; pid > 0 && i < 3; i++) (void)fcntl(kept[i], F_SETFL, O_NONBLOCK);
    if (pid > 0) out->pid = pid;
    else tn_child_end(out, 0);
    TN_FAIL_IF(pid < 0, err, TERN_E_IO, "no process can be started: %s", strerror(why));
    return TERN_OK;
}

bool tn_child_ended(tn_child *c, char *how, size_t cap) {
    siginfo_t info = {0};
    snprintf(how, cap, "ended");
    if (!c->pid) return true;
    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT)) return errno != EINTR;
    if (!info.si_pid) return false;
    c->ended = true;
    if (info.si_code == CLD_EXITED) snprintf(how, cap, "ended with status %d", info.si_status);
    else snprintf(how, cap, "was ended by signal %d", info.si_status);
    return true;
}

static bool wait_for_end(tn_child *c, int ms) {
    char how[64];
    for (;; ms -= LOOK_MS) {
        if (tn_child_ended(c, how, sizeof how)) return true;
        if (ms <= 0) return false;
        poll(NULL, 0, LOOK_MS);
    }
}

/* Those of its group that outlive it. While one does the group's number is nobody else's. */
static void end_group(const tn_child *c, int grace_ms) {
    const pid_t group = (pid_t)c->pid;
    bool told = !kill(-group, SIGTERM); /* its own end waits to be told of: this is its group */
    while (waitpid(group, NULL, 0) < 0 && errno == EINTR) {
    }
    for (int ms = grace_ms; told && ms > 0 && !kill(-group, 0); ms -= LOOK_MS) poll(NULL, 0, LOOK_MS);
    if (told && !kill(-group, 0)) (void)kill(-group, SIGKILL);
}

void tn_child_end(tn_child *c, int grace_ms) {
    static const int signals[] = {0, SIGTERM, SIGKILL};
    close_end(&c->to);
    for (int i = 0; c->pid && i < 3; i++) {
        if (signals[i] && kill(-(pid_t)c->pid, signals[i])) break;
        if (wait_for_end(c, signals[i] == SIGKILL ? 1000 : grace_ms)) break;
    }
    if (c->pid && c->ended) end_group(c, grace_ms);
    close_end(&c->from);
    close_end(&c->messages);
    c->pid = 0;
    c->ended = false;
}

/* The guard's own side, after fork. The other end of its lease is closed with its parent. */
static void guard(const tn_child *const *all, size_t n, int lease) {
    struct pollfd parent = {.fd = 0}; /* nothing but the end of the other side */
    sigset_t every;
    bool left = true;
    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, NULL);
    (void)setpgid(0, 0);
    /* it keeps nothing open that somebody waits for the end of */
    if (lease > 0 && dup2(lease, 0) == 0) (void)syscall(SYS_close_range, 1, ~0U, 0);
    while (poll(&parent, 1, -1) < 0 && errno == EINTR) {
    }
    for (int ms = GUARD_MS; left && ms >= 0; ms -= LOOK_MS) {
        left = false;
        for (size_t i = 0; i < n; i++) {
            const int what = ms == GUARD_MS ? SIGTERM : ms ? 0 : SIGKILL;
            if (all[i]->pid) left = !kill(-(pid_t)all[i]->pid, what) || left;
        }
        poll(NULL, 0, LOOK_MS);
    }
    _exit(0);
}

tern_status tn_child_guard(const tn_child *const *all, size_t n, tern_error *err) {
    int lease[2];
    TN_FAIL_IF(pipe2(lease, O_CLOEXEC), err, TERN_E_IO, "no pipe: %s", strerror(errno));
    pid_t pid = fork();
    const int why = errno;
    if (!pid) {
        close(lease[1]);
        guard(all, n, lease[0]);
    }
    close(lease[0]);
    if (pid < 0) close(lease[1]); /* else it is open as long as this process lives */
    TN_FAIL_IF(pid < 0, err, TERN_E_IO, "no process can be started: %s", strerror(why));
    return TERN_OK;
}
