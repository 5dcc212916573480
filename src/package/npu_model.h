/* package/npu_model.h - a package opened for an INT8 device: weights and static graphs per site, outlier
 * rows, norms.
 *
 * Opening reads the package's index and the data before the layers, plans all memory and makes all graphs.
 * The loader (loader.h) reads the weights, at once or while the first prompt is computed. One copy of the
 * weights, in the device's tiles or packed, serves both graph forms: chunks of the prompt (M = chunk) and
 * decode (M = decode_m). Every chunk uses the same graphs (chunk sharing, llm.npu 3.2): only attention
 * depends on the position. */
#ifndef TN_PACKAGE_NPU_MODEL_H
#define TN_PACKAGE_NPU_MODEL_H

#include "base/aio.h"
#include "base/file.h"
#include "formats/package.h"
#include "model/attn_times.h"
#include "model/model.h"
#include "model/sites.h"
#include "npu/npu.h"
#include "package/switch.h"

#include <stdatomic.h>

typedef enum tn_form { TN_FORM_CHUNK, TN_FORM_DECODE, TN_N_FORMS } tn_form;

/* Most chunks of a prefill in flight. */
enum { TN_WAVE_CHUNKS = 4 };

enum {
    TN_DECODE_M = TN_PKG_DECODE_M,
    TN_CHUNK_DEFAULT = TN_PKG_CHUNK,
    TN_CHUNK_MIN = 32,
    TN_CHUNK_MAX = 1024
};

typedef enum tn_load_mode {
    TN_LOAD_STREAM,     /* reading, unpacking, loading and the first prefill overlap, layer by layer */
    TN_LOAD_OVERLAP,    /* reading overlaps unpacking and loading; computing begins when everything is
                           loaded */
    TN_LOAD_SEQUENTIAL, /* reading, unpacking, loading and computing follow each other */
    TN_LOAD_MMAP,       /* the file is mapped: pages arrive when they are touched, tiles are used in place */
    TN_N_LOAD_MODES
} tn_load_mode;

bool tn_load_mode_parse(const char *name, tn_load_mode *out); /* "stream", "overlap", "sequential", "mmap" */

/* Form in memory of weights of fewer than 8 bits. */
typedef enum tn_weights_form {
    TN_WEIGHTS_TILES,  /* unpacked once, when they are loaded */
    TN_WEIGHTS_PACKED, /* as they are in the file; each product unpacks its weights */
    TN_N_WEIGHTS_FORMS,
    TN_WEIGHTS_AUTO =
        TN_N_WEIGHTS_FORMS, /* packed if the device reports that it pays (packed_pays), else tiles */
} tn_weights_form;

bool tn_weights_form_parse(const char *name, tn_weights_form *out); /* "tiles", "packed", "auto" */

/* Returns a hash of hyperparameters, tokenizer and weights, from their sections' checksums. It identifies
 * the profile. */
uint64_t tn_package_fingerprint(const tn_pkg *p, const tn_hparams *h);

/* Whether packages of this model include its layer that guesses one token further: its widths must be whole
 * blocks. */
bool tn_package_holds_next(const tn_hparams *h);

/* The best settings for a package on this machine, as found by measure/tune.h. */
typedef struct tn_tuned {
    uint64_t fingerprint; /* of the package; 0: nothing known */
    int32_t chunk;
    int32_t rows_per_run[TN_N_SITES]; /* equivalent shape of the chunk form; 0: all rows at once */
    int32_t attn_threshold;   /* chunks that end before this many tokens attend in full; 0: not measured */
    char packed_form[16];     /* form of one row's products (gemm_packed.h); "": the default */
    bool unfinished;          /* measuring was interrupted: the missing part is measured later */
    tn_attn_times attn_times; /* of its heads' pipeline */
} tn_tuned;

typedef struct tn_npu_site {
    tn_site_ops ops;
    tn_site kind;
    int32_t layer; /* -1: of the model level */
    bool on_cpu;   /* does not fit the device's memory: the CPU lane computes the same static graph */
    float act_scale, inv_scale;
    const float *inverse; /* [ops.k] factors of the inputs before they are quantised; NULL: they are
                             smoothed earlier, if at all */
    int32_t in_stride;    /* bytes between rows of quantised activations, as required by the graphs */
    tn_npu_weights *weights[TN_SITE_MAX_OPS];    /* what the device reads */
    const tn_pkg_record *tiles[TN_SITE_MAX_OPS]; /* of the linears, as tiles or weightlets */
    tn_npu_weights_data
        image[TN_SITE_MAX_OPS];       /* the same as tiles or packed; valid while the device's is replaced */
    tn_npu_graph *graphs[TN_N_FORMS]; /* lm_head has the decode form only, a site of experts none */
    /* For a site of experts: weights [n_experts][ops.n_ops], views of the images of all experts, and graphs
     * [n_experts][TN_N_FORMS]. Else NULL. */
    tn_npu_weights **expert_weights;
    tn_npu_graph **expert_graphs;
    /* If each linear is a product of its own: its chunk form; else NULL. */
    tn_npu_graph *op_graphs[TN_SITE_MAX_OPS];
    /* Without chunk sharing: separate graphs and weights for the chunks of a wave after the first; else
     * NULL. */
    tn_npu_graph *chunk_graphs[TN_WAVE_CHUNKS - 1];
    tn_npu_weights *chunk_weights[TN_WAVE_CHUNKS - 1][TN_SITE_MAX_OPS];
    /* Outputs in 8 bits: out = (u8 - 128) * out_scale * out_factor[channel]; factor NULL: in float. The same
     * for all linears of a site. */
    const float *out_factor[TN_SITE_MAX_OPS];
    float out_scale[TN_SITE_MAX_OPS];
    int32_t rotated;         /* 0, or the block of kernels/hadamard.h that rotates the inputs before they
                                are quantised */
    bool has_outliers;       /* the CPU adds back clipped activations */
    const int8_t **hot_rows; /* [ops.k] weight row of an input channel over ops.n_total outputs; NULL: cold */
    const tn_pkg_section *rows_section; /* place of the cold rows in the package */
    uint64_t rows_off_bytes;
    const uint32_t *row_hash; /* [ops.k] of the cold rows */
} tn_npu_site;

