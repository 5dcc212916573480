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
    for (size_t i = row0; i < row1; i++) {
        const float *x = r->x + i * r->width;
        float *h = r->h + i * r->width;
        if (r->norm[1]) r->kern->layernorm_f32(x, r->norm[0], r->norm[1], r->t->s.eps, h, r->width);
        else r->kern->rmsnorm_f32(x, r->norm[0], r->t->s.eps, h, r->width);
    }
}

void tn_tower_norm(tn_tower_run *r, float *const *weight_bias) {
    r->norm = weight_bias;
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), norm_item, r);
}

static void limit_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const tn_tower_run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    for (size_t i = row0 * r->row_width; i < row1 * r->row_width; i++)
        r->to[i] = tn_tower_within(r->rows[i], r->least, r->most);
}

void tn_tower_limit(tn_tower_run *r, const float *x, float *to, int32_t width, const float *least,
                    const float *most) {
    r->rows = x;
    r->to = to;
    r->row_width = (size_t)width;
    r->least = *least;
    r->most = *most;
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), limit_item, r);
}

static void add_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const tn_tower_run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    for (size_t i = row0; i < row1; i++) {
        float *y = r->to + i * r->width;
        for (size_t c = 0; r->gain && c < r->width; c++) y[c] *= r->gain[c];
        if (r->post) r->kern->rmsnorm_f32(y, r->post, r->t->s.eps, y, r->width);
        r->kern->add_f32(r->x + i * r->width, y, 1, r->width);
    }
}

void tn_tower_add(tn_tower_run *r, float *y, const float *gain, const float *post) {
    r->to = y;
    r->gain = gain;
    r->post = post;
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), add_item, r);
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

/* Lines of a table of `side` that line i of n is made of, in triangles around its centre: from .. to - 1. The triangles
 * are as wide as the table's lines, or as the picture's where these are fewer. */
typedef struct taps {
    double centre, wide, sum;
    size_t from, to;
} taps;

static double tap(const taps *t, size_t line) {
    const double off = fabs((double)line + 0.5 - t->centre) / t->wide;
    return off < 1 ? 1 - off : 0;
}

static taps taps_of(size_t i, size_t n, size_t side) {
    const double scale = (double)side / (double)n, wide = scale < 1 ? 1 : scale,
                 centre = ((double)i + 0.5) * scale, from = centre - wide + 0.5, to = centre + wide + 0.5;
    taps t = {.centre = centre, .wide = wide};
    t.from = from > 0 ? (size_t)from : 0;
    t.to = to < (double)side ? (size_t)to : side;
    for (size_t k = t.from; k < t.to; k++) t.sum += tap(&t, k);
    return t;
}

/* The table resized to the picture's patches, as torch.nn.functional.interpolate(bilinear, antialias) has it. */
static void resize(const tn_tower_run *r, size_t i) {
    const size_t side = (size_t)tn_tower_side(&r->t->s);
    const taps y = taps_of(i / r->columns, r->n_patches / r->columns, side),
               x = taps_of(i % r->columns, r->columns, side);
    for (size_t ty = y.from; ty < y.to; ty++)
        for (size_t tx = x.from; tx < x.to; tx++)
            r->kern->add_f32(r->x + i * r->width, r->t->position + (ty * side + tx) * r->width,
                             (float)(tap(&y, ty) / y.sum * (tap(&x, tx) / x.sum)), r->width);
}

/* Of a table of a whole tile's patches, which may have the class first. */
static size_t place(const tn_tower_run *r, size_t i) {
    const size_t at = i / r->columns * (size_t)tn_tower_side(&r->t->s) + i % r->columns;
    return r->t->class ? i < r->n_patches ? at + 1 : 0 : at;
}

/* Of two tables, of columns and of lines. */
static void add_places(const tn_tower_run *r, size_t i) {
    const size_t column = i % r->columns, line = (size_t)r->t->n_places + i / r->columns;
    float *x = r->x + i * r->width;
    r->kern->add_f32(x, r->t->position + column * r->width, 1, r->width);
    r->kern->add_f32(x, r->t->position + line * r->width, 1, r->width);
}

