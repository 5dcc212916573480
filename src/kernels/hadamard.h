/* kernels/hadamard.h - the rotation in front of quantisation: a Hadamard transform of blocks of 64 values.
 * It spreads what is large in few channels over 64, so that one static scale fits all of them. The matrix is
 * symmetric and orthonormal: weights that were rotated the same way give the same products. */
#ifndef TN_KERNELS_HADAMARD_H
#define TN_KERNELS_HADAMARD_H

#include <stddef.h>

enum { TN_HADAMARD_BLOCK = 64 };

/* In every block of 64 values, x = H x / 8 with H[i][j] = (-1)^popcount(i & j), in place. Six stages of
 * sums and differences with distances 32, 16, 8, 4, 2, 1: (a, b) -> (a + b, a - b); then one exact product
 * with 0.125. All instruction sets give the same bits. n is a multiple of 64; the values and their sums
 * are finite. */
typedef void (*tn_hadamard_f32_fn)(float *x, size_t n);

void tn_hadamard_f32_ref(float *x, size_t n);
void tn_hadamard_f32_avx2(float *x, size_t n);
void tn_hadamard_f32_avx512(float *x, size_t n);
void tn_hadamard_f32_neon(float *x, size_t n);

#endif
