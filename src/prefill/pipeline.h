/* prefill/pipeline.h - a package's forward: chunks of the prompt x steps of the program, as tasks on two
 * lanes (llm.npu 3.2-3.4).
 *
 * The steps come from the model's program (steps.h), their dependencies from package/prefill_graph.h. A wave is
 * up to TN_WAVE_CHUNKS chunks in flight together. Decoding runs the same steps of one small chunk in order,
 * each spread over the pool. */
#ifndef TN_PREFILL_PIPELINE_H
#define TN_PREFILL_PIPELINE_H

#include "attention/sparse_attn.h"
#include "package/switching.h"
#include "model/rows.h"
#include "model/tree.h"
#include "sched/executor.h"
#include "package/prefill_graph.h"
#include "package/measured.h"

typedef struct tn_pipeline tn_pipeline;

/* The profile: measured times of every type of step (tn_step_types_of the model's program) of a full chunk on
 * its lane. The policies decide by it. */
enum {
    TN_PROFILE_FORWARDS = 9,
    TN_PROFILE_WAVES = 8 /* one wave may be disturbed by another process; this many seldom all are */
};
typedef struct tn_step_profile {
    double us[TN_MAX_STEP_TYPES]; /* attention: at position 0 */
    double cpu_us
        [TN_MAX_STEP_TYPES]; /* products: on the CPU, where a device with silicon of its own has the others; 0:
                                         not measured */
    double attn_us_per_pos;  /* attention: more per earlier position */
    /* These are measured by tern bench --tune only, else 0: the time of a prefill outside its waves (the last
     * token's logits), and of a whole prefill of so many tokens. */
    double rest_us, whole_us;
    int32_t whole_tok;
    bool measured;
    int32_t n_waves;  /* number of waves of which us is the minimum; at TN_PROFILE_WAVES measuring stops */
    bool later_waves; /* while tuning: the growth of attention is learned from every full wave, so in the
                         end from the last */
    float forward_rows[TN_PROFILE_FORWARDS],
        forward_relative[TN_PROFILE_FORWARDS]; /* times of decode forwards by number of rows, relative to
                                                  one row: drafting decides by them */
    int32_t n_forwards;
} tn_step_profile;

typedef struct tn_pipeline_stats {
    int64_t wall_ns, busy_ns[TN_N_LANES], n_decisions, decide_ns, decide_max_ns, n_stolen;
    uint64_t n_outliers, n_rows,
        n_dropped; /* clipped activations of sites with outlier paths; rows quantised; beyond capacity */
    uint64_t hot_hits, cold_misses;             /* weight rows found resident, and read from the package */
    uint64_t n_tasks, n_ahead, n_beside;        /* as in tn_sched_counts, over all waves */
    uint64_t graph_bytes, graph_bytes_unshared; /* device memory of the last wave's linear graphs, and what
                                                   separate graphs for each chunk would take */
    int32_t n_subgraphs,
        n_shared; /* last wave: number of (chunk, subgraph) pairs, and of those with a shared graph */
    size_t activation_bytes;
    tn_switcher_stats switching; /* of the model, over all its sessions */
    tn_attn_stats attention;
} tn_pipeline_stats;

/* Opens a pipeline with buffers for chunks of m->chunk rows. Waves are planned and their graphs built on
 * first use. kv and the others are borrowed. Attention has separate options for chunks of the prompt and for
 * decoding. profile has the times to decide by; the first TN_PROFILE_WAVES full waves measure them. */
tern_status tn_pipeline_open(tn_ctx *ctx, const tn_npu_model *m, const tn_model *model,
                             const tn_kernels *kern, const tn_kv *kv, tn_pool *pool, tn_executor *exec,
                             tn_policy policy, const tn_attn_options *attention, tn_step_profile *profile,
                             tn_pipeline **out, tern_error *err);