typedef struct tn_switcher tn_switcher;
typedef struct tn_loader tn_loader;
typedef struct tn_on_demand tn_on_demand;

typedef struct tn_npu_model {
    tn_ctx *ctx;
    tn_pkg *pkg;
    tn_npu_device *dev;
    const tn_npu_layout *layout; /* of the device's tiles */
    tn_npu_device *cpu_dev;      /* of sites beyond the device's memory; NULL when all fit */
    int32_t n_on_cpu;
    const tn_kernels *kern;
    tn_model *model; /* memory of the layers' small tensors */
    tn_loader *loader;
    tn_switcher
        *switcher; /* NULL: both forms of every graph are loaded (the device's graphs share weights) */
    tn_on_demand *on_demand; /* reads experts (on_demand.h); NULL: all are in memory */
    uint64_t experts_bytes;  /* memory for experts on demand; 0: all are in memory */
    int32_t chunk;           /* rows of the chunk form */
    bool packed; /* weightlets stay packed, except at sites with an outlier path, which reads columns */
    char scheme[24];
    int32_t n_layers, n_sites;
    tn_npu_site *sites;   /* as the program's */
    int32_t max_output_n; /* widest site with outputs in 8 bits */
    int32_t max_outlier_n, max_k,
        max_stride; /* over sites with outlier paths: outputs; over all: inputs, in_stride */
    bool any_outliers;
    bool cold_from_file; /* rows of cold channels are read from the package, not from the device's tiles */
    /* embedding rows for look-up: their resident form (tiles, or weightlets when embd_packed) and their
     * scales. embd_bits: widths of the file's weightlets, NULL: tiles; embd_off [tiles + 1]: beginnings of
     * the file's column tiles after decoding of streams. */
    const int8_t *embd_weights;
    /* embeddings for every layer: the places of their parts in the file, which is read row by row; the
     * hashes of all rows; whether reading a row failed */
    struct tn_table_part {
        const tn_pkg_section *section;
        uint64_t off_bytes;
    } * table;
    uint32_t *table_hash;
    atomic_int *table_failed; /* a status */
    bool embd_packed;
    int32_t embd_rotated; /* the rows are also those of an output layer whose inputs are rotated in blocks of
                             this size */
    const uint8_t *embd_bits;
    uint64_t *embd_off;
    const float *embd_scale;
    const uint32_t *embd_tile_hash;
    tn_file *map;                 /* the package, where it is mapped */
    char **small, **small_blocks; /* [n_layers + 1]: small tensors of model and layers, and their memory
                                     (NULL when mapped) */
    char **row_blocks;            /* [n_layers + 1]: scales and sums of linears */
    int8_t **tile_blocks, **device_blocks; /* [n_layers + 1]: the one copy of the weights, tiles or packed, in
                                              the device's own memory if it has some */
    char *next, *next_block; /* section of the layer that guesses one token further, and its memory (NULL when
                        mapped) */
    void *graph_section;     /* of the package, with its table */
    const tn_pkg_graph *pkg_graphs;
    uint32_t n_pkg_graphs;
    int32_t n_compiled;           /* number of graphs that the package lacks in this form */
    uint64_t prefill_graph_bytes; /* of one chunk's graphs on a device: weights, scales, buffers */
    bool no_chunk_sharing;
    bool by_operator; /* the CPU may take single linears from the device: sites have op_graphs */
    bool operators;   /* every linear is a task of its own on the device, by those graphs */
    /* For sparse attention, NULL in packages without the data: mean scales of Q and K [n_layers], importance
     * of the heads [n_layers][n_heads]. */
    float *attn_scale_q, *attn_scale_k, *attn_head_weight;
    bool attn_follows;        /* a file's own weights: scales are unknown and follow the text */
    tn_attn_times attn_times; /* measured where it was packed */
    tn_tuned tuned;           /* zeros: not tuned for this chunk length */
    uint64_t graph_bytes;     /* serialised size of all graphs: a measure of the saving by chunk sharing */
    uint64_t hot_row_bytes, all_row_bytes;
} tn_npu_model;

