/* lab/sim.h - a phone on paper: one request through the product's own task graph, policies and planners on a
 * virtual clock, with a SoC's costs.
 *
 * A SoC is a data file (docs/reference/simulator.md) that holds what papers print; the fits made from it
 * happen at loading:
 *   product   launch + max(weight bytes * byte_ns, MACs * mac_ns)   launch and byte_ns by least squares on
 *             the table of products, mac_ns from a whole model's time
 *   float     attention MACs at their rate, everything else per element, from the CPU's time for the same
 *             model
 *   estimate  launch + MACs of the launch's heads, by least squares on the table of fused launches
 *   flash     bytes over seconds, through the origin
 *   whole runs of two models, where a file has them, instead of products and decoding
 * Instead of a SoC's, a request may have the times of steps that were measured on a machine
 * (tn_measured_steps). */
#ifndef TN_LAB_SIM_H
#define TN_LAB_SIM_H

#include "attention/headplan.h"
#include "package/measured.h"
#include "package/prefill_graph.h"
#include "package/switch.h"
#include "sched/timeline.h"
#include "sched/virtual.h"

typedef struct tn_sim_model {
    const char *name;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff, n_vocab;
    int32_t
        every; /* only every so-many-th layer attends, with a gate; the others are gated delta nets; 0: all attend */
    int32_t delta_heads, delta_d,
        conv_len; /* of those: heads, of keys and of values, their size, the convolution */
} tn_sim_model;

/* An encoder of pictures, by one of its views (lab/sim_views.h). */
typedef struct tn_sim_encoder {
    int32_t n_layers, width, ff;
    bool gated;
    int32_t patches, rows, joined,
        out; /* what it reads; rows of the prompt, made of so many values each, and their width */
} tn_sim_encoder;

typedef struct tn_soc {
    char title[64];
    const char *float_lane;            /* "CPU" or "GPU": who computes floats */
    double launch_ns, byte_ns, mac_ns; /* INT8 products on the device */
    double
        handover_ns; /* per value that goes into a graph or comes out: how long it keeps the device waiting, beyond
                           the products themselves */
    double cpu_slower,
        gpu_slower; /* the same products on the CPU and the GPU, relative: geometric means over the table */
    double attn_mac_ns, elem_ns;          /* float work on the CPU */
    double core_mac_ns;                   /* attention on one middle core */
    double attend_factor, estimate_float; /* there: sparse attention relative to its share of the positions;
                                             estimation and top-k, relative to all attention */
    double topk_ns;                       /* per score looked at, one core */
    double est_launch_ns, est_mac_ns;     /* INT8 Q.K on the device */
    double float_slower; /* element-wise float operators on the device, relative to the CPU */
    double outlier_channels,
        outliers_kept; /* outlier channels of a site; share of layers that keep the path */
    double sync_ns; /* per output element of a site with outliers: merging the CPU's sum into the device's */
    double flash_byte_ns; /* asynchronous reads */
    double unpack_ns;     /* per weight */
    double setup_byte_ns, graph_byte_ns,
        optimise_byte_ns; /* per byte of the graphs: before anything can be loaded; reading and loading one as
                             the vendor's runtime does; building and optimising */
    double step_layer_ns, step_byte_ns; /* a decode step; one that verifies a draft adds products at mac_ns */
    double step_weight_bits; /* of the layers' weights that a decode step reads; the output layer's have 8 */
    double
        step_context; /* positions whose keys and values it reads, however many there are; 0: not counted */
    double step_kv_bytes;  /* of one value of those */
    bool device_attention; /* attention is the device's, at the products' rate, */
    double
        vector_mac_ns; /* a float multiplication of a recurrence there, or with the CPU's floats: attn_mac_ns */
    double
        prefill_context; /* over a static graph's positions, however many there are; 0: over those that are there */
    double idle_w, cpu_w, npu_w, flash_w; /* the last three: more while busy */
    double products_residual, flash_residual,
        estimate_residual; /* root mean square of the fit's relative errors */
} tn_soc;

/* Loads share/soc/NAME.json. It is strict: every section and field must be there, and no other. TERN_E_FORMAT
 * names what is wrong. */
tern_status tn_soc_load(tn_soc *out, const char *path, tern_error *err);

/* The same SoC with its GPU in the CPU's place, as the float lane (llm.npu 4.6): attention, norms and the
 * like, the multiplications of outlier paths and stolen products at the GPU's rate, relative to the CPU's
 * as the table of products has them. What no paper prints of a GPU is the CPU's: merging with the device's
 * sums, power, decoding, unpacking, one core's attention. */
tn_soc tn_soc_with_gpu(const tn_soc *soc);

/* How long the device takes for a product of INT8 matrices in one graph: of so many weights, by rows of each
 * of which so many values go in and come out. */
double tn_sim_product_ns(const tn_soc *c, double weights, double values, double rows);

/* Both return a model, the first by name. They return NULL when it is unknown, and the second after the
 * last. */
const tn_sim_model *tn_sim_model_find(const char *name);
const tn_sim_model *tn_sim_model_at(int32_t i);
/* Returns the INT8 weights of all layers' linears: one graph's worth. */
double tn_sim_weight_bytes(const tn_sim_model *m);

/* Returns a graph's bytes with a float buffer for every operator's output, as the vendor's runtime keeps them
 * (llm.npu 4.5), for all operators that chunks can share. */
double tn_sim_graph_bytes(const tn_sim_model *m, int32_t n_chunk);

