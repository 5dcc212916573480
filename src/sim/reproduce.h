/* sim/reproduce.h - what a paper prints beside what the simulator says from the inputs of that paper alone.
 * A result that went into the fit, or that follows from it or from a definition by arithmetic, is listed but never counted. */
#ifndef TN_SIM_REPRODUCE_H
#define TN_SIM_REPRODUCE_H

#include "sim/sim.h"

typedef enum tn_claim_kind {
    TN_CLAIM_INPUT,     /* the fit was made from it */
    TN_CLAIM_UNCOUNTED, /* nothing but arithmetic on inputs, a definition, or an assumption about somebody else's program */
    TN_CLAIM_PREDICTED,
} tn_claim_kind;

typedef struct tn_claim {
    tn_claim_kind kind;
    const char *what, *unit, *where; /* where: section of the paper */
    double paper, simulated;
    const char *note; /* "" or what must be known to read the error */
} tn_claim;

enum { TN_MAX_CLAIMS = 32 };

/* llm.npu (Snapdragon 8 Gen 3). out: TN_MAX_CLAIMS. */
tern_status tn_sim_reproduce_llm_npu(const tn_soc *soc, tn_graph *g, tn_sched *s, tn_claim *out, int32_t *n, tern_error *err);

double tn_claim_error(const tn_claim *c); /* relative: 0.1 = a tenth too much */
/* Of the sizes of the errors of predicted claims; NAN when there are none. */
double tn_claims_median_error(const tn_claim *c, int32_t n);

#endif
