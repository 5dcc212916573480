/* npu/hexagon/dsp/main_fastrpc.c - the DSP side on a device: a library that FastRPC opens. Messages come
 * through a dspqueue and are answered on its thread; with TERN_HEXAGON_QURT_THREADS, QuRT's threads help
 * it. It is built only with a Hexagon SDK. It has NEVER RUN and was never compiled, because the SDK's DSP
 * headers are not public. */
#include "runtime.h"

#include <AEEStdErr.h>
#include <HAP_compute_res.h>
#include <HAP_mem.h>
#include <dspqueue.h>
#include <qurt.h>
#include <stdlib.h>

#include "tern_dsp.h"

typedef struct session {
    tn_hex_runtime runtime;
    dspqueue_t queue;
    int arena_fd[TN_HEX_MAX_ARENAS];
    uint8_t *arena[TN_HEX_MAX_ARENAS];
    uint32_t n_arenas, arena_bytes;
    unsigned int vtcm_id;
} session;

static session *the; /* one session per process of the DSP */

static uint8_t *map_arena(uint32_t i, uint32_t n_bytes) {
    return i < the->n_arenas && n_bytes == the->arena_bytes ? the->arena[i] : NULL;
}

static uint8_t *get_vtcm(uint32_t n_bytes) {
    compute_res_attr_t attr;
    HAP_compute_res_attr_init(&attr);
    HAP_compute_res_attr_set_vtcm_param(&attr, n_bytes, 1);
    the->vtcm_id = HAP_compute_res_acquire(&attr, 1000000);
    return the->vtcm_id ? HAP_compute_res_attr_get_vtcm_ptr(&attr) : NULL;
}

#ifdef TERN_HEXAGON_QURT_THREADS
/* ---- threads ----------------------------------------------------------------------------------------- */

enum { STACK = 64 << 10 };

/* Each additional thread waits at its own semaphore for a part, and keeps its HVX context. */
static struct {
    uint32_t n_threads, n; /* including the dspqueue's own; of the current work */
    int end;
    void (*fn)(void *arg, uint32_t i);
    void *arg;
    qurt_thread_t id[TN_HEX_MAX_THREADS];
    void *stack[TN_HEX_MAX_THREADS];
    qurt_sem_t go[TN_HEX_MAX_THREADS], done;
} team = {.n_threads = 1};

static void work_for_ever(void *arg) {
    uint32_t i = (uint32_t)(uintptr_t)arg;
    qurt_hvx_lock(QURT_HVX_MODE_128B);
    for (;;) {
        qurt_sem_down(&team.go[i]);
        if (team.end) break;
        team.fn(team.arg, i);
        qurt_sem_up(&team.done);
    }
    qurt_hvx_unlock();
    qurt_thread_exit(0);
}

static void end_threads(void) {
    int status;
    if (team.n_threads == 1) return;
    team.end = 1;
    for (; team.n_threads > 1; team.n_threads--) {
        uint32_t i = team.n_threads - 1;
        qurt_sem_up(&team.go[i]);
        qurt_thread_join(team.id[i], &status);
        qurt_sem_destroy(&team.go[i]);
        free(team.stack[i]);
    }
    qurt_sem_destroy(&team.done);
}

/* More threads than HVX contexts of 128 bytes would wait for ever; in that case there is one thread. */
static int make_threads(uint32_t n) {
    if (n > ((uint32_t)qurt_hvx_get_units() >> 8 & 0xff)) return -1;
    team.end = 0;
    qurt_sem_init_val(&team.done, 0);
    for (; team.n_threads < n; team.n_threads++) {
        uint32_t i = team.n_threads;
        qurt_thread_attr_t attr;
        if (!(team.stack[i] = malloc(STACK))) break;
        qurt_sem_init_val(&team.go[i], 0);
        qurt_thread_attr_init(&attr);
        qurt_thread_attr_set_name(&attr, "tern");
        qurt_thread_attr_set_stack_addr(&attr, team.stack[i]);
        qurt_thread_attr_set_stack_size(&attr, STACK);
        qurt_thread_attr_set_priority(&attr, (unsigned short)qurt_thread_get_priority(qurt_thread_get_id()));
        if (qurt_thread_create(&team.id[i], &attr, work_for_ever, (void *)(uintptr_t)i) != QURT_EOK) {
            qurt_sem_destroy(&team.go[i]);
            free(team.stack[i]);
            break;
        }
    }
    if (team.n_threads == n) return 0;
    end_threads();
    return -1;
}

