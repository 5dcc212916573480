/* attention/sparse_attn.h - attention of a prompt's chunks, and of decoding, at the most relevant
 * positions (shadowAttn 3): the device estimates the scores in INT8, the CPU selects the largest of every
 * row and attends to those positions in float.
 *
 * The plan of a chunk and layer comes first (tn_sparse_attn_plan, one call per KV head). The largest
 * magnitude of the keys so far and of every query head's rows chooses a bucket, a pair of static scales.
 * The keys of the chunk are quantised into the device's tile layout; if their bucket has changed, all keys
 * are. Where heads share, estimates are not per head but per pool of heads of one KV head, with their
 * queries added. Then attention takes one of two forms, with the same bits:
 *   in place    any number of threads attend blocks of rows, one stage after another while the data is in
 *               cache (tn_sparse_attn_rows): for a device that shares the CPU's caches
 *   pipelined   head by head on two lanes, planned (shadowAttn 3.4): tasks of the prefill graph
 *               (tn_sparse_attn_slot): for a device with silicon of its own
 * A file's own weights come without scales (attn_follows of the model). Then a chunk's queries and a KV
 * head's keys are scaled by their own largest magnitude, on a grid so coarse that keys are seldom
 * requantised, and attention is in place. A row's bits depend on the text up to the end of its chunk and on
 * where the chunk begins. They do not depend on threads, lanes, policy or plan. */
#ifndef TN_ATTENTION_SPARSE_ATTN_H
#define TN_ATTENTION_SPARSE_ATTN_H

#include "package/npu_model.h"
#include "model/attn_times.h"
#include "model/rows.h"
#include "attention/headplan.h"
#include "package/prefill_graph.h"

#include <stdatomic.h>

typedef enum tn_attn_mode {
    TN_ATTN_FULL,         /* exact float attention */
    TN_ATTN_SHADOW,       /* INT8 estimate on the device, exact at the selected positions */
    TN_ATTN_FLOAT_SPARSE, /* baseline: the estimate is exact too */
    TN_ATTN_BLOCK_SPARSE, /* baseline: blocks of 64 keys, chosen for 32 rows of a head by the product of mean
                             query and mean key */
    TN_ATTN_NPU_FULL, /* baseline: both products in INT8, softmax in float, its weights and the values in INT8
                         again */
    TN_N_ATTN_MODES
} tn_attn_mode;

bool tn_attn_mode_parse(const char *name,
                        tn_attn_mode *out); /* "full", "shadow", "float-sparse", "block-sparse", "npu-full" */

typedef enum tn_attn_pipeline {
    TN_ATTN_PIPELINE_AUTO, /* on devices with silicon of their own */
    TN_ATTN_PIPELINE_ON,
    TN_ATTN_PIPELINE_OFF,
    TN_N_ATTN_PIPELINES
} tn_attn_pipeline;

bool tn_attn_pipeline_parse(const char *name, tn_attn_pipeline *out); /* "auto", "on", "off" */
/* Reads a list: "paper" is everything; otherwise some of "in-order", "no-fusion", "no-overlap", separated
 * by commas. */
bool tn_attn_plan_parse(const char *list, tn_headplan_switches *out);

enum {
    TN_ATTN_ROWS = 32,
    TN_ATTN_MAX_SHARE = 8,
    TN_ATTN_MAX_TILE = 128,
    TN_ATTN_MAX_STEPS = 3
}; /* query rows of a block; neighbours that share a selection; the same with their heads; scales of Q, and of
      K, to choose from */

/* The share of positions of prompts, by default. The paper has .2; on text that nobody tuned on, .3 keeps
 * the loss of perplexity at 2,048 tokens below .3 % (docs/record/attention.md). */
