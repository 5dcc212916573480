#include "session/session.h"

#include "base/clock.h"
#include "base/status.h"
#include "model/sampler.h"
#include "model/streamed.h"

#include <math.h>
#include <string.h>

enum { CALIBRATED_ROWS = 64 }; /* rows calibrated at once */

/* ---- what is drafted with ------------------------------------------------------------------------- */

_Static_assert((int)TN_PROFILE_FORWARDS == (int)TN_PROP_COSTS, "one time per class");

static tern_status open_draft(tern_session *s, tern_error *err) {
    tn_drafting *d = &s->drafting;
    if (d->draft) return TERN_OK;
    TN_TRY(tn_draft_open(&s->e->ctx, s->e->model->h.n_vocab, s->n_ctx, &d->draft, err));
    tn_draft_give_costs(d->draft, s->profile.forward_rows, s->profile.forward_relative, s->profile.n_forwards,
                        false);
    return TERN_OK;
}

tern_status tn_drafting_use(tern_session *s, const char *text, uint32_t *drafters, tern_error *err) {
    tn_drafting *d = &s->drafting;
    tn_ctx *ctx = &s->e->ctx;
    const char *path = NULL;
    *drafters = d->drafters;
    if (text) TN_TRY(tn_draft_parse(text, drafters, &path, err));
    bool has_next = s->e->model->next, has_head = s->e->head;
    TN_FAIL_IF(
        *drafters & TN_DRAFT_HEAD && !has_head && !(*drafters & TN_DRAFT_WHERE_ANY), err, TERN_E_INVALID,
        "the drafter head needs a head that drafts for this model (EAGLE-3, DFlash, or Gemma 4's assistant), "
        "and none was opened with it: name one by draft-head");
    TN_FAIL_IF(*drafters & TN_DRAFT_MTP && !has_next && !(*drafters & TN_DRAFT_WHERE_ANY), err,
               TERN_E_INVALID,
               "the drafter mtp needs a model with a layer that guesses one token further, which this one %s",
               s->e->model->h.n_next ? "has, but not under this scheme or in this build" : "has not");
    *drafters &=
        ~(uint32_t)(TN_DRAFT_WHERE_ANY | (has_next ? 0 : TN_DRAFT_MTP) | (has_head ? 0 : TN_DRAFT_HEAD));
    if (path && (!d->model_path || strcmp(path, d->model_path))) {
        char *copy = tn_strdup(ctx, TN_MEM_TEXT, path);
        TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for a file name");
        tn_draft_model_close(&d->model);
        tn_free(ctx, d->model_path);
        d->model_path = copy;
    }
    if (!*drafters) return TERN_OK;
    TN_TRY(open_draft(s, err));
    if (*drafters & TN_DRAFT_MODEL && !d->model)
        TN_TRY(tn_draft_model_open(s->e, d->model_path, s->n_ctx, &d->model, err));
    if (*drafters & TN_DRAFT_MTP && !d->mtp)
        TN_TRY(tn_mtp_open(s->e, TN_DRAFT_MTP, s->evaluator, &s->state, s->n_ctx, &d->mtp, err));
    if (*drafters & TN_DRAFT_HEAD && !d->head)
        TN_TRY(tn_mtp_open(s->e, TN_DRAFT_HEAD, s->evaluator, &s->state, s->n_ctx, &d->head, err));
    tn_draft_set_outside(d->draft, TN_DRAFT_MODEL, tn_draft_model_propose, d->model);
    tn_draft_set_outside(d->draft, TN_DRAFT_MTP, tn_mtp_propose, d->mtp);
    tn_draft_set_outside(d->draft, TN_DRAFT_HEAD, tn_mtp_propose, d->head);
    return TERN_OK;
}