static void on_threads(void (*fn)(void *arg, uint32_t i), void *arg, uint32_t n) {
    team.fn = fn, team.arg = arg, team.n = n;
    for (uint32_t i = 1; i < n; i++) qurt_sem_up(&team.go[i]);
    fn(arg, 0);
    for (uint32_t i = 1; i < n; i++) qurt_sem_down(&team.done);
}
#endif

/* ---- the platform ------------------------------------------------------------------------------------ */

static void forget(const void *p, uint32_t n) {
    qurt_mem_cache_clean((qurt_addr_t)p, n, QURT_MEM_CACHE_INVALIDATE, QURT_MEM_DCACHE);
}
static void write_back(const void *p, uint32_t n) {
    qurt_mem_cache_clean((qurt_addr_t)p, n, QURT_MEM_CACHE_FLUSH, QURT_MEM_DCACHE);
}

static void on_packet(dspqueue_t queue, AEEResult error, void *context) {
    session *s = context;
    tn_hex_request g;
    tn_hex_reply reply;
    uint32_t flags, n_buffers, length;
    (void)error;
    qurt_hvx_lock(QURT_HVX_MODE_128B);
    while (dspqueue_read_noblock(queue, &flags, 0, &n_buffers, NULL, sizeof g, &length, (uint8_t *)&g) ==
           AEE_SUCCESS) {
        if (length != sizeof g) break; /* the host gets no answer and ends this process */
        tn_hex_answer(&s->runtime, &g, &reply);
        dspqueue_write(queue, 0, 0, NULL, sizeof reply, (const uint8_t *)&reply, DSPQUEUE_TIMEOUT_NONE);
    }
    qurt_hvx_unlock();
}

static void on_error(dspqueue_t queue, AEEResult error, void *context) {
    (void)queue, (void)error, (void)context;
}

int tern_dsp_open(const char *uri, remote_handle64 *handle) {
    (void)uri;
    if (the) return AEE_EALREADY;
    *handle = (remote_handle64)(uintptr_t)(the = calloc(1, sizeof *the));
    return the ? AEE_SUCCESS : AEE_ENOMEMORY;
}

int tern_dsp_close(remote_handle64 handle) {
    (void)handle;
    if (the->queue) tern_dsp_stop(handle);
    while (the->n_arenas) HAP_mmap_put(the->arena_fd[--the->n_arenas]);
    free(the);
    the = NULL;
    return AEE_SUCCESS;
}

AEEResult tern_dsp_add_arena(remote_handle64 handle, int32 arena_fd, uint32 arena_bytes) {
    (void)handle;
    void *p = NULL;
    if (the->queue || the->n_arenas == TN_HEX_MAX_ARENAS) return AEE_EBADSTATE;
    if (the->n_arenas && arena_bytes != the->arena_bytes) return AEE_EBADPARM;
    if (HAP_mmap_get(arena_fd, &p, NULL)) return AEE_ENOSUCHMAP;
    the->arena_fd[the->n_arenas] = arena_fd;
    the->arena[the->n_arenas++] = p;
    the->arena_bytes = arena_bytes;
    return AEE_SUCCESS;
}

AEEResult tern_dsp_start(remote_handle64 handle, uint64 queue) {
    (void)handle;
    if (the->queue) return AEE_EBADSTATE;
    the->runtime.platform = (tn_hex_platform){
        .map_arena = map_arena,
        .get_vtcm = get_vtcm,
        .forget = forget,
        .write_back = write_back,
#ifdef TERN_HEXAGON_QURT_THREADS
        .make_threads = make_threads,
        .on_threads = on_threads,
#endif
    };
    return dspqueue_import(queue, on_packet, on_error, the, &the->queue);
}

AEEResult tern_dsp_stop(remote_handle64 handle) {
    (void)handle;
    if (!the->queue) return AEE_EBADSTATE;
    dspqueue_close(the->queue);
    the->queue = NULL;
#ifdef TERN_HEXAGON_QURT_THREADS
    end_threads();
#endif
    if (the->vtcm_id) HAP_compute_res_release(the->vtcm_id);
    return AEE_SUCCESS;
}
