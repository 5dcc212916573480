/* What both forms of a tower, float and INT8, do row by row. */
#include "model/tower_impl.h"

#include <math.h>

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

/* ---- positions -------------------------------------------------------------------------------------------- */

/* Where line i of n stands among those of a table of `side`, whose first and last are the picture's: between lines at[0]
 * and at[1], with this share of the second. */
static float between(size_t i, size_t n, size_t side, size_t at[2]) {
    const double x = n > 1 ? (double)(i * (side - 1)) / (double)(n - 1) : 0;
    at[0] = (size_t)x;
    at[1] = at[0] + 1 < side ? at[0] + 1 : at[0];
    return (float)(x - (double)at[0]);
}

/* Bilinearly, from the four places of the table around the patch. */
static void interpolate(const tn_tower_run *r, size_t i) {
    const size_t side = (size_t)tn_tower_side(&r->t->s);
    size_t y[2], x[2];
    const float down = between(i / r->columns, r->n / r->columns, side, y),
                across = between(i % r->columns, r->columns, side, x);
    for (int k = 0; k < 4; k++) {
        const float share = (k / 2 ? down : 1 - down) * (k % 2 ? across : 1 - across);
        r->kern->add_f32(r->x + i * r->width, r->t->position + (y[k / 2] * side + x[k % 2]) * r->width, share,
                         r->width);
    }
}

static void position_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const tn_tower_run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    if (r->t->s.kind != TN_TOWER_QWEN3VL)
        r->kern->add_f32(r->x + row0 * r->width, r->t->position + row0 * r->width, 1,
                         (row1 - row0) * r->width);
    for (size_t i = row0; r->t->s.kind == TN_TOWER_QWEN3VL && i < row1; i++) interpolate(r, i);
}

void tn_tower_positions(tn_tower_run *r) {
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), position_item, r);
}

enum { TURN_BASE = 10000 };

void tn_tower_turns(tn_tower_run *r) {
    const size_t half = r->d_head / 4; /* pairs of an axis */
    for (size_t i = 0; r->turns && i < r->n; i++) {
        for (size_t j = 0; j < 2 * half; j++) {
            const double at = (double)(j < half ? i / r->columns : i % r->columns),
                         angle = at * pow(TURN_BASE, -(double)(j % half) / (double)half);
            r->turns[i * r->d_head + 2 * j] = (float)cos(angle);
            r->turns[i * r->d_head + 2 * j + 1] = (float)sin(angle);
        }
    }
}
