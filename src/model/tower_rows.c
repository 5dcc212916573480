/* What both forms of a tower, float and INT8, do row by row. */
#include "model/tower_impl.h"

void tn_tower_span(const tn_tower_run *r, int i_item, int rows, size_t *row0, size_t *row1) {
    *row0 = (size_t)i_item * (size_t)rows;
    *row1 = *row0 + (size_t)rows < r->n ? *row0 + (size_t)rows : r->n;
}

static void norm_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const tn_tower_run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    for (size_t i = row0; i < row1; i++)
        r->kern->layernorm_f32(r->x + i * r->width, r->norm[0], r->norm[1], r->t->s.eps, r->h + i * r->width,
                               r->width);
}

void tn_tower_norm(tn_tower_run *r, float *const *weight_bias) {
    r->norm = weight_bias;
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), norm_item, r);
}
