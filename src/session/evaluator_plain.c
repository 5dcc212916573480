/* A file's own weights, in floats or in its blocks: the float forward evaluates. Where attention is sparse, the
 * pool's threads estimate and attend, each in the device's place. */
#include "attention/sparse_attn.h"
#include "base/clock.h"
#include "base/status.h"
#include "model/axes.h"
#include "model/forward.h"
#include "model/streamed.h"
#include "session/evaluator.h"

#include <string.h>

typedef struct plain {
    tn_evaluator base;
    const tern_engine *e;
    tn_state *state;
    const tn_lora_mix *mix;
    tn_acts acts;
    int32_t *pos, *slot;        /* [acts.max_rows] */
    tn_row_picture *picture;    /* the same */
    tn_row_axes *axes;          /* the same; NULL: rows have one position */
    tn_rows rows;               /* of the last evaluation, or of this text's part in one of several */
    const tn_extra_rows *extra; /* NULL: every id is a token's */
    const tn_pause *pause;      /* NULL: never */
    tn_sparse_attn *sparse;     /* NULL: attention is full */
    tn_rows_attend attend;
    atomic_int
        status; /* of it, in the evaluation that runs: the first failure; relaxed, the pool orders it */
} plain;

/* ---- sparse attention ------------------------------------------------------------------------------- */

typedef struct sparse_job {
    plain *p;
    const tn_rows *r;
    int layer;
    int32_t round;
    const float *q;
    float *out;
} sparse_job;

static void note_status(const sparse_job *j, tern_status st) {
    int none = TERN_OK;
    if (st != TERN_OK)
        atomic_compare_exchange_strong_explicit(&j->p->status, &none, (int)st, memory_order_relaxed,
                                                memory_order_relaxed);
}

static void plan_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const sparse_job *j = arg;
    note_status(j, tn_sparse_attn_plan(j->p->sparse, j->r, 0, j->layer, i_item, j->q, NULL));
}

/* The last rows see most, so they come first. */
static void rows_item(void *arg, int i_item, int i_thread) {
    const sparse_job *j = arg;
    int32_t n = (j->r->n_rows + TN_ATTN_ROWS - 1) / TN_ATTN_ROWS, row0 = (n - 1 - i_item) * TN_ATTN_ROWS,
            row1 = row0 + TN_ATTN_ROWS < j->r->n_rows ? row0 + TN_ATTN_ROWS : j->r->n_rows;
    note_status(
        j, tn_sparse_attn_rows(j->p->sparse, j->r, 0, j->layer, j->q, j->out, row0, row1, i_thread, NULL));
}

static void few_plan_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const sparse_job *j = arg;
    tn_sparse_decode_plan(j->p->sparse, j->r, j->layer, i_item, j->round);
}

static void few_item(void *arg, int i_item, int i_thread) {
    const sparse_job *j = arg;
    const tn_acts *a = &j->p->acts;
    note_status(j, tn_sparse_decode_row(j->p->sparse, j->r, j->layer, i_item / j->r->n_rows,
                                        i_item % j->r->n_rows, j->round, j->q, j->out,
                                        a->scratch + (size_t)i_thread * a->scratch_stride, i_thread, NULL));
}

static bool attend_sparsely(void *user, const tn_rows *r, int layer, const float *q, float *out,
                            tn_pool *pool) {
    sparse_job j = {.p = user, .r = r, .layer = layer, .q = q, .out = out};
    tn_sparse_attn *s = j.p->sparse;
    int32_t n_kv = r->h->n_kv_heads;
    if (r->picture) return false; /* a selection knows only what came before */
    if (r->n_rows <= TN_TREE_MAX) {
        int32_t n_rounds = tn_sparse_decode_rounds(s, r, layer);
        for (; j.round < n_rounds; j.round++) {
            tn_pool_for(pool, n_kv, few_plan_item, &j);
            tn_pool_for(pool, n_kv * r->n_rows, few_item, &j);
        }
        return n_rounds > 0;
    }
    if (!tn_sparse_attn_wanted(s, layer, r->pos[r->n_rows - 1] + 1)) return false;
    tn_pool_for(pool, n_kv, plan_item, &j);
    tn_pool_for(pool, (r->n_rows + TN_ATTN_ROWS - 1) / TN_ATTN_ROWS, rows_item, &j);
    return true;
}

