/* Evaluates a file's own weights, as floats or in its blocks, by the float forward. */
#include "base/clock.h"
#include "base/status.h"
#include "model/forward.h"
#include "session/evaluator.h"

#include <string.h>

typedef struct plain {
    tn_evaluator base;
    const tern_engine *e;
    tn_state *state;
    const tn_lora_mix *mix;
    tn_acts acts;
    int32_t *pos, *slot; /* [acts.max_rows] */
    tn_rows rows;        /* of the last evaluation, or of this text's part in a shared one */
} plain;

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
    p->rows = (tn_rows){.h = &p->e->model->h,
                        .kern = &p->e->kern,
                        .kv = &p->state->kv,
                        .conv = tn_state_conv(p->state),
                        .delta = tn_state_delta(p->state),
                        .lora = p->mix->n ? p->mix : NULL,
                        .n_rows = t->n,
                        .pos = p->pos,
                        .slot = p->slot,
                        .tree_base = t->tree ? t->pos0 : -1,
                        .tree_mask = t->tree ? t->tree->mask : NULL,
                        .n_tree_words = t->tree ? 1 : 0};
}

static tern_status evaluate(const tn_evaluator_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                            tern_error *err) {
    plain *p = (plain *)t->self;
    line_up(t);
    int64_t start_ns = tn_now_ns();
    tern_status st =
        tn_forward_rows(p->e->model, p->e->pool, &p->rows, &p->acts, t->ids, t->rope_long, cancel, NULL, err);
    tn_timeline_note(timeline, "forward", start_ns, tn_now_ns());
    return st;
}

static tern_status together(const tn_evaluator_text *t, int32_t n, tn_timeline *timeline, tern_error *err) {
    (void)err;
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
    int64_t start_ns = tn_now_ns();
    tn_forward_texts(lead->e->model, lead->e->pool, rows, rope_long, n, &lead->acts, ids, &lead->rows);
    tn_timeline_note(timeline, "forward", start_ns, tn_now_ns());
    return TERN_OK;
}

/* Logits of all rows come from one output layer, so no text may have adapters of its own there. */
static bool shares(const tn_evaluator *v) {
    const plain *p = (const plain *)v;
    return !tn_lora_at(p->mix, p->e->model->program.n_sites - 1);
}

static int32_t room(const tn_evaluator *v) { return ((const plain *)v)->state->kv.cap_tok; }

static const float *row(const tn_evaluator *v, int32_t i) {
    const plain *p = (const plain *)v;
    return p->acts.buf[TN_BUF_X] + (size_t)i * (size_t)p->e->model->program.width[TN_BUF_X];
}

static tern_status logits(tn_evaluator *v, int32_t row0, int32_t n, float *out, tern_error *err) {
    (void)err;
    plain *p = (plain *)v;
    tn_forward_logits(p->e->model, p->e->pool, &p->rows, &p->acts, row0, n, out);
    return TERN_OK;
}

static tern_status head(tn_evaluator *v, const float *state, float *out, tern_error *err) {
    (void)err;
    plain *p = (plain *)v;
    const tn_model *m = p->e->model;
    const tn_linear *l = tn_model_linear(m, -1, m->h.tied ? TN_W_EMBD : TN_W_OUT);
    tn_linear_run(l, &p->e->kern, p->e->pool, state, (size_t)m->h.n_embd, out, (size_t)l->n, 1,
                  p->acts.blocks);
    int32_t n_ops;
    const tn_op *op = tn_program_layer(&m->program, m->h.n_layers, &n_ops);
    tn_frame f = {.m = m, .buf = {[TN_BUF_LOGITS] = out}};
    for (int32_t i = 0; i < n_ops; i++)
        if (op[i].kind == TN_OP_CAP) tn_op_info_of(op[i].kind)->rows(&op[i], &f, 0, 1, NULL);
    return TERN_OK;
}

static void adapt(tn_evaluator *v, const tn_lora_mix *mix) { ((plain *)v)->mix = mix; }
static void forget(tn_evaluator *v) { (void)v; }

static void close_plain(tn_evaluator *v) {
    plain *p = (plain *)v;
    if (p->acts.ctx) tn_acts_close(&p->acts);
    tn_free(v->ctx, p->pos);
    tn_free(v->ctx, p->slot);
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
                                           .forget = forget,
                                           .close = close_plain};

tern_status tn_evaluator_open_plain(tern_engine *e, tn_state *state, int32_t n_ctx, const tn_lora_mix *mix,
                                    tn_evaluator **out, tern_error *err) {
    tn_ctx *ctx = &e->ctx;
    const int32_t chunk = n_ctx < TN_FLOAT_CHUNK || e->model->h.bidirectional ? n_ctx : TN_FLOAT_CHUNK;
    plain *p = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for a session");
    *p = (plain){.base = {.ops = &plain_ops, .ctx = ctx}, .e = e, .state = state, .mix = mix};
    p->pos = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *p->pos);
    p->slot = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *p->slot);
    tern_status st = p->pos && p->slot
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory for a session of %d tokens", n_ctx);
    if (st == TERN_OK)
        st = tn_acts_open(ctx, e->model, chunk, state->kv.cap_tok, tn_pool_size(e->pool), &p->acts, err);
    if (st == TERN_OK) *out = &p->base;
    else close_plain(&p->base);
    return st;
}
