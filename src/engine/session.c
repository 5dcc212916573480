/* A session's timeline: prefill, step, score, cancel. */
#include "engine/engine.h"

#include "base/status.h"

#include <string.h>

void tern_session_options_defaults(tern_session_options *o) { *o = (tern_session_options){.size_bytes = sizeof *o}; }

tern_status tern_session_open(tern_engine *e, const tern_session_options *opt, tern_session **out, tern_error *err) {
    *out = NULL;
    tern_session_options o;
    tern_session_options_defaults(&o);
    if (opt) memcpy(&o, opt, opt->size_bytes < sizeof o ? opt->size_bytes : sizeof o);
    const tn_hparams *h = &e->model->h;
    int32_t n_ctx = o.n_ctx ? o.n_ctx : h->ctx_train < 4096 ? h->ctx_train : 4096;
    TN_FAIL_IF(n_ctx < 1 || n_ctx > 1 << 24, err, TERN_E_INVALID, "a context of %d tokens: want 1 to %d", n_ctx, 1 << 24);
    if (n_ctx > h->ctx_train) {
        tn_log(&e->ctx, TERN_LOG_WARN, "a context of %d tokens is beyond the %d the model was trained for", n_ctx, h->ctx_train);
    }
    tn_ctx *ctx = &e->ctx;
    tern_session *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for a session");
    s->e = e;
    s->n_ctx = n_ctx;
    int32_t chunk = n_ctx < TN_FLOAT_CHUNK ? n_ctx : TN_FLOAT_CHUNK;
    s->tokens = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n_ctx, sizeof *s->tokens);
    s->pos = tn_alloc(ctx, TN_MEM_OTHER, (size_t)chunk, sizeof *s->pos);
    s->logits = tn_alloc(ctx, TN_MEM_ACTIVATIONS, (size_t)h->n_vocab, sizeof *s->logits);
    tern_status st = s->tokens && s->pos && s->logits ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for a session of %d tokens", n_ctx);
    if (st == TERN_OK) st = tn_kv_open(ctx, h, n_ctx, &s->kv, err);
    if (st == TERN_OK) st = tn_acts_open(ctx, h, chunk, s->kv.cap_tok, tn_pool_size(e->pool), &s->acts, err);
    if (st == TERN_OK) *out = s;
    else tern_session_close(&s);
    return st;
}

void tern_session_close(tern_session **ps) {
    if (!ps || !*ps) return;
    tern_session *s = *ps;
    *ps = NULL;
    tn_ctx *ctx = &s->e->ctx;
    if (s->kv.ctx) tn_kv_close(&s->kv);
    if (s->acts.ctx) tn_acts_close(&s->acts);
    tn_free(ctx, s->tokens);
    tn_free(ctx, s->pos);
    tn_free(ctx, s->logits);
    tn_free(ctx, s->score_logits);
    tn_free(ctx, s);
}

static tern_status evaluate_chunk(tern_session *s, const int32_t *ids, int32_t n, tn_rows *r, tern_error *err) {
    const tn_model *m = s->e->model;
    for (int32_t i = 0; i < n; i++) {
        TN_FAIL_IF(ids[i] < 0 || ids[i] >= m->h.n_vocab, err, TERN_E_INVALID, "token %d at position %d is outside the vocabulary of %d",
                   ids[i], s->n_tok + i, m->h.n_vocab);
        s->pos[i] = s->n_tok + i;
    }
    *r = (tn_rows){.h = &m->h, .kern = &s->e->kern, .kv = &s->kv, .n_rows = n, .pos = s->pos, .slot = s->pos, .tree_base = -1};
    return tn_forward_rows(m, s->e->pool, r, &s->acts, ids, tn_session_rope_long(s), &s->cancel, NULL, err);
}

