/* npu/npu.h - the device interface: static INT8 graphs on a neural processing unit.
 *
 * Nothing above this folder knows the backend. All backends follow the rules of a mobile NPU, because the
 * rules are checked here: shapes, scales and output forms are frozen when a graph is compiled; weights are
 * symmetric s8 with at finest one scale per output channel; activations are symmetric with one static
 * scale per tensor; device memory is bounded. A description that breaks a rule is refused with a message,
 * never emulated.
 *
 * device:  opened once, shared by threads, closed after everything that it lent.
 * weights: the constants of one linear (tiles, scales, bias) in the device's memory and native tile layout.
 *          The caller fills them before the first graph that uses them is loaded; then they are read-only.
 *          They are reference counted. With shares_weights any number of graphs, such as M = 256 for prefill
 *          and M = 1 for decode, use one copy.
 * graph:   describe -> compile (or deserialise) -> load (binds weights, becomes resident) -> execute ->
 *          unload/close. Immutable while loaded: any number of threads may execute it at once.
 * job:     one execution. A plain struct owned by the caller; executing allocates nothing.
 *
 * Arithmetic, the same bits on every backend (scalar.c is the definition). Activations are u8 = s8 + 128.
 *   acc  = sum_k (in[m][k] - 128) * W[n][k]                         exact s32
 *   s32  : acc
 *   f32  : fma((float)acc, s[n], b[n]), without bias (float)acc * s[n]
 *          linear: s[n] = act_scale * weights.scale[n], b[n] = weights.bias[n];  Q.K: s = act_scale * k_scale
 *   u8   : 128 + clip(round_half_even(y), -127, 127), y as f32 but with s[n] * r and b[n] * r, r = 1 /
 *        out_scale;
 *   s8   : the same less 128.  Each product is one rounded float product, made when the graph is loaded.
 * A row's result depends neither on the other rows nor on M. */
#ifndef TN_NPU_NPU_H
#define TN_NPU_NPU_H

#include "base/ctx.h"
#include "base/status.h"

#include <stdatomic.h>

typedef struct tn_npu_device tn_npu_device;
typedef struct tn_npu_weights tn_npu_weights;
typedef struct tn_npu_graph tn_npu_graph;
typedef struct tn_npu_job tn_npu_job;
struct tn_kernels;

/* ---- device ---------------------------------------------------------------------------------------- */

/* The device's layout of an [N][K] s8 matrix: tiles of tile_n channels by tile_k inputs, channel
 * by channel inside a tile, tiles ordered by k, then n. Element (n,k) lies at
 *   ((n/tile_n) * ceil(K/tile_k) + k/tile_k) * tile_n * tile_k + (n%tile_n) * tile_k + k%tile_k
 * and padding beyond N and K is zero. 1x1 is plain row-major. The id changes with the meaning of the
 * bytes. */
typedef struct tn_npu_layout {
    uint32_t id;
    int32_t tile_n, tile_k;
} tn_npu_layout;

enum { TN_NPU_LAYOUT_ROWS = 1, TN_NPU_LAYOUT_16X4 = 2, TN_NPU_LAYOUT_32X4 = 3 };

uint64_t tn_npu_tiles_bytes(const tn_npu_layout *l, int64_t n, int64_t k);
/* Packs rows n0..n1-1 of W (row-major [n1-n0][K] at w, n0 a multiple of tile_n) into the tiles of an [N][K]
 * matrix, padding included when n1 is N. col_sum[n] = sum_k W[n][k] for those rows, and 0 for the padding. */
void tn_npu_tiles_pack(const tn_npu_layout *l, int8_t *tiles, int32_t *col_sum, const int8_t *w, int64_t n0,
                       int64_t n1, int64_t k);
/* Reads row n of the matrix: out [K]. */
void tn_npu_tiles_row(const tn_npu_layout *l, const int8_t *tiles, int64_t n, int64_t k, int8_t *out);
/* Reads column i_k of an [N][K] matrix, which is one input channel's weights: out [N]. */
void tn_npu_tiles_column(const tn_npu_layout *l, const int8_t *tiles, int64_t n, int64_t k, int64_t i_k,
                         int8_t *out);

