#include "model/forward.h"

#include "base/pause.h"
#include "base/status.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/file_experts.h"
#include "model/streamed.h"
#include "model/tree.h"

#include <assert.h>
#include <string.h>

/* ---- activations --------------------------------------------------------------------------------- */

enum {
    SLICE_ALIGN = 16, /* floats: every slice starts on a cache line */
    FORESEEN_ROWS = 8 /* more choose most experts of a layer */
};

tern_status tn_acts_open(tn_ctx *ctx, const tn_model *m, int32_t max_rows, int32_t cap_tok, int n_threads,
                         tn_acts *out, tern_error *err) {
    *out = (tn_acts){.ctx = ctx, .max_rows = max_rows};
    const tn_program *p = &m->program;
    size_t rows = (size_t)max_rows, widest = 0;
    out->scratch_stride = (tn_rows_scratch(&m->h, cap_tok) + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    for (int32_t i = 0; i < p->n_sites; i++) {
        size_t k = (size_t)tn_program_linears(p, i)->k;
        widest = k > widest ? k : widest;
    }
    out->lora_stride =
        (tn_lora_scratch(m->loras, m->n_loras, p) + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    size_t n_acts = m->scheme == TN_FLOAT_BLOCKS ? tn_blocks_acts(widest, rows) : 0;
    float *flags, *blocks;
    struct {
        float **slice;
        size_t n;
    } plan[TN_N_BUFFERS + 6] = {
        {&out->rope_cs, rows * (size_t)(tn_rope_tables(&m->h) * m->h.n_rot)},
        {&out->scratch, (size_t)n_threads * out->scratch_stride},
        {&out->outliers, m->scheme == TN_FLOAT_LLM_INT8 ? rows * widest : 0},
        {&flags, rows},
        {&blocks, (n_acts * sizeof *out->blocks + sizeof(float) - 1) / sizeof(float)},
        {&out->lora, (size_t)n_threads * out->lora_stride},
    };
    size_t n_slices = 6, total = 0;
    for (int b = 0; b < TN_BUF_LOGITS; b++) {
        plan[n_slices].slice = &out->buf[b];
        plan[n_slices++].n = rows * (size_t)p->width[b];
    }
    for (size_t i = 0; i < n_slices; i++) total += (plan[i].n + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    out->base = tn_alloc(ctx, TN_MEM_ACTIVATIONS, total, sizeof(float));
    TN_FAIL_IF(!out->base, err, TERN_E_MEMORY, "no memory for activations (%zu bytes)",
               total * sizeof(float));
    float *at = out->base;
    for (size_t i = 0; i < n_slices; i++) {
        *plan[i].slice = at;
        at += (plan[i].n + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    }
    out->has_outliers = (bool *)flags;
    out->blocks = n_acts ? (tn_blocks_act *)blocks : NULL;
    return TERN_OK;
}

void tn_acts_close(tn_acts *a) {
    tn_free(a->ctx, a->base);
    a->base = NULL;
}

/* ---- ops, each spread over the pool ---------------------------------------------------------------- */

typedef struct run {
    const tn_model *m;
    tn_pool *pool;
    tn_acts *a;
    const tn_forward_hooks *hooks; /* may be NULL */
    tn_frame f;
    tn_frame *texts;  /* slices of f, where the rows are of several texts; else NULL */
    tn_rows *rows_of; /* [n_texts] theirs */
    int32_t n_texts;
    int32_t n_rows;
    uint32_t attended; /* texts that have attended in this layer in another way, a bit each */
    /* of the op at work */
    const tn_op *op;
    int32_t rows_per_item;
} run;

static void embed(const void *user, int32_t id, float *out) {
    const tn_linear *l = tn_model_linear(user, -1, TN_W_EMBD);
    tn_linear_row(l, (size_t)id, out);
}

static void embed_layers(const void *user, int32_t id, float *out) {
    tn_linear_row(tn_model_linear(user, -1, TN_W_PLE_EMBD), (size_t)id, out);
}

static run begin(const tn_model *m, tn_pool *pool, const tn_rows *r, tn_acts *a, const int32_t *ids,
                 const tn_forward_hooks *hooks) {
    run x = {
        .m = m,
        .pool = pool,
        .a = a,
        .hooks = hooks,
        .n_rows = r->n_rows,
        .f = {.m = m, .r = r, .ids = ids, .embed = embed, .embed_layers = embed_layers, .embed_user = m}};
    memcpy(x.f.buf, a->buf, sizeof a->buf);
    return x;
}

static int32_t n_spans(const run *x) { return (x->n_rows + x->rows_per_item - 1) / x->rows_per_item; }

static void span(const run *x, int i_item, int32_t *row0, int32_t *row1) {
    *row0 = i_item * x->rows_per_item;
    *row1 = *row0 + x->rows_per_item < x->n_rows ? *row0 + x->rows_per_item : x->n_rows;
}

static void rows_item(void *arg, int i_item, int i_thread) {
    const run *x = arg;
    int32_t row0, row1;
    span(x, i_item, &row0, &row1);
    tn_op_info_of(x->op->kind)
        ->rows(x->op, &x->f, row0, row1, x->a->scratch + (size_t)i_thread * x->a->scratch_stride);
}

static void text_item(void *arg, int i_item, int i_thread) {
    const run *x = arg;
    const tn_frame *f = &x->texts[i_item];
    tn_op_info_of(x->op->kind)
        ->rows(x->op, f, 0, f->r->n_rows, x->a->scratch + (size_t)i_thread * x->a->scratch_stride);
}

static void run_rows(run *x) {
    x->rows_per_item = x->n_rows < 8 ? x->n_rows : 8;
    if (x->texts) tn_pool_for(x->pool, x->n_texts, text_item, x);
    else tn_pool_for(x->pool, n_spans(x), rows_item, x);
}

static void attend_item(void *arg, int i_item, int i_thread) {
    const run *x = arg;
    int32_t n = n_spans(x), row0, row1;
    span(x, n - 1 - i_item % n, &row0, &row1); /* longest first */
    tn_rows_attention(x->f.r, x->op->layer, tn_op_sinks(x->op, &x->f), i_item / n, x->f.buf[x->op->in],
                      x->f.buf[x->op->out], row0, row1,
                      x->a->scratch + (size_t)i_thread * x->a->scratch_stride);
}

/* Few rows: by text and group of query heads that share a KV head. */
static void attend_group_item(void *arg, int i_item, int i_thread) {
    const run *x = arg;
    int32_t n_groups = tn_rows_groups(&x->m->h, x->op->layer);
    const tn_frame *f = x->texts ? &x->texts[i_item / n_groups] : &x->f;
    if (x->attended >> i_item / n_groups & 1) return;
    tn_rows_attention_group(f->r, x->op->layer, tn_op_sinks(x->op, f), i_item % n_groups, f->buf[x->op->in],
                            f->buf[x->op->out], 0, f->r->n_rows,
                            x->a->scratch + (size_t)i_thread * x->a->scratch_stride);
}

/* Sparse attention, where a text has it. */
static bool attends_itself(const run *x, const tn_frame *f) {
    const tn_rows_attend *a = f->r->attend;
    return a && a->run(a->user, f->r, x->op->layer, f->buf[x->op->in], f->buf[x->op->out], x->pool);
}

/* By heads as well as rows. */
static void run_attend(run *x) {
    x->rows_per_item = x->n_rows < 64 ? x->n_rows : 64;
    int32_t n_groups = tn_rows_groups(&x->m->h, x->op->layer);
    x->attended = 0;
    for (int32_t i = 0; i < x->n_texts; i++) x->attended |= (uint32_t)attends_itself(x, &x->texts[i]) << i;
    if (!x->texts && attends_itself(x, &x->f)) return;
    if (x->texts) tn_pool_for(x->pool, n_groups * x->n_texts, attend_group_item, x);
    else if (x->n_rows <= TN_TREE_MAX) tn_pool_for(x->pool, n_groups, attend_group_item, x);
    else tn_pool_for(x->pool, x->op->attend.n_heads * n_spans(x), attend_item, x);
}

/* Of a text: heads where rows are few, else all items. */
static int32_t delta_parts(const run *x) {
    return x->n_rows <= TN_TREE_MAX ? x->op->delta.net.n_heads : tn_delta_items(x->op);
}

static void delta_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *x = arg;
    int32_t n = delta_parts(x), each = tn_delta_items(x->op) / n, first = i_item % n * each;
    tn_delta_run(x->op, x->texts ? &x->texts[i_item / n] : &x->f, first, first + each);
}

/* Spans of rows, pair by pair. */
static void low_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *x = arg;
    int32_t row0, row1;
    span(x, i_item / x->op->low.n, &row0, &row1);
    tn_low_run(x->op, &x->f, i_item % x->op->low.n, row0, row1);
}

static void run_low(run *x) {
    x->rows_per_item = 16;
    tn_pool_for(x->pool, x->op->low.n * n_spans(x), low_item, x);
}

static void heads_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *x = arg;
    tn_heads_run(x->op, &x->f, x->n_rows, i_item, i_item + 1);
}

/* ---- linears ------------------------------------------------------------------------------------- */

typedef struct side_job {
    const run *x;
    const tn_linear *l;
    float *in, *out;
    size_t ldx, ldo;
} side_job;

static void round_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const side_job *j = arg;
    tn_acts *a = j->x->a;
    a->has_outliers[i_item] =
        tn_baseline_row(j->x->m->scheme, j->in + (size_t)i_item * j->ldx,
                        a->outliers ? a->outliers + (size_t)i_item * j->ldx : NULL, j->ldx);
}

