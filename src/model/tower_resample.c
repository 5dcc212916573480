/* MiniCPM-V's rows: learned queries attend to a view's patches. In floats, in both forms of a tower. */
#include "model/tower_impl.h"

#include "base/status.h"
#include "kernels/kv_cells.h"

#include <math.h>
#include <string.h>

enum { D_HEAD = 128 };

typedef struct resample {
    tn_tower_run *r;
    size_t n, out, n_heads, n_queries, lines, n_cells; /* n: patches; n_cells: of a head, in floats */
    float *kv, *y;                                     /* [n][out] */
    float *places;                                     /* [columns, then lines][out / 2] sines and cosines */
    float *q, *given;                                  /* [n_queries][out] */
    float *keys, *values;                              /* of all heads, as kv_cells.h has them */
    float *scratch;                                    /* of every thread */
    size_t scratch_stride;
    float *const *norm; /* of the op at work, and its rows */
    float *rows;
} resample;

/* rows = LN(rows), in place */
static void norm_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const resample *m = arg;
    float *x = m->rows + (size_t)i_item * m->out;
    m->r->kern->layernorm_f32(x, m->norm[0], m->norm[1], m->r->t->s.eps, x, m->out);
}

static void normed(resample *m, float *const *weight_bias, float *rows, size_t n) {
    m->norm = weight_bias;
    m->rows = rows;
    tn_pool_for(m->r->pool, (int)n, norm_item, m);
}

/* Sines, then cosines, of a column or a line. */
static void place_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const resample *m = arg;
    const size_t columns = m->r->columns, quarter = m->out / 4, i = (size_t)i_item;
    const double at = (double)(i < columns ? i : i - columns);
    float *to = m->places + i * 2 * quarter;
    for (size_t j = 0; j < quarter; j++) {
        const double angle = at * pow(10000, -(double)j / (double)quarter);
        to[j] = (float)sin(angle);
        to[quarter + j] = (float)cos(angle);
    }
}

static void add_place_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const resample *m = arg;
    const size_t half = m->out / 2, i = (size_t)i_item, columns = m->r->columns;
    float *x = m->kv + i * m->out;
    m->r->kern->add_f32(x, m->places + i % columns * half, 1, half);
    m->r->kern->add_f32(x + half, m->places + (columns + i / columns) * half, 1, half);
}

static void keys_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const resample *m = arg;
    for (size_t i = 0; i < m->n; i++)
        tn_kv_put_key(TN_KV_F32, D_HEAD, m->keys + (size_t)i_item * m->n_cells, i,
                      m->y + i * m->out + (size_t)i_item * D_HEAD);
}

static void values_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const resample *m = arg;
    for (size_t i = 0; i < m->n; i++)
        tn_kv_put_value(TN_KV_F32, D_HEAD, m->values + (size_t)i_item * m->n_cells, i,
                        m->y + i * m->out + (size_t)i_item * D_HEAD);
}

/* Some queries of a head. */
static void attend_item(void *arg, int i_item, int i_thread) {
    const resample *m = arg;
    const size_t head = (size_t)i_item % m->n_heads,
                 row0 = (size_t)i_item / m->n_heads * TN_TOWER_ATTEND_ROWS, left = m->n_queries - row0,
                 n_rows = left < TN_TOWER_ATTEND_ROWS ? left : TN_TOWER_ATTEND_ROWS;
    int32_t first[TN_TOWER_ATTEND_ROWS], end[TN_TOWER_ATTEND_ROWS];
    for (size_t i = 0; i < n_rows; i++) first[i] = 0, end[i] = (int32_t)m->n;
    const tn_attn_f32_args a = {.q = m->q + row0 * m->out + head * D_HEAD,
                                .q_stride = m->out,
                                .out = m->given + row0 * m->out + head * D_HEAD,
                                .out_stride = m->out,
                                .k_panels = m->keys + head * m->n_cells,
                                .v = m->values + head * m->n_cells,
                                .kv = TN_KV_F32,
                                .n_rows = n_rows,
                                .d_head = D_HEAD,
                                .scale = 1 / sqrtf((float)D_HEAD),
                                .first_pos = first,
                                .end_pos = end,
                                .scratch = m->scratch + (size_t)i_thread * m->scratch_stride};
    m->r->kern->attn_f32(&a);
}