typedef struct tn_npu_model_options {
    tn_pkg **pkg; /* NULL: path is opened; else the opened file, taken (and nulled) by tn_npu_model_open */
    const char *backend;       /* NULL: the first built in */
    int32_t n_threads;         /* of the device */
    uint64_t memory_cap_bytes; /* 0 = no limit except the device's own */
    uint64_t scratch_bytes;    /* as in tn_npu_options */
    uint64_t experts_bytes;    /* memory for experts read on demand; 0 = all are loaded (default) */
    int32_t chunk;             /* 0 = the tuned one, or TN_CHUNK_DEFAULT */
    tn_tuned tuned;            /* ignored when it belongs to another package */
    bool no_chunk_sharing;     /* every chunk of a wave has graphs and weights of its own */
    const char *cold_rows;     /* "weights", "file"; NULL: the weights where the CPU can read them */
    tn_load_mode load;
    tn_weights_form weights;
    tn_aio_options io; /* filled by tn_aio_defaults */
    uint64_t
        ring_bytes; /* memory for packed weights in transit, at least a unit's; 0 = 48 MiB, or three units */
    bool apart;     /* as in tn_npu_options */
    bool separate_weights; /* the device's graphs cannot share weights: one form is resident (switching.h) */
    tn_switch_kind graph_switch;
    int32_t switch_blocks; /* 0 = as many as are best */
    bool operators;        /* every linear is a task of its own */
    bool steals; /* the CPU lane takes single linears from a device with its own silicon (EdgeFlow 4.3) */
} tn_npu_model_options;

/* Opens a package and makes its tn_model (hyperparameters, norms, tokenizer; without linears). kern is
 * borrowed. */
tern_status tn_npu_model_open(tn_ctx *ctx, tn_pool *pool, const tn_kernels *kern, const char *path,
                              const tn_npu_model_options *opt, tn_npu_model **out, tn_model **model,
                              tern_error *err);
void tn_npu_model_close(tn_npu_model **m);

/* Whether the matrix of this record stays packed in memory. */
static inline bool tn_npu_stays_packed(const tn_npu_model *m, const tn_pkg_record *r) {
    bool looked_up = r->role == TN_W_EMBD && !m->model->h.tied; /* row by row, on no device */
    return (m->packed || looked_up) && r->part == TN_PKG_WEIGHTLETS && !(r->flags & TN_PKG_HAS_OUTLIERS);
}

/* Whether the matrix of this record is used in the package's mapping. */
static inline bool tn_npu_in_place(const tn_npu_model *m, const tn_pkg_record *r) {
    return m->map && !tn_pkg_is_coded(r) && (tn_npu_stays_packed(m, r) || r->part == TN_PKG_TILES);
}

/* Whether the weights of this site are read when rows choose its experts. */
static inline bool tn_npu_on_demand(const tn_npu_model *m, const tn_npu_site *s) {
    return m->experts_bytes && s->ops.n_experts;
}

static inline tn_npu_device *tn_npu_site_device(const tn_npu_model *m, const tn_npu_site *s) {
    return s->on_cpu ? m->cpu_dev : m->dev;
}

/* Returns NULL if the layer has no such site. layer is ignored for lm_head. */
static inline tn_npu_site *tn_npu_site_at(const tn_npu_model *m, int layer, tn_site s) {
    int32_t i = tn_program_site_index(&m->model->program, layer, s);
    return i < 0 ? NULL : &m->sites[i];
}

/* Called by the loader when the small tensors of a layer (norms, hot rows) have been read. */
tern_status tn_npu_model_small_ready(tn_npu_model *m, int32_t layer, tern_error *err);
/* Called by the loader when a site's weights are in place. Its graphs become resident. */
tern_status tn_npu_model_site_ready(tn_npu_model *m, tn_npu_site *s, tern_error *err);

/* Reads the embedding of one token: out [n_embd], unscaled. Until everything is loaded, only rows
 * requested from the loader can be read. */
void tn_npu_model_embed(const tn_npu_model *m, const tn_hparams *h, int32_t id, float *out);
/* Reads a token's embeddings for every layer: out [n_layers * n_ple], unscaled. On failure out is zeros, and
 * tn_npu_model_table_ok reports it once. */
void tn_npu_model_embed_layers(const tn_npu_model *m, const tn_hparams *h, int32_t id, float *out);
tern_status tn_npu_model_table_ok(const tn_npu_model *m, tern_error *err);

/* Reads the package's times of sparse attention; zeros: it has none. */
tern_status tn_package_attn_times(tn_ctx *ctx, const tn_pkg *pkg, tn_attn_times *out, tern_error *err);

/* Reads only the hyperparameters of a package's META section, and fills scheme. */
tern_status tn_package_hparams(tn_ctx *ctx, const tn_pkg *pkg, tn_hparams *h, char scheme[24],
                               char description[64], uint64_t *n_params, tern_error *err);

#endif
