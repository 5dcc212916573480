/* kernels/gemm_f32.h - float matrix product over packed weight panels.
 *
 * Weights W [N][K] are stored as ceil(N/32) panels of 32 output channels; panel p holds [K][32] values
 * (element (n,k) at ((n/32)*K + k)*32 + n%32), missing channels are zero. Values are F32, F16 or BF16;
 * the narrow types are widened exactly, so a panel of any type gives the same bits for the same values. */
#ifndef TN_KERNELS_GEMM_F32_H
#define TN_KERNELS_GEMM_F32_H

#include <stddef.h>
#include <stdint.h>

enum { TN_PANEL_N = 32 };
typedef enum tn_panel_dtype { TN_PANEL_F32, TN_PANEL_F16, TN_PANEL_BF16, TN_PANEL_N_DTYPES } tn_panel_dtype;

/* out[m][n] = bias[n] + sum_k a[m][k] * W[n][k] for m < M and n0 <= n < n1, where the sum is the chain
 * acc = fma(a[m][k], W[n][k], acc), k ascending from acc = +0, and bias (may be NULL) is added last.
 * a: [M][K] row stride lda; out: row stride ldo, written at columns n0..n1-1 only; n0 % 32 == 0, and n1 % 32
 * == 0 or n1 == N. panels: 64-byte aligned. Row m does not depend on M. Reads nothing beyond the M*K inputs
 * and the panels. */
typedef void (*tn_gemm_f32_fn)(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                               size_t ldo, size_t m, size_t n0, size_t n1, size_t k);

void tn_gemm_f32_ref(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                     size_t ldo, size_t m, size_t n0, size_t n1, size_t k);
void tn_gemm_f16_ref(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                     size_t ldo, size_t m, size_t n0, size_t n1, size_t k);
void tn_gemm_bf16_ref(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                      size_t ldo, size_t m, size_t n0, size_t n1, size_t k);

/* Bytes of the panels of an [N][K] matrix. */
size_t tn_panels_bytes(tn_panel_dtype dtype, size_t n, size_t k);
/* Pack rows n0..n1-1 of W (row-major [n1-n0][K] f32 at w, n0 % 32 == 0) into panels. Values are rounded to
 * dtype (nearest even). Channels of the last panel beyond the rows given are zeroed. */
void tn_panels_pack(tn_panel_dtype dtype, void *panels, const float *w, size_t n0, size_t n1, size_t k);
/* The same from two-byte elements of the panels' type. */
void tn_panels_pack_halves(uint16_t *panels, const uint16_t *w, size_t n0, size_t n1, size_t k);
/* Row n of the packed matrix, widened: out [K]. */
void tn_panels_row(tn_panel_dtype dtype, const void *panels, size_t n, size_t k, float *out);

#endif
