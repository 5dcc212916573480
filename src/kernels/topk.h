/* kernels/topk.h - the k largest of a row of integer scores (shadowAttn 3.2: the positions that a query row
 * attends to). */
#ifndef TN_KERNELS_TOPK_H
#define TN_KERNELS_TOPK_H

#include <stddef.h>
#include <stdint.h>

enum { TN_SPARSE_BLOCK = 64 }; /* positions handled at a time by attn_sparse.h */

typedef struct tn_topk_args {
    const int32_t *scores; /* [n], |score| <= bound */
    size_t n, k;           /* 1 <= k <= n <= TN_TOPK_MAX_N */
    int32_t bound;         /* >= 1 */
    uint32_t *idx;         /* gets the k positions, ascending; room for k + 32 */
    uint32_t *cuts; /* NULL, or gets how many of them lie before position b * TN_SPARSE_BLOCK, b = 0..ceil(n /
                       TN_SPARSE_BLOCK) */
    void *scratch;  /* tn_topk_scratch(n) bytes, 64-byte aligned, one per thread */
} tn_topk_args;

enum { TN_TOPK_MAX_N = 1 << 24 };

size_t tn_topk_scratch(size_t n);
static inline size_t tn_sparse_blocks(size_t n) { return (n + TN_SPARSE_BLOCK - 1) / TN_SPARSE_BLOCK; }

enum { TN_TOPK_MERGE_ROWS = 64 };

/* Merges the scores of rows that share one selection (a KV head's query heads, neighbouring positions). */
typedef struct tn_topk_merge_args {
    const int32_t *const *row;  /* [n_rows] scores of positions base.. ; |score| < 2^26 */
    size_t base;                /* <= p0 */
    size_t n_rows;              /* 1..TN_TOPK_MERGE_ROWS */
    const int32_t *first, *end; /* row r sees positions first[r] <= p < end[r] */
    const int32_t *top;         /* the zero of row r's scores, |top| < 2^26 */
    size_t p0, p1;              /* positions to merge, each seen by at least one row */
    int32_t *out;               /* receives them in out[p0..p1-1] */
} tn_topk_merge_args;

/* out[p] = max over the rows that see p of row[r][p - base] - top[r]. Returns the largest magnitude, at
 * least 1. */
typedef int32_t (*tn_topk_merge_fn)(const tn_topk_merge_args *a);
int32_t tn_topk_merge_ref(const tn_topk_merge_args *a);
int32_t tn_topk_merge_avx2(const tn_topk_merge_args *a);
int32_t tn_topk_merge_avx512(const tn_topk_merge_args *a);
int32_t tn_topk_merge_neon(const tn_topk_merge_args *a);

/* Exactly the k largest; of equal scores the lowest positions. Depends on the row alone. */
typedef void (*tn_topk_fn)(const tn_topk_args *a);
void tn_topk_ref(const tn_topk_args *a);
void tn_topk_avx2(const tn_topk_args *a);
void tn_topk_avx512(const tn_topk_args *a);
void tn_topk_neon(const tn_topk_args *a);

#endif
