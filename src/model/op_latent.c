/* LATENT: what attention of latents reads and keeps (MLA). A position's row is the norm of its first `rank` values and,
 * after it, n_rot values rotated by the position: one key for all heads, whose first values are the values too. It goes
 * to the state. Of every head's query the last n_rot values are rotated in the same way and go to where the head's
 * query for that key has them; what comes in front of them is multiplied into the key's rank values by HEADS. */
#include "model/op.h"

#include <math.h>
#include <string.h>

/* As the published layers have it, whatever the model's own norms add. */
static const float eps = 1e-6f;

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    const tn_rows *r = f->r;
    const float *norm = tn_model_vector(f->m, op->layer, op->weight);
    const int32_t rank = op->latent.rank, n_rot = op->latent.n_rot, d = rank + n_rot,
                  own = op->latent.d_nope + n_rot, n = op->latent.n_heads;
    for (int32_t i = row0; i < row1; i++) {
        const float *cs = tn_rows_rope(r, i, 0);
        float *kv = tn_frame_row(f, TN_BUF_KV_A, d, i), *q = tn_frame_row(f, TN_BUF_LATENT_Q, n * own, i),
              *out = tn_frame_row(f, TN_BUF_Q, n * d, i);
        r->kern->rmsnorm_f32(kv, norm, eps, kv, (size_t)rank);
        if (op->latent.rotates) r->kern->rope_f32(kv + rank, cs, (size_t)n_rot);
        tn_kv_put(r->kv, op->layer, 0, r->slot[i], kv, kv);
        if (op->latent.temp_scale != 0) {
            const double steps = floor((double)r->pos[i] / op->latent.temp_every);
            const float t = 1 + op->latent.temp_scale * (float)log(1 + steps);
            for (int32_t k = 0; k < n * own; k++) q[k] *= t;
        }
        for (int32_t head = 0; head < n; head++, q += own) {
            float *turned = q + op->latent.d_nope;
            if (op->latent.rotates) r->kern->rope_f32(turned, cs, (size_t)n_rot);
            memcpy(out + head * d + rank, turned, (size_t)n_rot * sizeof *out);
        }
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double d = op->latent.rank + op->latent.n_rot, turned = (double)op->latent.n_heads * op->latent.n_rot;
    c->macs = n_rows * (2.0 * op->latent.rank + 2 * (op->latent.n_rot + turned));
    c->values = n_rows * (d + turned);
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_latent = {"latent", rows, cost};
