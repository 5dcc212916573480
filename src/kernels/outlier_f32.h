/* kernels/outlier_f32.h - adds the clipped part of the activations back in float (llm.npu 3.3): a few outlier
 * channels times their int8 weight rows. */
#ifndef TN_KERNELS_OUTLIER_F32_H
#define TN_KERNELS_OUTLIER_F32_H

#include <stddef.h>
#include <stdint.h>

typedef struct tn_outlier_f32_args {
    float *out; /* [M][N] row stride ldo, added to; only columns n0..n1-1 are touched */
    size_t ldo;
    size_t m, n0, n1; /* any n0 <= n1 */
    /* Row i's outliers are entries first[i] .. first[i+1]-1: channel (input channel k) and resid (float
     * activation left over). */
    const uint32_t *first; /* [M+1] */
    const uint32_t *channel;
    const float *resid;
    /* w_rows[k] is W[:,k], N contiguous s8, for every channel that occurs; other entries may be NULL. */
    const int8_t *const *w_rows;
    const float *scale; /* [N] weight scale of each output channel */
} tn_outlier_f32_args;

/* s = chain over the row's entries ascending of fma(resid[j], (float)w_rows[channel[j]][n], s) from s = +0;
 * out[m][n] = fma(s, scale[n], out[m][n]). A row without entries is left alone. Rows do not depend on M;
 * the same bits in every instruction set. Reads nothing beyond columns n0..n1-1. */
typedef void (*tn_outlier_f32_fn)(const tn_outlier_f32_args *a);
void tn_outlier_f32_ref(const tn_outlier_f32_args *a);
void tn_outlier_f32_avx2(const tn_outlier_f32_args *a);
void tn_outlier_f32_avx512(const tn_outlier_f32_args *a);
void tn_outlier_f32_neon(const tn_outlier_f32_args *a);

#endif