typedef enum tn_npu_out {
    TN_NPU_OUT_F32,
    TN_NPU_OUT_S32,
    TN_NPU_OUT_U8,
    TN_NPU_OUT_S8,
    TN_NPU_N_OUTS
} tn_npu_out;

enum { TN_NPU_MAX_OPS = 8, TN_NPU_MAX_SPLITS = 8 };

typedef struct tn_npu_caps {
    const char *name;     /* of the backend */
    tn_npu_layout layout; /* native tile layout of weights and of K */
    int32_t max_m, max_n, max_k;
    int32_t efficient_m; /* above this, further rows are no longer (almost) free: the width worth filling in
                        decode */
    int32_t splits[TN_NPU_MAX_SPLITS]; /* rows_per_run worth trying (equivalent shapes), profiled by
                                          tn_npu_best_split */
    int32_t n_splits;
    uint64_t memory_cap_bytes; /* addressable bytes: weights, I/O buffers, loaded graphs; 0 = no limit */
    uint32_t out_forms;        /* bit 1 << tn_npu_out for every output form */
    bool shares_weights;       /* several loaded graphs may use one tn_npu_weights */
    bool shared_memory;        /* the CPU may read a weights object's tiles while graphs use them */
    bool own_memory; /* the device has its own memory: tn_npu_mem_alloc lends it, everything else is copied */
    bool unpacks;    /* tn_npu_unpack runs on the device */
    bool has_parts;  /* tn_npu_run_part and tn_npu_help do something */
    int32_t part_n;  /* parts begin at multiples of this many channels of an op; 0: no parts */
    bool
        cpu_computes; /* tn_npu_compute_here: the CPU can do the device's work from the device's own memory */
    bool has_weightlets; /* weights may stay packed: tn_npu_weights_data.packed */
    bool packed_pays;    /* with few rows they are read at the rate of memory, so decoding gains */
    int32_t n_threads;   /* number of host threads that the device runs on; 0 = its own silicon */
} tn_npu_caps;

typedef struct tn_npu_options {
    int32_t n_threads;         /* host backend: worker threads, 1..64 (default 1) */
    uint64_t memory_cap_bytes; /* 0 = no limit (default) */
    bool apart; /* host backend: behave like separate silicon: jobs run only on the device's threads, and
                   not in parts (default false) */
    bool separate_weights;  /* behave like a device whose graphs cannot share weights (default false) */
    uint64_t scratch_bytes; /* hexagon: VTCM for staging weights, 16 KiB to 8 MiB; 0 = 8 MiB (default) */
    const struct tn_kernels *kernels; /* host backend: borrowed; NULL = chosen by processor (default) */
} tn_npu_options;

void tn_npu_options_defaults(tn_npu_options *o);

/* Returns the names of the backends built in, in order of preference, and NULL beyond the last. */
const char *tn_npu_backend_name(size_t i);

/* Opens a device. opt may be NULL. ctx is borrowed and outlives the device. */
tern_status tn_npu_open(tn_ctx *ctx, const char *backend, const tn_npu_options *opt, tn_npu_device **out,
                        tern_error *err);
void tn_npu_close(tn_npu_device **d);
const tn_npu_caps *tn_npu_device_caps(const tn_npu_device *d);
uint64_t tn_npu_used_bytes(tn_npu_device *d); /* of memory_cap_bytes */

/* Lends memory that the device reads and writes directly: 64-byte aligned, not cleared, counted against the
 * cap. Jobs take any pointer; a device with its own address space copies other memory. */
tern_status tn_npu_mem_alloc(tn_npu_device *d, uint64_t n_bytes, void **out, tern_error *err);
void tn_npu_mem_free(tn_npu_device *d, void *p); /* NULL-safe */

/* ---- weights --------------------------------------------------------------------------------------- */

/* tiles has tn_npu_tiles_bytes(); the others are [N rounded up to tile_n], with padding 0. bias is NULL for
 * weights without one. */
typedef struct tn_npu_weights_data {
    int8_t *tiles; /* values in [-127,127], 64-byte aligned; NULL: packed */
    int32_t *col_sum;
    float *scale; /* finite, per output channel */
    float *bias;
    /* If the device has weightlets, borrowed weights may be weightlets instead of tiles
     * (kernels/unpack.h): channels of 1..8 bits. They are checked when a graph that uses them is loaded;
     * widths that do not add up to packed_bytes are then TERN_E_FORMAT. */
    const uint8_t *packed, *bits;
    uint64_t packed_bytes;
} tn_npu_weights_data;

