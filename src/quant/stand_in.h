/* quant/stand_in.h - temporarily replaces linears of a loaded layer by rounded ones: one, or those of all
 * experts. */
#ifndef TN_QUANT_STAND_IN_H
#define TN_QUANT_STAND_IN_H

#include "base/status.h"
#include "model/model.h"

typedef struct tn_stand_in {
    int32_t n;    /* linears; 0: none */
    tn_linear *l; /* [n] the ones not in use; each has panels of floats, its own or the model's */
} tn_stand_in;

/* Makes replacements for the linears of a role, with panels to be filled. */
tern_status tn_stand_in_open(const tn_model *m, int layer, tn_role role, tn_stand_in *out, tern_error *err);
/* Swaps them with the model's, and back. */
void tn_stand_in_swap(const tn_model *m, int layer, tn_role role, tn_stand_in *s);
/* Call when the model's own are back in place. */
void tn_stand_in_close(const tn_model *m, tn_stand_in *s);

#endif
