/* lab/reproduce_impl.h - what the files that reproduce papers and public figures share. */
#ifndef TN_LAB_REPRODUCE_IMPL_H
#define TN_LAB_REPRODUCE_IMPL_H

#include "lab/reproduce.h"

/* The claims of one paper while they are written down. */
typedef struct tn_book {
    const tn_inputs *in;
    const tn_soc *socs; /* in->socs */
    tn_sim *s;
    tn_claim *out; /* [TN_MAX_CLAIMS] */
    int32_t n;
    int32_t chunk; /* EdgeFlow's, by profiling */
    tn_soc smooth; /* 8 Elite without outlier paths: EdgeFlow smooths instead (4.1) */
} tn_book;

void tn_book_add(tn_book *b, tn_claim_kind kind, const char *where, const char *what, const char *unit,
                 double paper, double simulated, const char *note);
const tn_sim_model *tn_book_model(const char *name); /* which must be there */

tern_status tn_book_run(tn_book *b, const tn_sim_request *r, tn_sim_result *o, tern_error *err);

tern_status tn_reproduce_llm_npu(tn_book *b, tern_error *err);
tern_status tn_reproduce_edgeflow(tn_book *b, tern_error *err);
tern_status tn_reproduce_shadowattn(tn_book *b, tern_error *err);
tern_status tn_reproduce_sd_npu(tn_book *b, tern_error *err);
/* Public figures of phones whose NPU computes everything (lab/phones.c). */
tern_status tn_reproduce_phones(tn_book *b, tern_error *err);
/* Two more SoCs, each by one model's times there. */
tern_status tn_phones_gen5(tn_book *b, tn_soc *out, tern_error *err);
tern_status tn_phones_x_elite(tn_book *b, tn_soc *out, tern_error *err);

#endif
