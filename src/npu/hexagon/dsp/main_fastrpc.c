/* npu/hexagon/dsp/main_fastrpc.c - the DSP side on a device: a library that FastRPC opens. Messages come
 * through a dspqueue and are answered on its thread. It is built only with a Hexagon SDK. It has NEVER RUN
 * and was never compiled, because the SDK's DSP headers are not public. */
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
        if (length != sizeof g) break; /* the host hears nothing, and ends this process */
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
    the->runtime.platform = (tn_hex_platform){map_arena, get_vtcm, forget, write_back};
    return dspqueue_import(queue, on_packet, on_error, the, &the->queue);
}

AEEResult tern_dsp_stop(remote_handle64 handle) {
    (void)handle;
    if (!the->queue) return AEE_EBADSTATE;
    dspqueue_close(the->queue);
    the->queue = NULL;
    if (the->vtcm_id) HAP_compute_res_release(the->vtcm_id);
    return AEE_SUCCESS;
}