tern_status tn_drafting_measure(tern_session *s, float *rows, float *relative, int *n, tern_error *err) {
    enum { LEAST = 2, MOST = 8 };             /* rounds */
    static const int64_t LONG_NS = 100000000; /* beyond the minimum: a large model must not be delayed */
    static const int32_t tried[] = {1,  2,  4,  8,
                                    12, 16, 24, TN_TREE_MAX}; /* one of each class at a bend of the curve */
    enum { TRIED = sizeof tried / sizeof *tried };
    int64_t best[TRIED];
    *n = 0;
    if (s->n_ctx - s->n_tok < TN_TREE_MAX || !s->n_tok) return TERN_OK;
    bool has_logits = s->has_logits;
    int64_t start_ns = tn_now_ns();
    for (int r = 0; r < LEAST || (r < MOST && tn_now_ns() - start_ns < LONG_NS); r++) {
        for (int i = 0; i < TRIED; i++) {
            tn_tree t = {0};
            for (int32_t j = 0; j < tried[i]; j++) tn_tree_add(&t, j - 1, s->tokens[s->n_tok - 1]);
            int64_t t0 = tn_now_ns();
            TN_TRY(tn_session_verify(s, &t, err));
            int64_t ns = tn_now_ns() - t0;
            best[i] = r && best[i] < ns ? best[i] : ns;
        }
    }
    s->has_logits = has_logits;
    for (int i = 1; i < TRIED; i++) {
        rows[*n] = (float)tried[i];
        relative[(*n)++] = (float)best[i] / (float)best[0];
    }
    return TERN_OK;
}

tern_status tn_drafting_profile(tern_session *s, tern_error *err) {
    enum { ENOUGH = 4 }; /* classes known */
    tn_step_profile *p = &s->profile;
    float rows[TN_PROP_COSTS], relative[TN_PROP_COSTS];
    int n;
    if (!tn_session_pipeline(s) || p->n_forwards >= ENOUGH ||
        tn_draft_costs(s->drafting.draft, rows, relative) >= ENOUGH)
        return TERN_OK;
    int64_t t0 = tn_now_ns();
    TN_TRY(tn_drafting_measure(s, rows, relative, &n, err));
    tn_session_trace(s, "profile forwards", t0, tn_now_ns());
    if (!n) return TERN_OK;
    tn_draft_give_costs(s->drafting.draft, rows, relative, n, false);
    memcpy(p->forward_rows, rows, sizeof p->forward_rows);
    memcpy(p->forward_relative, relative, sizeof p->forward_relative);
    p->n_forwards = n;
    return TERN_OK;
}

void tn_drafting_close(tern_session *s) {
    tn_drafting *d = &s->drafting;
    tn_ctx *ctx = &s->e->ctx;
    tn_draft_model_close(&d->model);
    tn_mtp_close(&d->mtp);
    tn_mtp_close(&d->head);
    tn_draft_close(&d->draft);
    tn_free(ctx, d->model_path);
    tn_free(ctx, d->head_ids);
    tn_free(ctx, d->head_panels);
    tn_free(ctx, d->head_bias);
    tn_free(ctx, d->head_rows);
    tn_free(ctx, d->head_logits);
}

void tn_drafting_copy(tern_session *dst, const tern_session *src, int32_t n) {
    tn_drafting *d = &dst->drafting;
    if (d->mtp) tn_mtp_copy(d->mtp, src ? src->drafting.mtp : NULL, n);
    if (d->head) tn_mtp_copy(d->head, src ? src->drafting.head : NULL, n);
}

tern_status tern_session_learn(tern_session *s, const int32_t *tokens, size_t n, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(n && !tokens, err, TERN_E_INVALID, "no tokens given");
    tn_drafting *d = &s->drafting;
    TN_TRY(open_draft(s, err));
    return tn_draft_learn(d->draft, tokens, n, err);
}

