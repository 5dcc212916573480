/* kernels/attn_sparse.h - float attention of a KV head's query rows, each at its own list of positions
 * (shadowAttn 3.2). The cache is that of attn_f32.h: no second copy of the keys. */
#ifndef TN_KERNELS_ATTN_SPARSE_H
#define TN_KERNELS_ATTN_SPARSE_H

#include "kernels/attn_f32.h"
#include "kernels/topk.h"

#include <stdbool.h>

typedef struct tn_attn_sparse_args {
    /* Row r = g * n_rows + i is query head g of the KV head's n_group, row i: d_head values at q + i *
     * q_stride + g * d_head, its result at out + i * out_stride + g * d_head. All rows of a KV head in one
     * call read each key once; their lists may differ freely. */
    const float *q;
    size_t q_stride;
    float *out;
    size_t out_stride;
    size_t n_rows, n_group, d_head; /* d_head multiple of 4, <= 512 */
    const float *k_panels, *v;      /* whole panels, as in attn_f32.h */
    const uint32_t *idx; /* row r's positions at idx + r * idx_stride, ascending, at least one; 16 more may be
                            read, with any values */
    size_t idx_stride;
    const uint32_t *cuts; /* row r's cuts (topk.h) at cuts + r * cut_stride, n_blocks + 1 of them; the last is
                             the length of its list */
    size_t cut_stride, n_blocks; /* blocks of TN_SPARSE_BLOCK positions */
    size_t n_pos; /* keys from the next multiple of TN_KV_PANEL on are not read: another chunk may be writing
                     them */
    float scale, soft_cap; /* as in attn_f32.h */
    float *scratch;        /* tn_attn_sparse_scratch() floats, 64-byte aligned, one per thread */
} tn_attn_sparse_args;

enum { TN_SPARSE_SPAN = 2 * TN_SPARSE_BLOCK }; /* at most this many positions are unpacked at a time */

/* n_idx: length of the longest list. */
static inline size_t tn_attn_sparse_ld(size_t n_idx) { return (n_idx + 31) / 16 * 16; }
static inline size_t tn_attn_sparse_row(size_t d_head) { return (d_head + 15) / 16 * 16; }
static inline size_t tn_attn_sparse_scratch(size_t n_rows_all, size_t n_idx, size_t d_head) {
    return n_rows_all * (tn_attn_sparse_ld(n_idx) + 3 * tn_attn_sparse_row(d_head)) +
           TN_SPARSE_SPAN * tn_attn_sparse_row(d_head);
}

/* s_j = scale * (16 lanes, lane d % 16 a chain of fma over d ascending of q[d] * k[idx[j]][d], then added
 * pairwise at stride 8, 4, 2, 1), soft cap, m = max s_j, w_j = tn_expf(s_j - m), sum of w in 16 lanes (j %
 * 16) ascending and added pairwise likewise; out[d] = (chain of fma over even j of w_j * v[idx[j]][d] + the
 * chain over odd j) / sum. The same bits in every variant; a row depends on its own list only. */
typedef void (*tn_attn_sparse_fn)(const tn_attn_sparse_args *a);
void tn_attn_sparse_ref(const tn_attn_sparse_args *a);

#endif
