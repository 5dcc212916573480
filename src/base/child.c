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

enum { LOOK_MS = 10 };

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
    int status = 0;
    snprintf(how, cap, "ended");
    if (!c->pid) return true;
    pid_t pid = waitpid((pid_t)c->pid, &status, WNOHANG);
    if (!pid || (pid < 0 && errno == EINTR)) return false;
    c->pid = 0;
    if (pid < 0) return true;
    if (WIFEXITED(status)) snprintf(how, cap, "ended with status %d", WEXITSTATUS(status));
    else snprintf(how, cap, "was ended by signal %d", WTERMSIG(status));
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

void tn_child_end(tn_child *c, int grace_ms) {
    static const int signals[] = {0, SIGTERM, SIGKILL};
    close_end(&c->to);
    for (int i = 0; c->pid && i < 3; i++) {
        if (signals[i] && kill(-(pid_t)c->pid, signals[i])) break;
        if (wait_for_end(c, signals[i] == SIGKILL ? 1000 : grace_ms)) break;
    }
    close_end(&c->from);
    close_end(&c->messages);
    c->pid = 0;
}
