/* kernels/qk_s8.h - INT8 scores of query rows against one head's quantised keys: where to look, not what to
 * read (shadowAttn 3.1).
 *
 * Keys are the weights of gemm_s8.h with the position as column: key of position p is row n = p of W
 * [n_pos][d], in the same tiles, with key_sum as col_sum. A cache of capacity C (a multiple of 16) takes
 * tn_tiles_s8_bytes(C, d) bytes and C sums. */
#ifndef TN_KERNELS_QK_S8_H
#define TN_KERNELS_QK_S8_H

#include "kernels/gemm_s8.h"

typedef struct tn_qk_s8_args {
    const uint8_t *q; /* [M][d] u8 = s8 + 128, row stride ldq >= d */
    size_t ldq;
    const int8_t *key_tiles; /* 64-byte aligned; positions >= n_pos may hold anything */
    const int32_t *key_sum;
    size_t m, n_pos, d; /* d % 4 == 0 */
    /* exactly one output form, row stride lds elements: */
    int32_t *scores_s32; /* acc[m][p] = sum_d q[m][d] * key[p][d] */
    uint8_t *scores_u8;  /* 128 + clip(round_half_even(acc * scale), -127, 127): one frozen output scale, as a
                            device has */
    size_t lds;
    float scale;
} tn_qk_s8_args;

/* Runs on the given product, so every instruction set gives the same bits. No mask: the caller skips what a
 * row may not see. */
void tn_qk_s8(tn_gemm_s8_fn gemm, const tn_qk_s8_args *a);

/* Store one quantised key (u8 = s8 + 128, d values, d % 4 == 0) at position pos. */
void tn_qk_s8_append(int8_t *key_tiles, int32_t *key_sum, size_t pos, const uint8_t *key, size_t d);

#endif
