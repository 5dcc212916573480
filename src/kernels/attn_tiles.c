/* Scalar reference of attn_tiles.h: copy, then full attention. */
#include "kernels/attn_tiles.h"

void tn_attn_tiles_ref(const tn_attn_tiles_args *a) {
    size_t d_head = a->d_head;
    for (const tn_attn_tile *t = a->tiles; t < a->tiles + a->n_tiles; t++) {
        float *k = a->scratch, *v = k + tn_attn_tile_copy(t->n_idx) * d_head,
              *scores = v + tn_attn_tile_copy(t->n_idx) * d_head;
        for (size_t i = 0; i < t->n_idx; i++) {
            float *to = k + i / TN_KV_PANEL * d_head * TN_KV_PANEL + i % TN_KV_PANEL;
            for (size_t d = 0; d < d_head; d++)
                to[d * TN_KV_PANEL] = tn_kv_value(a->kv, d_head, a->k, t->idx[i], d);
            tn_kv_rows_ref(a->kv, d_head, a->v, t->idx[i], 1, v + i * d_head);
        }
        for (size_t r = 0; r < t->n_rows; r++) { /* one at a time, so the scores need little room */
            tn_attn_f32_ref(&(tn_attn_f32_args){.q = t->q + r * d_head,
                                                .q_stride = d_head,
                                                .out = t->out + r * d_head,
                                                .out_stride = d_head,
                                                .k_panels = k,
                                                .v = v,
                                                .n_rows = 1,
                                                .d_head = d_head,
                                                .scale = a->scale,
                                                .soft_cap = a->soft_cap,
                                                .first_pos = t->first + r,
                                                .end_pos = t->end + r,
                                                .scratch = scores});
        }
    }
}
