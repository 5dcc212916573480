#include "model/forward.h"

#include "base/status.h"
#include "model/tree.h"

#include <string.h>

/* ---- activations --------------------------------------------------------------------------------- */

enum { SLICE_ALIGN = 16 }; /* floats: every slice starts on a cache line */

tern_status tn_acts_open(tn_ctx *ctx, const tn_hparams *h, tn_float_scheme scheme, int32_t max_rows,
                         int32_t cap_tok, int n_threads, tn_acts *out, tern_error *err) {
    *out = (tn_acts){.ctx = ctx, .max_rows = max_rows};
    size_t rows = (size_t)max_rows, e = (size_t)h->n_embd, qd = (size_t)h->n_heads * (size_t)h->d_head,
           kd = (size_t)h->n_kv_heads * (size_t)h->d_head, f = (size_t)h->n_ff;
    out->scratch_stride = (tn_rows_scratch(h, cap_tok) + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    bool side = scheme == TN_FLOAT_LLM_INT8;
    size_t widest = f > qd ? f : qd;
    if (e > widest) widest = e;
    float *flags;
    struct {
        float **slice;
        size_t n;
    } plan[] = {
        {&out->x, rows * e},
        {&out->h, rows * e},
        {&out->q, rows * (qd > e ? qd : e)},
        {&out->k, rows * kd},
        {&out->v, rows * kd},
        {&out->att, rows * qd},
        {&out->gate, rows * f},
        {&out->up, rows * f},
        {&out->rope_cs, rows * (size_t)h->n_rot},
        {&out->scratch, (size_t)n_threads * out->scratch_stride},
        {&out->outliers, side ? rows * widest : 0},
        {&flags, rows},
    };
    size_t n_slices = sizeof plan / sizeof plan[0], total = 0;
    for (size_t i = 0; i < n_slices; i++) total += (plan[i].n + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    out->base = tn_alloc(ctx, TN_MEM_ACTIVATIONS, total, sizeof(float));
    TN_FAIL_IF(!out->base, err, TERN_E_MEMORY, "no memory for activations (%zu bytes)",
               total * sizeof(float));
    float *p = out->base;
    for (size_t i = 0; i < n_slices; i++) {
        *plan[i].slice = p;
        p += (plan[i].n + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    }
    out->has_outliers = (bool *)flags;
    return TERN_OK;
}

void tn_acts_close(tn_acts *a) {
    tn_free(a->ctx, a->base);
    a->base = NULL;
}

/* ---- stages, each spread over the pool ----------------------------------------------------------- */

typedef struct stage {
    const tn_model *m;
    const tn_layer *y;
    tn_rows *r;
    tn_acts *a;
    int layer;
    int32_t rows_per_item;
    const int32_t *ids;
    const float *w, *b, *post; /* norm weights */
    float *branch;             /* block output added to the residual */
} stage;

static void span(const stage *s, int i_item, int32_t *row0, int32_t *row1) {
    *row0 = i_item * s->rows_per_item;
    *row1 = *row0 + s->rows_per_item < s->r->n_rows ? *row0 + s->rows_per_item : s->r->n_rows;
}

static void run(stage *s, tn_pool *pool, void (*fn)(void *, int, int)) {
    tn_pool_for(pool, (s->r->n_rows + s->rows_per_item - 1) / s->rows_per_item, fn, s);
}

static void embed_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    stage *s = arg;
    const tn_hparams *h = &s->m->h;
    int32_t row0, row1;
    span(s, i_item, &row0, &row1);
    for (int32_t i = row0; i < row1; i++) {
        float *x = s->a->x + (size_t)i * (size_t)h->n_embd;
        tn_panels_row(s->m->embd.dtype, s->m->embd.panels, (size_t)s->ids[i], (size_t)h->n_embd, x);
        if (h->embd_scale != 1.0f) {
            for (int32_t j = 0; j < h->n_embd; j++) x[j] *= h->embd_scale;
        }
    }
}

static void norm_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    stage *s = arg;
    int32_t row0, row1;
    span(s, i_item, &row0, &row1);
    tn_rows_norm(s->r, s->w, s->b, s->a->x, s->a->h, row0, row1);
}

static void rope_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    stage *s = arg;
    int32_t row0, row1;
    span(s, i_item, &row0, &row1);
    tn_rows_rope_store(s->r, s->y, s->layer, s->a->q, s->a->k, s->a->v, row0, row1);
}

