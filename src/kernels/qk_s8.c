/* kernels/qk_s8.c - attention scores as calls of the int8 product. */
#include "kernels/qk_s8.h"

#include <assert.h>

enum { BLOCK_POS = 512 }; /* positions per call: one constant scale vector on the stack serves all of them */

void tn_qk_s8(tn_gemm_s8_fn gemm, const tn_qk_s8_args *a) {
    assert(a->d % TN_TILE_K == 0 && (a->scores_s32 != NULL) != (a->scores_u8 != NULL));
    float scale[BLOCK_POS];
    for (size_t i = 0; i < BLOCK_POS; i++) scale[i] = a->scale;
    for (size_t p = 0; p < a->n_pos; p += BLOCK_POS) {
        size_t n = a->n_pos - p < BLOCK_POS ? a->n_pos - p : BLOCK_POS;
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

void tn_qk_s8_append(int8_t *key_tiles, int32_t *key_sum, size_t pos, const uint8_t *key, size_t d) {
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