#define TN_ATTN_RATIO 0.3f
enum {
    TN_ATTN_POOL = 1,
    TN_ATTN_FROM = 1024,
    TN_ATTN_DECODE_FROM = 2048,
    TN_ATTN_FALLS_FROM = 2048, /* that share, and with `falls` less of more positions */
    TN_ATTN_FALLS_TO = 32768
}; /* defaults */
/* The positions from which rows of decode forwards attend sparsely without being asked, in mode automatic on a
 * device that shares memory: a model stretched to 8,192 answered as well as in full (docs/record/attention.md). */
enum { TN_ATTN_DECODE_AUTO = 8192 };
enum { TN_ATTN_DECODE_LEAST = 256 }; /* positions that a row attends to when decoding, if it sees that many */

typedef struct tn_attn_options {
    tn_attn_mode mode;
    bool automatic; /* mode shadow: full instead if the package, the device or the length of the context rules
                       it out */
    float ratio;    /* mean share of the positions, 0..1 */
    bool falls;     /* from TN_ATTN_FALLS_FROM positions on the share falls with the square root of their
                   number, to a quarter of it at TN_ATTN_FALLS_TO, and stays there */
    int32_t n_buckets;   /* 1 or 9 */
    bool no_head_ratios; /* every head gets `ratio` */
    bool check;          /* also find the exact largest, and count how many were selected */
    int32_t share_rows;  /* neighbouring rows that, with all query heads of a KV head, share one
                            selection: 1..8; 0 = 4, 2 if a KV head has more than four query heads, 8 if it
                            has one; -1 = no sharing */
    int32_t pool_heads;  /* where they share: query heads whose queries are added before estimation, 1.. */
    bool whole; /* where they share: estimate all positions in one launch, as on a separate device, even if
                   parts could be merged in cache */
    tn_attn_pipeline pipeline;
    tn_headplan_switches plan; /* of the pipelined form */
    int32_t threshold;  /* chunks that end before this many tokens are attended in full; 0 = as tuned, or
                           TN_ATTN_FROM (baselines: 1). Decoding:  rows that see fewer positions; 0 =
                           TN_ATTN_DECODE_FROM */
    bool decode;        /* decode forwards attend sparsely, too; with mode full, only they do */
    float decode_ratio; /* mean share of the positions there, 0..1 */
} tn_attn_options;

typedef struct tn_attn_stats {
    uint64_t n_rows, n_selected,
        n_seen; /* (row, head) pairs attended sparsely; positions selected; that could have been */
    uint64_t n_true, n_found; /* with check: exact largest positions; of those selected */
    double mass; /* with check: share of the exact softmax weights that lies on selected positions, summed
                    over n_rows */
    uint64_t n_requantised,
        n_launches; /* times a KV head's keys were quantised anew; estimates run on the device */
    /* Of the pipelined form: units in launches of a chunk; these launches; plans made, their time in all
     * and of the longest; the planned time of the chunks and layers attended this way, and their actual
     * time from the first estimate to the last attend, including other work in between. */
    uint64_t n_fused, n_fused_launches, n_plans, plan_ns, plan_max_ns;
    double planned_us, took_us;
    uint64_t bytes; /* INT8 keys and graphs */
} tn_attn_stats;

/* Tells whether attention takes the pipelined form. */
bool tn_attn_pipelined(const tn_attn_options *o, const tn_npu_caps *caps);

typedef struct tn_sparse_attn tn_sparse_attn;

/* Opens it for contexts of up to kv->cap_tok, with n_chunks of chunk_rows rows in flight. Borrows everything.
 * It fails with TERN_E_UNSUPPORTED when the package does not know its heads' scales. */
tern_status tn_sparse_attn_open(tn_ctx *ctx, const tn_npu_model *m, const tn_hparams *h,
                                const tn_kernels *kern, const tn_kv *kv, const tn_attn_options *o,
                                int32_t n_workers, int32_t n_chunks, int32_t chunk_rows, tn_sparse_attn **out,
                                tern_error *err);
void tn_sparse_attn_close(tn_sparse_attn **s);

/* Why all layers of such a model attend in full, whatever its package knows; NULL if some need not. */
const char *tn_sparse_attn_why_not(const tn_hparams *h);

