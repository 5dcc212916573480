/* sim/sim.h - a phone on paper: the product's prefill graph and policies on a virtual clock, with a SoC's costs.
 * A SoC is a data file (docs/simulator.md). The two fits made from it happen at loading, so that the file holds
 * only what the papers print:
 *   product  launch + max(weight bytes * byte_ns, MACs * mac_ns)   launch and byte_ns by least squares on the table
 *            of products, mac_ns from the anchor;
 *   float    attention MACs at their rate, everything else per element, from the CPU's anchor. */
#ifndef TN_SIM_SIM_H
#define TN_SIM_SIM_H

#include "sched/timeline.h"
#include "sched/virtual.h"

typedef struct tn_sim_model {
    const char *name;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff;
} tn_sim_model;

typedef struct tn_soc {
    char title[64];
    double launch_ns, byte_ns, mac_ns; /* INT8 products on the device */
    double fit_residual;               /* root mean square of relative errors over the table */
    double attn_mac_ns, elem_ns;       /* float work on the CPU */
    double shadow_channels, shadow_kept; /* outlier channels of a site; share of layers that keep the path */
} tn_soc;

/* Loads share/soc/NAME.json's text. TERN_E_FORMAT names what is missing or makes no sense. */
tern_status tn_soc_load(tn_soc *out, const char *path, tern_error *err);

/* By name; NULL when unknown. i counts from 0 for listing; NULL ends. */
const tn_sim_model *tn_sim_model_find(const char *name);
const tn_sim_model *tn_sim_model_at(int32_t i);
/* INT8 weights of all layers' linears: one graph's worth. */
double tn_sim_weight_bytes(const tn_sim_model *m);

typedef struct tn_sim_request {
    const tn_soc *soc;
    const tn_sim_model *model;
    int32_t n_tokens; /* 1 to 131072 */
    int32_t n_chunk;  /* 32 to 1024 */
    tn_policy policy;
} tn_sim_request;

typedef struct tn_sim_result {
    int32_t n_chunks, n_tasks;
    double ttft_ms, tokens_per_second;
    tn_virtual_result run;
    int64_t critical_ns, work_ns[TN_N_LANES]; /* lower bounds of the run */
} tn_sim_result;

/* tl (may be NULL) with one worker on the CPU and one on the NPU. The graph is opened by the caller, and cleared here. */
tern_status tn_sim_prefill(const tn_sim_request *r, tn_graph *g, tn_sched *s, tn_timeline *tl, tn_sim_result *out, tern_error *err);

/* Which lower bound of the run is the largest: "npu" or "cpu" (the lane's work), "dependencies" (the critical path);
 * "schedule" when the run took over a quarter longer than all of them. */
const char *tn_sim_bottleneck(const tn_sim_result *r);

#endif
