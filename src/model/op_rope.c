/* ROPE: Q and K head by head: their norms where the layer has them, then pairs (j, j + n_rot/2) rotated by
 * the angles of the row's position; K and V are stored at the row's slot. Some architectures norm after the
 * rotation (Llama 4 without weights), or all heads of a row together; some scale queries by their position. Some norm V too, without
 * weights, or have K as projected for it. A layer without KV heads leaves to an earlier one what is stored. */
#include "model/op.h"

#include <math.h>
#include <string.h>

static const float *vector_or_null(const tn_frame *f, const tn_op *op, tn_role role) {
    return role == TN_W_N_ROLES ? NULL : tn_model_vector(f->m, op->layer, role);
}

/* A norm without weights. */
static void norm_plain(const tn_rows *r, float *x, int32_t n) {
    float ones[512];
    for (int32_t i = 0; i < n; i++) ones[i] = 1;
    r->kern->rmsnorm_f32(x, ones, r->h->norm_eps, x, (size_t)n);
}

/* n_heads heads of one row, in place. cs: the row's table. */
static void turn(const tn_op *op, const tn_rows *r, const float *w, const float *b, const float *cs, float *x,
                 int32_t n_heads) {
    size_t d = (size_t)op->rope.d_head, n_rot = (size_t)op->rope.n_rot;
    float eps = r->h->norm_eps;
    if (w && b) r->kern->layernorm_f32(x, w, b, eps, x, d * (size_t)n_heads);
    else if (w && op->rope.whole) r->kern->rmsnorm_f32(x, w, eps, x, d * (size_t)n_heads);
    for (int32_t a = 0; a < n_heads; a++, x += d) {
        bool norm = w && !op->rope.whole;
        if (norm && !op->rope.behind) r->kern->rmsnorm_f32(x, w, eps, x, d);
        if (n_rot) r->kern->rope_f32(x, cs, n_rot);
        if (norm && op->rope.behind) r->kern->rmsnorm_f32(x, w, eps, x, d);
        if (op->rope.plain) norm_plain(r, x, (int32_t)d);
    }
}

static void heat(const tn_op *op, int32_t pos, float *q) {
    float t = 1 + op->rope.temp_scale *
                      (float)log(1 + floor((double)(pos + op->rope.temp_from) / op->rope.temp_every));
    for (int32_t i = 0; i < op->rope.n_heads * op->rope.d_head; i++) q[i] *= t;
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_rows *r = f->r;
    const float *q_norm = vector_or_null(f, op, op->rope.q_norm),
                *k_norm = vector_or_null(f, op, op->rope.k_norm),
                *q_bias = vector_or_null(f, op, op->rope.q_bias),
                *k_bias = vector_or_null(f, op, op->rope.k_bias);
    int32_t d = op->rope.d_head, n_q = op->rope.n_heads, n_kv = op->rope.n_kv_heads;
    for (int32_t i = row0; i < row1; i++) {
        const float *cs = tn_rows_rope(r, i, op->rope.table);
        float *q = tn_frame_row(f, TN_BUF_Q, n_q * d, i), *k = tn_frame_row(f, TN_BUF_K, n_kv * d, i),
              *v = tn_frame_row(f, TN_BUF_V, n_kv * d, i);
        turn(op, r, q_norm, q_bias, cs, q, n_q);
        if (op->rope.temp_scale != 0) heat(op, r->pos[i], q);
        if (!n_kv) continue;
        if (op->rope.v_is_k) memcpy(v, k, (size_t)(n_kv * d) * sizeof *v);
        for (int32_t a = 0; op->rope.v_norm && a < n_kv; a++) norm_plain(r, v + a * d, d);
        turn(op, r, k_norm, k_bias, cs, k, n_kv);
        for (int32_t a = 0; a < n_kv; a++) tn_kv_put(r->kv, op->layer, a, r->slot[i], k + a * d, v + a * d);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double d = op->rope.d_head, q = op->rope.n_heads * d, kv = op->rope.n_kv_heads * d;
    double normed = (op->rope.q_norm != TN_W_N_ROLES ? q : 0) + (op->rope.k_norm != TN_W_N_ROLES ? kv : 0) +
                    (op->rope.v_norm ? kv : 0) + (op->rope.plain ? q + kv : 0);
    c->macs = n_rows * (2 * normed + 2.0 * op->rope.n_rot * (op->rope.n_heads + op->rope.n_kv_heads) +
                        (op->rope.temp_scale != 0 ? q : 0));
    c->values = n_rows * (q + 2 * kv); /* Q in place; K and V in the state */
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_rope = {"rope", rows, cost};
