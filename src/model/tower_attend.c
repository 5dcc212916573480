/* Attention of a tower in floats: every row sees all rows, or those of its window. */
#include "model/tower_impl.h"

#include <math.h>

typedef tn_tower_run run;

/* The cells of a head: panels of keys, and its values row after row. */
static float *cells(const run *r, float *of, int head) {
    return of + (size_t)head * r->n_panels * TN_KV_PANEL * r->d_head;
}

/* A head of row i: its norms, where the family has them; then it is rotated. */
static void ready(const run *r, size_t i, float *q, float *k, float *v) {
    float *const *norm = r->layer->head_norm;
    const float eps = r->t->s.eps;
    if (norm[0]) {
        r->kern->rmsnorm_f32(q, norm[0], eps, q, r->d_head);
        r->kern->rmsnorm_f32(k, norm[1], eps, k, r->d_head);
        r->kern->rmsnorm_f32(v, r->t->ones, eps, v, r->d_head);
    }
    tn_tower_turn(r, i, q);
    tn_tower_turn(r, i, k);
}

static void keep_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *r = arg;
    float *keys = cells(r, r->keys, i_item), *values = cells(r, r->values, i_item);
    for (size_t i = 0; i < r->n; i++) {
        size_t at = i * r->width + (size_t)i_item * r->d_head;
        ready(r, i, r->q + at, r->k + at, r->v + at);
        tn_kv_put_key(TN_KV_F32, r->d_head, keys, i, r->k + at);
        tn_kv_put_value(TN_KV_F32, r->d_head, values, i, r->v + at);
    }
}

/* Every row sees all of them, or those of its window. A part is a head's next rows. */
static void attend_item(void *arg, int i_item, int i_thread) {
    const run *r = arg;
    int n_heads = r->t->s.n_heads, head = i_item % n_heads;
    size_t row0, row1;
    int32_t first[TN_TOWER_ATTEND_ROWS], end[TN_TOWER_ATTEND_ROWS];
    tn_tower_span(r, i_item / n_heads, TN_TOWER_ATTEND_ROWS, &row0, &row1);
    for (size_t i = row0; i < row1; i++) tn_tower_seen(r, i, &first[i - row0], &end[i - row0]);
    size_t at = row0 * r->width + (size_t)head * r->d_head;
    const tn_attn_f32_args a = {.q = r->q + at,
                                .q_stride = r->width,
                                .out = r->h + at,
                                .out_stride = r->width,
                                .k_panels = cells(r, r->keys, head),
                                .v = cells(r, r->values, head),
                                .kv = TN_KV_F32,
                                .n_rows = row1 - row0,
                                .d_head = r->d_head,
                                .scale = r->layer->head_norm[0] ? 1 : 1 / sqrtf((float)r->d_head),
                                .first_pos = first,
                                .end_pos = end,
                                .scratch = r->scratch + (size_t)i_thread * r->scratch_stride};
    r->kern->attn_f32(&a);
}

void tn_tower_attend(tn_tower_run *r) {
    const size_t parts = (r->n + TN_TOWER_ATTEND_ROWS - 1) / TN_TOWER_ATTEND_ROWS;
    tn_pool_for(r->pool, r->t->s.n_heads, keep_item, r);
    tn_pool_for(r->pool, r->t->s.n_heads * (int)parts, attend_item, r);
}