/* Where auto meets a context too short, or a device that cannot, attention is full. */
static tern_status open_sparse(plain *p, int32_t chunk, tern_error *err) {
    const tern_engine *e = p->e;
    const tn_attn_options *o = &e->attention;
    const tn_kv *kv = &p->state->kv;
    if (!e->estimator) return TERN_OK;
    bool prompt =
        o->mode != TN_ATTN_FULL && (!o->automatic || tn_sparse_attn_pays(e->estimator, o, kv->cap_tok));

    if (!prompt && !o->decode) return TERN_OK;
    tn_attn_options with = *o;
    if (!prompt) with.mode = TN_ATTN_FULL; /* decoding alone */
    tern_status st = tn_sparse_attn_open(p->base.ctx, e->estimator, &e->model->h, &e->kern, kv, &with,
                                         tn_pool_size(e->pool), 1, chunk, &p->sparse, err);
    if (o->automatic && !o->decode && (st == TERN_E_LIMIT || st == TERN_E_UNSUPPORTED)) return TERN_OK;
    p->attend = (tn_rows_attend){.run = attend_sparsely, .user = p};
    return st;
}

static tern_status status_of(plain *p, tern_error *err) {
    tern_status st = (tern_status)atomic_exchange_explicit(&p->status, TERN_OK, memory_order_relaxed);
    TN_FAIL_IF(st != TERN_OK, err, st, "the device failed in estimating attention");
    return TERN_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------------- */

static int32_t max_rows(const tn_evaluator *v, int32_t pos0) {
    (void)pos0;
    return ((const plain *)v)->acts.max_rows;
}

static tern_status begin(tn_evaluator *v, int32_t n, int32_t pos0, tern_error *err) {
    (void)v, (void)n, (void)pos0, (void)err;
    return TERN_OK;
}

static void line_up(const tn_evaluator_text *t) {
    plain *p = (plain *)t->self;
    for (int32_t i = 0; i < t->n; i++) {
        p->pos[i] = t->pos0 + (t->tree ? t->tree->depth[i] : i);
        p->slot[i] = t->pos0 + i;
    }
    p->rows = (tn_rows){
        .h = &p->e->model->h,
        .kern = &p->e->kern,
        .kv = &p->state->kv,
        .conv = tn_state_conv(p->state),
        .delta = tn_state_delta(p->state),
        .lora = p->mix->n ? p->mix : NULL,
        .attend = p->sparse ? &p->attend : NULL,
        .extra = p->extra,
        .pause = p->pause,
        .picture =
            !t->tree && tn_rows_pictures(p->extra, t->ids, t->n, t->pos0, p->picture) ? p->picture : NULL,
        .axes = tn_axes_of(&p->e->model->h, p->extra, t->ids, t->n, t->tree, t->pos0, t->next, p->axes)
                    ? p->axes
                    : NULL,
        .n_rows = t->n,
        .pos = p->pos,
        .slot = p->slot,
        .tree_base = t->tree ? t->pos0 : -1,
        .tree_mask = t->tree ? t->tree->mask : NULL,
        .n_tree_words = t->tree ? 1 : 0};
    if (p->sparse) tn_sparse_attn_rewind(p->sparse, t->pos0);
}

static tern_status evaluate(const tn_evaluator_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                            tern_error *err) {
    plain *p = (plain *)t->self;
    line_up(t);
    int64_t start_ns = tn_now_ns();
    tern_status st =
        tn_forward_rows(p->e->model, p->e->pool, &p->rows, &p->acts, t->ids, t->rope_long, cancel, NULL, err);
    tn_timeline_note(timeline, "forward", start_ns, tn_now_ns());
    return st == TERN_OK ? status_of(p, err) : st;
}

static tern_status together(const tn_evaluator_text *t, int32_t n, tn_timeline *timeline, tern_error *err) {
    plain *lead = (plain *)t[0].self;
    tn_rows rows[TN_MAX_TEXTS];
    bool rope_long[TN_MAX_TEXTS];
    int32_t ids[TN_TREE_MAX], n_ids = 0;
    for (int32_t i = 0; i < n; i++) {
        line_up(&t[i]);
        rows[i] = ((plain *)t[i].self)->rows;
        rope_long[i] = t[i].rope_long;
        memcpy(ids + n_ids, t[i].ids, (size_t)t[i].n * sizeof *ids);
        n_ids += t[i].n;
    }
    TN_TRY(tn_model_need(lead->e->model, TN_NEED_ALL, err));
    int64_t start_ns = tn_now_ns();
    tn_forward_texts(lead->e->model, lead->e->pool, rows, rope_long, n, &lead->acts, ids, &lead->rows);
    tn_timeline_note(timeline, "forward", start_ns, tn_now_ns());
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < n; i++) {
        tern_status one = status_of((plain *)t[i].self, err);
        if (one != TERN_OK) st = one;
    }
    return st;
}

/* Logits of all rows come from one output layer, so no text may have adapters of its own there. */
static bool shares(const tn_evaluator *v) {
    const plain *p = (const plain *)v;
    return !tn_lora_at(p->mix, p->e->model->program.n_sites - 1);
}

static int32_t room(const tn_evaluator *v) { return ((const plain *)v)->state->kv.cap_tok; }

