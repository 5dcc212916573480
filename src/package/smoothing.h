/* package/smoothing.h - the scales in which a package holds the inputs and outputs of its linears;
 * adapters for the model are converted to them.
 *
 * The inputs of a smoothed site are divided, channel by channel, before it: in a norm's weights, in rows
 * of V or in rows of up. Inputs of a rotated site pass through kernels/hadamard.h. */
#ifndef TN_PACKAGE_SMOOTHING_H
#define TN_PACKAGE_SMOOTHING_H

#include "model/lora.h"
#include "package/npu_model.h"

typedef struct tn_smoothing {
    tn_ctx *ctx;
    const tn_npu_model *m;
    const tn_program *p;
    float *all;
    const float **of; /* [n_sites] the divisors of the site's inputs, [k]; NULL: none */
} tn_smoothing;

/* Reads it from the package. TERN_E_UNSUPPORTED: the package may be smoothed and does not say how, because
 * it was made by a version of tern without adapters. */
tern_status tn_smoothing_read(tn_ctx *ctx, const tn_npu_model *m, const tn_model *model, tn_smoothing *out,
                              tern_error *err);
void tn_smoothing_free(tn_smoothing *s);
/* Converts adapters by it. Borrows s. */
tn_lora_basis tn_smoothing_basis(const tn_smoothing *s);

#endif
