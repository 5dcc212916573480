/* ROPE: Q and K head by head: their norms where the layer has them, then pairs (j, j + n_rot/2) rotated by
 * the angles of the row's position; K and V are stored at the row's slot. */
#include "model/op.h"

static const float *vector_or_null(const tn_frame *f, const tn_op *op, tn_role role) {
    return role == TN_W_N_ROLES ? NULL : tn_model_vector(f->m, op->layer, role);
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    tn_rows_rope_store(f->r, op->layer, vector_or_null(f, op, op->rope.q_norm),
                       vector_or_null(f, op, op->rope.k_norm), op->rope.n_rot, f->buf[TN_BUF_Q],
                       f->buf[TN_BUF_K], f->buf[TN_BUF_V], row0, row1);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double d = op->rope.d_head, q = op->rope.n_heads * d, kv = op->rope.n_kv_heads * d;
    double normed = (op->rope.q_norm != TN_W_N_ROLES ? q : 0) + (op->rope.k_norm != TN_W_N_ROLES ? kv : 0);
    c->macs = n_rows * (2 * normed + 2.0 * op->rope.n_rot * (op->rope.n_heads + op->rope.n_kv_heads));
    c->values = n_rows * (q + 2 * kv); /* Q in place; K and V in the state */
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_rope = {"rope", rows, cost};
