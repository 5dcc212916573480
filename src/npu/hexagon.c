/* npu/hexagon.c - host side of the Hexagon backend: the DSP program runs as a co-process under qemu-hexagon, sees one arena of
 * shared memory and is rung through a socket. Weights, constants and staging lie in the arena; a job's rows are copied in and
 * out by one thread, which runs jobs in order. Every wait has a limit; a DSP that dies, hangs or talks nonsense is lost
 * for good: it is killed, that is said once, and this job and all later ones are computed by the host's kernels (weights and
 * tiles lie in the shared arena): the session goes on with the same bits. */
#ifdef TERN_HEXAGON
#include "base/cpu.h"
#include "kernels/kernels.h"
#include "npu/backend.h"
#include "npu/hexagon/message.h"

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

enum { ARENA = 1 << 30, ALIGN = 128, START_MS = 10000, RUN_MS = 30000, PADDED = 16 };

/* The used part of the arena, in order of place. */
typedef struct block {
    struct block *next;
    uint32_t at, size;
} block;

typedef struct hexagon {
    uint8_t *arena;
    int fd, sock;
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t wake;
    block *blocks;           /* guarded by mu */
    tn_npu_job *head, *tail; /* guarded by mu */
    bool quit;               /* guarded by mu */
    bool lost;               /* the worker's own once it runs */
    tn_kernels kern;         /* for when it is */
    int wait_ms;             /* for an answer */
    tn_npu_device *dev;
} hexagon;

/* Staging of one loaded graph; places in the arena. */
typedef struct resident {
    uint8_t *mem;
    uint32_t in, out, tiles[TN_NPU_MAX_OPS], bias[TN_NPU_MAX_OPS];
} resident;

/* ---- arena ----------------------------------------------------------------------------------------- */

static void *arena_alloc(tn_npu_device *d, uint64_t n_bytes, tn_mem_cat cat) {
    hexagon *h = d->impl;
    if (n_bytes > ARENA / 2) return NULL;
    block *b = tn_calloc(d->ctx, cat, 1, sizeof *b), **p;
    if (!b) return NULL;
    b->size = (uint32_t)((n_bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1));
    b->at = ALIGN; /* place 0 means none */
    pthread_mutex_lock(&h->mu);
    for (p = &h->blocks; *p && (*p)->at - b->at < b->size; p = &(*p)->next) b->at = (*p)->at + (*p)->size;
    bool fits = b->size <= ARENA - b->at;
    if (fits) {
        b->next = *p;
        *p = b;
    }
    pthread_mutex_unlock(&h->mu);
    if (fits) return h->arena + b->at;
    tn_free(d->ctx, b);
    return NULL;
}

static void arena_free(tn_npu_device *d, void *mem) {
    hexagon *h = d->impl;
    if (!mem) return;
    uint32_t at = (uint32_t)((uint8_t *)mem - h->arena);
    pthread_mutex_lock(&h->mu);
    block **p = &h->blocks;
    while ((*p)->at != at) p = &(*p)->next;
    block *b = *p;
    *p = b->next;
    pthread_mutex_unlock(&h->mu);
    tn_free(d->ctx, b);
}

/* 0 for what lies elsewhere. */
static uint32_t place(const hexagon *h, const void *p) {
    uintptr_t off = (uintptr_t)p - (uintptr_t)h->arena;
    return p && off < ARENA ? (uint32_t)off : 0;
}

/* ---- messages -------------------------------------------------------------------------------------- */