/* out += outliers x the unrounded weights, for one panel of output channels. */
static void outlier_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const side_job *j = arg;
    size_t k = (size_t)j->l->k, n0 = (size_t)i_item * TN_PANEL_N,
           n = (size_t)j->l->n - n0 < TN_PANEL_N ? (size_t)j->l->n - n0 : TN_PANEL_N;
    const float *w = j->l->full + n0 * k;
    for (int32_t r = 0; r < j->x->n_rows; r++) {
        if (!j->x->a->has_outliers[r]) continue;
        const float *in = j->x->a->outliers + (size_t)r * j->ldx;
        float *out = j->out + (size_t)r * j->ldo + n0;
        for (size_t c = 0; c < k; c++) {
            if (in[c] == 0) continue;
            for (size_t i = 0; i < n; i++) out[i] += in[c] * w[c * TN_PANEL_N + i];
        }
    }
}

/* What adapters add, for some rows of one text; see tn_lora_rows. */
static void lora_rows(const run *x, const tn_frame *f, int32_t row0, int32_t row1, int i_thread) {
    const tn_site_ops *s = &x->op->linears;
    float *out[TN_SITE_MAX_OPS];
    size_t ldo[TN_SITE_MAX_OPS], k = (size_t)s->k;
    int32_t site = tn_program_site_index(&x->m->program, x->op->layer, x->op->site);
    for (int32_t i = 0; i < s->n_ops; i++) {
        ldo[i] = (size_t)s->n[i];
        out[i] = f->buf[tn_role_buffer(s->roles[i])] + (size_t)row0 * ldo[i];
    }
    if (tn_lora_at(f->r->lora, site))
        tn_lora_rows(f->r->lora, f->r->kern, s, site, f->buf[x->op->in] + (size_t)row0 * k, k, row1 - row0,
                     out, ldo, x->a->lora + (size_t)i_thread * x->a->lora_stride);
}

