/* npu/backend.h - the functions that a backend implements. npu.c checks descriptions and jobs, counts
 * memory, keeps references and wakes waiters; a backend only computes (docs/guide/add-a-backend.md). */
#ifndef TN_NPU_BACKEND_H
#define TN_NPU_BACKEND_H

#include "npu/npu.h"

#include <pthread.h>

typedef struct tn_npu_backend {
    const char *name;
    /* open is required. It fills d->caps (name and memory_cap_bytes are set) and d->impl. */
    tern_status (*open)(tn_npu_device *d, const tn_npu_options *opt, tern_error *err);
    /* close is required. No job is running then, and every graph is unloaded. */
    void (*close)(tn_npu_device *d);
    /* submit is required. It executes a checked job. Exactly one tn_npu_complete must follow, on any thread,
     * also when the device fails. It allocates nothing. */
    void (*submit)(tn_npu_device *d, tn_npu_job *job);

    /* These three are optional, together. They manage memory that both sides see, 64-byte aligned; with
     * NULL the process's own is used. owns: whether a pointer is from there. */
    tern_status (*mem_alloc)(tn_npu_device *d, uint64_t n_bytes, tn_mem_cat cat, void **out, tern_error *err);
    void (*mem_free)(tn_npu_device *d, void *p);
    bool (*owns)(tn_npu_device *d, const void *p);
    /* unpack is optional. It does tn_npu_unpack into memory that the device owns, and cannot fail. */
    void (*unpack)(tn_npu_device *d, const uint8_t *src, const uint8_t *packed_bits, int64_t n0, int64_t n1,
                   int64_t k, int8_t *tiles);
    /* load and unload are optional. load makes the graph resident: weights are final, scale and bias are
     * frozen. g->impl is the backend's. */
    tern_status (*load)(tn_npu_device *d, tn_npu_graph *g, tern_error *err);
    void (*unload)(tn_npu_device *d, tn_npu_graph *g);
    /* Its load needs a factor for every column, also for plain accumulators, which otherwise have none. */
    bool wants_all_factors;
    /* These are optional, together, for caps.has_parts. */
    void (*run_part)(tn_npu_device *d, const tn_npu_job *job, int32_t i, int32_t n);
    int32_t (*n_parts)(const tn_npu_device *d, const tn_npu_job *job);
    bool (*help)(tn_npu_device *d);
    /* compute is required where caps.cpu_computes without parts: the whole job on the calling thread, with
     * the CPU's kernels. tn_npu_host_compute does it for tiles in the host's layout. */
    void (*compute)(const struct tn_kernels *k, const tn_npu_job *job);
} tn_npu_backend;

struct tn_npu_device {
    tn_ctx *ctx;
    const tn_npu_backend *be;
    tn_npu_caps caps;
    void *impl;
    pthread_mutex_t mu;  /* taken last: no other lock is taken under it */
    pthread_cond_t done; /* some job is done */
    uint64_t used_bytes; /* guarded by mu */
    int32_t n_objects;   /* guarded by mu: weights, graphs and buffers lent */
};

enum { TN_NPU_BLOCK = 64 };

struct tn_npu_weights {
    tn_npu_device *dev;
    int32_t n, k;
    uint64_t n_bytes, n_counted; /* its memory; the share of it that counts against the cap */
    tn_npu_weights_data data;
    void *mem;  /* NULL when borrowed */
    void *copy; /* guarded by dev->mu: a backend's copy of borrowed data in its memory; freed with the
                 weights */
    uint64_t *block_off; /* of packed weights: the beginning of every TN_NPU_BLOCK channels; filled when
                            the first graph is loaded */
    bool indexed;        /* guarded by dev->mu: block_off is filled */
    int32_t n_refs;      /* guarded by dev->mu */
    int32_t n_loads;     /* guarded by dev->mu: loaded graphs that use it */
};

struct tn_npu_graph {
    tn_npu_device *dev;
    tn_npu_graph_desc desc; /* checked, defaults filled in */
    bool loaded;
    tn_npu_weights *weights[TN_NPU_MAX_OPS];
    /* Frozen at load: the factors and addends of npu.h, [n rounded up to tile_n], including 1 / out_scale
     * where values are requantised. They are one block at scale[0]. bias is NULL without one, and the
     * weights' own where it needs no factor. */
    float *scale[TN_NPU_MAX_OPS];
    const float *bias[TN_NPU_MAX_OPS];
    uint64_t load_bytes; /* counted against the cap while loaded */
    int32_t n_jobs;      /* guarded by dev->mu: submitted, not yet done */
    void *impl;
};

/* Ends a job: calls on_done, then releases waiters. The job may be gone when this returns. */
void tn_npu_complete(tn_npu_device *d, tn_npu_job *job, tern_status st);

/* The constant operand of an op, W or K, and its column sums. */
static inline const int8_t *tn_npu_op_tiles(const tn_npu_job *j, int32_t i_op) {
    const tn_npu_weights *w = j->graph->weights[i_op];
    return w ? w->data.tiles : j->k[i_op].tiles;
}

static inline const int32_t *tn_npu_op_col_sum(const tn_npu_job *j, int32_t i_op) {
    const tn_npu_weights *w = j->graph->weights[i_op];
    return w ? w->data.col_sum : j->k[i_op].col_sum;
}

static inline const uint8_t *tn_npu_op_in(const tn_npu_job *j, int32_t i_op) {
    return j->in[j->graph->desc.kind == TN_NPU_LINEARS ? 0 : i_op];
}

static inline bool tn_npu_op_requantised(const tn_npu_op *op) {
    return op->out == TN_NPU_OUT_U8 || op->out == TN_NPU_OUT_S8;
}

/* Returns how many columns of an op must be computed. */
static inline int32_t tn_npu_op_cols(const tn_npu_job *j, int32_t i_op) {
    return j->graph->desc.kind == TN_NPU_QK ? j->k[i_op].n_pos : j->graph->desc.ops[i_op].n;
}

/* Computes the whole job on the calling thread with the host's kernels, from tiles in their layout: for a
 * lost device whose memory can still be read, and for work that the CPU takes over from a busy one. */
void tn_npu_host_compute(const struct tn_kernels *k, const tn_npu_job *j);

extern const tn_npu_backend tn_npu_scalar, tn_npu_host, tn_npu_hexagon;

#endif
