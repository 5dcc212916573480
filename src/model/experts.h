/* model/experts.h - a mixture of experts over the rows of a frame.
 *
 *   route       scores choose the row's experts: op_route.c
 *   gather      every row gets a place with each of its experts; places are numbered expert by expert, and
 *               within one in order of the rows: op_gather.c
 *   experts     gate and up, of the rows at the places of an expert: its weights are read once for a chunk
 *   expert glu  op_expert_gate.c
 *   experts down
 *   expert sum  back in order of the rows, in order of their experts: op_expert_sum.c
 *
 * A chunk of n rows has n * used places, which are all taken. So the rows of the expert buffers, of `used`
 * places each, are as many as those of the chunk, and what works place by place works row by row too.
 *
 * A row of CHOSEN: of every expert of the row, ascending, its number, its weight and the row's place with it,
 * counted from the row's own first place in the buffers (so that it holds in a slice of the frame, too); then
 * what the shared expert's result is multiplied by. */
#ifndef TN_MODEL_EXPERTS_H
#define TN_MODEL_EXPERTS_H

#include "model/op.h"

static inline int32_t tn_chosen_width(int32_t used) { return 3 * used + 1; }
static inline int32_t tn_chosen_expert(const float *row, int32_t i) { return (int32_t)row[3 * i]; }
static inline float tn_chosen_weight(const float *row, int32_t i) { return row[3 * i + 1]; }
static inline int32_t tn_chosen_place(const float *row, int32_t i) { return (int32_t)row[3 * i + 2]; }

/* ROUTE: scores of rows row0 .. row1 - 1, by the router's panels. */
void tn_route_scores(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1);

/* The experts that scores [n], which are lost, choose: a row of CHOSEN without places and the shared
 * expert's. */
void tn_route_choose(const tn_op *op, const tn_model *m, float *score, float *chosen);

/* The experts that a layer would choose for a row x [n_embd] as it is when the layer begins, without the layer's own
 * attention, whose effect on the scores `correct` adds: likely [used]. false: this model's cannot be guessed. */
typedef void (*tn_correct_fn)(void *user, int32_t layer, float *scores);
bool tn_route_guess(const tn_op *op, const tn_model *m, const tn_kernels *kern, const float *x,
                    tn_correct_fn correct, void *user, int32_t *likely);

/* first[e] .. first[e + 1] - 1: the places of expert e of all rows of f; first [n + 1]. */
void tn_experts_count(const tn_frame *f, int32_t n, int32_t used, int32_t *first);

/* The float linears of a site of experts over all rows of f. acts: what tn_linears_run asks for, of max_rows
 * rows, which are no fewer than those of f. */
void tn_experts_run(const tn_op *op, const tn_frame *f, tn_pool *pool, int32_t max_rows, tn_blocks_act *acts);

#endif
