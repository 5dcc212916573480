/* quant/packer.h - the state of packing, and its steps. pack.c starts and finishes it; by_gram.c is the
 * scheme gram; measure.c runs the model over text and plan.c decides for the papers' schemes; rows.c turns
 * weights to codes; write.c and describe.c write. For these files alone. */
#ifndef TN_QUANT_PACKER_H
#define TN_QUANT_PACKER_H

#include "formats/package.h"
#include "kernels/unpack.h"
#include "npu/npu.h"
#include "quant/corpus.h"
#include "quant/calibrate.h"
#include "quant/heads.h"
#include "quant/pack.h"
#include "quant/partial.h"
#include "quant/recipe.h"

#include <stdatomic.h>

/* Decisions for one site, before its weights are quantised. */
typedef struct site_plan {
    float clip;       /* largest magnitude the device sees */
    float importance; /* largest magnitude / outlier threshold */
    bool outliers;
    int32_t rotated; /* in blocks of this many inputs; 0: not rotated */
    int32_t n_hot;
    int32_t *hot;     /* ascending */
    float *smooth;    /* [k] factors of the weights' columns and divisors of the norm's output; NULL: none */
    int32_t n_smooth; /* 0: one for all; n: one for each expert, [n][k] */
} site_plan;

/* The 8-bit form of a linear's outputs: divided by factor, channel by channel, then by one scale. */
typedef struct tn_output_plan {
    float *factor; /* [n] */
    float scale;
} tn_output_plan;

typedef struct packer {
    tn_ctx *ctx;
    const tn_pack_options *o;
    double bits; /* the resolved options */
    tn_allocation allocation;
    tn_pack_report *report;
    tn_stage_clock clock;
    tn_source *src;
    tn_pool *pool;
    tn_kernels kern;
    tn_model *m;
    tn_calibration cal;
    tn_head_profile heads;
    char *journal;        /* of their importance, beside the package until it is complete */
    tn_recipe_site *made; /* of scheme gram: results for every site, indexed like plans */
    tn_partial partial;   /* ... kept until the package is complete */
    const char *source_path;
    char *partial_path;
    tn_rounded embedding;    /* ... and of the embedding, unless the output layer serves as it */
    site_plan *plans;        /* indexed like tn_calibration's sites */
    tn_output_plan *outputs; /* [n_sites][TN_SITE_MAX_OPS], without lm_head; NULL: outputs in float */
    tn_pkg_writer *w;
    uint8_t *model_bits; /* widths of all channels in the order of writing, allocated together; NULL:
                            tensor by tensor */
    size_t n_model_bits; /* taken so far */
    /* large tensors of the model level, written after the layers */
    tn_pkg_record head[2];
    const void *head_data[2];
    int32_t n_head;
    uint64_t encoder; /* fingerprint of the encoder of pictures in INT8 */
    tern_error *err;
} packer;

extern const tn_npu_layout tn_pack_layout;

static inline site_plan *plan_of(const packer *p, int layer, tn_site s) {
    return &p->plans[tn_program_site_index(&p->m->program, layer, s)];
}

/* ---- measure.c --------------------------------------------------------------------------------------- */

/* Text to calibrate on, kind by kind. */
typedef struct tn_calib_text {
    int32_t *ids;
    size_t n, n_of[TN_N_WORDS]; /* tokens; of each kind */
} tn_calib_text;

/* The caller frees out->ids. */
tern_status tn_pack_text(packer *p, tn_calib_text *out, tern_error *err);
/* Runs the text through the model and calls `layer` for every layer. The caller always closes *corpus.
 * stage: the name for progress. */
tern_status tn_pack_by_layer(packer *p, const int32_t *ids, size_t n_ids, int32_t window, const char *stage,
                             tern_status (*layer)(packer *p, tn_corpus *corpus, int layer),
                             tn_corpus *corpus);
