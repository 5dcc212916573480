/* sched/measured.h - stage times measured on a machine: a prefill writes them, the simulator predicts from
 * them. */
#ifndef TN_SCHED_MEASURED_H
#define TN_SCHED_MEASURED_H

#include "sched/prefill_graph.h"

/* Stage times of a machine, instead of a SoC's costs: whole stages of a full chunk by one worker. */
typedef struct tn_measured_stages {
    double stage_us[TN_N_STAGES],
        attn_us_per_pos;             /* attention: at position 0, and more per earlier position */
    int32_t n_parts[TN_N_STAGES];    /* 0: the product stage does not exist (shadows, plan) */
    double shadow_kept[TN_N_STAGES]; /* share of layers that have a shadow stage */
    int32_t n_workers[TN_N_LANES];
    int32_t wave_chunks; /* chunks in flight together */
    double rest_us;      /* of a prefill, outside its waves */
    double part_us;      /* of a part, beyond its work: picking it, waking a worker, waiting for a core */
} tn_measured_stages;

#endif
