/* model/head_ratio.h - how many positions each head attends to (shadowAttn, equation 3). */
#ifndef TN_MODEL_HEAD_RATIO_H
#define TN_MODEL_HEAD_RATIO_H

#include <stddef.h>

/* Share of the positions of every head: in proportion to weight [n] (> 0), mean `ratio` in [0,1], none above
 * 1: what a head cannot take goes to the others. */
void tn_head_ratios(const float *weight, size_t n, float ratio, float *out);

#endif
