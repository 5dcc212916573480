/* kernels/attn_f32.h - exact float attention of one KV head's query rows over its cache.
 *
 * The cache of one KV head is what kv_cells.h describes, in any of its forms. Capacity is a multiple of
 * TN_KV_PANEL positions. */
#ifndef TN_KERNELS_ATTN_F32_H
#define TN_KERNELS_ATTN_F32_H

#include "kernels/kv_cells.h"

typedef struct tn_attn_f32_args {
    const float *q; /* query rows, row i at q + i * q_stride, d_head values each */
    size_t q_stride;
    float *out; /* row i at out + i * out_stride */
    size_t out_stride;
    const void *k_panels, *v; /* k_panels NULL: a position's value is its key too (latent attention) */
    tn_kv_type kv;            /* their form */
    size_t n_rows, d_head;    /* d_head multiple of 4, <= TN_MAX_HEAD */
    float scale;              /* multiplies q.k */
    float soft_cap;           /* 0 = off; else score = cap * tanh(score / cap) (Gemma 2) */
    /* Row i sees positions first_pos[i] <= p < end_pos[i] (first > 0 under a sliding window), 0 <= first <
     * end. */
    const int32_t *first_pos, *end_pos;
    /* Draft trees: NULL, or per row a mask of n_tree_words 64-bit words over cache slots tree_base..: bit j
     * of row i says that row i's text goes on through slot tree_base + j (end_pos[i] == tree_base then). Its
     * r-th set bit is position tree_base + r of that text, for the window and for the order of summation: a
     * row has the bits it would have had were its ancestors stored one after another. first_pos may then
     * lie beyond tree_base. */
    const uint64_t *tree_mask;
    size_t tree_base, n_tree_words;
    const float *sinks; /* NULL, or per row a score that has no value and takes its share of the softmax */
    /* NULL, or per row what a score falls by for every position between the one it is of and the row's own (ALiBi).
     * Not with draft trees. */
    const float *slopes;
    const int32_t *own_pos;
    float *scratch; /* tn_attn_f32_scratch(d_head, one past the last position any row sees) floats, one per
                       thread */
} tn_attn_f32_args;

/* The floats k and v are those the cells stand for. For every row: s_p = scale * chain of fma over d
 * ascending of q[d]*k[p][d] (then soft cap, then fma(-slope, |p - own|, s_p)), m = max s_p,
 * w_p = exp(s_p - m) (tn_expf, the same polynomial in every variant), out[d] = (chain of fma over p ascending of w_p * v[p][d]) / sum w_p. The sum of w is
 * taken in 16 lanes (lane p % 16) ascending, then the lanes pairwise (stride 8, 4, 2, 1); a row's sink
 * adds exp(min(sink - m, 80)) to it. Bits do not depend on n_rows or on the other rows. */
typedef void (*tn_attn_f32_fn)(const tn_attn_f32_args *a);

void tn_attn_f32_ref(const tn_attn_f32_args *a);
size_t tn_attn_f32_scratch(size_t d_head, size_t n_pos);

#endif