static void attn_item(void *arg, int i_item, int i_thread) {
    stage *s = arg;
    int32_t n_spans = (s->r->n_rows + s->rows_per_item - 1) / s->rows_per_item, row0, row1;
    span(s, n_spans - 1 - i_item % n_spans, &row0, &row1); /* longest first */
    tn_rows_attention(s->r, s->layer, i_item / n_spans, s->a->q, s->a->att, row0, row1,
                      s->a->scratch + (size_t)i_thread * s->a->scratch_stride);
}

/* Few rows: by KV head, its query heads together. */
static void attn_group_item(void *arg, int i_item, int i_thread) {
    stage *s = arg;
    tn_rows_attention_group(s->r, s->layer, i_item, s->a->q, s->a->att, 0, s->r->n_rows,
                            s->a->scratch + (size_t)i_thread * s->a->scratch_stride);
}

static void glu_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    stage *s = arg;
    int32_t row0, row1;
    span(s, i_item, &row0, &row1);
    const tn_hparams *h = &s->m->h;
    size_t off = (size_t)row0 * (size_t)h->n_ff, n = (size_t)(row1 - row0) * (size_t)h->n_ff;
    if (h->gated) s->r->kern->glu_f32(h->act, s->a->gate + off, s->a->up + off, s->a->up + off, n);
    else s->r->kern->act_f32(h->act, s->a->up + off, n);
}

/* x += norm_post(branch) */
static void residual_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    stage *s = arg;
    int32_t row0, row1;
    span(s, i_item, &row0, &row1);
    size_t e = (size_t)s->m->h.n_embd;
    if (s->post) tn_rows_norm(s->r, s->post, NULL, s->branch, s->branch, row0, row1);
    s->r->kern->add_f32(s->a->x + (size_t)row0 * e, s->branch + (size_t)row0 * e, 1.0f,
                        (size_t)(row1 - row0) * e);
}

/* ---- linears ------------------------------------------------------------------------------------- */

typedef struct side_job {
    const stage *s;
    const tn_linear *l;
    float *x, *out;
    size_t ldx, ldo;
} side_job;

static void round_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const side_job *j = arg;
    tn_acts *a = j->s->a;
    a->has_outliers[i_item] =
        tn_baseline_row(j->s->m->scheme, j->x + (size_t)i_item * j->ldx,
                        a->outliers ? a->outliers + (size_t)i_item * j->ldx : NULL, j->ldx);
}

/* The input of a site's linears: seen by the hook, then rounded in place where the scheme rounds. */
static void site_input(const stage *s, tn_pool *pool, const tn_forward_hooks *hooks, tn_role role, float *x,
                       size_t ldx) {
    if (hooks && hooks->linear_input) hooks->linear_input(hooks->user, s->layer, role, x, ldx, s->r->n_rows);
    side_job j = {.s = s, .x = x, .ldx = ldx};
    bool again = s->m->h.parallel_block && role == TN_W_UP; /* the rows Q, K and V read */
    if (s->m->scheme != TN_FLOAT && !again) tn_pool_for(pool, s->r->n_rows, round_item, &j);
}

/* out += outliers x the unrounded weights, for one panel of output channels. */
static void outlier_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const side_job *j = arg;
    size_t k = (size_t)j->l->k, n0 = (size_t)i_item * TN_PANEL_N,
           n = (size_t)j->l->n - n0 < TN_PANEL_N ? (size_t)j->l->n - n0 : TN_PANEL_N;
    const float *w = j->l->full + n0 * k;
    for (int32_t r = 0; r < j->s->r->n_rows; r++) {
        if (!j->s->a->has_outliers[r]) continue;
        const float *x = j->s->a->outliers + (size_t)r * j->ldx;
        float *out = j->out + (size_t)r * j->ldo + n0;
        for (size_t c = 0; c < k; c++) {
            if (x[c] == 0) continue;
            for (size_t i = 0; i < n; i++) out[i] += x[c] * w[c * TN_PANEL_N + i];
        }
    }
}

static void linear(const stage *s, tn_pool *pool, const tn_linear *l, float *x, size_t ldx, float *out,
                   size_t ldo) {
    tn_linear_run(l, s->r->kern, pool, x, ldx, out, ldo, (size_t)s->r->n_rows);
    side_job j = {.s = s, .l = l, .ldx = ldx, .out = out, .ldo = ldo};
    if (l->full) tn_pool_for(pool, (l->n + TN_PANEL_N - 1) / TN_PANEL_N, outlier_item, &j);
}

void tn_forward_begin(tn_rows *r, tn_acts *a, bool rope_long) {
    r->rope_cs = a->rope_cs;
    tn_rows_rope_table(r, rope_long);
}

