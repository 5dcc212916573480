/* kernels/hadamard.h - the rotation before quantisation: a Hadamard transform of blocks of 64 values or more.
 * It spreads outliers of a few channels over the block, so that one static scale fits all of them. The matrix
 * is symmetric and orthonormal: weights that were rotated the same way give the same products. */
#ifndef TN_KERNELS_HADAMARD_H
#define TN_KERNELS_HADAMARD_H

#include <stddef.h>

enum { TN_HADAMARD_BLOCK = 64, TN_HADAMARD_WIDEST = 1024 };

/* In every block of 64 values, x = H x / 8 with H[i][j] = (-1)^popcount(i & j), in place. Six stages of
 * sums and differences with distances 32, 16, 8, 4, 2, 1: (a, b) -> (a + b, a - b); then one exact product
 * with 0.125. All instruction sets give the same bits. n is a multiple of 64; the values and their sums
 * are finite. */
typedef void (*tn_hadamard_f32_fn)(float *x, size_t n);

/* The same in blocks of 64, 256 or 1024 values: the blocks of 64 first, then sums and differences of values
 * 64, 128, 256 and 512 apart, and a product with 1/2 for every two of these stages. n is a multiple of block.
 */
void tn_hadamard_wide(tn_hadamard_f32_fn fn, float *x, size_t n, size_t block);

/* The widest block that divides k; 0: none. The wider a block, the more values share an outlier. */
static inline int tn_hadamard_block(long long k) {
    return k % TN_HADAMARD_WIDEST == 0  ? TN_HADAMARD_WIDEST
           : k % 256 == 0               ? 256
           : k % TN_HADAMARD_BLOCK == 0 ? TN_HADAMARD_BLOCK
                                        : 0;
}

void tn_hadamard_f32_ref(float *x, size_t n);
void tn_hadamard_f32_avx2(float *x, size_t n);
void tn_hadamard_f32_avx512(float *x, size_t n);
void tn_hadamard_f32_neon(float *x, size_t n);

#endif
