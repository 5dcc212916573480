/* kernels/dot_f16.h - products of float rows with stored half-precision vectors: similarities of texts. */
#ifndef TN_KERNELS_DOT_F16_H
#define TN_KERNELS_DOT_F16_H

#include <stddef.h>
#include <stdint.h>

/* out[j] = sum_i q[j][i] * widen(v[i]) for j < 2 (two rows, so that v is read once): lane l of 16 is the
 * chain acc = fma(q[i], v[i], acc) over i % 16 == l ascending from +0, then the lanes are added with
 * strides 8, 4, 2, 1. q: two rows of n values, one after another; v [n] halves, widened exactly. Any
 * alignment; reads nothing beyond. All instruction sets give the same bits. */
typedef void (*tn_dot_f16_fn)(const float *q, const uint16_t *v, size_t n, float out[2]);

void tn_dot_f16_ref(const float *q, const uint16_t *v, size_t n, float out[2]);
void tn_dot_f16_avx2(const float *q, const uint16_t *v, size_t n, float out[2]);
void tn_dot_f16_neon(const float *q, const uint16_t *v, size_t n, float out[2]);

/* Chooses by the processor's features (tn_cpu_flags). */
tn_dot_f16_fn tn_dot_f16_for(uint32_t cpu);

#endif