void tn_session_draft_stats(const tern_session *s, tn_draft_stats *out) {
    const tn_drafting *d = &s->drafting;
    double offered = d->n_offered ? (double)d->n_offered : 1, kept = (double)(d->n_steps + d->n_accepted);
    tn_draft_stats t = {
        .n_steps = d->n_steps,
        .n_rows = d->n_rows,
        .n_accepted = d->n_accepted,
        .tokens_per_step = d->n_steps ? kept / (double)d->n_steps : 0,
        .valid = kept / offered,
        .wasted = ((double)d->n_rows - kept) / offered,
        .underutilised = d->n_offered ? 1 - (double)d->n_rows / offered : 0,
        .draft_s = (double)d->draft_ns * 1e-9,
        .draft_max_s = (double)d->draft_max_ns * 1e-9,
        .verify_s = (double)d->verify_ns * 1e-9,
        .calibrate_s = (double)d->calibrate_ns * 1e-9,
        .n_calibrated = d->n_calibrated,
        .draft_bytes = d->draft ? tn_draft_bytes(d->draft) : 0,
        .n_learned = s->storing.n_learned,
        .learn_s = (double)s->storing.learn_ns * 1e-9,
        .commit_s = (double)s->storing.commit_ns * 1e-9,
        .mtp_s = d->mtp ? (double)tn_mtp_note_ns(d->mtp) * 1e-9 : 0,
        .head_s = d->head ? (double)tn_mtp_note_ns(d->head) * 1e-9 : 0,
    };
    struct {
        uint32_t drafters;
        uint64_t *n_verified, *n_accepted;
    } of[] = {{TN_DRAFT_LOOKUP | TN_DRAFT_SAM, &t.copied, &t.copied_right},
              {TN_DRAFT_CALIBRATED | TN_DRAFT_EXTEND, &t.recalled, &t.recalled_right},
              {TN_DRAFT_MODEL, &t.by_model, &t.by_model_right},
              {TN_DRAFT_MTP, &t.by_mtp, &t.by_mtp_right},
              {TN_DRAFT_HEAD, &t.by_head, &t.by_head_right}};
    for (size_t i = 0; d->draft && i < sizeof of / sizeof of[0]; i++)
        tn_draft_counts(d->draft, of[i].drafters, of[i].n_verified, of[i].n_accepted);
    *out = t;
}

/* ---- calibration ---------------------------------------------------------------------------------- */

/* Computes one row of the output weights, and returns its bias. */
static float head_row(const tern_engine *e, int32_t id, float *row) {
    const tn_hparams *h = &e->model->h;
    size_t k = (size_t)h->n_embd;
    if (!e->npu) {
        const tn_linear *l = tn_model_linear(e->model, -1, h->tied ? TN_W_EMBD : TN_W_OUT);
        (void)tn_model_need(e->model, h->n_layers, NULL); /* it is there: the prompt had logits */
        tn_linear_row(l, (size_t)id, row);
        return l->bias ? l->bias[id] : 0;
    }
    const tn_npu_site *site = tn_npu_site_at(e->npu, 0, TN_SITE_LM_HEAD);
    tn_npu_weights_data w = tn_npu_weights_get(site->weights[0]);
    int8_t *q = (int8_t *)row + 3 * k; /* widened from the front, so no unread value is overwritten */
    tn_npu_weights_row(site->weights[0], id, q);
    for (size_t i = 0; i < k; i++) {
        int8_t v = q[i];
        row[i] = (float)v * w.scale[id];
    }
    return w.bias ? w.bias[id] : 0;
}

