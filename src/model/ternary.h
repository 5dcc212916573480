/* model/ternary.h - weights that a folder holds as they are trained, and a model takes the nearest of three values of
 * (BitNet b1.58): -s, 0 and s, where s is the mean magnitude of the tensor's. */
#ifndef TN_MODEL_TERNARY_H
#define TN_MODEL_TERNARY_H

#include "base/ctx.h"
#include "model/place.h"

/* Is it one of the linears of a layer? */
bool tn_ternary_role(tn_role role);
/* Reads all of the tensor once for p->ternary, which is a value of the tensor's own type. */
tern_status tn_ternary_scale(tn_place *p, int64_t rows, int64_t cols, tern_error *err);
/* A row of values, in place. */
void tn_ternary_row(const tn_place *p, float *v, int64_t n);

#endif
