/* lab/parameters.h - every number of the simulator that is no arithmetic: what it is, where it comes from, and which
 * papers' predictions it moves; and fits of those that no paper prints.
 *
 * A measured parameter is printed by its source as the time of that component. A fitted one is not printed: its value
 * in the SoCs' files is that of a fit to the rows of all four papers at once, and its source names the rows that tell
 * it most. An assumed one is told by nothing, and fitted with them. Solved ones are the public figures' own: as many
 * printed numbers as unknowns. Set are the measurements' circumstances and how many rows a graph has: they are in no
 * fit. */
#ifndef TN_LAB_PARAMETERS_H
#define TN_LAB_PARAMETERS_H

#include "lab/reproduce.h"

typedef enum tn_sim_param_kind {
    TN_SIM_PARAM_MEASURED,
    TN_SIM_PARAM_SOLVED,
    TN_SIM_PARAM_FITTED,
    TN_SIM_PARAM_ASSUMED,
    TN_SIM_PARAM_SET,
    TN_N_SIM_PARAM_KINDS
} tn_sim_param_kind;

extern const char *const tn_sim_param_kind_names[TN_N_SIM_PARAM_KINDS]; /* "measured", "solved"... */

typedef struct tn_sim_param {
    const char *name, *unit, *source; /* source: paper and section; of a fitted one the rows that it meets */
    const char *prior_source;         /* of a free one */
    tn_sim_param_kind kind;
    unsigned socs;   /* bits 1 << TN_SOC_...: of whose file it is a value; 0: of tn_inputs itself */
    size_t at;       /* a double's offset in tn_soc, or in tn_inputs */
    double scale;    /* times this it is in its unit; below 0: -scale over it */
    unsigned from;   /* bits 1 << TN_PAPER_...: papers that it was read from or fitted to; 0: neither */
    unsigned papers; /* bits 1 << TN_PAPER_...: whose predictions it moves */
    double prior, least,
        most; /* of a free one, in its unit; from no paper in `from`. What is set is prior alone */
} tn_sim_param;

const tn_sim_param *tn_sim_param_at(int32_t i); /* NULL beyond the last */
double tn_sim_param_get(const tn_sim_param *p,
                        const tn_inputs *in); /* in its unit; of several SoCs the first's */
void tn_sim_param_set(const tn_sim_param *p, tn_inputs *in, double value);
static inline bool tn_sim_param_is_free(const tn_sim_param *p) {
    return p->kind == TN_SIM_PARAM_FITTED || p->kind == TN_SIM_PARAM_ASSUMED;
}

enum { TN_FIT_SWEEPS = 30 }; /* enough for every fit to end by itself */

/* How one fit went. */
typedef struct tn_fit {
    int32_t n_runs;                  /* of papers */
    double before, after;            /* what is minimised */
    double median[TN_PAPER_HEXAGON]; /* of the error of each paper's predictions, fitted and left out alike */
    int32_t n_claims[TN_PAPER_HEXAGON];
    tn_claim claims[TN_PAPER_HEXAGON][TN_MAX_CLAIMS];
} tn_fit;

/* Fits the free parameters to the rows of the four papers but `without` (TN_PAPER_HEXAGON: to all four). All start at
 * their priors, so nothing of the paper left out is in the result but what it prints of components (measured).
 * Minimised is the mean over papers of the mean over their inputs and predictions of |log(simulated / printed)|, at
 * most log 3 each, and a hundredth of |log(value / prior)| of every parameter. Coordinate descent: every parameter in
 * turn is multiplied and divided by a factor, from 2 down to 1.03; n_sweeps at most. A value never leaves its range.
 * The same twice. */
tern_status tn_sim_params_fit(tn_inputs *in, tn_paper without, int32_t n_sweeps, tn_sim *s, tn_fit *out,
                              tern_error *err);

#endif