static void lora_item(void *arg, int i_item, int i_thread) {
    const run *x = arg;
    int32_t row0, row1;
    span(x, i_item, &row0, &row1);
    lora_rows(x, &x->f, row0, row1, i_thread);
}

static void lora_text_item(void *arg, int i_item, int i_thread) {
    const run *x = arg;
    lora_rows(x, &x->texts[i_item], 0, x->texts[i_item].r->n_rows, i_thread);
}

static void run_lora(run *x) {
    if (!x->a->lora_stride) return;
    x->rows_per_item = TN_LORA_ROWS;
    if (x->texts) tn_pool_for(x->pool, x->n_texts, lora_text_item, x);
    else if (x->f.r->lora) tn_pool_for(x->pool, n_spans(x), lora_item, x);
}

/* The products of experts are of as many rows as chose each. */
static void run_experts(run *x) {
    const tn_forward_hooks *hooks = x->hooks;
    const tn_site_ops *s = &x->op->linears;
    if (hooks && hooks->routed && x->op->site == TN_SITE_EXPERTS)
        hooks->routed(hooks->user, x->op->layer, x->f.buf[TN_BUF_CHOSEN]);
    if (hooks && hooks->site_input)
        hooks->site_input(hooks->user, x->op->layer, x->op->site, x->f.buf[x->op->in], (size_t)s->k,
                          (int32_t)tn_site_rows(x->op->site, s, x->n_rows));
    tn_experts_run(x->op, &x->f, x->pool, x->a->max_rows, x->a->blocks);
}