/* Makes device memory for an [N][K] matrix, not cleared. The caller fills all of it, padding included, before
 * loading a graph that uses it. So unpacking writes directly into the device's memory. */
tern_status tn_npu_weights_open(tn_npu_device *d, int64_t n, int64_t k, bool has_bias, tn_npu_weights **out,
                                tern_error *err);
/* Does the same over memory of the caller (a mapped package), which outlives the weights. It also counts
 * against the cap, except for tiles in memory that tn_npu_mem_alloc lent. */
tern_status tn_npu_weights_borrow(tn_npu_device *d, int64_t n, int64_t k, const tn_npu_weights_data *data,
                                  tn_npu_weights **out, tern_error *err);
/* Lets the device unpack weightlets to tiles, if caps.unpacks and the tiles lie in memory from
 * tn_npu_mem_alloc. The arguments are those of tn_weightlets_unpack (kernels/unpack.h). Threads may unpack
 * parts of one matrix at once. Returns false when nothing was done and the caller must do it. */
bool tn_npu_unpack(tn_npu_device *d, const uint8_t *src, const uint8_t *packed_bits, int64_t n0, int64_t n1,
                   int64_t k, int8_t *tiles);
tn_npu_weights_data tn_npu_weights_get(const tn_npu_weights *w);
/* Copies channel n, out [k], from weights of any form. Packed ones must have been loaded by a graph once. */
void tn_npu_weights_row(const tn_npu_weights *w, int64_t n, int8_t *out);
void tn_npu_weights_close(tn_npu_weights **w); /* drops one reference */
uint64_t tn_npu_weights_bytes(const tn_npu_weights *w);

/* ---- graph ----------------------------------------------------------------------------------------- */

typedef enum tn_npu_kind {
    TN_NPU_LINEARS, /* one or several linears of one input [M][K] (QKV, gate + up) */
    TN_NPU_QK, /* one or several INT8 products Q[M][d] . K[N][d]^T, d = k; one op per fused head; no weights
                */
    TN_NPU_N_KINDS
} tn_npu_kind;

/* Only the first value is accepted. The others exist so that requests for them can be refused by name. */
typedef enum tn_npu_act_quant {
    TN_NPU_ACT_PER_TENSOR,
    TN_NPU_ACT_PER_TOKEN,
    TN_NPU_ACT_DYNAMIC
} tn_npu_act_quant;
typedef enum tn_npu_weight_quant {
    TN_NPU_WEIGHT_PER_CHANNEL, /* per tensor: the same with equal scales */
    TN_NPU_WEIGHT_PER_GROUP,
    TN_NPU_WEIGHT_ASYMMETRIC
} tn_npu_weight_quant;

enum { TN_NPU_DYNAMIC = -1 }; /* a shape known only at run time: refused */

typedef struct tn_npu_op {
    int32_t n; /* output channels, or positions */
    tn_npu_act_quant act_quant;
    tn_npu_weight_quant weight_quant;
    float act_scale; /* > 0; of the input (Q) */
    float k_scale;   /* > 0; of K; unused by linears */
    bool has_bias;   /* linears: the weights' bias is added */
    tn_npu_out out;
    float out_scale;    /* > 0; for u8 and s8 */
    int32_t out_stride; /* elements between output rows; 0 = n */
} tn_npu_op;

typedef struct tn_npu_graph_desc {
    tn_npu_kind kind;
    int32_t m, k;      /* rows (a job may leave the last ones unused: zero structure) and inputs */
    int32_t in_stride; /* bytes between input rows, at least k rounded up to 4 (the bytes between are
                          readable, of any value); 0 = chosen for the device: ask tn_npu_graph_get */
    int32_t
        rows_per_run; /* the equivalent shape: m rows run as ceil(m / this) products of this many; 0 = m */
    int32_t n_ops;
    tn_npu_op ops[TN_NPU_MAX_OPS];
} tn_npu_graph_desc;

/* Compiles a graph. TERN_E_UNSUPPORTED means that the description breaks a rule of the device or of all
 * devices, TERN_E_LIMIT that it is too large for it. */