typedef enum tn_sim_load {
    TN_SIM_WARM,       /* all is in memory */
    TN_SIM_STREAM,     /* EdgeFlow: packed sites are read, unpacked and loaded while the prefill runs */
    TN_SIM_OVERLAP,    /* the three overlap, computing begins when all is there */
    TN_SIM_SEQUENTIAL, /* the vendor's finished graphs, weights inside, are loaded; then computing begins */
    TN_SIM_LAYERS,     /* the same layer by layer, computing begins with the first (llm.npu with materialised,
                          overlapped graphs) */
    TN_SIM_BUILD,      /* graphs are built and optimised first, as llm.npu starts */
    TN_N_SIM_LOADS
} tn_sim_load;

typedef enum tn_sim_attention {
    TN_SIM_FULL,
    TN_SIM_SHADOW, /* estimated on the device, top-k and exact attention on one core of the CPU, heads planned
                      by attention/headplan.h */
    TN_SIM_FLOAT_SPARSE, /* estimated on the CPU too */
    TN_N_SIM_ATTENTIONS
} tn_sim_attention;

const char *tn_sim_load_name(tn_sim_load l);
const char *tn_sim_attention_name(tn_sim_attention a);

typedef struct tn_sim_request {
    const tn_soc *soc; /* may be NULL with measured */
    const tn_measured_steps *measured;
    const tn_sim_model *model;
    int32_t n_tokens; /* 1 to 131072 */
    int32_t n_chunk;  /* 32 to 1024 */
    tn_policy policy;
    tn_sim_load load;
    bool no_exposure; /* exposed_io_ms is not asked for: one run instead of two */
    double bits;      /* of packed weights, 1 to 8; 0 = 8 */
    tn_sim_attention attention;
    double ratio;               /* share of the positions that sparse attention keeps; 0 = 0.2 */
    bool one_core;              /* attention has one middle core, as in shadowAttn's measurements */
    tn_headplan_switches heads; /* shadow: steps left out of the plan of heads */
    double npu_memory; /* bytes the device can address: the heaviest linears go there first; 0 = no limit */
    bool staged;       /* within npu_memory: layers beyond it take turns in two places, and none runs on the
                          CPU; an exchange takes what reading a layer from flash takes */
    bool float_on_npu; /* element-wise operators on the device, as llm.npu places them in EdgeFlow's
                          measurements */
    bool
        operators; /* every linear is a task of its own, as EdgeFlow queues them (4.3); so it is where products are
                       stolen */
    bool stage_major; /* with TN_POLICY_PLAN: every lane takes a step of all chunks before the next step */
    int32_t n_gen;    /* tokens generated after the first */
    double accepted;  /* tokens a decode step yields, >= 1; 0 = 1: no drafts */
    bool one_form;    /* the device holds prefill or decode graphs, not both */
    tn_switch_kind switching; /* then they are exchanged so */
    int32_t switch_blocks;    /* in so many blocks; 0 = 2, the paper's */
    tn_sim_encoder encoder;
    int32_t n_views;  /* 0: the prompt has none */
    int32_t n_before; /* so many of its tokens stand before their rows */
} tn_sim_request;

typedef struct tn_sim_result {
    int32_t n_chunks, n_tasks;
    double ttft_ms, tokens_per_second; /* of the prefill */
    double step_ms, ms_per_token;      /* a decode step; the mean over n_gen, with what switching costs */
    double energy_j, memory_bytes;
    double exposed_io_ms;     /* later than with all in memory */
    double exposed_switch_ms; /* later than without switching */
    double apart_ms; /* to the first token where all views are encoded before the prompt; 0: there are none */
    tn_virtual_result run;
    int64_t critical_ns, work_ns[TN_N_LANES]; /* lower bounds of the run; 0 when several waves were run */
} tn_sim_result;

/* A kernel is attention of one layer on one middle core, and with the device's help: rows of Q against keys
 * of K, of which a row sees `seen` on average. */
typedef struct tn_sim_kernel {
    double full_us, sparse_us; /* on the core: all positions; estimated there too (masked ones as well) */
    double shadow_us, shadow_cpu_us, shadow_npu_us; /* estimated on the device: end of the plan; of that, work
                                                       of the core and of the device */
} tn_sim_kernel;

/* ratio is per head (n_heads); NULL means 0.2 each. */
tern_status tn_sim_attention_kernel(const tn_soc *soc, const tn_sim_model *m, double rows, double keys,
                                    double seen, const double *ratio, tn_headplan_switches switches,
                                    tn_sim_kernel *out, tern_error *err);

/* A simulator keeps memory from request to request. */
typedef struct tn_sim {
    tn_ctx *ctx;
    struct tn_sim_job *job;
    tn_graph *graph; /* of the last request */
    tn_sched *sched;
} tn_sim;

tern_status tn_sim_open(tn_ctx *ctx, tn_sim *out, tern_error *err);
void tn_sim_close(tn_sim *s); /* zeros are closed, too */

/* Runs a request. tl, which may be NULL, has one worker per lane, or those of r->measured. */
tern_status tn_sim_run(tn_sim *s, const tn_sim_request *r, tn_timeline *tl, tn_sim_result *out,
                       tern_error *err);

/* Tells, of a task of the last run's chunks, whether it depends on where the chunk lies, so that chunks
 * cannot share its graph. */
bool tn_sim_task_is_dynamic(const tn_sim *s, int32_t task);

/* Returns which lower bound of the run is the largest: "npu", "cpu" or "flash" (the lane's work),
 * "dependencies" (the critical path, where it is over a tenth longer than that); "schedule" when the run took
 * over a quarter longer than all of them. */
const char *tn_sim_bottleneck(const tn_sim_result *r);

#endif
