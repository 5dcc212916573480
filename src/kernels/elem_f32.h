/* kernels/elem_f32.h - row-wise float operators around the matrix products. All bits are fixed across
 * instruction sets: sums run in 16 lanes (lane i % 16, ascending, fma) and the lanes are added pairwise
 * (stride 8, 4, 2, 1); exp and tanh are the project's own polynomials. */
#ifndef TN_KERNELS_ELEM_F32_H
#define TN_KERNELS_ELEM_F32_H

#include <stddef.h>
#include <stdint.h>

/* exp(x) within 2 ulp for x in [-87, 88], 0 below, +inf above, NaN for NaN. */
float tn_expf(float x);
float tn_tanhf(float x);

/* out[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * w[i]; w may be NULL (1). out may be x. */
typedef void (*tn_rmsnorm_f32_fn)(const float *x, const float *w, float eps, float *out, size_t n);
/* out[i] = (x[i] - mean) / sqrt(var + eps) * w[i] + b[i]; b may be NULL. out may be x. */
typedef void (*tn_layernorm_f32_fn)(const float *x, const float *w, const float *b, float eps, float *out,
                                    size_t n);
/* Rotate the first n_rot of a head's values, rotate-half pairing: (x[i], x[i + n_rot/2]) by the angle whose
 * cosine and sine are cs[2i], cs[2i+1], i < n_rot/2. */
typedef void (*tn_rope_f32_fn)(float *x, const float *cs, size_t n_rot);

typedef enum tn_act {
    TN_ACT_SILU,
    TN_ACT_GELU_TANH,
    TN_ACT_GELU_ERF,
    TN_ACT_RELU,
    TN_ACT_RELU2,
    TN_ACT_SIGMOID, /* of gates; packages store these numbers, so only append */
} tn_act;
/* out[i] = act(gate[i]) * up[i]. out may be gate or up. */
typedef void (*tn_glu_f32_fn)(tn_act act, const float *gate, const float *up, float *out, size_t n);
/* x[i] = act(x[i]) */
typedef void (*tn_act_f32_fn)(tn_act act, float *x, size_t n);
/* x[i] += scale * y[i] (one fma) */
typedef void (*tn_add_f32_fn)(float *x, const float *y, float scale, size_t n);
/* x[i] = exp(x[i] - max); returns their sum. Masked scores are -inf; at least one is not. */
typedef float (*tn_softmax_f32_fn)(float *x, size_t n);
enum { TN_SHARES = 254 };
/* codes[i] = 1 + TN_SHARES exp(x[i] - max), rounded to the nearest even: what a softmax gives before its division, as
 * gemm_s8.h reads it, less 127. 1 for NaN. */
typedef void (*tn_shares_u8_fn)(const float *x, uint8_t *codes, size_t n);
/* Returns the largest |x[i]|; 0 for n = 0. NaN is ignored. */
typedef float (*tn_absmax_f32_fn)(const float *x, size_t n);

void tn_rmsnorm_f32_ref(const float *x, const float *w, float eps, float *out, size_t n);
void tn_layernorm_f32_ref(const float *x, const float *w, const float *b, float eps, float *out, size_t n);
void tn_rope_f32_ref(float *x, const float *cs, size_t n_rot);
void tn_glu_f32_ref(tn_act act, const float *gate, const float *up, float *out, size_t n);
void tn_act_f32_ref(tn_act act, float *x, size_t n);
void tn_add_f32_ref(float *x, const float *y, float scale, size_t n);
float tn_softmax_f32_ref(float *x, size_t n);
void tn_shares_u8_ref(const float *x, uint8_t *codes, size_t n);
float tn_absmax_f32_ref(const float *x, size_t n);

#endif