static void route_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *x = arg;
    int32_t row0, row1;
    span(x, i_item, &row0, &row1);
    tn_op_info_of(x->op->kind)->rows(x->op, &x->f, row0, row1, NULL);
}

/* Of all texts' rows together: the places of a row depend on the other rows. */
static void run_route(run *x) {
    const tn_linear *router = tn_model_linear(x->m, x->op->layer, TN_W_ROUTER);
    if (x->op->kind == TN_OP_ROUTE)
        tn_linear_run(router, x->f.r->kern, x->pool, x->f.buf[x->op->in], (size_t)x->op->experts.n_embd,
                      x->f.buf[TN_BUF_ROUTE], (size_t)x->op->experts.n, (size_t)x->n_rows, x->a->blocks);
    if (x->op->kind == TN_OP_ROUTE && x->m->file_experts && x->n_rows <= FORESEEN_ROWS)
        tn_file_experts_learn(x->m->file_experts, x->op->layer,
                              tn_frame_row(&x->f, TN_BUF_ROUTE, x->op->experts.n, x->n_rows - 1));
    x->rows_per_item = 32;
    tn_pool_for(x->pool, n_spans(x), route_item, x);
}

/* The site's input is seen by the hook, then rounded in place where the scheme rounds; lm_head's never is. */
static void run_linears(run *x) {
    const tn_site_ops *s = &x->op->linears;
    bool in_layer = x->op->site != TN_SITE_LM_HEAD;
    side_job j = {.x = x, .in = x->f.buf[x->op->in], .ldx = (size_t)s->k};
    if (in_layer && x->hooks && x->hooks->site_input)
        x->hooks->site_input(x->hooks->user, x->op->layer, x->op->site, j.in, j.ldx, x->n_rows);
    if (in_layer && x->m->scheme != TN_FLOAT && x->m->scheme != TN_FLOAT_BLOCKS)
        tn_pool_for(x->pool, x->n_rows, round_item, &j);
    tn_product p[TN_SITE_MAX_OPS];
    for (int32_t i = 0; i < s->n_ops; i++)
        p[i] = (tn_product){.l = tn_model_linear(x->m, x->op->layer, s->roles[i]),
                            .m = (size_t)x->n_rows,
                            .ldo = (size_t)s->n[i],
                            .out = x->f.buf[tn_role_buffer(s->roles[i])]};
    tn_linears_run(p, (size_t)s->n_ops, x->f.r->kern, x->pool, j.in, j.ldx, x->a->blocks);
    for (int32_t i = 0; i < s->n_ops; i++) {
        j.l = p[i].l, j.out = p[i].out, j.ldo = p[i].ldo;
        if (j.l->full) tn_pool_for(x->pool, (j.l->n + TN_PANEL_N - 1) / TN_PANEL_N, outlier_item, &j);
        if (in_layer && x->hooks && x->hooks->output)
            x->hooks->output(x->hooks->user, x->op->layer, s->roles[i], j.out, s->n[i], x->n_rows);
    }
    run_lora(x);
}