static bool ask(hexagon *h, const tn_hex_message *g, int limit_ms) {
    uint32_t answer = 0;
    struct pollfd p = {.fd = h->sock, .events = POLLIN};
    int rc;
    if (send(h->sock, g, sizeof *g, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *g) return false;
    do rc = poll(&p, 1, limit_ms);
    while (rc < 0 && errno == EINTR);
    return rc == 1 && recv(h->sock, &answer, sizeof answer, MSG_DONTWAIT) == (ssize_t)sizeof answer && answer == TN_HEX_OK;
}

static bool run_op(hexagon *h, const tn_npu_job *j, int32_t i) {
    const tn_npu_graph *g = j->graph;
    const tn_npu_op *op = &g->desc.ops[i];
    const resident *r = g->impl;
    uint32_t k = (uint32_t)(g->desc.k + 3) & ~3u, cols = (uint32_t)tn_npu_op_cols(j, i), width = op->out == TN_NPU_OUT_F32 || op->out == TN_NPU_OUT_S32 ? 4 : 1;
    if (i == 0 || g->desc.kind == TN_NPU_QK) {
        for (int32_t m = 0; m < j->n_rows; m++) memcpy(h->arena + r->in + (size_t)m * k, tn_npu_op_in(j, i) + (size_t)m * g->desc.in_stride, k);
    }
    uint32_t tiles = r->tiles[i];
    if (g->desc.kind == TN_NPU_QK) memcpy(h->arena + tiles, tn_npu_op_tiles(j, i), (size_t)(cols + PADDED - 1) / PADDED * PADDED * k);
    tn_hex_message msg = {.what = TN_HEX_RUN, .in = r->in, .tiles = tiles, .scale = place(h, g->scale[i]), .bias = r->bias[i], .out = r->out,
                          .out_stride = cols, .out_form = (uint32_t)op->out, .m = (uint32_t)j->n_rows, .n = cols, .k = k};
    if (!ask(h, &msg, h->wait_ms)) return false;
    for (int32_t m = 0; m < j->n_rows; m++)
        memcpy((uint8_t *)j->out[i] + (size_t)m * op->out_stride * width, h->arena + r->out + (size_t)m * cols * width, (size_t)cols * width);
    return true;
}

static void *worker_main(void *arg) {
    hexagon *h = arg;
    pthread_mutex_lock(&h->mu);
    for (;;) {
        while (!h->head && !h->quit) pthread_cond_wait(&h->wake, &h->mu);
        tn_npu_job *j = h->head;
        if (!j) break;
        h->head = j->next;
        if (!h->head) h->tail = NULL;
        pthread_mutex_unlock(&h->mu);
        for (int32_t i = 0; i < j->graph->desc.n_ops && !h->lost; i++) {
            if (run_op(h, j, i)) continue;
            h->lost = true;
            kill(h->pid, SIGKILL);
            tn_log(h->dev->ctx, TERN_LOG_WARN, "the Hexagon DSP is lost: it ended, or gave no sane answer within %d ms; the CPU goes on in its place", h->wait_ms);
        }
        if (h->lost) tn_npu_host_compute(&h->kern, j);
        tn_npu_complete(h->dev, j, TERN_OK);
        pthread_mutex_lock(&h->mu);
    }
    pthread_mutex_unlock(&h->mu);
    return NULL;
}

static void submit(tn_npu_device *d, tn_npu_job *j) {
    hexagon *h = d->impl;
    j->next = NULL;
    pthread_mutex_lock(&h->mu);
    if (h->tail) h->tail->next = j;
    else h->head = j;
    h->tail = j;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->mu);
}

/* ---- graphs ---------------------------------------------------------------------------------------- */

static tern_status load(tn_npu_device *d, tn_npu_graph *g, tern_error *err) {
    hexagon *h = d->impl;
    uint64_t k = (uint64_t)(g->desc.k + 3) & ~3ull, in = ((uint64_t)g->desc.m * k + 127) & ~127ull, out = 0, more = 0;
    for (int pass = 0; pass < 2; pass++) {
        resident *r = g->impl;
        uint64_t at = in + out;
        for (int32_t i = 0; i < g->desc.n_ops; i++) {
            const tn_npu_op *op = &g->desc.ops[i];
            uint64_t padded = (uint64_t)(op->n + PADDED - 1) / PADDED * PADDED, size = (uint64_t)g->desc.m * (uint64_t)op->n * 4;
            const int8_t *tiles = g->weights[i] ? g->weights[i]->data.tiles : NULL;
            if (!pass) {
                out = size > out ? (size + 127) & ~127ull : out;
                more += ((padded * k + 127) & ~127ull) + ((padded * 4 + 127) & ~127ull);
                continue;
            }
            if (!(r->tiles[i] = place(h, tiles))) {
                r->tiles[i] = place(h, r->mem + at);
                if (tiles) memcpy(r->mem + at, tiles, padded * k);
                at += (padded * k + 127) & ~127ull;
            }
            if (g->bias[i] && !(r->bias[i] = place(h, g->bias[i]))) {
                r->bias[i] = place(h, r->mem + at);
                memcpy(r->mem + at, g->bias[i], padded * 4);
                at += (padded * 4 + 127) & ~127ull;
            }
        }
        if (pass) break;
        r = tn_calloc(d->ctx, TN_MEM_GRAPHS, 1, sizeof *r);
        TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory for a graph of the DSP");
        if (!(r->mem = arena_alloc(d, in + out + more, TN_MEM_GRAPHS))) {
            tn_free(d->ctx, r);
            return tn_fail(err, TERN_E_MEMORY, "the DSP's arena has no room for a graph");
        }
        r->in = place(h, r->mem);
        r->out = r->in + (uint32_t)in;
        g->impl = r;
    }
    return TERN_OK;
}

