/* package/measured.h - measured times of steps. A prefill writes them; the simulator predicts from them. */
#ifndef TN_PACKAGE_MEASURED_H
#define TN_PACKAGE_MEASURED_H

#include "package/prefill_graph.h"

enum { TN_MAX_STEP_TYPES = 64 };

/* A type of step, with the time of a whole step of a full chunk by one worker. */
typedef struct tn_measured_step {
    const char *name; /* static; NULL: there are none of this type */
    double us;        /* attention: at position 0 */
    int32_t n_parts;
    double kept; /* share of layers that have one */
} tn_measured_step;

/* Times of a machine, in place of a SoC's costs. */
typedef struct tn_measured_steps {
    tn_measured_step step[TN_MAX_STEP_TYPES];
    int32_t n;
    double attn_us_per_pos; /* attention: more per earlier position */
    int32_t n_workers[TN_N_LANES];
    int32_t wave_chunks; /* chunks in flight together */
    double rest_us;      /* of a prefill, outside its waves */
    double whole_us;     /* of a whole prefill of whole_tok tokens; 0: not measured */
    int32_t whole_tok;
    double part_us; /* per part, beyond its work: picking it, waking a worker, waiting for a core. Not in a
                       profile: derived from the two above */
} tn_measured_steps;

#endif
