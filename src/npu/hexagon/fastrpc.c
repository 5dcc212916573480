/* npu/hexagon/fastrpc.c - the DSP of a device: an unsigned session on its compute DSP, arenas of memory
 * that FastRPC maps there, messages through a dspqueue. It is built only with a Hexagon SDK
 * (TERN_HEXAGON_SDK), in place of qemu.c.
 *
 * It has NEVER RUN: it was written against the public headers and compiled against them.
 * docs/reference/hexagon.md lists what must be verified on a device. The arenas are uncached for the CPU,
 * which is slow but needs no cache maintenance here. The DSP side does the maintenance of the DSP's cache. */
#include "npu/hexagon/transport.h"

#include <AEEStdErr.h>
#include <dspqueue.h>
#include <remote.h>
#include <rpcmem.h>

#include "tern_dsp.h" /* made by qaic of tern_dsp.idl */

/* A DSP process addresses 4 GiB, with code, VTCM and stacks among them. */
enum { ARENA = 1 << 30, MOST_ARENAS = 3, QUEUE_BYTES = 16 << 10 };

typedef struct fastrpc_link {
    tn_hex_link link;
    tn_ctx *ctx;
    remote_handle64 handle;
    dspqueue_t queue;
    bool opened, started, killed;
} fastrpc_link;

static void end(tn_hex_link *l) {
    fastrpc_link *f = (fastrpc_link *)l;
    struct remote_rpc_process_clean_params p = {.domain = CDSP_DOMAIN_ID};
    if (f->opened && !f->killed) remote_session_control(FASTRPC_REMOTE_PROCESS_KILL, &p, sizeof p);
    f->killed = true;
}

static void close_link(tn_hex_link **l) {
    fastrpc_link *f = (fastrpc_link *)*l;
    if (!f) return;
    *l = NULL;
    if (f->started && !f->killed) tern_dsp_stop(f->handle);
    if (f->queue) dspqueue_close(f->queue);
    for (uint32_t i = 0; i < f->link.n_arenas; i++)
        fastrpc_munmap(CDSP_DOMAIN_ID, rpcmem_to_fd(f->link.arenas[i]), f->link.arenas[i], ARENA);
    if (f->opened) tern_dsp_close(f->handle);
    for (uint32_t i = 0; i < f->link.n_arenas; i++) rpcmem_free(f->link.arenas[i]);
    tn_free(f->ctx, f);
}

/* Returns 0, -1 without memory, or FastRPC's error. */
static int add_arena(fastrpc_link *f) {
    uint8_t *p = rpcmem_alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_FLAG_UNCACHED, ARENA);
    if (!p) return -1;
    int fd = rpcmem_to_fd(p), rc = fastrpc_mmap(CDSP_DOMAIN_ID, fd, p, 0, ARENA, FASTRPC_MAP_FD);
    if (!rc && (rc = tern_dsp_add_arena(f->handle, fd, ARENA))) fastrpc_munmap(CDSP_DOMAIN_ID, fd, p, ARENA);
    if (rc) rpcmem_free(p);
    else f->link.arenas[f->link.n_arenas++] = p;
    return rc;
}

static tern_status start(fastrpc_link *f, tern_error *err) {
    struct remote_rpc_control_unsigned_module unsigned_session = {.domain = CDSP_DOMAIN_ID, .enable = 1};
    int rc =
        remote_session_control(DSPRPC_CONTROL_UNSIGNED_MODULE, &unsigned_session, sizeof unsigned_session);
    TN_FAIL_IF(rc, err, TERN_E_DEVICE, "this device has no unsigned DSP sessions (error 0x%x)", rc);
    rc = tern_dsp_open(tern_dsp_URI "&_dom=cdsp", &f->handle);
    TN_FAIL_IF(rc, err, TERN_E_DEVICE,
               "the DSP's library libtern_dsp_skel.so cannot be opened (error 0x%x; is its folder in "
               "DSP_LIBRARY_PATH?)",
               rc);
    f->opened = true;
    while (f->link.n_arenas < MOST_ARENAS && !(rc = add_arena(f))) {
    }
    TN_FAIL_IF(!f->link.n_arenas && rc == -1, err, TERN_E_MEMORY, "no memory to share with the DSP");
    TN_FAIL_IF(!f->link.n_arenas, err, TERN_E_DEVICE, "no arena can be mapped on the DSP (error 0x%x)", rc);
    f->link.arena = f->link.arenas[0];
    f->link.arena_bytes = ARENA;
    uint64_t id;
    rc = dspqueue_create(CDSP_DOMAIN_ID, 0, QUEUE_BYTES, QUEUE_BYTES, NULL, NULL, NULL, &f->queue);
    if (!rc) rc = dspqueue_export(f->queue, &id);
    TN_FAIL_IF(rc, err, TERN_E_DEVICE, "no message queue to the DSP (error 0x%x)", rc);
    rc = tern_dsp_start(f->handle, id);
    TN_FAIL_IF(rc, err, TERN_E_DEVICE, "the DSP's library does not start (error 0x%x)", rc);
    f->started = true;
    return TERN_OK;
}

static tern_status open_link(tn_ctx *ctx, tn_hex_link **out, tern_error *err) {
    *out = NULL;
    fastrpc_link *f = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *f);
    TN_FAIL_IF(!f, err, TERN_E_MEMORY, "no memory for the Hexagon NPU");
    f->ctx = ctx;
    tn_hex_link *l = &f->link;
    tern_status st = start(f, err);
    if (st == TERN_OK) *out = l;
    else close_link(&l);
    return st;
}

static bool send_message(tn_hex_link *l, const void *message, size_t n_bytes) {
    return dspqueue_write_noblock(((fastrpc_link *)l)->queue, 0, 0, NULL, (uint32_t)n_bytes, message) ==
           AEE_SUCCESS;
}

static tn_hex_receipt receive(tn_hex_link *l, void *message, size_t n_bytes, int limit_ms) {
    uint32_t flags, n_buffers, length = 0;
    int rc = dspqueue_read(((fastrpc_link *)l)->queue, &flags, 0, &n_buffers, NULL, (uint32_t)n_bytes,
                           &length, message, (uint32_t)limit_ms * 1000);
    if (rc == AEE_EEXPIRED) return TN_HEX_LATE;
    return rc == AEE_SUCCESS && length == n_bytes ? TN_HEX_CAME : TN_HEX_ENDED;
}

const tn_hex_transport tn_hex_transport_here = {.name = "fastrpc",
                                                .open = open_link,
                                                .send = send_message,
                                                .receive = receive,
                                                .kill = end,
                                                .close = close_link};
