/* kernels/wkv_f32.h - the recurrence of RWKV-7 for some value channels of one head: a matrix that decays key by key,
 * and of which one direction is taken back.
 *
 * The state S is a matrix [d_key][value channels]. A row with query q, key k, value v, decays w, a direction z that is
 * asked for and one, b, in which what was found there is put back makes
 *   u = S^T z
 *   S = diag(w) S + b u^T + k v^T
 *   out = S^T q
 * A delta net with a decay for every key is the same, with z = -w k and b = k times its rate.
 * Blocks of value channels and the order of rows are as in delta_f32.h: a row's bits are the same alone and in any
 * chunk. */
#ifndef TN_KERNELS_WKV_F32_H
#define TN_KERNELS_WKV_F32_H

#include <stddef.h>

typedef struct tn_wkv_f32_args {
    const float *q, *k, *w, *z, *b; /* first row: [d_key] */
    const float *v;                 /* first row: [n_cols] */
    size_t stride;                  /* floats between rows of these */
    const float *from; /* the state before the first row, in the layout of `state`; may be `state` */
    float *state;      /* the state after the last row: [d_key] rows of n_cols, state_stride floats apart */
    size_t state_stride;
    float *out; /* [n_rows] rows of n_cols, out_stride floats apart */
    size_t out_stride;
    size_t n_rows, d_key, n_cols; /* d_key even; n_cols a multiple of TN_DELTA_COLS */
} tn_wkv_f32_args;

/* Sums over key channels run in two chains of fused multiply-adds, of the even and of the odd ones, which are then
 * added; S = fma(k, v, fma(b, u, w * S)). */
typedef void (*tn_wkv_f32_fn)(const tn_wkv_f32_args *a);

void tn_wkv_f32_ref(const tn_wkv_f32_args *a);

#endif
