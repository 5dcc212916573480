/* LINEARS: the linears that read one site: out[i] = in W[i]^T + bias[i]. The float forward runs them in
 * panels, the device as one static graph of INT8 products beside which the outlier path works in float. */
#include "model/op.h"

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double weights = (double)op->linears.k * op->linears.n_total;
    c->macs = n_rows * weights;
    c->values = (double)n_rows * op->linears.n_total;
    c->bytes = weights + 4.0 * n_rows * op->linears.k + 4 * c->values;
}

const tn_op_info tn_op_linears = {"linears", NULL, cost};