/* ---- the interpreter ------------------------------------------------------------------------------- */

static void run_op(run *x) {
    if (x->op->kind == TN_OP_LINEARS && x->op->linears.n_experts) run_experts(x);
    else if (x->op->kind == TN_OP_LINEARS) run_linears(x);
    else if (x->op->kind == TN_OP_ATTEND) run_attend(x);
    else if (x->op->kind == TN_OP_ROUTE || x->op->kind == TN_OP_GATHER) run_route(x);
    else if (x->op->kind == TN_OP_DELTA)
        tn_pool_for(x->pool, delta_parts(x) * (x->texts ? x->n_texts : 1), delta_item, x);
    else if (x->op->kind == TN_OP_LOW) run_low(x);
    else if (x->op->kind == TN_OP_HEADS) tn_pool_for(x->pool, x->op->heads.n_heads, heads_item, x);
    else run_rows(x);
    const tn_forward_hooks *hooks = x->hooks;
    if (!hooks) return;
    if (x->op->kind == TN_OP_ROPE && hooks->qk)
        hooks->qk(hooks->user, x->op->layer, x->f.buf[TN_BUF_Q], x->f.buf[TN_BUF_K], x->n_rows);
    if (x->op->kind == TN_OP_ATTEND && hooks->attention_out)
        hooks->attention_out(hooks->user, x->op->layer, x->f.buf[x->op->out], x->n_rows);
}

/* Where the rows of a text lie in buffers that are not as wide in all layers. */
static void slice_texts(run *x, int32_t layer) {
    for (int32_t i = 0, row = 0; i < x->n_texts; row += x->rows_of[i++].n_rows)
        tn_frame_slice(&x->f, &x->rows_of[i], row, layer, &x->texts[i]);
}

static void correct(void *user, int32_t layer, float *scores) {
    tn_file_experts_correct(user, layer, scores);
}

/* Of few rows: experts that a layer will probably choose are read beside its attention, where a file's are read on demand.
 * The first layer chooses by more than the embedding. */
static void foresee(const run *x, const tn_op *route) {
    tn_file_experts *away = x->m->file_experts;
    int32_t likely[TN_MAX_EXPERTS];
    bool any[TN_MAX_EXPERTS] = {0};
    if (!away || route->layer < 1 || x->n_rows > FORESEEN_ROWS) return;
    for (int32_t row = 0; row < x->n_rows; row++) {
        const float *in = tn_frame_row(&x->f, TN_BUF_X, route->experts.n_embd, row);
        if (!tn_route_guess(route, x->m, x->f.r->kern, in, correct, away, likely)) return;
        for (int32_t k = 0; k < route->experts.used; k++) any[likely[k]] = true;
    }
    tn_file_experts_foresee(away, route->layer, any);
}

static void run_layer(run *x, int32_t layer) {
    int32_t n;
    slice_texts(x, layer);
    const tn_op *op = tn_program_layer(&x->m->program, layer, &n);
    for (int32_t i = 0; i < n; i++)
        if (op[i].kind == TN_OP_ROUTE) foresee(x, &op[i]);
    for (int32_t i = 0; i < n; i++) {
        x->op = &op[i];
        run_op(x);
    }
}

void tn_forward_begin(tn_rows *r, tn_acts *a, bool rope_long) {
    r->rope_cs = a->rope_cs;
    tn_rows_rope_table(r, rope_long);
}

void tn_forward_embed(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids) {
    run x = begin(m, pool, r, a, ids, NULL);
    run_layer(&x, -1);
}

void tn_forward_layer(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, int layer,
                      const tn_forward_hooks *hooks) {
    run x = begin(m, pool, r, a, NULL, hooks);
    run_layer(&x, layer);
}

