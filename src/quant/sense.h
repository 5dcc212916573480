/* quant/sense.h - measures how much an error in each linear costs in the model's predictions, with
 * forwards only.
 *
 * Some tokens run through the layers in several copies. In copy g only the weights of group g of the
 * layers are rounded to TN_SENSE_BITS (groups of one layer, of more where there are over twelve); at the
 * end its KL divergence from the clean copy is the group's cost. Within a group the cost is divided among
 * the linears by how far each alone shifts the residual stream, and within a linear among its rows by
 * their rounding errors, weighed by what reads the rows of V and up. Weights are rounded in the form that the
 * recipe gives them, smoothed and rotated for the clean copy's inputs: as they are, outlier channels would make
 * a linear look dear that costs little in its package. One more copy begins with rounded rows of the embedding;
 * and the clean copy's predictions are compared with those of a rounded output layer. */
#ifndef TN_QUANT_SENSE_H
#define TN_QUANT_SENSE_H

#include "quant/corpus.h"
#include "quant/recipe.h"

enum { TN_SENSE_BITS = 4 };

typedef struct tn_sense_args {
    const tn_recipe *recipe; /* its kernels, threads and source are used */
    tn_model *m;             /* an outline */
    const int32_t *ids;
    size_t n_ids;
    bool (*progress)(void *user, double fraction); /* false: stop */
    void *user;
} tn_sense_args;

/* cost[row]: KL (nats a token) of rounding the row to 0 bits, extrapolated by tn_normal_error (allocate.h); for rows of
 * all linears of all layers, in the order of the program's sites, then of the output layer and, unless
 * that is the same matrix, of the embedding. TERN_E_CANCELLED when progress said so. */
tern_status tn_sense_measure(const tn_sense_args *a, float *cost, tern_error *err);

#endif
