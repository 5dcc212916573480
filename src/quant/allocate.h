/* quant/allocate.h - how many bits each output channel gets (EdgeFlow 4.1).
 * A channel at B bits has the relative error RE(B) = 2^(-2B) max|w|^2 / E[w^2], an estimate (up to a factor)
 * of the cosine distance between the channel and its quantised self. The errors add up and each further bit
 * gains a quarter of what the one before gained, so handing out one bit at a time to whoever gains most is
 * optimal. */
#ifndef TN_QUANT_ALLOCATE_H
#define TN_QUANT_ALLOCATE_H

#include "base/ctx.h"
#include "base/status.h"

/* peak[i] = max|w|^2 / E[w^2] of channel i (>= 0, finite; 0: nothing to gain). Gives bits[i] in 1..8 with sum
 * floor(average * n); ties go to the lower channel. O(n log n). n_weights: weights of every channel, for
 * channels of several matrices under one budget: a bit costs as many, and goes to who gains most for it; the
 * sum of n_weights[i] * bits[i] is then at most average times all weights (what is left would pay for no bit
 * of the one next in turn). NULL: all the same. */
tern_status tn_allocate_bits(tn_ctx *ctx, const float *peak, const uint32_t *n_weights, size_t n,
                             double average, uint8_t *bits, tern_error *err);
/* The same with at least `least` bits each; average >= least. What is left when the next in turn cannot
 * pay goes to those after it that can. */
tern_status tn_allocate_bits_from(tn_ctx *ctx, const float *peak, const uint32_t *n_weights, size_t n,
                                  double average, unsigned least, uint8_t *bits, tern_error *err);

#endif
