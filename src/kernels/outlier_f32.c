/* kernels/outlier_f32.c - the specification of the outlier product. */
#include "kernels/outlier_f32.h"

#include <assert.h>
#include <math.h>

void tn_outlier_f32_ref(const tn_outlier_f32_args *a) {
    assert(a->n0 <= a->n1);
    for (size_t m = 0; m < a->m; m++) {
        if (a->first[m] == a->first[m + 1]) continue;
        for (size_t n = a->n0; n < a->n1; n++) {
            float s = 0;
            for (uint32_t j = a->first[m]; j < a->first[m + 1]; j++) {
                s = fmaf(a->resid[j], (float)a->w_rows[a->channel[j]][n], s);
            }
            a->out[m * a->ldo + n] = fmaf(s, a->scale[n], a->out[m * a->ldo + n]);
        }
    }
}
