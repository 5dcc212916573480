/* package/smoothing.h - in what scales a package has the inputs of its linears, and their outputs: what an
 * adapter for the model must be fitted to.
 *
 * The inputs of a smoothed site are divided, channel by channel, in front of it: by a norm's weights, by
 * rows of V, by rows of up. Inputs of a rotated one pass through kernels/hadamard.h. */
#ifndef TN_PACKAGE_SMOOTHING_H
#define TN_PACKAGE_SMOOTHING_H

#include "model/lora.h"
#include "package/npu_model.h"

typedef struct tn_smoothing {
    tn_ctx *ctx;
    const tn_npu_model *m;
    const tn_program *p;
    float *all;
    const float **of; /* [n_sites] what the site's inputs are divided by, [k]; NULL: nothing */
} tn_smoothing;

/* Reads it from the package. TERN_E_UNSUPPORTED where the package may be smoothed and does not say how: it
 * is of a version of tern that knew no adapters. */
tern_status tn_smoothing_read(tn_ctx *ctx, const tn_npu_model *m, const tn_model *model, tn_smoothing *out,
                              tern_error *err);
void tn_smoothing_free(tn_smoothing *s);
/* Adapters are fitted by it. It borrows s. */
tn_lora_basis tn_smoothing_basis(const tn_smoothing *s);

#endif
