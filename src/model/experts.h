/* model/experts.h - running a mixture of experts over the rows of a frame (op_experts.c has the contract). */
#ifndef TN_MODEL_EXPERTS_H
#define TN_MODEL_EXPERTS_H

#include "model/op.h"

/* All rows of f. acts: what tn_linear_run asks for. row, weight: [n_rows] to work in. */
void tn_experts_run(const tn_op *op, const tn_frame *f, tn_pool *pool, tn_blocks_act *acts, int32_t *row,
                    float *weight);

#endif