void tn_forward_stores(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, int layer) {
    run x = begin(m, pool, r, a, NULL, NULL);
    int32_t n;
    x.op = tn_program_layer(&m->program, layer, &n);
    for (int32_t i = 0; i < n; i++, x.op++) {
        run_op(&x);
        if (x.op->state_writes) return;
    }
}

static void embed_read(const void *user, int32_t id, float *out) {
    const tn_streamed_rows *rows = user;
    memcpy(out, tn_streamed_row(rows, id), rows->n_embd * sizeof *out);
}

/* From rows of their own where the embedding is still on its way. */
static tern_status embed_rows(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids,
                              tern_error *err) {
    run x = begin(m, pool, r, a, ids, NULL);
    tn_streamed_rows rows = {0};
    if (m->streamed) TN_TRY(tn_streamed_rows_read(m->streamed, ids, r->n_rows, &rows, err));
    if (rows.values) x.f.embed = embed_read, x.f.embed_user = &rows;
    run_layer(&x, -1);
    tn_streamed_rows_close(&rows);
    return TERN_OK;
}

tern_status tn_forward_rows(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids,
                            bool rope_long, const _Atomic bool *cancel, const tn_forward_hooks *hooks,
                            tern_error *err) {
    tn_forward_begin(r, a, rope_long);
    TN_TRY(embed_rows(m, pool, r, a, ids, err));
    for (int layer = 0; layer < m->h.n_layers; layer++) {
        TN_TRY(tn_model_need(m, layer, err));
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed)) { /* polled: no data follows it */
            return tn_fail(err, TERN_E_CANCELLED, "cancelled in layer %d", layer);
        }
        tn_pause_here(r->pause);
        tn_forward_layer(m, pool, r, a, layer, hooks);
    }
    return TERN_OK;
}

void tn_forward_texts(const tn_model *m, tn_pool *pool, tn_rows *texts, const bool *rope_long,
                      int32_t n_texts, tn_acts *a, const int32_t *ids, tn_rows *all) {
    tn_frame frames[TN_MAX_TEXTS];
    assert(n_texts > 0 && n_texts <= TN_MAX_TEXTS);
    *all = (tn_rows){.h = texts[0].h, .kern = texts[0].kern, .tree_base = -1, .rope_cs = a->rope_cs};
    for (int32_t i = 0; i < n_texts; i++) all->n_rows += texts[i].n_rows;
    assert(all->n_rows <= a->max_rows);
    run x = begin(m, pool, all, a, ids, NULL);
    x.texts = frames;
    x.rows_of = texts;
    x.n_texts = n_texts;
    slice_texts(&x, -1);
    for (int32_t i = 0; i < n_texts; i++) tn_rows_rope_table(&texts[i], rope_long[i]);
    for (int32_t layer = -1; layer < m->h.n_layers; layer++) run_layer(&x, layer);
}

void tn_forward_out_norm(const tn_model *m, const tn_kernels *kern, const float *x, float *out, int32_t n) {
    int32_t n_ops;
    const tn_op *op = tn_program_layer(&m->program, m->h.n_layers, &n_ops);
    const tn_rows r = {.h = &m->h, .kern = kern, .n_rows = n, .tree_base = -1};
    tn_frame f = {.m = m, .r = &r};
    f.buf[op->in] = (float *)(uintptr_t)x; /* only read */
    f.buf[op->out] = out;
    tn_op_info_of(op->kind)->rows(op, &f, 0, n, NULL);
}

void tn_forward_logits(const tn_model *m, tn_pool *pool, const tn_rows *r, tn_acts *a, int32_t row0,
                       int32_t n, float *logits) {
    run x = begin(m, pool, r, a, NULL, NULL);
    x.n_rows = n;
    x.f.buf[TN_BUF_X] += (size_t)row0 * (size_t)m->program.width[TN_BUF_X];
    x.f.buf[TN_BUF_LOGITS] = logits;
    run_layer(&x, m->h.n_layers);
}
