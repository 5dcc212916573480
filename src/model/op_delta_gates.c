/* DELTA_GATES: of every head of a gated delta net, in place: decay = exp(A softplus(decay + bias)), rate =
 * sigmoid(rate). Of Kimi's delta attention every key has a decay, by the A of its head; where none is below exp(-deepest),
 * decay = exp(-deepest sigmoid(-A (decay + bias))). Of Mamba 2, whose rate is the step itself: rate = softplus(decay +
 * bias), decay = exp(A rate). */
#include "model/op.h"

#include <math.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const bool kda = op->delta.net.kda, bounded = tn_delta_at_once(&op->delta.net);
    const double deepest = (double)op->delta.net.deepest;
    int32_t n = op->delta.net.n_heads, each = op->width / n; /* decays of a head */
    const float *a = tn_model_vector(f->m, op->layer, TN_W_DELTA_A),
                *bias = tn_model_vector(f->m, op->layer, TN_W_DELTA_DT);
    for (int32_t i = row0; i < row1; i++) {
        float *decay = tn_frame_row(f, TN_BUF_DELTA_DECAY, op->width, i),
              *rate = tn_frame_row(f, TN_BUF_DELTA_RATE, n, i);
        for (int32_t h = 0; kda && h < n; h++) {
            for (int32_t c = h * each; c < (h + 1) * each; c++) {
                double x = (double)decay[c] + (double)bias[c], softplus = x > 20 ? x : log1p(exp(x));
                decay[c] =
                    (float)exp(bounded ? -deepest / (1 + exp((double)a[h] * x)) : (double)a[h] * softplus);
            }
            rate[h] = (float)(1 / (1 + exp(-(double)rate[h])));
        }
        for (int32_t h = 0; !kda && h < n; h++) {
            double x = (double)decay[h] + (double)bias[h], softplus = x > 20 ? x : log1p(exp(x));
            decay[h] = (float)exp((double)a[h] * softplus);
            rate[h] = (float)(op->delta.net.mamba ? softplus : 1 / (1 + exp(-(double)rate[h])));
        }
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double n = (double)n_rows * op->width, rates = (double)n_rows * op->delta.net.n_heads;
    c->macs = 2 * n + rates;
    c->values = n + rates;
    c->bytes = 8 * (n + rates) + 4.0 * (op->width + op->delta.net.n_heads);
}

const tn_op_info tn_op_delta_gates = {"delta gates", rows, cost};
