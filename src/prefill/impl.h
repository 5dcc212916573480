/* prefill/impl.h - shared by the files of the pipeline.
 *
 *   pipeline.c   opens and closes it, plans its buffers
 *   outliers.c   quantises rows; computes clipped-off values in float beside the device's product
 *   work.c       runs a part of a step
 *   waves.c      the task graphs of waves
 *   times.c      what their tasks took, for the policies
 *   cold.c       waves that load the weights
 *   switching.c  waves that exchange graphs
 *   forward.c    one forward: as a wave, or few rows step by step; logits
 * The caller's thread owns all of it between runs. While a wave runs, a task owns its chunk and part, and the
 * counters are atomic. */
#ifndef TN_PREFILL_IMPL_H
#define TN_PREFILL_IMPL_H

#include "model/op.h"
#include "package/loader.h"
#include "prefill/pipeline.h"
#include "prefill/steps.h"

#include <stdatomic.h>

enum { TN_FEW_ROWS = 4 }; /* fewer are one part: handing them out costs more than computing them */

/* The quantised inputs of one site, and what the clip cut off: row i has n_out[i] outliers at i * out_cap. */
typedef struct quantised {
    uint8_t *x;
    float *own; /* rows divided for the site, where others read the undivided ones */
    uint32_t *n_out, *channel;
    float *resid;
    float *share; /* [rows][share_n]: contribution of outliers and adapters to the outputs; only for rows
                     that have some */
} quantised;

/* The buffers of one chunk in flight, slices of one arena. */
typedef struct chunk {
    tn_rows r;
    tn_frame f;
    int32_t *pos, *slot;
    tn_row_axes *axes; /* [0] where rows have one position */
    tn_row_picture *picture;
    float *rope_cs;
    quantised in;  /* of the site quantised last */
    uint8_t *out8; /* 8-bit outputs of the last computed site, linear by linear */
    /* With experts: the quantised inputs of their site, place by place (model/experts.h), and a job for each
     * where the device takes whole ones. */
    uint8_t *expert_x;
    tn_npu_job *expert_jobs;
} chunk;

/* The rows of one text in a forward of few rows: a slice of chunk 0. */
typedef struct text {
    tn_rows r;
    tn_frame f;
    tn_sparse_attn *sparse; /* of the text's own pipeline, or NULL */
    int32_t row0;
} text;

typedef struct cold_cache { /* per worker: weight rows read from the package for one part */
    int8_t *rows;           /* [out_cap][max_outlier_n] */
    const int8_t **ptrs;    /* [max_k] by input channel, in the kernel's form */
} cold_cache;

typedef struct task_arg {
    tn_pipeline *p;
    int32_t i_chunk, step;
    tn_step_kind kind;     /* the step's, or one of the pipeline of heads after it */
    int32_t i_block, slot; /* of the pipeline of heads */
} task_arg;

typedef struct load_arg {
    tn_pipeline *p;
    int32_t layer0, layer1;
} load_arg;

typedef struct cold_arg { /* a step of loading a part of the weights */
    tn_pipeline *p;
    int32_t unit;
    tn_load_step step;
} cold_arg;

typedef struct wave { /* the task graph of n_chunks chunks */
    tn_graph *graph;
    task_arg *args;
    int64_t *task_ns, *stolen_ns; /* one block */
} wave;

/* The forward that runs: set when it begins, read by its tasks. */
typedef struct call {
    tn_form form;
    bool sparse;        /* its chunks attend sparsely */
    bool loading;       /* it loads the weights */
    int32_t n_skipped;  /* its first chunk is shorter by this many rows; tn_pipeline_row needs it later */
    int32_t small_rows; /* decode form: rows of a part, so that all threads have some */
    text texts[TN_MAX_TEXTS]; /* of few rows */
    int32_t n_texts;
} call;

/* Devices that keep one form of a graph: a wave that loads graphs is built for its run. */
typedef struct switching {
    tn_switcher *switcher; /* NULL: both forms are loaded */
    tn_switch_plan plan;
    int32_t next_wave; /* its number in the plan; -1: there is no plan */
    wave wave;
    load_arg *args; /* [TN_SWITCH_MAX_BLOCKS] */
} switching;

/* A wave while weights are still in the file: built for its run. */
typedef struct cold_start {
    wave wave;
    cold_arg *args;
} cold_start;

