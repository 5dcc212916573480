/* package/switch.h - plans when to replace prefill graphs by decode graphs, block by block (sd.npu 4.2).
 * No threads, no clocks.
 *
 * The model is cut into blocks of layers. Prefill takes steps: step s computes block s % n_blocks of chunk
 * s / n_blocks. Every block starts with its prefill graph (G1) and must have its decode graph (G2) when
 * decoding starts. A load overwrites the block's G1, so after the request the block computes only on G2 (a
 * chunk as several sub-chunks), and waits for the load if necessary. Loads run one at a time, while other
 * blocks compute.
 *
 *   sync         every load after the last step
 *   async        block i's load after its last step: loads overlap the last chunk only
 *   progressive  the paper's greedy: load the last block not yet switched while the next k* blocks compute,
 *                k* the least number that hides the load. Beyond the paper: G2 is slower, so a start is
 *                delayed as long as that pays; if no window hides a load, the one that hides most is taken;
 *                single blocks are moved while that helps. Never worse than the other two.
 *
 * The engine's prefill and the simulator both use this planner. */
#ifndef TN_PACKAGE_SWITCH_H
#define TN_PACKAGE_SWITCH_H

#include "base/status.h"

typedef enum tn_switch_kind {
    TN_SWITCH_PROGRESSIVE,
    TN_SWITCH_ASYNC,
    TN_SWITCH_SYNC,
    TN_N_SWITCHES
} tn_switch_kind;

enum { TN_SWITCH_MAX_BLOCKS = 64, TN_SWITCH_MAX_STEPS = 1 << 20 };

/* "progressive", "async" or "sync". */
bool tn_switch_parse(const char *name, tn_switch_kind *out);

typedef struct tn_switch_costs {
    int32_t n_blocks, n_chunks; /* 1..TN_SWITCH_MAX_BLOCKS; their product at most TN_SWITCH_MAX_STEPS */
    double load_us[TN_SWITCH_MAX_BLOCKS]; /* G2 over G1 */
    double g1_us[TN_SWITCH_MAX_BLOCKS];   /* a chunk through the block on its prefill graph */
    double g2_us[TN_SWITCH_MAX_BLOCKS];   /* the same chunk in sub-chunks on its decode graph */
    double last_chunk; /* the last chunk takes this share of a chunk's times, in (0,1]; 0 = 1, a whole one */
} tn_switch_costs;

typedef struct tn_switch_plan {
    int32_t n_blocks, n_chunks;
    int32_t order[TN_SWITCH_MAX_BLOCKS]; /* blocks in the order of loading */
    int32_t start[TN_SWITCH_MAX_BLOCKS]; /* [block] step at whose beginning it is loaded; n_blocks * n_chunks
                                            = after prefill. Never decreases along `order` */
    double prefill_us;                   /* from the costs: end of the last step */
    double total_us;                     /* the later of the last step and the last load: decoding can
                                            start */
    double stall_us;                     /* of that, time when loads ran and nothing computed */
    double slower_us;                    /* extra computing time on decode graphs */
} tn_switch_plan;

/* Returns k*, the least k >= 1 with load_us <= the sum of the k next steps' times (sd.npu, equation 2), or n
 * + 1 when all n are too short. */
int32_t tn_switch_window(const double *step_us, int32_t n, double load_us);

/* Fills plan->{prefill,total,stall,slower}_us for given starts, and plan->order from them; among equal starts
 * the higher block comes first. */
void tn_switch_simulate(const tn_switch_costs *c, tn_switch_plan *plan);

tern_status tn_switch_plan_make(const tn_switch_costs *c, tn_switch_kind kind, tn_switch_plan *out,
                                tern_error *err);

/* Returns the first chunk that block i computes on its decode graph, or n_chunks for none. */
static inline int32_t tn_switch_chunk(const tn_switch_plan *p, int32_t i) {
    int32_t chunk = p->start[i] / p->n_blocks;
    return p->start[i] % p->n_blocks <= i ? chunk : chunk + 1;
}

#endif
