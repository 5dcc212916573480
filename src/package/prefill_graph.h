/* package/prefill_graph.h - the task graph of a prefill: chunks x steps and their dependencies (llm.npu
 * 3.2-3.4). This is its only description: the engine fills the tasks with work, the simulator with times.
 *
 * The steps of a chunk come as a list (prefill/steps.h makes it from the model's program). A step waits for
 * the previous one, and besides:
 *   - where each linear of one input is a product by itself, all of them wait for what the first waits for,
 *     and the step after them waits for all;
 *   - the outlier path of a product runs in parallel: it waits for the same steps as the product, and the
 *     step after the product waits for both;
 *   - a step that recalls its layer's state waits for the steps of all earlier chunks that remember it;
 *   - the plan of sparse attention waits for the attention of the previous chunk, whose keys it may replace.
 *
 * Sparse attention head by head (shadowAttn 3.4) lies between a plan and its attention. A chunk's rows are
 * divided into blocks, and every block has as many slots as there are units (heads that are estimated and
 * selected together). While the graph runs, headplan.h decides which unit a slot takes and which units
 * share a launch. Launches run in the order of first need, so the slots' dependencies are the same for
 * every plan:
 *   estimate  npu  the launch that slot i is the first to need, if any; after those of earlier slots. There
 *                  are two places for scores and lists, so a block's first estimate waits until the block
 *                  before the previous one has been attended
 *   select    cpu  the largest scores of slot i's unit, after its estimate
 *   attend    cpu  after its select; attention waits for all
 *
 * In a cold start (EdgeFlow 4.3) the weights are still in the file. They come in units, each in three steps
 * of the same graph:
 *   read      io   the unit's bytes arrive; starts when the units that used its memory before are loaded
 *   unpack    cpu  weightlets to the device's tiles
 *   load      npu  the unit's graphs are resident: the steps that need them may begin */
#ifndef TN_PACKAGE_PREFILL_GRAPH_H
#define TN_PACKAGE_PREFILL_GRAPH_H

#include "sched/graph.h"

typedef enum tn_step_kind {
    TN_STEP_ROWS,      /* float work, row by row */
    TN_STEP_ATTENTION, /* the same, starting with attention */
    TN_STEP_PRODUCT,   /* the device's, with weights */
    TN_STEP_OUTLIERS,  /* float work in parallel with the previous product */
    TN_STEP_PLAN,      /* of sparse attention, before attention */
    TN_STEP_ESTIMATE,  /* of the pipeline of heads, for every block and slot; not in lists */
    TN_STEP_SELECT,
    TN_STEP_ATTEND,
    TN_N_STEP_KINDS
} tn_step_kind;

/* Tells whether a step belongs to the pipeline of heads. */
static inline bool tn_step_is_head(tn_step_kind k) { return k >= TN_STEP_ESTIMATE && k <= TN_STEP_ATTEND; }
const char *tn_head_step_name(tn_step_kind k); /* "estimate", "select", "attend" */

enum { TN_NO_WEIGHTS = -1 };

typedef struct tn_step {
    tn_step_kind kind;
    const char *name; /* static */
    int32_t type;     /* steps of one type do the same work in different layers */
    int32_t layer;    /* ascending in a list */
    tn_lane lane;
    int32_t weights;             /* the part of its layer's weights that it needs besides the small tensors */
    uint32_t recalls, remembers; /* bits of the states that it reads and writes */
    bool positional;             /* cannot share a graph between chunks */
    bool sibling; /* PRODUCT: reads the same input as the previous product and does not wait for it */
} tn_step;

typedef enum tn_load_step { TN_LD_READ, TN_LD_UNPACK, TN_LD_LOAD, TN_N_LOAD_STEPS } tn_load_step;

/* A unit is a part of the weights. */
typedef struct tn_prefill_unit {
    int32_t layer; /* n_layers: needed only after the prefill (lm_head) */
    int32_t
        weights; /* as in tn_step; TN_NO_WEIGHTS: the layer's small tensors, which its first step waits for */
    int32_t after; /* this unit and all before it must be loaded before this one is read; -1: none */
} tn_prefill_unit;

typedef struct tn_prefill_spec {
    int32_t n_chunks, n_steps;
    const tn_step *steps;
    void *user;
    /* fill completes a task that has its name, lane, place and can_steal. It sets fn, arg, n_parts and
     * estimates, and may choose another lane. */
    void (*fill)(void *user, const tn_step *step, tn_task *t);
    /* The pipeline of heads after plan steps: n_head_slots in a block, n_head_blocks in a chunk. With 0,
     * attention is one task. These tasks share one `subgraph`, so that in order a slot's three follow each
     * other. */
    int32_t n_head_slots, n_head_blocks;
    bool no_head_overlap; /* one stage of a block at a time */
    void (*fill_head)(void *user, const tn_step *plan, tn_step_kind head, int32_t block, int32_t slot,
                      tn_task *t); /* like fill, which is not called for these */
    /* The weights that this run loads, in the order of reading; n_units is 0 when all are loaded. Their tasks
     * follow those of the steps: unit u's have the ids (tasks of the steps) + TN_N_LOAD_STEPS * u + step. */
    int32_t n_units;
    const tn_prefill_unit *units;
    void (*fill_load)(void *user, int32_t unit, tn_load_step step, tn_task *t); /* as fill */
    /* finish adds further tasks and dependencies after all steps have been filled. The steps have the ids 0,
     * 1, 2... in the order of filling. NULL adds nothing. */
    void (*finish)(void *user, tn_graph *g);
} tn_prefill_spec;

/* Adds the tasks and dependencies to an open, empty graph and seals it. */
tern_status tn_prefill_graph_build(const tn_prefill_spec *spec, tn_graph *g, tern_error *err);

#endif
