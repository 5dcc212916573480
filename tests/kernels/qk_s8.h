/* kernels/qk_s8.h - for tests and bench/: INT8 scores of query rows against one head's quantised keys, which
 * say where to look, not what to read (shadowAttn 3.1).
 *
 * Keys are the weights of gemm_s8.h with the position as column: key of position p is row n = p of W
 * [n_pos][d], in the same tiles, with key_sum as col_sum. A cache of capacity C (a multiple of 16) takes
 * tn_tiles_s8_bytes(C, d) bytes and C sums. */
#ifndef TN_TESTS_KERNELS_QK_S8_H
#define TN_TESTS_KERNELS_QK_S8_H

#include "kernels/gemm_s8.h"

#include <assert.h>

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

enum {
    TN_QK_BLOCK_POS = 512
}; /* positions per call: one constant scale vector on the stack serves all of them */

/* Runs on the given product, so every instruction set gives the same bits. No mask: the caller skips what a
 * row may not see. */
static inline void tn_qk_s8(tn_gemm_s8_fn gemm, const tn_qk_s8_args *a) {
    assert(a->d % TN_TILE_K == 0 && (a->scores_s32 != NULL) != (a->scores_u8 != NULL));
    float scale[TN_QK_BLOCK_POS];
    for (size_t i = 0; i < TN_QK_BLOCK_POS; i++) scale[i] = a->scale;
    for (size_t p = 0; p < a->n_pos; p += TN_QK_BLOCK_POS) {
        size_t n = a->n_pos - p < TN_QK_BLOCK_POS ? a->n_pos - p : TN_QK_BLOCK_POS;
        gemm(&(tn_gemm_s8_args){
            .a = a->q,
            .lda = a->ldq,
            .tiles = a->key_tiles + p * a->d,
            .col_sum = a->key_sum + p,
            .m = a->m,
            .n = n,
            .k = a->d,
            .n1 = n,
            .out_s32 = a->scores_s32 ? a->scores_s32 + p : NULL,
            .out_u8 = a->scores_u8 ? a->scores_u8 + p : NULL,
            .ldo = a->lds,
            .scale = scale,
        });
    }
}

/* Stores one quantised key (u8 = s8 + 128, d values, d % 4 == 0) at position pos. */
static inline void tn_qk_s8_append(int8_t *key_tiles, int32_t *key_sum, size_t pos, const uint8_t *key,
                                   size_t d) {
    assert(d % TN_TILE_K == 0);
    int8_t *w = key_tiles + (pos / TN_TILE_N) * TN_TILE_N * d + (pos % TN_TILE_N) * TN_TILE_K;
    int32_t sum = 0;
    for (size_t i = 0; i < d; i++) {
        int8_t v = (int8_t)(key[i] - 128);
        w[(i / TN_TILE_K) * 64 + i % TN_TILE_K] = v;
        sum += v;
    }
    key_sum[pos] = sum;
}

#endif
