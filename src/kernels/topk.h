/* kernels/topk.h - the k largest of a row of integer scores (shadowAttn 3.2: which positions a query row attends to). */
#ifndef TN_KERNELS_TOPK_H
#define TN_KERNELS_TOPK_H

#include <stddef.h>
#include <stdint.h>

enum { TN_SPARSE_BLOCK = 64 }; /* positions; what attn_sparse.h works on at a time */

typedef struct tn_topk_args {
    const int32_t *scores; /* [n], |score| <= bound */
    size_t n, k;           /* 1 <= k <= n <= TN_TOPK_MAX_N */
    int32_t bound;         /* >= 1 */
    uint32_t *idx;         /* gets the k positions, ascending; room for k + 32 */
    uint32_t *cuts;        /* NULL, or gets how many of them lie before position b * TN_SPARSE_BLOCK, b = 0..ceil(n / TN_SPARSE_BLOCK) */
    void *scratch;         /* tn_topk_scratch(n) bytes, 64-byte aligned, one per thread */
} tn_topk_args;

enum { TN_TOPK_MAX_N = 1 << 24 };

size_t tn_topk_scratch(size_t n);
static inline size_t tn_sparse_blocks(size_t n) { return (n + TN_SPARSE_BLOCK - 1) / TN_SPARSE_BLOCK; }
/* The cuts of a list that comes from elsewhere: idx ascending, all below n. */
void tn_sparse_cuts(const uint32_t *idx, size_t n_idx, size_t n, uint32_t *cuts);

/* Exactly the k largest; of equal scores the lowest positions. Depends on the row alone. */
typedef void (*tn_topk_fn)(const tn_topk_args *a);
void tn_topk_ref(const tn_topk_args *a);
void tn_topk_avx512(const tn_topk_args *a);

#endif