/* The token from which on chunks are attended sparsely: as given, as measured, or the default. */
int32_t tn_sparse_attn_from(const tn_npu_model *m, const tn_attn_options *o);

/* Tells whether prompts of a context of n_ctx tokens can gain from it at all: the package must know its
 * scales, and the context must be long enough to pay. */
bool tn_sparse_attn_pays(const tn_npu_model *m, const tn_attn_options *o, int32_t n_ctx);

/* Returns the positions from which rows of decode forwards attend sparsely in a context of n_ctx tokens, asked for
 * or by itself, or 0 for never. */
int32_t tn_sparse_decode_from(const tn_npu_model *m, const tn_hparams *h, const tn_attn_options *o,
                              int32_t n_ctx);

/* Tells whether a layer attends sparsely in a chunk whose last row sees n_pos positions. */
bool tn_sparse_attn_wanted(const tn_sparse_attn *s, int layer, int32_t n_pos);

/* Notes that only the first n_pos positions of the cache are unchanged. Called before every forward. */
void tn_sparse_attn_rewind(tn_sparse_attn *s, int32_t n_pos);

/* Plans chunk i_chunk of the wave (rows r, their rotated queries q), for a layer and a KV head. Its keys
 * are in the cache, and earlier ones have been planned. */
tern_status tn_sparse_attn_plan(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                int32_t kv_head, const float *q, tern_error *err);
/* Attends in place: rows row0..row1-1 (at most TN_ATTN_ROWS), all heads. out [n_rows][n_heads * d_head]. */
tern_status tn_sparse_attn_rows(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                const float *q, float *out, int32_t row0, int32_t row1, int32_t i_worker,
                                tern_error *err);

/* The shape of the pipelined form: how the graph of a chunk is divided (n_slots 0: in place), and the
 * parts of its tasks. */
typedef struct tn_attn_shape {
    int32_t n_slots, n_blocks, block_rows;
    bool no_overlap;
} tn_attn_shape;

tn_attn_shape tn_sparse_attn_shape(const tn_sparse_attn *s);
int32_t tn_sparse_attn_parts(const tn_sparse_attn *s, tn_step_kind step);
/* Runs a part of a task of the pipeline of heads, in the order of the graph. A chunk shorter than the others
 * leaves the last blocks without rows. */
tern_status tn_sparse_attn_slot(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                tn_step_kind step, int32_t i_block, int32_t slot, int32_t part,
                                const float *q, float *out, int32_t i_worker, tern_error *err);

/* Measures what attention of this kind takes on this device, on random keys. One layer of h is enough. */
tern_status tn_sparse_attn_measure(tn_ctx *ctx, const tn_kernels *kern, tn_npu_device *dev,
                                   const tn_hparams *h, const tn_attn_options *o, tn_attn_times *out,
                                   tern_error *err);
/* Decode forwards have at most TN_ATTN_ROWS rows, tokens or a tree, and all rows' keys are in the cache.
 * They attend in this many rounds, one after the other; 0: all rows attend in full. A round begins with
 * plan for every KV head. Then come its rows, on any threads, each KV head apart. A row's bits depend on
 * its text alone. */
int32_t tn_sparse_decode_rounds(const tn_sparse_attn *s, const tn_rows *r, int layer);
void tn_sparse_decode_plan(tn_sparse_attn *s, const tn_rows *r, int layer, int32_t kv_head, int32_t round);
/* Attends with one row, and does nothing for a row of another round. scratch: tn_rows_scratch floats. out
 * [n_rows][n_heads * d_head]. */
tern_status tn_sparse_decode_row(tn_sparse_attn *s, const tn_rows *r, int layer, int32_t kv_head, int32_t row,
                                 int32_t round, const float *q, float *out, float *scratch, int32_t i_worker,
                                 tern_error *err);

void tn_sparse_attn_stats_get(const tn_sparse_attn *s, tn_attn_stats *out);

#endif
