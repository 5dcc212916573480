/* npu/hexagon/dsp/runtime.h - the DSP's runtime: handles a message from any transport. It keeps the mapped
 * memory, under a cap, and a table of graphs that are loaded once and run by number. */
#ifndef TN_HEXAGON_RUNTIME_H
#define TN_HEXAGON_RUNTIME_H

#include "../message.h"
#include "dma.h"
#include "kernels.h"

/* Functions of the platform. The first two return NULL on failure. */
typedef struct tn_hex_platform {
    uint8_t *(*map_arena)(uint32_t i, uint32_t n_bytes); /* the i-th, for good */
    uint8_t *(*get_vtcm)(uint32_t n_bytes);              /* aligned to 128 */
    /* Cache maintenance: forget drops lines that the host may have written since, the other writes back
     * data for the host. NULL if not needed. */
    void (*forget)(const void *p, uint32_t n_bytes);
    void (*write_back)(const void *p, uint32_t n_bytes);
    /* The first makes n - 1 additional threads, once. The second calls fn(arg, 0 .. n - 1), each on its
     * own thread with HVX, and returns when all are done. Both are NULL with one thread. */
    int (*make_threads)(uint32_t n);
    void (*on_threads)(void (*fn)(void *arg, uint32_t i), void *arg, uint32_t n);
} tn_hex_platform;

typedef struct tn_hex_graph {
    uint32_t loaded;
    tn_hex_load desc;
} tn_hex_graph;

/* A runtime is zero at the start. There is one per DSP session. */
typedef struct tn_hex_runtime {
    tn_hex_platform platform;
    uint8_t *arenas[TN_HEX_MAX_ARENAS], *vtcm;
    tn_hex_hello hello;
    uint32_t n_maps, used_bytes;
    tn_hex_map maps[TN_HEX_MAX_MAPS]; /* in order of place, disjoint */
    uint32_t n_graphs;                /* every loaded one has a smaller number */
    tn_hex_graph graphs[TN_HEX_MAX_GRAPHS];
    tn_hex_spreads spreads;
    uint32_t n_threads, n_used; /* threads in all; most threads used by the current request */
    tn_hex_dma dma[TN_HEX_MAX_THREADS];
} tn_hex_runtime;

/* Answers a request. It never trusts a field of it. */
void tn_hex_answer(tn_hex_runtime *t, const tn_hex_request *g, tn_hex_reply *reply);

#endif
