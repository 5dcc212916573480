/* kernels/delta_f32.h - the recurrence of a gated delta net, or of Mamba 2, for some value channels of one
 * head.
 *
 * The state S is a matrix [d_key][value channels]. A row with key k, query q, value v, decay d and rate b
 * makes
 *   r = b (v - d S^T k)      the part of the value that is new to the state
 *   S = d S + k r^T
 *   out = S^T q
 * and of Mamba 2 r = b v, with out = S^T q + past v.
 * Value channels are independent, so a block of them passes through all rows while its part of S is in L1. A
 * single row's S comes from memory, so the next block is fetched meanwhile. Rows are taken one after the
 * other: a row's bits are the same alone and in any chunk, which draft trees and prefix reuse need. The
 * chunked (parallel) form would take more multiply-adds, 3 d_key + 2 (d_key + d_value) per value channel and
 * row with chunks of 64, against 3 d_key here. */
#ifndef TN_KERNELS_DELTA_F32_H
#define TN_KERNELS_DELTA_F32_H

#include <stdbool.h>
#include <stddef.h>

enum {
    TN_DELTA_COLS = 16,  /* d_value is a multiple of it */
    TN_DELTA_BLOCK = 32, /* value channels worth an item of work */
};

typedef struct tn_delta_f32_args {
    const float *q, *k;        /* first row: [d_key] */
    const float *v;            /* first row: [n_cols] */
    const float *decay, *rate; /* of the first row, and every gate_stride floats after */
    size_t stride;             /* floats between rows of q, k and v */
    size_t gate_stride;
    const float *from; /* the state before the first row, in the layout of `state`; may be `state` */
    float *state;      /* the state after the last row: [d_key] rows of n_cols, state_stride floats apart */
    size_t state_stride;
    bool far;   /* the state comes from memory and is not needed again soon: one row's is written around the
                   caches */
    float *out; /* [n_rows] rows of n_cols, out_stride floats apart */
    size_t out_stride;
    size_t n_rows, d_key, n_cols; /* d_key even; n_cols a multiple of TN_DELTA_COLS */
    bool mamba;
    float past; /* of Mamba 2 */
} tn_delta_f32_args;

/* Sums over key channels run in two chains of fused multiply-adds, of the even and of the odd ones, which
 * are then added; r = b * fma(-d, sum, v), or b * v; S = fma(k, r, d * S); of Mamba 2, out = fma(past, v,
 * sum). */
typedef void (*tn_delta_f32_fn)(const tn_delta_f32_args *a);

/* A convolution of few taps, every channel by itself: out[c] = sum over k of w[k][c] x[k][c], one chain of
 * fused multiply-adds from k = 0 on. x: [n_taps] rows of n channels, NULL for zeros; rows of w are ld_w
 * floats apart. */
typedef void (*tn_taps_f32_fn)(const float *const *x, const float *w, size_t ld_w, size_t n_taps, float *out,
                               size_t n);

void tn_taps_f32_ref(const float *const *x, const float *w, size_t ld_w, size_t n_taps, float *out, size_t n);
void tn_delta_f32_ref(const tn_delta_f32_args *a);

#endif
