/* quant/allocate.h - the number of bits of each output channel (EdgeFlow 4.1).
 *
 * A channel at B bits has the relative error RE(B) = 2^(-2B) max|w|^2 / E[w^2], an estimate (up to a
 * factor) of the cosine distance between the channel and its quantised form. The errors add up, and each
 * further bit gains a quarter of the previous gain, so giving one bit at a time to the channel that gains
 * most is optimal. */
#ifndef TN_QUANT_ALLOCATE_H
#define TN_QUANT_ALLOCATE_H

#include "base/ctx.h"
#include "base/status.h"

/* peak[i] = max|w|^2 / E[w^2] of channel i (>= 0, finite; 0: nothing to gain). Gives bits[i] in 1..8 with
 * sum floor(average * n); ties go to the lower channel. O(n log n).
 *
 * n_weights, for channels of several matrices under one budget: the number of weights of every channel,
 * which is the cost of a bit. Bits go to the channel that gains most per cost, and the sum of n_weights[i]
 * * bits[i] is at most average times all weights (the remainder is too small for the next bit). NULL: all
 * equal. */
tern_status tn_allocate_bits(tn_ctx *ctx, const float *peak, const uint32_t *n_weights, size_t n,
                             double average, uint8_t *bits, tern_error *err);
/* The mean square error of a normal value of variance 1 at the best even step for 2^bits levels, bits 0 to 8.
 * A bit divides it by 2.8 to 3.5, not by 4. */
double tn_normal_error(unsigned bits);
/* The same for channels that lose cost[i] * tn_normal_error(bits), with at least `least` bits each; average >=
 * least. Bits that the next channel cannot afford go to later ones that can. */
tern_status tn_allocate_bits_from(tn_ctx *ctx, const float *cost, const uint32_t *n_weights, size_t n,
                                  double average, unsigned least, uint8_t *bits, tern_error *err);

#endif
