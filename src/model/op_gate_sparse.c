/* GATE_SPARSE: gate = max(gate - (mean + deviations * deviation), 0), mean and standard deviation those of the
 * row's values: about as many of them stay as a normal distribution has above that many deviations (Gemma 3n).
 * Sums are in double precision: the cut is a difference of them. */
#include "model/op.h"

#include <math.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    for (int32_t r = row0; r < row1; r++) {
        float *x = tn_frame_row(f, op->out, op->width, r);
        double sum = 0, square = 0;
        for (int32_t i = 0; i < op->width; i++) sum += (double)x[i];
        double mean = sum / op->width;
        for (int32_t i = 0; i < op->width; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean);
        float cut = (float)(mean + (double)op->deviations * sqrt(square / op->width));
        for (int32_t i = 0; i < op->width; i++) x[i] = x[i] > cut ? x[i] - cut : 0;
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 3 * c->values; /* sum, squares, cut */
    c->bytes = 16 * c->values;
}

const tn_op_info tn_op_gate_sparse = {"gate sparse", rows, cost};
