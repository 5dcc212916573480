/* lab/reproduce.h - what the papers print beside what the simulator says, from the inputs in the SoCs' files
 * alone. A result that tells a parameter, or that follows from such or from a definition by arithmetic, is listed as
 * such and never counted as predicted. The files' parameters are fitted to inputs and predictions of all four papers;
 * lab/parameters.h fits them without one. */
#ifndef TN_LAB_REPRODUCE_H
#define TN_LAB_REPRODUCE_H

#include "lab/sim.h"

typedef enum tn_paper {
    TN_PAPER_LLM_NPU,
    TN_PAPER_EDGEFLOW,
    TN_PAPER_SHADOWATTN,
    TN_PAPER_SD_NPU,
    TN_PAPER_HEXAGON, /* no paper: public figures of runs wholly on a Hexagon */
    TN_N_PAPERS
} tn_paper;

const char *tn_paper_name(tn_paper p); /* "llm-npu"...; NULL beyond */

typedef enum tn_claim_kind {
    TN_CLAIM_INPUT, /* of a component, or what tells a parameter best */
    TN_CLAIM_UNCOUNTED, /* a definition, an assumption about somebody else's program, or not printed as a number (paper 0)
                         */
    TN_CLAIM_DERIVED, /* printed by the paper, and arithmetic on inputs or on what is predicted already: no schedule is
                         asked. It shows that inputs fit together, and predicts nothing */
    TN_CLAIM_PREDICTED,
    TN_N_CLAIM_KINDS
} tn_claim_kind;

extern const char
    *const tn_claim_kind_names[TN_N_CLAIM_KINDS]; /* "input", "uncounted", "derived", "predicted" */

typedef struct tn_claim {
    tn_claim_kind kind;
    const char *what, *unit, *where; /* where: section, table or figure of the paper */
    double paper, simulated;
    const char *
        note; /* "" or what must be known to read the error; of a prediction that is off by over half, the reason:
                         "... because ..." */
} tn_claim;

enum { TN_MAX_CLAIMS = 48 };

/* These are the phones of the papers: 8 Gen 2, 8 Gen 3, 8 Elite; and 8 Elite's NPU by itself. */
enum { TN_SOC_GEN2, TN_SOC_GEN3, TN_SOC_ELITE, TN_SOC_V79, TN_N_SOCS };
extern const char *const tn_soc_names[TN_N_SOCS];

/* What the results are simulated from: the SoCs, and what is known of the papers' measurements beside them. */
typedef struct tn_inputs {
    tn_soc socs[TN_N_SOCS];
    double answer_tokens;   /* of a summary in sd.npu */
    double npu_over_core_w; /* the NPU's power over a core's in shadowAttn's kernels, both beyond idling */
} tn_inputs;

void tn_inputs_defaults(tn_inputs *out); /* but the SoCs */

/* Reproduces a paper. out has room for TN_MAX_CLAIMS. */
tern_status tn_sim_reproduce(tn_paper p, const tn_inputs *in, tn_sim *s, tn_claim *out, int32_t *n,
                             tern_error *err);

double tn_claim_error(const tn_claim *c); /* relative: 0.1 = a tenth too much */
/* Returns the median of the sizes of the errors of predicted claims, any number of them, and of derived
 * ones too if asked; NAN when there are none. */
double tn_claims_median_error(const tn_claim *c, int32_t n, bool with_derived);

#endif
