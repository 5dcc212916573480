/* quant/round.h - a row's weights to codes of 1 to 8 bits and one scale. */
#ifndef TN_QUANT_ROUND_H
#define TN_QUANT_ROUND_H

#include "quant/gram.h"

/* The largest magnitude of k values. */
float tn_largest(const float *w, int32_t k);
/* Floats of scratch that tn_round_rows needs for n_rows rows. */
size_t tn_round_scratch(const tn_factor *f, int32_t n_rows);

/* Rounds rows w [n_rows][f->k], in the form that the device multiplies with the inputs of f, to q (of the
 * same shape): codes 2u - (2^B - 1) of B < 8 bits, [-127, 127] of 8, as the package stores them, with
 * scale[row]. The scale minimises the error weighted by the cost of each channel; then every channel is
 * rounded with knowledge of earlier errors (gram.h), and the scale is fitted to the codes by least squares
 * of the output. rate: how much the codes' entropy counts beside the error when the scale is chosen, for
 * codes that will be entropy-coded; 0: not. error[row]: the mean square error of its output. A zero row
 * gets scale 0. With a factor without blocks each weight is rounded by itself. */
void tn_round_rows(const tn_factor *f, const tn_kernels *kern, const float *w, int32_t n_rows,
                   const uint8_t *bits, float rate, int8_t *q, float *scale, float *error, float *scratch);

/* Replaces a row by its rounded values in `bits`, each weight by itself, at the scale with the least error
 * weighted by weight[k]; returns that error. */
float tn_round_plain(const tn_kernels *kern, float *w, const float *weight, int32_t k, unsigned bits);

/* The same for a row of the embedding before its codes are known. If it is also the output layer (tied),
 * it is rounded rotated (recipe.c), which matters if part of it is zero: codes below 8 bits have no zero. */
void tn_round_embedding(const tn_kernels *kern, float *w, const float *weight, int32_t k, unsigned bits,
                        bool tied);

#endif
