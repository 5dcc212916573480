/* sched/prefill_graph.h - the task graph of a prefill: chunk x layer x stage, and who waits for whom
 * (llm.npu 3.2-3.4). The one description of it: the engine fills the tasks with work, the simulator with
 * times.
 *
 * One layer of one chunk, in order (CPU lane float, NPU lane static INT8 graphs):
 *   norm   cpu  residual of the layer before, norm, quantise            -> u8, outliers
 *   qkv    npu  Q, K, V            || shadow  cpu  outliers x their weight rows
 *   rope   cpu  add the shadow; rope; K and V to the cache
 *   plan   cpu  sparse attention only: scales, INT8 keys   (waits for attention of the chunk before, whose
 * keys it may replace) estimate, select, attend          sparse attention as a pipeline of heads only, see
 * below attn   cpu  attention, quantise   (waits for rope of all earlier chunks: with those before it the
 * only stage that knows the position) o      npu                     || shadow norm2  cpu  residual, norm,
 * quantise ffn    npu  gate, up           || shadow glu    cpu  activation, quantise down   npu || shadow
 * after the last layer: final (residual).
 *
 * Sparse attention head by head (shadowAttn 3.4): a chunk's rows in blocks, and for every block as many slots
 * as there are units (heads that are estimated and selected together). Which unit a slot takes, and which
 * units share a launch, is planned while the graph runs (headplan.h); launches run in the order of first
 * need, so the slots' dependencies are the same for every plan: estimate  npu  the launch that slot i is the
 * first to need, if there is one; behind those of the slots before. There are two places for scores and
 * lists, so a block's first estimate waits for all that the block before the last one has to attend select
 * cpu  the largest scores of slot i's unit, behind its estimate attend    cpu  behind its select; attn waits
 * for all
 *
 * Cold start (EdgeFlow 4.3): where the weights are still in the file, they come in units, each in three
 * steps, in the same graph: read    io   a unit's bytes are there; begins when the units that gave it their
 * place are loaded unpack  cpu  weightlets to the device's tiles load    npu  the unit's graphs are resident:
 * the stages that need them may begin */
#ifndef TN_SCHED_PREFILL_GRAPH_H
#define TN_SCHED_PREFILL_GRAPH_H

#include "sched/graph.h"

typedef enum tn_stage {
    TN_ST_NORM,
    TN_ST_QKV,
    TN_ST_QKV_SHADOW,
    TN_ST_ROPE,
    TN_ST_PLAN,
    TN_ST_ESTIMATE,
    TN_ST_SELECT,
    TN_ST_ATTEND,
    TN_ST_ATTN,
    TN_ST_O,
    TN_ST_O_SHADOW,
    TN_ST_NORM2,
    TN_ST_FFN,
    TN_ST_FFN_SHADOW,
    TN_ST_GLU,
    TN_ST_DOWN,
    TN_ST_DOWN_SHADOW,
    TN_ST_FINAL,
    TN_N_STAGES
} tn_stage;

const char *tn_stage_name(tn_stage s);
tn_lane tn_stage_lane(tn_stage s);
bool tn_stage_is_shadow(tn_stage s);
/* Of the pipeline of heads: a task for every block and slot. */
static inline bool tn_stage_is_head(tn_stage s) {
    return s == TN_ST_ESTIMATE || s == TN_ST_SELECT || s == TN_ST_ATTEND;
}
/* A product of the device with weights. */
static inline bool tn_stage_is_product(tn_stage s) {
    return tn_stage_lane(s) == TN_LANE_NPU && !tn_stage_is_head(s);
}
/* Position-dependent stages cannot share a graph between chunks. */
static inline bool tn_stage_is_dynamic(tn_stage s) {
    return s == TN_ST_ATTN || s == TN_ST_PLAN || tn_stage_is_head(s);
}

typedef enum tn_load_step { TN_LD_READ, TN_LD_UNPACK, TN_LD_LOAD, TN_N_LOAD_STEPS } tn_load_step;

const char *tn_load_step_name(tn_load_step s);

/* Part of the weights. */
typedef struct tn_prefill_unit {
    int32_t layer;  /* n_layers: what only follows the prefill needs (head) */
    tn_stage stage; /* the first stage that needs it: TN_ST_NORM (small tensors), or a product; that layer's
                       shadow of it waits too */
    int32_t after;  /* unit that must be loaded before this one is read, with all before it; -1: none */
} tn_prefill_unit;

typedef struct tn_prefill_spec {
    int32_t n_chunks, n_layers;
    void *user;
    /* Has this layer the stage? Asked of products, shadows and plan only; the others always exist. */
    bool (*has)(void *user, tn_stage stage, int32_t layer);
    /* Completes a task that has its name, lane, place and can_steal: fn, arg, n_parts, estimates, or another
     * lane. */
    void (*fill)(void *user, tn_stage stage, tn_task *t);
    /* The pipeline of heads, where there is a plan stage: slots of a block; blocks of a chunk. 0: attention
     * is one task. Those tasks have the place (subgraph) of TN_ST_ESTIMATE, so that in order a slot's three
     * come one behind the other. */
    int32_t n_head_slots, n_head_blocks;
    bool no_head_overlap; /* one stage of a block at a time */
    void (*fill_head)(void *user, tn_stage stage, int32_t block, int32_t slot,
                      tn_task *t); /* as fill, which is not called for these */
    /* The weights to be loaded on the way, in the order of reading; n_units 0: all are there. Their tasks
     * follow those of the stages: unit u's steps have the ids (tasks of the stages) + TN_N_LOAD_STEPS * u +
     * step. */
    int32_t n_units;
    const tn_prefill_unit *units;
    void (*fill_load)(void *user, int32_t unit, tn_load_step step, tn_task *t); /* as fill */
    /* Adds what else the run does, with its dependencies, after all stages have been filled (they have the
     * ids 0, 1, 2... in the order of filling). NULL: nothing. */
    void (*finish)(void *user, tn_graph *g);
} tn_prefill_spec;

/* Is there such a task in every chunk? */
bool tn_prefill_has(const tn_prefill_spec *spec, tn_stage stage, int32_t layer);

/* Adds the tasks and dependencies to an open, empty graph and seals it. */
tern_status tn_prefill_graph_build(const tn_prefill_spec *spec, tn_graph *g, tern_error *err);

#endif
