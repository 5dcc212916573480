/* LINEARS: the linears that read one site: out[i] = in W[i]^T + bias[i]. The float forward runs them in
 * panels, the device as one static graph of INT8 products beside which the outlier path works in float. */
#include "model/op.h"

#include <math.h>

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    const tn_site_ops *l = &op->linears;
    double weights = (double)l->k * l->n_total, in = (double)n_rows * l->k;
    c->values = (double)n_rows * l->n_total;
    if (l->n_experts) { /* those that are read, at most */
        double passed = (double)n_rows * l->n_used;
        weights *= fmin(passed, l->n_experts) / l->n_experts;
        c->values *= (double)l->n_used / l->n_experts;
        in = passed * l->k;
    }
    c->macs = n_rows * tn_site_macs(l);
    c->bytes = weights + 4 * in + 4 * c->values;
}

const tn_op_info tn_op_linears = {"linears", NULL, cost};
