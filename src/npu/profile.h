/* npu/profile.h - measures how long a graph takes on a device. Chunk lengths, equivalent shapes and the
 * scheduler's estimates depend on it. A time is the scheduler's view, from submit to the end of wait, with
 * temporary weights and buffers of the right shapes, which count against the memory cap meanwhile. */
#ifndef TN_NPU_PROFILE_H
#define TN_NPU_PROFILE_H

#include "npu/npu.h"

typedef struct tn_npu_profile_options {
    int32_t n_runs;              /* number of timed runs after one untimed run, >= 1 (default 7) */
    double max_s;                /* no further run begins after this time, s (default 0.5) */
    uint64_t evict_bytes;        /* memory written between runs so that weights come from DRAM, as between a
                             model's layers; 0 = none (default 64 MiB) */
    double (*now_s)(void *user); /* the clock; NULL = the monotonic one (default). Tests bring their own. */
    void *user;
} tn_npu_profile_options;

typedef struct tn_npu_timing {
    double median_s, min_s;
    int32_t n_runs;
} tn_npu_timing;

void tn_npu_profile_defaults(tn_npu_profile_options *o);

/* Measures a graph. opt may be NULL. */
tern_status tn_npu_profile(tn_npu_device *d, const tn_npu_graph_desc *desc, const tn_npu_profile_options *opt,
                           tn_npu_timing *out, tern_error *err);

/* Finds the equivalent shape (llm.npu 3.2). It profiles desc as one product of m rows and with every
 * rows_per_run that the device suggests, and sets desc->rows_per_run to the fastest (shortest run). Another
 * shape must be 2 % faster than a whole m to win. timing, which may be NULL, gets the winner's. */
tern_status tn_npu_best_split(tn_npu_device *d, tn_npu_graph_desc *desc, const tn_npu_profile_options *opt,
                              tn_npu_timing *timing, tern_error *err);

#endif