struct tn_pipeline {
    tn_ctx *ctx;
    const tn_npu_model *m;
    const tn_model *model;
    const tn_kernels *kern;
    tn_pool *pool;
    tn_executor *exec;
    tn_policy policy;
    tn_step_profile *profile;
    tn_steps steps;
    int32_t n_rows, n_workers, out_cap;
    int32_t n_compute; /* workers of the CPU and of the NPU */
    call call;
    chunk chunks[TN_WAVE_CHUNKS];
    int32_t n_chunks_open;       /* buffers exist for so many */
    int32_t said_from, said_end; /* positions announced last */
    void *arenas[TN_WAVE_CHUNKS];
    tn_sparse_attn *sparse; /* NULL: full attention always */
    bool sparse_prompt;     /* chunks of the prompt, not only decoding */
    tn_attn_shape heads;    /* of its pipeline of heads; n_slots 0: attention is one task */
    tn_npu_job *jobs;       /* [TN_WAVE_CHUNKS][sites] */
    uint8_t *lm_head_x;     /* quantised rows of lm_head */
    float *lm_head_rows;    /* [TN_DECODE_M][n_embd] normed */
    float *scratch;         /* [n_workers][scratch_stride] attention */
    size_t scratch_stride;
    cold_cache *cold; /* [n_workers] */
    int32_t share_n;  /* most outputs of a site with an outlier path or an adapter */
    float *lora;      /* [n_workers][lora_stride] with adapters */
    size_t lora_stride;
    wave waves[TN_WAVE_CHUNKS + 1];
    switching switching;
    cold_start start;
    const tn_pause *pause;                                             /* NULL: never */
    atomic_uint_fast64_t n_outliers, n_dropped, hot_hits, cold_misses; /* relaxed: statistics */
    tn_pipeline_stats stats;
};

/* ---- outliers.c ---- */
/* Quantises a row. x is overwritten: it is rotated in place where the site's inputs are. */
void tn_quantise_row(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row, float *x);
/* Computes q->share[row] = sum over the row's outliers of residual x weight row x weight scale, plus the
 * contribution of the text's adapters for the site's inputs, which c still has. */
tern_status tn_outlier_rows(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1,
                            int i_worker, tern_error *err);
/* Adds it to the site's outputs, which are in c's buffers. */
void tn_outliers_merge(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1);
/* Finishes the outputs of a site of chunk i_chunk: 8-bit outputs become floats, and the contribution computed
 * beside the product is added. */
void tn_outputs_take(tn_pipeline *p, int32_t i_chunk, int32_t site, int32_t row0, int32_t row1);
/* Has any row of the site a contribution beside the product? */
bool tn_site_has_beside(const tn_pipeline *p, int32_t site);

/* ---- experts.c ---- */
/* Quantises the rows of an op of experts. */
void tn_experts_route(const tn_pipeline *p, const chunk *c, const tn_op *op, int32_t row0, int32_t row1);
/* At the beginning of a layer: guesses its experts, to be read ahead. */
void tn_experts_foresee(const tn_pipeline *p, const chunk *c, const tn_op *ops, int32_t n_ops);
void tn_experts_gather(tn_pipeline *p, chunk *c, const tn_op *op, int32_t row0, int32_t row1);
void tn_experts_quantise(tn_pipeline *p, chunk *c, const tn_npu_site *s, const tn_op *op, int32_t row);
/* Number of parts into which their products may be cut. */
int32_t tn_experts_parts(const tn_pipeline *p, const tn_npu_site *s);
/* Runs a part of them. here: the calling thread computes in the device's place. */
tern_status tn_experts_product(tn_pipeline *p, int32_t i_chunk, const tn_npu_site *s, int32_t part,
                               int32_t n_parts, bool here, tern_error *err);

/* ---- work.c ---- */
/* Gives the frame of the row's text, and the row's number in it. */
const tn_frame *tn_frame_of(const tn_pipeline *p, const chunk *c, int32_t row, int32_t *own);
bool tn_site_has_parts(const tn_pipeline *p, const tn_npu_site *s);
/* The linear that a product computes alone, or -1 for all of its site (with `alone` above 1: none). Sites
 * whose graphs are exchanged have no graphs of single linears. */
int32_t tn_step_linear(const tn_pipeline *p, int32_t step);
/* Tells whether the CPU lane can compute a product taken from the device's queue. */
bool tn_product_can_be_stolen(const tn_pipeline *p, int32_t step);
/* Measures a product of a full chunk on the calling thread, with the CPU's kernels. out [rows][n_total] is
 * scratch; the inputs are chunk 0's. */