static void unload(tn_npu_device *d, tn_npu_graph *g) {
    resident *r = g->impl;
    arena_free(d, r->mem);
    tn_free(d->ctx, r);
    g->impl = NULL;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static void release(tn_npu_device *d) {
    hexagon *h = d->impl;
    if (h->sock >= 0) close(h->sock);
    if (h->pid > 0) {
        kill(h->pid, SIGKILL);
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR) {}
    }
    if (h->arena) munmap(h->arena, ARENA);
    if (h->fd >= 0) close(h->fd);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->mu);
    tn_free(d->ctx, h);
}

static void close_device(tn_npu_device *d) {
    hexagon *h = d->impl;
    pthread_mutex_lock(&h->mu);
    h->quit = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->mu);
    pthread_join(h->thread, NULL);
    release(d);
}

/* TERN_HEXAGON_DSP, or beside the executable, or where it is installed. */
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

static tern_status start(hexagon *h, tern_error *err) {
    char dsp[PATH_MAX];
    int pair[2];
    TN_FAIL_IF(!find_dsp(dsp), err, TERN_E_DEVICE, "the DSP program hexagon-dsp was not found (TERN_HEXAGON_DSP names it)");
    h->fd = memfd_create("tern-hexagon", MFD_CLOEXEC);
    TN_FAIL_IF(h->fd < 0 || ftruncate(h->fd, ARENA), err, TERN_E_DEVICE, "no memory to share with the DSP: %s", strerror(errno));
    void *p = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, h->fd, 0);
    TN_FAIL_IF(p == MAP_FAILED, err, TERN_E_DEVICE, "no memory to share with the DSP: %s", strerror(errno));
    h->arena = p;
    TN_FAIL_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), err, TERN_E_DEVICE, "no socket for the DSP: %s", strerror(errno));
    h->sock = pair[0];
    char *argv[] = {"qemu-hexagon", dsp, NULL};
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, pair[1], 0);
    posix_spawn_file_actions_adddup2(&fa, pair[1], 1);
    posix_spawn_file_actions_adddup2(&fa, h->fd, 3);
    int rc = posix_spawnp(&h->pid, argv[0], &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(pair[1]);
    if (rc) h->pid = 0;
    TN_FAIL_IF(rc, err, TERN_E_DEVICE, "cannot start qemu-hexagon: %s", strerror(rc));
    tn_hex_message hello = {.what = TN_HEX_HELLO, .arena_bytes = ARENA};
    TN_FAIL_IF(!ask(h, &hello, START_MS), err, TERN_E_DEVICE, "the DSP did not answer within %d s", START_MS / 1000);
    return TERN_OK;
}

static tern_status open_device(tn_npu_device *d, const tn_npu_options *opt, tern_error *err) {
    hexagon *h = d->impl = tn_calloc(d->ctx, TN_MEM_OTHER, 1, sizeof *h);
    TN_FAIL_IF(!h, err, TERN_E_MEMORY, "no memory for the Hexagon NPU");
    h->fd = h->sock = -1;
    h->dev = d;
    const char *wait = getenv("TERN_HEXAGON_WAIT_MS");
    h->wait_ms = wait && atoi(wait) > 0 ? atoi(wait) : RUN_MS;
    if (opt->kernels) h->kern = *opt->kernels;
    else tn_kernels_init(&h->kern, tn_cpu_flags(NULL));
    pthread_mutex_init(&h->mu, NULL);
    pthread_cond_init(&h->wake, NULL);
    tern_status st = start(h, err);
    if (st == TERN_OK && pthread_create(&h->thread, NULL, worker_main, h)) st = tn_fail(err, TERN_E_MEMORY, "cannot start the thread of the Hexagon NPU");
    if (st != TERN_OK) {
        release(d);
        return st;
    }
    d->caps.layout = (tn_npu_layout){TN_NPU_LAYOUT_16X4, 16, 4};
    d->caps.max_m = 4096;
    d->caps.max_n = 1 << 20;
    d->caps.max_k = 65536;
    d->caps.efficient_m = 4;
    d->caps.out_forms = (1u << TN_NPU_N_OUTS) - 1;
    d->caps.shared_memory = true;
    return TERN_OK;
}

const tn_npu_backend tn_npu_hexagon = {.name = "hexagon", .open = open_device, .close = close_device, .submit = submit,
                                       .mem_alloc = arena_alloc, .mem_free = arena_free, .load = load, .unload = unload};
#endif
