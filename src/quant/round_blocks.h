/* quant/round_blocks.h - a row's weights to a GGUF file's blocks with knowledge of the inputs (gram.h). */
#ifndef TN_QUANT_ROUND_BLOCKS_H
#define TN_QUANT_ROUND_BLOCKS_H

#include "quant/block_form.h"
#include "quant/gram.h"

/* Floats of scratch that tn_round_blocks needs. */
size_t tn_round_blocks_scratch(const tn_factor *f);

/* Rounds up to 16 rows w [n_rows][f->k] to blocks, out [n_rows][f->k / form->n * form->n_bytes]; f->k % form->n == 0.
 * The scales of a block are those with the least error weighted by the cost of each channel, then every channel is
 * rounded with knowledge of earlier errors. With a factor without blocks each weight is rounded by itself. */
void tn_round_blocks(const tn_factor *f, const tn_kernels *kern, const tn_block_form *form, const float *w,
                     int32_t n_rows, uint8_t *out, float *scratch);

#endif
