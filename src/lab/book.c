/* The book of claims: one line is what a paper printed and what the simulator says. */
#include "lab/reproduce_impl.h"

#include <assert.h>

void tn_book_add(tn_book *b, tn_claim_kind kind, const char *where, const char *what, const char *unit,
                 double paper, double simulated, const char *note) {
    assert(b->n < TN_MAX_CLAIMS && paper >= 0 && (paper > 0 || kind == TN_CLAIM_UNCOUNTED));
    b->out[b->n++] = (tn_claim){.kind = kind,
                                .what = what,
                                .unit = unit,
                                .where = where,
                                .paper = paper,
                                .simulated = simulated,
                                .note = note};
}

const tn_sim_model *tn_book_model(const char *name) {
    const tn_sim_model *m = tn_sim_model_find(name);
    assert(m);
    return m;
}

tern_status tn_book_run(tn_book *b, const tn_sim_request *r, tn_sim_result *o, tern_error *err) {
    return tn_sim_run(b->s, r, NULL, o, err);
}
