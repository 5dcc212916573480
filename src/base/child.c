#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 10, LAST_MS = 1000, GRACE_MOST_MS = 10000 };

/* ---- what is asked of a keeper ---------------------------------------------------------------------------- */

struct tn_keeper {
    int link;
    size_t n;
    pthread_mutex_t mu; /* of the link: a question and its reply */
};

typedef enum question_kind { START, ENDED, END } question_kind;

typedef struct question {
    int32_t kind, i, grace_ms;
} question;

/* With the program's three ends, where it was started. */
typedef struct reply {
    int64_t pid; /* START: 0, it was not */
    int32_t ended;
    char how[160]; /* ENDED: how; START: why not */
} reply;

static bool take(int link, reply *r, int ends[3]) {
    struct iovec v = {r, sizeof *r};
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    ssize_t k;
    while ((k = recvmsg(link, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
    }
    const struct cmsghdr *h = k > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    bool all = h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS &&
               h->cmsg_len == CMSG_LEN(3 * sizeof(int));
    for (int i = 0; i < 3; i++) ends[i] = -1;
    if (all) memcpy(ends, CMSG_DATA(h), 3 * sizeof(int));
    r->how[sizeof r->how - 1] = 0;
    return k == (ssize_t)sizeof *r;
}

static bool ask(tn_keeper *k, question q, reply *r, int ends[3]) {
    pthread_mutex_lock(&k->mu);
    bool ok = send(k->link, &q, sizeof q, MSG_NOSIGNAL) == (ssize_t)sizeof q && take(k->link, r, ends);
    pthread_mutex_unlock(&k->mu);
    return ok;
}

static bool keeper_ended(const tn_child *c, char *how, size_t cap) {
    reply r;
    int none[3];
    bool told = ask(c->keeper, (question){ENDED, (int32_t)c->i, 0}, &r, none);
    snprintf(how, cap, "%s", told ? r.how : "ended");
    return !told || r.ended;
}

static void keeper_end(const tn_child *c, int grace_ms) {
    reply r;
    int none[3];
    if (grace_ms > GRACE_MOST_MS) grace_ms = GRACE_MOST_MS;
    (void)ask(c->keeper, (question){END, (int32_t)c->i, grace_ms}, &r, none);
}

/* ---- a program -------------------------------------------------------------------------------------------- */

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
    if (c->keeper) return keeper_ended(c, how, cap);
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
    if (c->keeper) {
        if (c->pid) keeper_end(c, grace_ms);
        c->pid = 0;
    }
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

/* ---- a keeper's own side --------------------------------------------------------------------------------- */

static void close_ends(tn_child *c) {
    int *ends[] = {&c->to, &c->from, &c->messages};
    for (int i = 0; i < 3; i++) {
        if (*ends[i] >= 0) close(*ends[i]);
        *ends[i] = -1;
    }
}

static bool put(int link, const reply *r, const int ends[3]) {
    struct iovec v = {(void *)(uintptr_t)r, sizeof *r};
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (ends) {
        m.msg_control = room;
        m.msg_controllen = sizeof room;
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(3 * sizeof(int));
        memcpy(CMSG_DATA(h), ends, 3 * sizeof(int));
    }
    ssize_t k;
    while ((k = sendmsg(link, &m, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    return k == (ssize_t)sizeof *r;
}

/* The pipes are the asking process's alone: a program hears the end of its input from there. */
static bool answer(int link, const question *q, const char *const *commands, tn_child *kept) {
    reply r = {.ended = 1};
    tn_child *c = &kept[q->i];
    tern_error err;
    if (q->kind == ENDED) r.ended = tn_child_ended(c, r.how, sizeof r.how);
    if (q->kind != ENDED) tn_child_end(c, q->grace_ms);
    if (q->kind != START) return put(link, &r, NULL);
    if (tn_child_start(commands[q->i], c, &err) != TERN_OK) {
        snprintf(r.how, sizeof r.how, "%.150s", err.message);
        return put(link, &r, NULL);
    }
    r.pid = c->pid;
    bool ok = put(link, &r, (int[3]){c->to, c->from, c->messages});
    close_ends(c);
    return ok;
}

/* All together: told by a signal, and after a moment ended. While one of a group is there its number is nobody else's. */
static void end_all(tn_child *kept, size_t n) {
    bool left = true;
    for (size_t i = 0; i < n; i++)
        if (kept[i].pid && kill(-(pid_t)kept[i].pid, SIGTERM)) kept[i].pid = 0;
    for (int ms = LAST_MS; left && ms >= 0; ms -= LOOK_MS) {
        left = false;
        for (size_t i = 0; i < n; i++) {
            if (!kept[i].pid) continue;
            (void)waitpid((pid_t)kept[i].pid, NULL, WNOHANG);
            if (kill(-(pid_t)kept[i].pid, ms ? 0 : SIGKILL)) kept[i].pid = 0;
            left = left || kept[i].pid;
        }
        if (left && ms) poll(NULL, 0, LOOK_MS);
    }
}

static void keep(int link, const char *const *commands, size_t n) {
    tn_child kept[TN_KEPT];
    sigset_t every;
    question q;
    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, NULL);
    (void)setpgid(0, 0);
    /* it keeps nothing open that somebody waits for the end of */
    if (link > 0 && dup2(link, 0) == 0) (void)syscall(SYS_close_range, 1, ~0U, 0);
    (void)fcntl(0, F_SETFD, FD_CLOEXEC);
    for (size_t i = 0; i < TN_KEPT; i++) kept[i] = (tn_child){.to = -1, .from = -1, .messages = -1};
    for (;;) {
        ssize_t k = recv(0, &q, sizeof q, 0);
        if (k < 0 && errno == EINTR) continue;
        bool sound = k == (ssize_t)sizeof q && q.i >= 0 && (size_t)q.i < n && q.kind >= START &&
                     q.kind <= END && q.grace_ms >= 0 && q.grace_ms <= GRACE_MOST_MS;
        if (!sound || !answer(0, &q, commands, kept)) break;
    }
    end_all(kept, n);
    _exit(0);
}

/* ---- a keeper's life ------------------------------------------------------------------------------------- */

tern_status tn_keeper_open(const char *const *commands, size_t n, tn_keeper **out, tern_error *err) {
    tn_keeper *k = *out = calloc(1, sizeof *k);
    int link[2];
    TN_FAIL_IF(!k, err, TERN_E_MEMORY, "no memory for the keeper of programs");
    if (n > TN_KEPT || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link)) {
        const int why = n > TN_KEPT ? E2BIG : errno;
        free(k);
        *out = NULL;
        return tn_fail(err, TERN_E_IO, "no keeper of %zu programs: %s", n, strerror(why));
    }
    pid_t pid = fork();
    const int why = errno;
    if (!pid) {
        close(link[1]);
        keep(link[0], commands, n);
    }
    close(link[0]);
    k->link = link[1];
    k->n = n;
    pthread_mutex_init(&k->mu, NULL);
    if (pid < 0) tn_keeper_close(out);
    TN_FAIL_IF(pid < 0, err, TERN_E_IO, "no process can be started: %s", strerror(why));
    return TERN_OK;
}

void tn_keeper_close(tn_keeper **pk) {
    tn_keeper *k = *pk;
    *pk = NULL;
    if (!k) return;
    close(k->link); /* which it waits for */
    pthread_mutex_destroy(&k->mu);
    free(k);
}

tern_status tn_keeper_start(tn_keeper *k, size_t i, tn_child *out, tern_error *err) {
    reply r;
    int ends[3] = {-1, -1, -1};
    *out = (tn_child){.to = -1, .from = -1, .messages = -1};
    TN_FAIL_IF(i >= k->n, err, TERN_E_INVALID, "there is no program %zu of %zu", i, k->n);
    TN_FAIL_IF(!ask(k, (question){START, (int32_t)i, 0}, &r, ends), err, TERN_E_IO,
               "the process that starts programs has ended");
    *out = (tn_child){.pid = r.pid, .to = ends[0], .from = ends[1], .messages = ends[2], .keeper = k, .i = i};
    if (r.pid && ends[0] >= 0) return TERN_OK;
    (void)tn_fail(err, TERN_E_IO, "%s", r.pid ? "no descriptors for a program" : r.how);
    tn_child_end(out, 0);
    return TERN_E_IO;
}