void tn_forward_embed(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids) {
    stage s = {.m = m, .r = r, .a = a, .rows_per_item = r->n_rows < 8 ? r->n_rows : 8, .ids = ids};
    run(&s, pool, embed_item);
}

void tn_forward_layer(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, int layer,
                      const tn_forward_hooks *hooks) {
    const tn_hparams *h = &m->h;
    size_t e = (size_t)h->n_embd, qd = (size_t)h->n_heads * (size_t)h->d_head,
           kd = (size_t)h->n_kv_heads * (size_t)h->d_head, f = (size_t)h->n_ff;
    const tn_layer *y = &m->layers[layer];
    stage s = {.m = m,
               .y = y,
               .r = r,
               .a = a,
               .layer = layer,
               .rows_per_item = r->n_rows < 8 ? r->n_rows : 8,
               .w = y->attn_norm,
               .b = y->attn_norm_b};
    run(&s, pool, norm_item);
    site_input(&s, pool, hooks, TN_W_Q, a->h, e);
    linear(&s, pool, &y->q, a->h, e, a->q, qd);
    linear(&s, pool, &y->k, a->h, e, a->k, kd);
    linear(&s, pool, &y->v, a->h, e, a->v, kd);
    run(&s, pool, rope_item);
    if (hooks && hooks->qk) hooks->qk(hooks->user, layer, a->q, a->k, r->n_rows);
    s.rows_per_item = r->n_rows < 64 ? r->n_rows : 64;
    if (r->n_rows <= TN_TREE_MAX) tn_pool_for(pool, h->n_kv_heads, attn_group_item, &s);
    else tn_pool_for(pool, h->n_heads * ((r->n_rows + s.rows_per_item - 1) / s.rows_per_item), attn_item, &s);
    s.rows_per_item = r->n_rows < 8 ? r->n_rows : 8;
    if (hooks && hooks->attention_out) hooks->attention_out(hooks->user, layer, a->att, r->n_rows);
    site_input(&s, pool, hooks, TN_W_O, a->att, qd);
    if (h->parallel_block) { /* the MLP reads the same norm, so the attention output waits in q */
        linear(&s, pool, &y->o, a->att, qd, a->q, e);
    } else {
        linear(&s, pool, &y->o, a->att, qd, a->h, e);
        s.branch = a->h;
        s.post = h->post_norms ? y->attn_post_norm : NULL;
        run(&s, pool, residual_item);
        s.w = y->ffn_norm;
        s.b = y->ffn_norm_b;
        run(&s, pool, norm_item);
    }
    site_input(&s, pool, hooks, TN_W_UP, a->h, e);
    if (h->gated) linear(&s, pool, &y->gate, a->h, e, a->gate, f);
    linear(&s, pool, &y->up, a->h, e, a->up, f);
    run(&s, pool, glu_item);
    site_input(&s, pool, hooks, TN_W_DOWN, a->up, f);
    if (h->parallel_block) {
        s.branch = a->q;
        s.post = NULL;
        run(&s, pool, residual_item);
    }
    linear(&s, pool, &y->down, a->up, f, a->h, e);
    s.branch = a->h;
    s.post = h->post_norms ? y->ffn_post_norm : NULL;
    run(&s, pool, residual_item);
}

tern_status tn_forward_rows(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids,
                            bool rope_long, const _Atomic bool *cancel, const tn_forward_hooks *hooks,
                            tern_error *err) {
    tn_forward_begin(r, a, rope_long);
    tn_forward_embed(m, pool, r, a, ids);
    for (int layer = 0; layer < m->h.n_layers; layer++) {
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed)) { /* polled: no data follows it */
            return tn_fail(err, TERN_E_CANCELLED, "cancelled in layer %d", layer);
        }
        tn_forward_layer(m, pool, r, a, layer, hooks);
    }
    return TERN_OK;
}

void tn_forward_logits(const tn_model *m, tn_pool *pool, const tn_rows *r, tn_acts *a, int32_t row0,
                       int32_t n, float *logits) {
    const tn_hparams *h = &m->h;
    size_t e = (size_t)h->n_embd;
    tn_rows_norm(r, m->out_norm, m->out_norm_b, a->x, a->h, row0, row0 + n);
    const tn_linear *head = h->tied ? &m->embd : &m->head;
    tn_linear_run(head, r->kern, pool, a->h + (size_t)row0 * e, e, logits, (size_t)h->n_vocab, (size_t)n);
    if (h->logit_soft_cap > 0) {
        for (size_t i = 0; i < (size_t)n * (size_t)h->n_vocab; i++) {
            logits[i] = h->logit_soft_cap * tn_tanhf(logits[i] / h->logit_soft_cap);
        }
    }
}