tern_status tn_product_time_here(const tn_pipeline *p, int32_t step, float *out, double *us, tern_error *err);
/* Number of blocks of channels between which a site's product, or that of its linear (-1: all), may be
 * cut. */
int32_t tn_site_blocks(const tn_pipeline *p, const tn_npu_site *s, int32_t linear);
int32_t tn_step_parts(const tn_pipeline *p, int32_t step, tn_step_kind kind, int32_t n_rows);
tern_status tn_step_run(tn_pipeline *p, int32_t i_chunk, int32_t step, int32_t part, int32_t n_parts,
                        int i_worker, bool here, tern_error *err);
/* Runs the rest of an attention step, on rows row0 .. row1 - 1. */
void tn_step_behind_attention(tn_pipeline *p, chunk *c, int32_t step, int32_t row0, int32_t row1);
tern_status tn_task_run(void *arg, int part, const tn_worker *w, tern_error *err);

static inline tn_npu_job *tn_job_of(const tn_pipeline *p, int32_t i_chunk, int32_t site) {
    return &p->jobs[(size_t)i_chunk * (size_t)p->m->n_sites + (size_t)site];
}
static inline const tn_npu_site *tn_step_site(const tn_pipeline *p, int32_t step) {
    return &p->m->sites[p->steps.work[step].site];
}

/* A chunk's attention reads whole panels of keys while later chunks write theirs, so chunks in flight must
 * not share a panel. A first chunk that begins inside a panel is shorter by this. */
static inline int32_t tn_skipped_rows(int32_t pos0) { return pos0 % TN_KV_PANEL; }

/* ---- waves.c ---- */
typedef struct tn_wave_filler { /* while a wave's graph is built: what its functions are given */
    tn_pipeline *p;
    wave *w;
    int32_t n; /* tasks filled */
} tn_wave_filler;
/* Builds the graph of n_chunks chunks, once. */
tern_status tn_wave_build(tn_pipeline *p, int32_t n_chunks, tern_error *err);
/* The most tasks of such a graph, and memory for them and so many more. */
size_t tn_wave_most_tasks(const tn_pipeline *p, int32_t n_chunks);
tern_status tn_wave_open(tn_pipeline *p, wave *w, size_t n_tasks, tern_error *err);
void tn_wave_close(tn_pipeline *p, wave *w);
/* Fills w's empty graph with the chunks' tasks, and with what `with` adds (units to load, or its finish). */
tern_status tn_wave_fill(tn_pipeline *p, wave *w, int32_t n_chunks, const tn_prefill_spec *with,
                         tern_error *err);
/* A graph is made for full chunks; a short one has fewer parts of rows. */
void tn_wave_fit(tn_pipeline *p, wave *w);

/* ---- cold.c ---- */
tern_status tn_wave_build_cold(tn_pipeline *p, int32_t n_chunks, tern_error *err);
void tn_wave_drop_cold(tn_pipeline *p);

/* ---- switching.c ---- */
tern_status tn_switching_open(tn_pipeline *p, tern_error *err);
/* Tells whether the plan begins a load in the next wave. */
bool tn_wave_switches(const tn_pipeline *p);
tern_status tn_wave_build_switching(tn_pipeline *p, int32_t n_chunks, tern_error *err);
/* Learns the times of layers in their current forms, for the switcher. */
void tn_wave_learn_forms(tn_pipeline *p, const wave *w, const tn_form *form_before, int32_t n_chunks,
                         int64_t wall_ns);

/* ---- times.c ---- */
/* Gives the tasks of a graph their times, measured or guessed. */
void tn_wave_estimate(const tn_pipeline *p, wave *w, int32_t n_tasks);
/* Learns the profile's times from a full wave, and the growth of attention from a later one. */
void tn_wave_learn(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0);
void tn_wave_learn_growth(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0);
/* Measures products on the CPU, where it may take them from a device with its own silicon and their times are
 * unknown: once, one product of each type. */
tern_status tn_wave_learn_stolen(tn_pipeline *p, tern_error *err);
/* Returns the time of a layer of a chunk (its products and the rest), measured or guessed. */
void tn_wave_layer_us(const tn_pipeline *p, double *product, double *other);

/* What the forward that runs is paused for; NULL: nothing. */
const tn_pause *tn_pipeline_pause_now(const tn_pipeline *p);

#endif