tern_status tn_npu_compile(tn_npu_device *d, const tn_npu_graph_desc *desc, tn_npu_graph **out,
                           tern_error *err);
/* Writes at most cap bytes of the compiled graph and returns its size. */
size_t tn_npu_serialise(const tn_npu_graph *g, void *buf, size_t cap);
/* Reads a compiled graph from untrusted bytes. TERN_E_FORMAT: damaged; TERN_E_UNSUPPORTED: of another
 * version or device. */
tern_status tn_npu_deserialise(tn_npu_device *d, const void *buf, size_t n_bytes, tn_npu_graph **out,
                               tern_error *err);
/* Makes the graph resident. weights has one per op in order for linears (the graph takes references) and is
 * NULL for Q.K. */
tern_status tn_npu_load(tn_npu_graph *g, tn_npu_weights *const *weights, tern_error *err);
void tn_npu_unload(tn_npu_graph *g); /* waits for its jobs; the compiled graph may be loaded again */
void tn_npu_graph_close(tn_npu_graph **g);
uint64_t
tn_npu_load_bytes(const tn_npu_graph *g); /* device memory of the loaded graph, without its weights */
/* Returns the description with its defaults filled in. */
const tn_npu_graph_desc *tn_npu_graph_get(const tn_npu_graph *g);

/* ---- execution ------------------------------------------------------------------------------------- */

/* Fill the first part and leave the rest zero. A job stays in place, with its buffers, until it is done; then
 * it may be reused. */
struct tn_npu_job {
    tn_npu_graph *graph;
    int32_t n_rows; /* 1..m; input rows from here on are not read, output rows unspecified */
    const uint8_t *in[TN_NPU_MAX_OPS]; /* linears: in[0] for all ops; Q.K: Q of each op */
    void *out[TN_NPU_MAX_OPS];         /* rows of out_stride elements */
    struct {
        const int8_t *tiles;    /* K [N][d] in the native layout, 64-byte aligned */
        const int32_t *col_sum; /* [N rounded up to tile_n] */
        int32_t n_pos;   /* 1..n; output columns from here on are unspecified, K is read to the end of the
                            current tile */
    } k[TN_NPU_MAX_OPS]; /* Q.K only */
    /* on_done is called once, on a thread of the device or in submit, before the job counts as done. It may
     * submit other jobs. NULL means none. */
    void (*on_done)(void *user, tn_npu_job *job, tern_status st);
    void *user;

    /* The device's own fields. */
    tn_npu_job *next;
    int32_t next_part, n_parts, n_left;
    tern_status status;
    atomic_int state; /* tn_npu_job_state; release/acquire: publishes status and the outputs */
};

typedef enum tn_npu_job_state { TN_NPU_JOB_IDLE, TN_NPU_JOB_RUNNING, TN_NPU_JOB_DONE } tn_npu_job_state;

/* Queues the job and returns. A job that the graph cannot run is TERN_E_INVALID, and nothing is queued. Jobs
 * start in order. */
tern_status tn_npu_submit(tn_npu_job *job, tern_error *err);
bool tn_npu_done(const tn_npu_job *job);  /* poll; acquires the outputs */
tern_status tn_npu_wait(tn_npu_job *job); /* returns the job's status: TERN_OK or TERN_E_DEVICE */

/* With has_parts: runs part i of n of a job on the calling thread, without submitting it. The parts of a
 * job may run on several threads at once, each exactly once; together they are the whole execution. The
 * caller orders them. */
tern_status tn_npu_run_part(const tn_npu_job *job, int32_t i, int32_t n, tern_error *err);
/* With cpu_computes: runs a whole job on the calling thread with the CPU's kernels (k, borrowed),
 * independently of the device. Reads the device's tiles in place and gives the device's bits. */
tern_status tn_npu_compute_here(const tn_npu_job *job, const struct tn_kernels *k, tern_error *err);
/* Returns the number of parts into which the device itself would divide this job: as many as are worth a
 * thread each. */
int32_t tn_npu_n_parts(const tn_npu_job *job);
/* Lends the calling thread: runs one part of the oldest submitted job. Returns false if there is nothing
 * to do. */
bool tn_npu_help(tn_npu_device *d);

#endif