void tn_pipeline_close(tn_pipeline **p);
/* The layers' states other than keys and values, borrowed; NULL: none. */
void tn_pipeline_remembers(tn_pipeline *p, const tn_conv *conv, tn_delta *delta);

/* From the next forward on, its text is read with these adapters, borrowed; NULL: none. */
void tn_pipeline_adapt(tn_pipeline *p, const tn_lora_mix *mix);

/* From the next forward on, ids beyond the vocabulary are these rows, borrowed; NULL: there are none. */
void tn_pipeline_see(tn_pipeline *p, const tn_extra_rows *extra);

/* From the next forward on, parts of a wave, and layers of few rows, are paused between; borrowed, NULL: never. While
 * weights are loaded, and where a device exchanges the forms of graphs, nothing is. */
void tn_pipeline_pauses(tn_pipeline *p, const tn_pause *pause);

/* Announces that n_tok tokens from position pos0 on follow in one or more forwards, then decoding. Where not
 * every form is loaded, the switch of the layers' graphs is planned now. The forwards may take a wave or a
 * chunk each: the form of few rows is for waves of few rows, so the bits are the same. */
tern_status tn_pipeline_begin(tn_pipeline *p, int32_t n_tok, int32_t pos0, tern_error *err);

/* Tells that the cache holds another text, because a state was loaded. */
void tn_pipeline_forget(tn_pipeline *p);

/* The next n tokens of a text, at positions pos0..; p is the pipeline of its session. tree is NULL, or the shape of these
 * tokens, whose K and V go to slots pos0.. in the order of the rows. */
typedef struct tn_pipeline_text {
    tn_pipeline *p;
    const int32_t *ids;
    int32_t n, pos0;
    const tn_tree *tree;
    bool rope_long;
    int32_t next; /* position of rope that a token at pos0 has (model/axes.h) */
} tn_pipeline_text;

/* Evaluates them (n <= rows of a wave). Afterwards tn_pipeline_row(X, i) is the residual after the last layer. timeline may
 * be NULL. */
tern_status tn_pipeline_forward(const tn_pipeline_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                                tern_error *err);

/* Evaluates the next tokens of several texts together, at most TN_DECODE_M in all, in one pass over the
 * weights. A row gets the bits that it gets alone. tn_pipeline_row and tn_pipeline_logits of p then count the
 * rows text after text. p is the pipeline of one of the texts; no other has more room. All weights must be
 * loaded: see tn_pipeline_can_share. */
tern_status tn_pipeline_forward_texts(tn_pipeline *p, const tn_pipeline_text *texts, int32_t n_texts,
                                      tn_timeline *timeline, tern_error *err);
bool tn_pipeline_can_share(const tn_pipeline *p);
int32_t tn_pipeline_room(const tn_pipeline *p); /* tokens of its cache */

/* Returns the most rows of a wave that begins at position pos0. */
int32_t tn_pipeline_wave_rows(const tn_pipeline *p, int32_t pos0);
/* The same of a chunk. */
int32_t tn_pipeline_chunk_rows(const tn_pipeline *p, int32_t pos0);
const float *tn_pipeline_row(const tn_pipeline *p, tn_buffer b, int32_t i); /* X or TAPS */

/* Computes logits [n][n_vocab] of the rows row0.. of the last forward; n <= TN_DECODE_M. */
tern_status tn_pipeline_logits(tn_pipeline *p, int32_t row0, int32_t n, float *logits, tern_error *err);

/* The same for n <= TN_DECODE_M states [n][n_embd] after a last norm, without adapters. */
tern_status tn_pipeline_head(tn_pipeline *p, const float *states, int32_t n, float *logits, tern_error *err);

const tn_pipeline_stats *tn_pipeline_stats_get(const tn_pipeline *p);

/* Gives the simulator the shape of its waves and the profile's times. */
void tn_pipeline_measured(const tn_pipeline *p, tn_measured_steps *out);

#endif