static const float *row(const tn_evaluator *v, tn_buffer b, int32_t i) {
    const plain *p = (const plain *)v;
    return p->acts.buf[b] + (size_t)i * (size_t)p->e->model->program.width[b];
}

static tern_status logits(tn_evaluator *v, int32_t row0, int32_t n, float *out, tern_error *err) {
    plain *p = (plain *)v;
    TN_TRY(tn_model_need(p->e->model, p->e->model->h.n_layers, err));
    tn_forward_logits(p->e->model, p->e->pool, &p->rows, &p->acts, row0, n, out);
    return TERN_OK;
}

static tern_status head(tn_evaluator *v, const float *states, int32_t n, float *out, tern_error *err) {
    plain *p = (plain *)v;
    const tn_model *m = p->e->model;
    TN_TRY(tn_model_need(m, m->h.n_layers, err));
    const tn_linear *l = tn_model_linear(m, -1, m->h.tied ? TN_W_EMBD : TN_W_OUT);
    for (int32_t i = 0, k; i < n; i += k) { /* as many as there is room for quantised */
        const size_t e = (size_t)m->h.n_embd, wide = (size_t)l->n;
        k = n - i < p->acts.max_rows ? n - i : p->acts.max_rows;
        tn_linear_run(l, &p->e->kern, p->e->pool, states + (size_t)i * e, e, out + (size_t)i * wide, wide,
                      (size_t)k, p->acts.blocks);
    }
    int32_t n_ops;
    const tn_op *op = tn_program_layer(&m->program, m->h.n_layers, &n_ops);
    tn_frame f = {.m = m, .buf = {[TN_BUF_LOGITS] = out}};
    for (int32_t i = 0; i < n_ops; i++)
        if (op[i].kind == TN_OP_CAP) tn_op_info_of(op[i].kind)->rows(&op[i], &f, 0, n, NULL);
    return TERN_OK;
}

static void adapt(tn_evaluator *v, const tn_lora_mix *mix) { ((plain *)v)->mix = mix; }

static void see(tn_evaluator *v, const tn_extra_rows *extra) { ((plain *)v)->extra = extra; }

static void pauses(tn_evaluator *v, const tn_pause *pause) { ((plain *)v)->pause = pause; }

static void attention(const tn_evaluator *v, tn_attn_stats *out) {
    const plain *p = (const plain *)v;
    *out = (tn_attn_stats){0};
    if (p->sparse) tn_sparse_attn_stats_get(p->sparse, out);
}

static void forget(tn_evaluator *v) {
    plain *p = (plain *)v;
    if (p->sparse) tn_sparse_attn_rewind(p->sparse, 0);
}

static void close_plain(tn_evaluator *v) {
    plain *p = (plain *)v;
    tn_sparse_attn_close(&p->sparse);
    if (p->acts.ctx) tn_acts_close(&p->acts);
    tn_free(v->ctx, p->pos);
    tn_free(v->ctx, p->slot);
    tn_free(v->ctx, p->picture);
    tn_free(v->ctx, p->axes);
    tn_free(v->ctx, p);
}

static const tn_evaluator_ops plain_ops = {.max_rows = max_rows,
                                           .chunk_rows = max_rows,
                                           .begin = begin,
                                           .evaluate = evaluate,
                                           .together = together,
                                           .shares = shares,
                                           .room = room,
                                           .row = row,
                                           .logits = logits,
                                           .head = head,
                                           .adapt = adapt,
                                           .see = see,
                                           .pauses = pauses,
                                           .attention = attention,
                                           .forget = forget,
                                           .close = close_plain};

tern_status tn_evaluator_open_plain(tern_engine *e, tn_state *state, int32_t n_ctx, const tn_lora_mix *mix,
                                    tn_evaluator **out, tern_error *err) {
    tn_ctx *ctx = &e->ctx;
    const int32_t most = tn_float_chunk(&e->model->h),
                  chunk = n_ctx < most || e->model->h.bidirectional ? n_ctx : most;
    plain *p = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for a session");
    *p = (plain){.base = {.ops = &plain_ops, .ctx = ctx}, .e = e, .state = state, .mix = mix};
    p->pos = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *p->pos);
    p->slot = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *p->slot);
    p->picture = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *p->picture);
    if (tn_has_axes(&e->model->h)) p->axes = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *p->axes);
    tern_status st = p->pos && p->slot && p->picture && (p->axes || !tn_has_axes(&e->model->h))
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory for a session of %d tokens", n_ctx);
    if (st == TERN_OK)
        st = tn_acts_open(ctx, e->model, chunk, state->kv.cap_tok, tn_pool_size(e->pool), &p->acts, err);
    if (st == TERN_OK) st = open_sparse(p, chunk, err);
    if (st == TERN_OK) *out = &p->base;
    else close_plain(&p->base);
    return st;
}
