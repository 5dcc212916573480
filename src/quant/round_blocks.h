/* quant/round_blocks.h - a row's weights to Q4_0 blocks with knowledge of the inputs (gram.h). */
#ifndef TN_QUANT_ROUND_BLOCKS_H
#define TN_QUANT_ROUND_BLOCKS_H

#include "quant/gram.h"

enum { TN_ROUND_BLOCK = 32 }; /* values of a block, which share a scale */

/* Floats of scratch that tn_round_q4_0 needs. */
size_t tn_round_q4_0_scratch(const tn_factor *f);

/* Rounds up to 16 rows w [n_rows][f->k] to Q4_0, out [n_rows][f->k / 32 * 18]; k % 32 == 0. A block's scale is the one
 * with the least error weighted by the cost of each channel, then every channel is rounded with knowledge of earlier
 * errors. With a factor without blocks each weight is rounded by itself. */
void tn_round_q4_0(const tn_factor *f, const tn_kernels *kern, const float *w, int32_t n_rows, uint8_t *out,
                   float *scratch);

#endif
