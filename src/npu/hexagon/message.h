/* npu/hexagon/message.h - messages between host and DSP: one request of fixed size, answered by one reply.
 * Both sides are little-endian with 32-bit fields.
 *
 * Places are byte offsets into the shared arenas, which are consecutive and of one size; nothing is an
 * address, and nothing crosses from one arena to the next. The DSP uses only mapped places and counts them
 * against the memory cap of the HELLO. The area named in the HELLO (for jobs' rows and packed weights in
 * transit) is mapped from the start and not counted. */
#ifndef TN_HEXAGON_MESSAGE_H
#define TN_HEXAGON_MESSAGE_H

#include <stdint.h>

enum {
    TN_HEX_VERSION = 5,
    TN_HEX_MAX_ARENAS = 8,
    TN_HEX_MAX_OPS = 8,
    TN_HEX_MAX_GRAPHS = 4096,
    TN_HEX_MAX_MAPS = 16384,
    TN_HEX_MAX_ROWS = 4096,
    TN_HEX_MAX_N = 1 << 20,
    TN_HEX_MAX_K = 65536,
    TN_HEX_MAX_CHANNELS = 256,  /* of one UNPACK */
    TN_HEX_VTCM_MOST = 8 << 20, /* that of a Hexagon v73 */
    TN_HEX_VTCM_LEAST = 16 << 10,
    TN_HEX_MAX_THREADS = 8,
    TN_HEX_IN_ALIGN = 8, /* of RUN's inputs and their stride */
    TN_HEX_TOP_ROWS = 8, /* of one TOPK */
    TN_HEX_MAX_BOUND = 1 << 30,
};

typedef enum tn_hex_what {
    TN_HEX_HELLO = 0x31584854, /* first and once */
    TN_HEX_MAP,                /* size bytes at place may now be used */
    TN_HEX_UNMAP,              /* refused while a graph uses them */
    TN_HEX_LOAD,               /* a graph with the number id, which must be free */
    TN_HEX_RUN,                /* a loaded graph */
    TN_HEX_FREE,               /* a loaded graph; its number is free again */
    TN_HEX_UNPACK,             /* weightlets to tiles (kernels/unpack.h) */
    TN_HEX_TOPK,               /* the largest of rows of scores (kernels/topk.h) */
} tn_hex_what;

typedef enum tn_hex_status {
    TN_HEX_OK = 1,
    TN_HEX_E_MESSAGE, /* unknown, or not allowed now */
    TN_HEX_E_PLACE,   /* not mapped, or not aligned */
    TN_HEX_E_LIMIT,   /* more memory than the cap, or a full table */
    TN_HEX_E_GRAPH,   /* no graph has this number, or one has it already */
    TN_HEX_E_SHAPE,   /* a shape, form or stride that the DSP cannot run */
} tn_hex_status;

enum {
    TN_HEX_POISON = 1
}; /* flag of HELLO: a transfer overwrites its target when it begins, so that reading too early is noticed */

typedef struct tn_hex_hello {
    uint32_t version, arena_bytes, window, window_bytes, cap_bytes /* 0: no limit */, vtcm_bytes, flags,
        n_threads, /* most threads that compute at once, each with its part of VTCM */
        n_arenas;  /* of arena_bytes each; the window is in the first */
} tn_hex_hello;

typedef struct tn_hex_map {
    uint32_t place, size;
} tn_hex_map;

/* tiles are 16x4: ceil(n/16) column tiles of ceil(k/4) lines. They are 0 for Q.K, where the job brings them.
 * scale and bias are n floats, rounded up to 16; bias is 0 for none. out_form is as tn_npu_out. */
typedef struct tn_hex_load {
    uint32_t is_qk, m, k, n_ops;
    struct {
        uint32_t n, out_form, tiles, scale, bias;
    } ops[TN_HEX_MAX_OPS];
} tn_hex_load;

/* in has rows of ceil(k/4)*4 bytes, in_stride apart; that of the first op is all ops' in linears. cols is how
 * many output columns are computed: n for linears, 0 to skip the op. out has rows of cols elements,
 * out_stride elements apart. */
typedef struct tn_hex_run {
    uint32_t n_rows;
    struct {
        uint32_t in, in_stride, out, out_stride, cols, tiles;
    } ops[TN_HEX_MAX_OPS];
} tn_hex_run;

/* Channels 0..n_channels-1 of so many bits each (packed: width - 1 in three bits) are unpacked to the column
 * tiles at tiles. */
typedef struct tn_hex_unpack {
    uint32_t src, src_bytes, tiles, n_channels, k;
    uint8_t bits[(TN_HEX_MAX_CHANNELS * 3 + 7) / 8 + 4];
} tn_hex_unpack;

/* idx gets the positions of the k largest of n scores, ascending; of equal ones the lowest positions.
 * Scores are s32, of bound at most. */
typedef struct tn_hex_topk_rows {
    uint32_t n_rows, bound;
    struct {
        uint32_t scores, n, k, idx;
    } rows[TN_HEX_TOP_ROWS];
} tn_hex_topk_rows;

typedef struct tn_hex_request {
    uint32_t what, serial, id;
    union {
        tn_hex_hello hello;
        tn_hex_map map;
        tn_hex_load load;
        tn_hex_run run;
        tn_hex_unpack unpack;
        tn_hex_topk_rows topk;
    };
} tn_hex_request;

/* serial is the request's. used_bytes is what is mapped, of the cap. n_threads is how many computed at
 * once at most. */
typedef struct tn_hex_reply {
    uint32_t serial, status, used_bytes, n_threads;
} tn_hex_reply;

_Static_assert(sizeof(tn_hex_request) == 12 + 4 + TN_HEX_MAX_OPS * 24, "both sides agree on the size");

#endif
