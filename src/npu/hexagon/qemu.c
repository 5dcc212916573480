/* npu/hexagon/qemu.c - the DSP program as a co-process under qemu-hexagon. Memory files are the arenas
 * (descriptors from 3 on there). A socket carries the messages (0 and 1 there) and reports a peer that
 * died. */
#ifdef TERN_HEXAGON
#include "base/clock.h"
#include "npu/hexagon/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Arenas are sparse. qemu 7.2 finds room for 2.75 GiB in the guest's 4. */
enum { ARENA_MB = 1280, ALL_MB = 2560, LEAST_MB = 34 };

typedef struct qemu_link {
    tn_hex_link link;
    tn_ctx *ctx;
    int fd[TN_HEX_MAX_ARENAS], sock;
    pid_t pid; /* 0: none, or ended */
} qemu_link;

static void end(tn_hex_link *l) {
    qemu_link *q = (qemu_link *)l;
    if (q->pid <= 0) return;
    kill(q->pid, SIGKILL);
    while (waitpid(q->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    q->pid = 0;
}

static void close_link(tn_hex_link **l) {
    qemu_link *q = (qemu_link *)*l;
    if (!q) return;
    *l = NULL;
    if (q->sock >= 0) close(q->sock);
    end(&q->link);
    for (int i = 0; i < TN_HEX_MAX_ARENAS; i++) {
        if (q->link.arenas[i]) munmap(q->link.arenas[i], q->link.arena_bytes);
        if (q->fd[i] >= 0) close(q->fd[i]);
    }
    tn_free(q->ctx, q);
}

/* Looks at TERN_HEXAGON_DSP, then beside the executable, then where the program is installed. */
static bool find_dsp(char path[PATH_MAX]) {
    const char *named = getenv("TERN_HEXAGON_DSP");
    if (named) return snprintf(path, PATH_MAX, "%s", named) < PATH_MAX && !access(path, R_OK);
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0) return false;
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    if (snprintf(path, PATH_MAX, "%s/hexagon-dsp", exe) < PATH_MAX && !access(path, R_OK)) return true;
    return snprintf(path, PATH_MAX, "%s/../libexec/tern/hexagon-dsp", exe) < PATH_MAX && !access(path, R_OK);
}

/* TERN_HEXAGON_ARENA_MB makes the maximal number of smaller ones, to test data in several arenas with
 * little memory. */
static tern_status make_arenas(qemu_link *q, tern_error *err) {
    const char *given = getenv("TERN_HEXAGON_ARENA_MB");
    int mb = given ? atoi(given) : ARENA_MB;
    TN_FAIL_IF(mb < LEAST_MB || mb > ALL_MB, err, TERN_E_INVALID, "TERN_HEXAGON_ARENA_MB=%s: want %d to %d",
               given, LEAST_MB, ALL_MB);
    uint32_t n = (uint32_t)(ALL_MB / mb);
    q->link.arena_bytes = (uint32_t)mb << 20;
    q->link.n_arenas = n < TN_HEX_MAX_ARENAS ? n : TN_HEX_MAX_ARENAS;
    for (uint32_t i = 0; i < q->link.n_arenas; i++) {
        int fd = memfd_create("tern-hexagon", MFD_CLOEXEC);
        /* above the DSP program's descriptors, so that passing one on never overwrites another */
        q->fd[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3 + TN_HEX_MAX_ARENAS);
        if (fd >= 0) close(fd);
        TN_FAIL_IF(q->fd[i] < 0 || ftruncate(q->fd[i], q->link.arena_bytes), err, TERN_E_DEVICE,
                   "no memory to share with the DSP: %s", strerror(errno));
        void *p =
            mmap(NULL, q->link.arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, q->fd[i], 0);
        TN_FAIL_IF(p == MAP_FAILED, err, TERN_E_DEVICE, "no memory to share with the DSP: %s",
                   strerror(errno));
        q->link.arenas[i] = p;
    }
    q->link.arena = q->link.arenas[0];
    return TERN_OK;
}

static tern_status start(qemu_link *q, tern_error *err) {
    char dsp[PATH_MAX];
    int pair[2];
    TN_FAIL_IF(!find_dsp(dsp), err, TERN_E_DEVICE,
               "the DSP program hexagon-dsp was not found (TERN_HEXAGON_DSP names it)");
    TN_TRY(make_arenas(q, err));
    TN_FAIL_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), err, TERN_E_DEVICE,
               "no socket for the DSP: %s", strerror(errno));
    q->sock = pair[0];
    char *argv[] = {"qemu-hexagon", dsp, NULL};
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, pair[1], 0);
    posix_spawn_file_actions_adddup2(&fa, pair[1], 1);
    for (uint32_t i = 0; i < q->link.n_arenas; i++)
        posix_spawn_file_actions_adddup2(&fa, q->fd[i], 3 + (int)i);
    int rc = posix_spawnp(&q->pid, argv[0], &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(pair[1]);
    if (rc) q->pid = 0;
    TN_FAIL_IF(rc, err, TERN_E_DEVICE, "cannot start qemu-hexagon: %s", strerror(rc));
    return TERN_OK;
}

static tern_status open_link(tn_ctx *ctx, tn_hex_link **out, tern_error *err) {
    *out = NULL;
    qemu_link *q = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *q);
    TN_FAIL_IF(!q, err, TERN_E_MEMORY, "no memory for the Hexagon NPU");
    q->ctx = ctx;
    q->sock = -1;
    for (int i = 0; i < TN_HEX_MAX_ARENAS; i++) q->fd[i] = -1;
    tn_hex_link *l = &q->link;
    tern_status st = start(q, err);
    if (st == TERN_OK) *out = l;
    else close_link(&l);
    return st;
}

static bool send_message(tn_hex_link *l, const void *message, size_t n_bytes) {
    return send(((qemu_link *)l)->sock, message, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n_bytes;
}

static tn_hex_receipt receive(tn_hex_link *l, void *message, size_t n_bytes, int limit_ms) {
    struct pollfd p = {.fd = ((qemu_link *)l)->sock, .events = POLLIN};
    int64_t until = tn_now_ns() + (int64_t)limit_ms * 1000000;
    for (size_t have = 0; have < n_bytes;) {
        int64_t left = (until - tn_now_ns() + 999999) / 1000000;
        int rc = poll(&p, 1, left > 0 ? (int)left : 0);
        if (rc == 0) return TN_HEX_LATE;
        if (rc < 0 && errno == EINTR) continue;
        ssize_t n = rc < 0 ? -1 : recv(p.fd, (char *)message + have, n_bytes - have, MSG_DONTWAIT);
        if (n <= 0) return TN_HEX_ENDED;
        have += (size_t)n;
    }
    return TN_HEX_CAME;
}

const tn_hex_transport tn_hex_transport_here = {.name = "qemu",
                                                .open = open_link,
                                                .send = send_message,
                                                .receive = receive,
                                                .kill = end,
                                                .close = close_link};
#endif