/* Updates the panels to the text's vocabulary. It fetches only tokens that are new or moved. */
static tern_status update_head(tern_session *s, tern_error *err) {
    tn_drafting *d = &s->drafting;
    tn_ctx *ctx = &s->e->ctx;
    size_t e = (size_t)s->e->model->h.n_embd;
    int32_t n;
    const int32_t *ids = tn_draft_vocabulary(d->draft, &n);
    int32_t room = (n + TN_PANEL_N - 1) / TN_PANEL_N * TN_PANEL_N;
    if (room > d->cap_head) {
        int32_t cap = room + room / 2 < TN_DRAFT_VOCAB
                          ? (room + room / 2 + TN_PANEL_N - 1) / TN_PANEL_N * TN_PANEL_N
                          : TN_DRAFT_VOCAB;
        float *panels = tn_realloc(ctx, TN_MEM_ACTIVATIONS, d->head_panels, (size_t)cap * e, sizeof *panels);
        if (panels) d->head_panels = panels;
        float *bias =
            panels ? tn_realloc(ctx, TN_MEM_ACTIVATIONS, d->head_bias, (size_t)cap, sizeof *bias) : NULL;
        if (bias) d->head_bias = bias;
        tn_free(ctx, d->head_logits);
        d->head_logits =
            bias ? tn_alloc(ctx, TN_MEM_ACTIVATIONS, (size_t)cap * CALIBRATED_ROWS, sizeof(float)) : NULL;
        if (!d->head_rows)
            d->head_rows = tn_alloc(ctx, TN_MEM_ACTIVATIONS, (CALIBRATED_ROWS + 1) * e, sizeof(float));
        if (!d->head_ids)
            d->head_ids = tn_alloc(ctx, TN_MEM_ACTIVATIONS, TN_DRAFT_VOCAB, sizeof *d->head_ids);
        if (!d->head_logits || !d->head_rows || !d->head_ids) d->cap_head = 0;
        TN_FAIL_IF(!d->head_logits || !d->head_rows || !d->head_ids, err, TERN_E_MEMORY,
                   "no memory to calibrate %d tokens", n);
        d->cap_head = cap;
    }
    float *row = d->head_rows + CALIBRATED_ROWS * e;
    for (int32_t i = 0; i < n; i++) {
        if (i < d->n_head && d->head_ids[i] == ids[i]) continue;
        d->head_bias[i] = head_row(s->e, ids[i], row);
        d->head_ids[i] = ids[i];
        float *to = d->head_panels + (size_t)(i / TN_PANEL_N) * e * TN_PANEL_N + (size_t)(i % TN_PANEL_N);
        for (size_t k = 0; k < e; k++) to[k * TN_PANEL_N] = row[k];
    }
    d->n_head = n;
    for (int32_t i = n; i < room; i++) { /* the last panel's missing channels */
        float *to = d->head_panels + (size_t)(i / TN_PANEL_N) * e * TN_PANEL_N + (size_t)(i % TN_PANEL_N);
        for (size_t k = 0; k < e; k++) to[k * TN_PANEL_N] = 0;
    }
    return TERN_OK;
}

bool tn_drafting_calibrates(const tern_session *s, size_t n) {
    return s->drafting.drafters & TN_DRAFT_CALIBRATED && n > 1;
}

tern_status tn_drafting_before(tern_session *s, const int32_t *tokens, size_t n, tern_error *err) {
    tn_drafting *d = &s->drafting;
    int64_t t0 = tn_now_ns();
    TN_TRY(tn_draft_sync(d->draft, s->tokens, s->n_tok, err));
    for (size_t i = 0; i < n; i++) TN_TRY(tn_draft_push(d->draft, tokens[i], err));
    d->calibrate_ns += tn_now_ns() - t0;
    return TERN_OK;
}

tern_status tn_drafting_calibrate(tern_session *s, int32_t pos0, int32_t n_rows, tern_error *err) {
    tn_drafting *d = &s->drafting;
    const tn_model *m = s->e->model;
    const tn_hparams *h = &m->h;
    const tn_kernels *kern = &s->e->kern;
    size_t e = (size_t)h->n_embd;
    int64_t t0 = tn_now_ns();
    TN_TRY(
        update_head(s, err)); /* only after the forward, which may be the one that loads the output weights */
    const tn_linear head = {.n = d->n_head,
                            .k = h->n_embd,
                            .dtype = TN_PANEL_F32,
                            .panels = d->head_panels,
                            .bias = d->head_bias};
    for (int32_t i = 0; i < n_rows;) {
        int32_t n = n_rows - i < CALIBRATED_ROWS ? n_rows - i : CALIBRATED_ROWS;
        for (int32_t j = 0; j < n; j++) {
            float *row = d->head_rows + (size_t)j * e;
            tn_forward_out_norm(m, kern, tn_session_row(s, i + j), row, 1);
        }
        tn_linear_run(&head, kern, s->e->pool, d->head_rows, e, d->head_logits, (size_t)d->n_head, (size_t)n,
                      NULL);
        for (int32_t j = 0; j < n; j++)
            tn_draft_successors(d->draft, pos0 + i + j, d->head_logits + (size_t)j * (size_t)d->n_head,
                                d->n_head);
        i += n;
    }
    int64_t t1 = tn_now_ns();
    tn_session_trace(s, "calibrate", t0, t1);
    d->calibrate_ns += t1 - t0;
    d->n_calibrated += (uint64_t)n_rows;
    return TERN_OK;
}

