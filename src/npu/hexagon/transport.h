/* npu/hexagon/transport.h - the link to a DSP: arenas of memory that both sides see, and messages both ways.
 * In qemu.c the DSP program is a co-process under qemu-hexagon. fastrpc.c is for a device; it is built only
 * with a Hexagon SDK and has never run (docs/reference/hexagon.md). */
#ifndef TN_HEXAGON_TRANSPORT_H
#define TN_HEXAGON_TRANSPORT_H

#include "base/ctx.h"
#include "base/status.h"
#include "npu/hexagon/message.h"

/* An implementation begins its own struct with this one. */
typedef struct tn_hex_link {
    uint8_t *arena;                 /* the first; all are aligned to a page */
    uint32_t arena_bytes, n_arenas; /* of each; together below 4 GiB */
    uint8_t *arenas[TN_HEX_MAX_ARENAS];
} tn_hex_link;

typedef enum tn_hex_receipt { TN_HEX_CAME, TN_HEX_LATE, TN_HEX_ENDED } tn_hex_receipt;

typedef struct tn_hex_transport {
    const char *name;
    /* open starts the DSP program and makes the arenas. */
    tern_status (*open)(tn_ctx *ctx, tn_hex_link **out, tern_error *err);
    /* send never waits. It returns false if the DSP is gone or its queue is full, which with one request
     * at a time is an error, too. */
    bool (*send)(tn_hex_link *l, const void *message, size_t n_bytes);
    tn_hex_receipt (*receive)(tn_hex_link *l, void *message, size_t n_bytes, int limit_ms);
    /* kill ends the DSP program. When it returns the program no longer writes to the arena; only close may
     * follow. */
    void (*kill)(tn_hex_link *l);
    void (*close)(tn_hex_link **l); /* ends the DSP program too; NULL-safe */
} tn_hex_transport;

extern const tn_hex_transport tn_hex_transport_here; /* of this build */

#endif