static void product(const resample *m, const tn_linear *l, const float *x, float *out, size_t n_rows) {
    tn_linear_run(l, m->r->kern, m->r->pool, x, (size_t)l->k, out, (size_t)l->n, n_rows, NULL);
}

/* kv | y | places | q | given | keys | values | scratch of every thread */
static float *cut(resample *m) {
    const size_t rows = m->n * m->out, queries = m->n_queries * m->out, cells = m->n_heads * m->n_cells,
                 places = (m->r->columns + m->lines) * m->out / 2,
                 scratch = m->scratch_stride * (size_t)tn_pool_size(m->r->pool);
    float *base = tn_alloc(m->r->t->ctx, TN_MEM_ACTIVATIONS,
                           2 * rows + places + 2 * queries + 2 * cells + scratch, sizeof *base);
    if (!base) return NULL;
    m->kv = base;
    m->y = m->kv + rows;
    m->q = m->y + rows;
    m->given = m->q + queries;
    m->keys = m->given + queries;
    m->values = m->keys + cells;
    m->scratch = m->values + cells;
    m->places = m->scratch + scratch;
    memset(m->keys, 0, 2 * cells * sizeof *base); /* the last panel has positions that nobody sees */
    return base;
}

tern_status tn_tower_resample(tn_tower_run *r, float *rows, tern_error *err) {
    const tn_tower_resampler *w = &r->t->resampler;
    tn_pool *pool = r->pool;
    resample m = {.r = r,
                  .n = r->n,
                  .out = (size_t)r->t->s.out,
                  .n_queries = (size_t)r->t->s.queries,
                  .lines = r->n / r->columns};
    m.n_heads = m.out / D_HEAD;
    m.n_cells = r->n_panels * TN_KV_PANEL * D_HEAD;
    m.scratch_stride = (tn_attn_f32_scratch(D_HEAD, r->n_panels * TN_KV_PANEL) + 15) / 16 * 16;
    float *base = cut(&m);
    TN_FAIL_IF(!base, err, TERN_E_MEMORY, "no memory for the rows of a picture of %zu patches", m.n);
    tn_tower_norm(r, r->t->post_ln);
    product(&m, &w->kv, r->h, m.kv, m.n);
    normed(&m, w->ln_kv, m.kv, m.n);
    product(&m, &w->v, m.kv, m.y, m.n);
    tn_pool_for(pool, (int)m.n_heads, values_item, &m);
    tn_pool_for(pool, (int)(r->columns + m.lines), place_item, &m);
    tn_pool_for(pool, (int)m.n, add_place_item, &m);
    product(&m, &w->k, m.kv, m.y, m.n);
    tn_pool_for(pool, (int)m.n_heads, keys_item, &m);
    memcpy(m.given, w->query, m.n_queries * m.out * sizeof *m.given);
    normed(&m, w->ln_q, m.given, m.n_queries);
    product(&m, &w->q, m.given, m.q, m.n_queries);
    const size_t parts = (m.n_queries + TN_TOWER_ATTEND_ROWS - 1) / TN_TOWER_ATTEND_ROWS;
    tn_pool_for(pool, (int)(m.n_heads * parts), attend_item, &m);
    product(&m, &w->given, m.given, m.q, m.n_queries);
    normed(&m, w->ln_post, m.q, m.n_queries);
    product(&m, &w->proj, m.q, rows, m.n_queries);
    tn_free(r->t->ctx, base);
    return TERN_OK;
}