/* Every layer over the text. */
tern_status tn_pack_calibrate(packer *p, const int32_t *ids, size_t n_ids, int32_t window);
/* Measures the importance of each attention head. */
tern_status tn_pack_importance(packer *p, const int32_t *ids, size_t n_ids, int32_t window);

/* ---- outputs.c --------------------------------------------------------------------------------------- */

/* Finds the scales of all outputs from the float model's outputs over the text. */
tern_status tn_pack_outputs(packer *p, const int32_t *ids, size_t n_ids, int32_t window);
void tn_pack_outputs_free(packer *p);
static inline const tn_output_plan *output_of(const packer *p, int32_t i_site, int32_t op) {
    const tn_output_plan *o = p->outputs ? &p->outputs[i_site * TN_SITE_MAX_OPS + op] : NULL;
    return o && o->factor ? o : NULL;
}

/* ---- by_gram.c --------------------------------------------------------------------------------------- */

/* Scheme gram: decides and rounds everything, into p->made and p->plans. */
tern_status tn_pack_gram(packer *p, const tn_calib_text *text, int32_t window);

/* ---- to_gguf.c --------------------------------------------------------------------------------------- */

/* Writes a GGUF file in place of a package. */
tern_status tn_pack_to_gguf(packer *p, const tn_calib_text *text, int32_t window, const char *out);

/* ---- plan.c ------------------------------------------------------------------------------------------ */

/* llm-npu and naive-w8a8: clips and outlier paths. */
tern_status tn_plan_sites(packer *p);
tern_status tn_plan_smooth(packer *p, int layer, tn_site site);   /* smoothquant */
tern_status tn_plan_edgeflow(packer *p, int layer, tn_site site); /* its smoothing */
tern_status tn_plan_edgeflow_clips(packer *p);

/* ---- rows.c ------------------------------------------------------------------------------------------ */

/* Memory of one section while it is assembled, freed as a whole. */
typedef struct hoard {
    tn_ctx *ctx;
    void *blocks[512];
    int n;
} hoard;

void *tn_hoard_keep(hoard *h, size_t n, size_t size); /* zeros; NULL: no memory */
void tn_hoard_drop(hoard *h);

/* ---- coded.c: weightlets as entropy-coded streams for flash (package-format.md, STREAMS) --------------- */

typedef struct tn_pack_coded {
    const uint8_t *bytes, *streams; /* the streams back to back; the record that describes them */
    const uint32_t *sizes;          /* [n_streams] */
    uint64_t n_bytes, streams_bytes;
    size_t n_streams, n_tables;
} tn_pack_coded;

/* Codes an [n][k] linear; out points into h. */
tern_status tn_pack_code(packer *p, hoard *h, bool embedding, const uint8_t *weightlets, const uint8_t *bits,
                         size_t n, size_t k, tn_pack_coded *out, tern_error *err);

typedef struct quantise_job {
    packer *p;
    int layer;
    tn_role role;
    const float *smooth;
    int64_t n, k;
    int8_t *tiles;
    int32_t *col_sum;
    float *scale;
    float *peak;   /* edgeflow, first pass: max^2 over mean square of every row; NULL in the second */
    uint8_t *bits; /* edgeflow, second pass: packed widths and weightlets; NULL: 8 bits in tiles only */
    uint8_t *weightlets;
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} quantise_job;

tern_status tn_rows_quantise(packer *p, quantise_job *j, tern_error *err);
/* Measures every row, allocates the bits, makes room for the weightlets. */
tern_status tn_rows_allocate(packer *p, hoard *h, quantise_job *j, tern_error *err);
/* The channels of every layer's linears share one budget: measures all of them first. */
tern_status tn_rows_allocate_model(packer *p, tern_error *err);

/* ---- write.c, describe.c ----------------------------------------------------------------------------- */

tern_status tn_pack_write(packer *p, const char *out, tern_error *err);
tern_status tn_pack_put_meta(packer *p, tern_error *err);
tern_status tn_pack_put_graphs(packer *p, tern_error *err);
tern_status tn_pack_put_tokenizer(packer *p, tern_error *err);

#endif