/* Of a table that has so many places of a side, whatever the patches: the one that a patch lies in. */
static size_t bucket(const tn_tower_run *r, size_t i) {
    const size_t side = (size_t)r->t->s.places, lines = r->n_patches / r->columns;
    return i / r->columns * side / lines * side + i % r->columns * side / r->columns;
}

static void position_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const tn_tower_run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    for (size_t i = row0; i < row1; i++) {
        if (r->t->s.kind == TN_TOWER_QWEN3VL) interpolate(r, i);
        else if (r->t->s.kind == TN_TOWER_LFM2) resize(r, i);
        else if (r->t->s.kind == TN_TOWER_GEMMA4) add_places(r, i);
        else {
            const size_t at = r->t->s.places ? bucket(r, i) : place(r, i);
            r->kern->add_f32(r->x + i * r->width, r->t->position + at * r->width, 1, r->width);
        }
    }
}

void tn_tower_positions(tn_tower_run *r) {
    if (!r->t->position) return;
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), position_item, r);
}

enum { TURN_BASE = 10000, TURN_BASE_GEMMA4 = 100 };

void tn_tower_turns(tn_tower_run *r) {
    const size_t half = r->d_head / 4;                   /* pairs of an axis */
    const bool gemma4 = r->t->s.kind == TN_TOWER_GEMMA4; /* columns first */
    const double base = gemma4 ? TURN_BASE_GEMMA4 : TURN_BASE;
    for (size_t i = 0; r->turns && i < r->n; i++) {
        const size_t patch = tn_tower_patch(r, i);
        for (size_t j = 0; j < 2 * half; j++) {
            const double at = (double)((j < half) != gemma4 ? patch / r->columns : patch % r->columns),
                         angle = at * pow(base, -(double)(j % half) / (double)half);
            r->turns[i * r->d_head + 2 * j] = (float)cos(angle);
            r->turns[i * r->d_head + 2 * j + 1] = (float)sin(angle);
        }
    }
}

/* ---- windows ---------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* The blocks of lines y0 .. y1 - 1 and columns x0 .. x1 - 1, from place `at` on. Returns the place after them. */
static size_t put_window(tn_tower_run *r, size_t at, size_t y0, size_t y1, size_t x0, size_t x1) {
    const size_t k = (size_t)r->t->s.shuffle, first = at, end = at + (y1 - y0) * (x1 - x0) * k * k;
    for (size_t b = 0; b < (y1 - y0) * (x1 - x0); b++) {
        const size_t y = (y0 + b / (x1 - x0)) * k, x = (x0 + b % (x1 - x0)) * k;
        for (size_t j = 0; j < k * k; j++, at++) {
            r->from[at] = (int32_t)((y + j / k) * r->columns + x + j % k);
            r->first[at] = (int32_t)first;
            r->end[at] = (int32_t)end;
        }
    }
    return at;
}

/* Of the picture's blocks, from its upper left corner on; the last ones are smaller. */
void tn_tower_windows(tn_tower_run *r) {
    const tn_tower_shape *s = &r->t->s;
    if (!r->from) return;
    const size_t k = (size_t)s->shuffle, side = (size_t)(s->window / s->patch) / k, across = r->columns / k,
                 down = r->n / r->columns / k;
    size_t at = 0;
    for (size_t y = 0; y < down; y += side)
        for (size_t x = 0; x < across; x += side)
            at = put_window(r, at, y, least(y + side, down), x, least(x + side, across));
}

static void gate_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const tn_tower_run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    float *up = r->wide + row0 * r->ff;
    const int act = r->t->s.kind == TN_TOWER_GEMMA4 ? TN_ACT_GELU_TANH : TN_ACT_SILU;
    r->kern->glu_f32(act, r->gate + row0 * r->ff, up, up, (row1 - row0) * r->ff);
}

void tn_tower_gate(tn_tower_run *r) {
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), gate_item, r);
}