/* Logits of the chunk's positions a scorer asked for, TN_SCORE_ROWS at a time. `done`: tokens before the chunk. */
static tern_status score_chunk(tern_session *s, const tn_rows *r, size_t done, const tn_scorer *scorer, tern_error *err) {
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    int32_t i = scorer->first > done ? (int32_t)(scorer->first - done) : 0;
    while (i < r->n_rows) {
        int32_t n = r->n_rows - i < TN_SCORE_ROWS ? r->n_rows - i : TN_SCORE_ROWS;
        tn_forward_logits(s->e->model, s->e->pool, r, &s->acts, i, n, s->score_logits);
        for (int32_t j = 0; j < n; j++) {
            bool more = scorer->on_logits(scorer->user, done + (size_t)(i + j), s->score_logits + (size_t)j * n_vocab);
            TN_FAIL_IF(!more, err, TERN_E_CANCELLED, "stopped by the caller");
        }
        i += n;
    }
    return TERN_OK;
}

tern_status tn_session_append(tern_session *s, const int32_t *tokens, size_t n, const tn_scorer *scorer, tern_error *err) {
    TN_FAIL_IF(n > (size_t)(s->n_ctx - s->n_tok), err, TERN_E_LIMIT, "%zu tokens after %d do not fit a context of %d; open the session with a larger one",
               n, s->n_tok, s->n_ctx);
    for (size_t done = 0; done < n;) {
        int32_t chunk = n - done < (size_t)s->acts.max_rows ? (int32_t)(n - done) : s->acts.max_rows;
        tn_rows r;
        s->has_logits = false;
        tern_status st = evaluate_chunk(s, tokens + done, chunk, &r, err);
        if (st == TERN_E_CANCELLED) atomic_store(&s->cancel, false);
        if (st == TERN_OK && scorer && scorer->first < done + (size_t)chunk) st = score_chunk(s, &r, done, scorer, err);
        if (st != TERN_OK) return st;
        memcpy(s->tokens + s->n_tok, tokens + done, (size_t)chunk * sizeof *tokens);
        s->n_tok += chunk;
        done += (size_t)chunk;
        if (done == n) tn_forward_logits(s->e->model, s->e->pool, &r, &s->acts, chunk - 1, 1, s->logits);
    }
    s->has_logits = n > 0 || s->has_logits;
    return TERN_OK;
}

void tn_session_truncate(tern_session *s, int32_t n) {
    if (n >= s->n_tok) return;
    s->n_tok = n;
    s->has_logits = false;
}

tern_status tern_session_prefill(tern_session *s, const int32_t *prompt, size_t n_tok, tern_error *err) {
    TN_FAIL_IF(n_tok == 0 || !prompt, err, TERN_E_INVALID, "the prompt is empty");
    size_t same = 0;
    while (same < n_tok && same < (size_t)s->n_tok && s->tokens[same] == prompt[same]) same++;
    if (same == n_tok && n_tok == (size_t)s->n_tok && s->has_logits) return TERN_OK;
    if (same == n_tok) same--; /* the last token again, for its logits */
    tn_session_truncate(s, (int32_t)same);
    return tn_session_append(s, prompt + same, n_tok - same, NULL, err);
}

tern_status tern_session_score(tern_session *s, const int32_t *prompt, size_t n_tok, size_t first,
                               bool (*on_logits)(void *, size_t, const float *), void *user, tern_error *err) {
    TN_FAIL_IF(n_tok == 0 || !prompt || !on_logits, err, TERN_E_INVALID, "scoring needs tokens and a callback");
    if (!s->score_logits) {
        s->score_logits = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, TN_SCORE_ROWS * (size_t)s->e->model->h.n_vocab, sizeof(float));
        TN_FAIL_IF(!s->score_logits, err, TERN_E_MEMORY, "no memory for the logits of %d positions", TN_SCORE_ROWS);
    }
    tn_session_truncate(s, 0);
    const tn_scorer scorer = {.first = first, .on_logits = on_logits, .user = user};
    return tn_session_append(s, prompt, n_tok, &scorer, err);
}

tern_status tern_session_step(tern_session *s, int32_t token, tern_error *err) { return tn_session_append(s, &token, 1, NULL, err); }

const float *tern_session_logits(const tern_session *s) { return s->has_logits ? s->logits : NULL; }
size_t tern_session_length(const tern_session *s) { return (size_t)s->n_tok; }
int32_t tern_session_capacity(const tern_session *s) { return s->n_ctx; }
void tern_session_cancel(tern_session *s) { atomic_store(&s->cancel, true); }