/* ---- a draft model -------------------------------------------------------------------------------- */

struct tn_draft_model {
    tn_ctx *ctx; /* of the engine that it drafts for */
    tern_engine *e;
    tern_session *s;
    size_t n_vocab;
    double step_ns; /* of its own: running mean */
};

enum { MODEL_TOKENS = 12 };

tern_status tn_draft_model_open(tern_engine *target, const char *path, int32_t n_ctx, tn_draft_model **out,
                                tern_error *err) {
    *out = NULL;
    tn_ctx *ctx = &target->ctx;
    tn_draft_model *m = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *m);
    TN_FAIL_IF(!m, err, TERN_E_MEMORY, "no memory for a draft model");
    m->ctx = ctx;
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = tn_pool_size(target->pool);
    o.hooks = &target->ctx.hooks;
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_ctx;
    m->n_vocab = (size_t)target->model->h.n_vocab;
    tern_status st = tern_engine_open(path, &o, &m->e, err);
    if (st == TERN_OK) {
        bool same = (size_t)m->e->model->h.n_vocab == m->n_vocab;
        for (int32_t id = 0; same && (size_t)id < m->n_vocab; id++) {
            char a[64], b[64];
            size_t n = tern_token_bytes(target, id, true, a, sizeof a),
                   k = tern_token_bytes(m->e, id, true, b, sizeof b);
            same = n == k && !memcmp(a, b, n < sizeof a ? n : sizeof a);
        }
        if (!same)
            st = tn_fail(err, TERN_E_INVALID, "%s has another vocabulary: it cannot draft for this model",
                         path);
    }
    if (st == TERN_OK) st = tern_session_open(m->e, &so, &m->s, err);
    if (st == TERN_OK) *out = m;
    else {
        tern_engine_close(&m->e);
        tn_free(ctx, m);
    }
    return st;
}

void tn_draft_model_close(tn_draft_model **pm) {
    tn_draft_model *m = *pm;
    if (!m) return;
    *pm = NULL;
    tern_session_close(&m->s);
    tern_engine_close(&m->e);
    tn_free(m->ctx, m);
}

/* Proposes the greedy continuation, as long as another token is worth its time. */
void tn_draft_model_propose(void *model, tn_proposals *p, const int32_t *text, int32_t n) {
    tn_draft_model *m = model;
    if (!m || tern_session_prefill(m->s, text, (size_t)n, NULL) != TERN_OK) return;
    for (int32_t i = 0, node = 0; i < MODEL_TOKENS; i++) {
        const float *logits = tern_session_logits(m->s);
        int32_t token = tn_argmax(logits, m->n_vocab);
        node =
            tn_prop_add(p, node, token,
                        tn_draft_outside_class(TN_DRAFT_MODEL, expf(tn_logprob(logits, m->n_vocab, token))));
        if (node < 0 || (tn_prop_step_ns(p) > 0 && p->node[node].p * tn_prop_step_ns(p) < (float)m->step_ns))
            return;
        int64_t t0 = tn_now_ns();
        if (tern_session_length(m->s) >= (size_t)tern_session_capacity(m->s) ||
            tern_session_step(m->s, token, NULL) != TERN_OK)
            return;
        double ns = (double)(tn_now_ns() - t0);
        m->step_ns = m->step_ns > 0 ? 0.9 * m->step_ns + 0.1 * ns : ns;
    }
}
