/* The decode loop: sample, detokenise, watch for the end; with drafts, several tokens a forward. */

#include "session/session.h"

#include "base/clock.h"
#include "base/sized.h"
#include "base/status.h"
#include "model/sampler.h"

#include <assert.h>
#include <string.h>

_Static_assert(sizeof(tern_sampling) == 72, "it lies inside tern_generate_options and never grows");
_Static_assert(sizeof(tern_generate_result) == 48, "it never grows");

tern_status tern_sampling_init(tern_sampling *p, size_t size_bytes) {
    const tern_sampling d = {.size_bytes = sizeof d,
                             .temperature = 0.8f,
                             .top_k = 40,
                             .top_p = 0.95f,
                             .min_p = 0.05f,
                             .repeat_penalty = 1.0f,
                             .repeat_last_n = 64};
    return tn_sized_out(p, size_bytes, &d, sizeof d, sizeof d);
}

enum { LEAST_OPTIONS = TN_SIZE_UP_TO(tern_generate_options, user) };

tern_status tern_generate_options_init(tern_generate_options *o, size_t size_bytes) {
    tern_generate_options d = {.size_bytes = size_bytes, .max_tokens = -1};
    tern_sampling_defaults(&d.sampling);
    return tn_sized_out(o, size_bytes, &d, sizeof d, LEAST_OPTIONS);
}

/* Text on its way to the caller. It holds back what may begin a stop string. */
typedef struct outlet {
    tn_ctx *ctx;
    const tern_generate_options *o;
    tn_detok detok;
    bool has_detok;
    char *buf; /* held-back text, then new text */
    size_t n, cap, longest_stop;
    bool stopped;
    const char *stopped_by;
} outlet;

/* Finds the stop string that ends first in buf; of several that end there, the longest. So the text depends
 * neither on the order of stop strings nor on token borders. Returns its end and sets *start and *which;
 * returns 0 where none is complete. */
static size_t whole_stop(const outlet *t, size_t *start, const char **which) {
    size_t end = 0;
    for (const char *const *p = t->o->stop; p && *p; p++) {
        size_t len = strlen(*p);
        const char *at = len ? memmem(t->buf, t->n, *p, len) : NULL;
        if (!at) continue;
        size_t from = (size_t)(at - t->buf), to = from + len;
        if (!end || to < end || (to == end && from < *start)) end = to, *start = from, *which = *p;
    }
    return end;
}

/* Returns how many bytes of buf may be emitted: everything before a stop string, or everything but the
 * longest tail that may begin one. Sets stopped on a match. */
static size_t releasable(outlet *t) {
    size_t go = t->n;
    if (whole_stop(t, &go, &t->stopped_by)) {
        t->stopped = true;
        return go;
    }
    for (const char *const *p = t->o->stop; p && *p; p++) {
        size_t len = strlen(*p);
        for (size_t i = t->n > len ? t->n - len : 0; i < go; i++)
            if (!memcmp(t->buf + i, *p, t->n - i)) go = i;
    }
    return go;
}

static bool emit(outlet *t, int32_t token, float logprob) {
    size_t go = releasable(t);
    bool more = !t->o->on_token || t->o->on_token(t->o->user, token, t->buf, go, logprob);
    if (t->stopped) t->n = 0;
    memmove(t->buf, t->buf + go, t->n > go ? t->n - go : 0);
    t->n = t->n > go ? t->n - go : 0;
    return more;
}

static tern_status outlet_open(outlet *t, tern_session *s, const tern_generate_options *o, tern_error *err) {
    *t = (outlet){.ctx = &s->e->ctx, .o = o};
    const tn_tokenizer *tok = s->e->model->tokenizer;
    for (const char *const *p = o->stop; p && *p; p++)
        t->longest_stop = strlen(*p) > t->longest_stop ? strlen(*p) : t->longest_stop;
    if (tok) {
        tn_detok_init(&t->detok, tok, o->special_text, false);
        t->has_detok = true;
    }
    t->cap = t->longest_stop + (tok ? 8 * tn_tokenizer_max_token_bytes(tok) : 0) + 64;
    t->buf = tn_alloc(t->ctx, TN_MEM_TEXT, t->cap, 1);
    TN_FAIL_IF(!t->buf, err, TERN_E_MEMORY, "no memory for output text");
    return TERN_OK;
}

struct tern_answer {
    tern_session *s;
    tern_generate_options o;
    tn_sampler sampler;
    outlet text;
    tern_generate_result res;
    double t0;
    uint32_t drafters; /* 0: one token a forward */
    int32_t max_rows, n_prompt;
    int32_t token;        /* drawn and emitted, not yet evaluated */
    float *shaped;        /* [n_vocab] for on_logits */
    tern_stop_reason end; /* name of an end: a limit's, once the text was closed because of it */
    bool more;
    tern_status status;
    tern_error err;
    int64_t draft_ns; /* of the plan at work */
};

/* Takes the token drawn, or one of the text's shortest ending where the limit leaves no room for more. */
static tern_status keep_to_grammar(tern_answer *g, tern_error *err) {
    int32_t left = g->s->n_ctx - g->s->n_tok - 1, limit = g->o.max_tokens - g->res.n_tokens - 1;
    bool limited = g->o.max_tokens >= 0 && limit <= left, closing = false;
    tern_status st = tn_constraint_took(&g->s->constraint, &g->token, limited ? limit : left, &closing, err);
    if (closing) g->res.reason = g->end = limited ? TERN_STOP_LENGTH : TERN_STOP_CONTEXT;
    return st;
}

static bool at_limit(const tern_answer *g) {
    return g->o.max_tokens >= 0 && g->res.n_tokens >= g->o.max_tokens;
}

/* Draws the next token from logits and emits it. Returns false when generation ends here, or when *st tells
 * why it failed. */
static bool take(tern_answer *g, const float *logits) {
    tern_session *s = g->s;
    tern_status *st = &g->status;
    tern_error *err = &g->err;
    const tern_generate_options *o = &g->o;
    if (at_limit(g)) return false;
    if (atomic_exchange(&s->cancel, false)) {
        *st = tn_fail(err, TERN_E_CANCELLED, "cancelled after %d tokens", g->res.n_tokens);
        return false;
    }
    if (s->n_tok >= s->n_ctx) {
        g->res.reason = TERN_STOP_CONTEXT;
        return false;
    }
    if (tn_constraint_done(&s->constraint)) {
        g->res.reason = g->end;
        return false;
    }
    const float *shaped = logits; /* tokens are drawn from these; log-probabilities are the model's own */
    if (o->on_logits) {
        size_t n_vocab = (size_t)s->e->model->h.n_vocab;
        memcpy(g->shaped, logits, n_vocab * sizeof *logits);
        if (!o->on_logits(o->user, g->shaped, n_vocab)) {
            g->res.reason = TERN_STOP_CALLBACK;
            return false;
        }
        shaped = g->shaped;
    }
    if (s->constraint.active) {
        *st = tn_constraint_shape(&s->constraint, &shaped, (size_t)s->e->model->h.n_vocab, err);
        if (*st != TERN_OK) return false;
    }
    g->token = tn_sampler_draw(&g->sampler, shaped, s->tokens, (size_t)s->n_tok);
    s->drawn = g->sampler.cand;
    s->n_drawn = g->sampler.n_drawn;
    if (!g->res.n_tokens) g->t0 = tn_now_s();
    if (!o->ignore_end && tern_token_is_end(s->e, g->token)) {
        s->ended_with = g->token;
        g->res.reason = g->end;
        return false;
    }
    if (s->constraint.active) *st = keep_to_grammar(g, err);
    if (*st != TERN_OK || g->token < 0) return false;
    float logprob =
        o->on_token && !o->no_logprobs ? tn_logprob(logits, (size_t)s->e->model->h.n_vocab, g->token) : 0;
    if (g->text.has_detok)
        g->text.n +=
            tn_detok_push(&g->text.detok, g->token, g->text.buf + g->text.n, g->text.cap - g->text.n);
    g->res.n_tokens++;
    bool more = emit(&g->text, g->token, logprob);
    if (g->text.stopped || !more) {
        g->res.reason = g->text.stopped ? TERN_STOP_STRING : TERN_STOP_CALLBACK;
        return false;
    }
    if (o->leave_last && at_limit(g)) return false;
    if (g->drafters) *st = tn_draft_push(s->drafting.draft, g->token, err);
    return *st == TERN_OK;
}

/* Returns how many rows can still become text: the token drawn and those after it. */
static int32_t useful_rows(const tern_answer *g) {
    int32_t rows = g->max_rows, context = g->s->n_ctx - g->s->n_tok, left = g->o.max_tokens - g->res.n_tokens;
    if (rows > context) rows = context;
    if (!g->o.leave_last) left++; /* the last token's row, too */
    return g->o.max_tokens >= 0 && rows > left ? left : rows;
}

/* ---- a step ---------------------------------------------------------------------------------------- */

/* Results are emitted token by token. Each token is drawn from the logits that decoding one by one would
 * have, with the same random numbers; a draft only decides whether those logits are already there. So the
 * text is the same at any temperature, and beside any other texts. */

/* Plans the rows of the next forward, which has those of n_beside other decoders too. */
static void plan(tern_answer *g, int32_t n_beside, tn_tree *tree) {
    tn_drafting *d = &g->s->drafting;
    int64_t t0 = tn_now_ns();
    if (!g->drafters) {
        tn_tree_begin(tree, g->token);
        return;
    }
    int32_t rows = useful_rows(g), share = TN_TREE_MAX / (n_beside + 1);
    tn_draft_plan(d->draft, g->drafters, rows < share ? rows : share, n_beside, g->o.draft_eager, tree);
    int64_t t1 = tn_now_ns();
    tn_session_trace(g->s, "draft", t0, t1);
    g->draft_ns = t1 - t0;
}

/* Keeps the path that the sampler takes through the tree just verified. */
static bool walk(tern_answer *g, const tn_tree *tree) {
    tern_session *s = g->s;
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    int32_t row = 0, next = 0;
    bool more;
    for (;; row = next) {
        const float *logits = s->tree_logits + (size_t)row * n_vocab;
        tn_session_keep(s, tree, row);
        more = take(g, logits);
        next = more ? tn_tree_child(tree, row, g->token) : -1;
        if (next < 0) break;
        if (atomic_exchange(&s->cancel, false)) { /* where this token's forward would have noticed it */
            s->has_logits = false;
            g->status = tn_fail(&g->err, TERN_E_CANCELLED, "cancelled after %d tokens", g->res.n_tokens);
            return false;
        }
        s->drafting.n_accepted++;
    }
    tn_session_settle(s, row);
    if (s->drafting.on_step) s->drafting.on_step(s->drafting.on_step_user, tree, row);
    if (more && g->drafters & TN_DRAFT_EXTEND) {
        int64_t t0 = tn_now_ns();
        tn_draft_rejected(s->drafting.draft, tree, row, s->tree_logits);
        s->drafting.draft_ns += tn_now_ns() - t0;
    }
    return more;
}

/* Gives out what the forward made of the rows. It ran from t0 to t1, alone or beside others. */
static bool accept(tern_answer *g, const tn_tree *tree, bool alone, int64_t t0, int64_t t1) {
    tern_session *s = g->s;
    tn_drafting *d = &s->drafting;
    if (!g->drafters) return take(g, s->logits);
    int64_t t2 = tn_now_ns();
    if (alone) tn_draft_timed(d->draft, tree->n, t1 - t0); /* else the time includes others' rows */
    tn_session_trace(s, tree->n > 1 ? "verify" : "step", t0, t1);
    if (g->drafters & TN_DRAFT_CALIBRATED)
        tn_draft_verified(d->draft, tree, tree->n > 1 ? s->tree_logits : s->logits);
    int64_t draft_ns = g->draft_ns + tn_now_ns() - t2;
    d->draft_ns += draft_ns;
    if (draft_ns > d->draft_max_ns) d->draft_max_ns = draft_ns;
    d->verify_ns += t1 - t0;
    d->n_steps++;
    d->n_steps_of[tree->n]++;
    d->n_rows += (uint64_t)tree->n;
    d->n_offered += (uint64_t)g->max_rows;
    if (tree->n > 1) return walk(g, tree);
    if (d->on_step) d->on_step(d->on_step_user, tree, 0);
    return take(g, s->logits);
}

enum { PROFILED_TOKENS = 24 }; /* shorter answers do not pay for measured forwards */

_Static_assert((int)TERN_ANSWERS_MAX == (int)TN_MAX_TEXTS, "as many as a forward takes");

/* Answers that can go forward together. */
static tern_status may_step(tern_answer *const *d, size_t n, tern_error *err) {
    TN_FAIL_IF(!d || !n || n > TERN_ANSWERS_MAX, err, TERN_E_INVALID,
               "%zu answers go no step together: want 1 to %d", d ? n : 0, TERN_ANSWERS_MAX);
    for (size_t i = 0; i < n; i++) {
        TN_FAIL_IF(!d[i] || !d[i]->more, err, TERN_E_INVALID, "answer %zu of %zu has no more to come", i, n);
        TN_FAIL_IF(d[i]->s->e != d[0]->s->e, err, TERN_E_INVALID, "answer %zu is of another engine", i);
        for (size_t k = 0; k < i; k++)
            TN_FAIL_IF(d[i]->s == d[k]->s, err, TERN_E_INVALID, "answers %zu and %zu are of one session", k,
                       i);
    }
    return TERN_OK;
}

tern_status tern_answers_step(tern_answer *const *d, size_t n_answers, tern_error *err) {
    tn_turn turns[TN_MAX_TEXTS];
    TN_TRY(may_step(d, n_answers, err));
    tern_answer *g = d[0];
    int32_t n = (int32_t)n_answers;
    bool worth = g->o.max_tokens < 0 || g->o.max_tokens >= PROFILED_TOKENS;
    if (n == 1 && g->drafters && g->res.n_tokens == 1 && worth && !g->o.draft_eager) {
        g->status = tn_drafting_profile(g->s, &g->err); /* the first token is out, so nobody waits */
        g->more = g->status == TERN_OK;
        if (!g->more) return TERN_OK;
    }
    for (int32_t i = 0; i < n; i++) {
        turns[i].s = d[i]->s;
        plan(d[i], n - 1, &turns[i].tree);
    }
    int64_t t0 = tn_now_ns();
    tn_sessions_forward(turns, n);
    int64_t t1 = tn_now_ns();
    for (int32_t i = 0; i < n; i++) {
        g = d[i];
        g->status = turns[i].status;
        if (g->status != TERN_OK) g->err = turns[i].err;
        g->more = g->status == TERN_OK && accept(g, &turns[i].tree, n == 1, t0, t1);
    }
    return TERN_OK;
}

/* ---- from the first token to the last ---------------------------------------------------------------- */

bool tern_answer_more(const tern_answer *g) { return g && g->more; }

static tern_status open_parts(tern_answer *g, tern_error *err) {
    tern_session *s = g->s;
    const tern_generate_options *o = &g->o;
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    TN_TRY(tn_constraint_use(s, o, err));
    TN_TRY(tn_drafting_use(s, o->draft, &g->drafters, err));
    if (g->drafters & TN_DRAFT_SAM) TN_TRY(tn_storing_learn(s, err));
    if (g->drafters) TN_TRY(tn_draft_sync(s->drafting.draft, s->tokens, s->n_tok, err));
    TN_TRY(tn_sampler_open(&s->e->ctx, &o->sampling, n_vocab, &g->sampler, err));
    TN_TRY(outlet_open(&g->text, s, o, err));
    if (!o->on_logits) return TERN_OK;
    g->shaped = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, n_vocab, sizeof *g->shaped);
    TN_FAIL_IF(!g->shaped, err, TERN_E_MEMORY, "no memory for a copy of the logits");
    return TERN_OK;
}

tern_status tern_answer_open(tern_session *s, const tern_generate_options *opt, tern_answer **out,
                             tern_error *err) {
    tern_generate_options o;
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "no place for the answer given");
    *out = NULL;
    tern_generate_options_defaults(&o);
    if (opt)
        TN_TRY(tn_sized_in(&o, sizeof o, opt, opt->size_bytes, LEAST_OPTIONS, "tern_generate_options", err));
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(s->answering, err, TERN_E_INVALID, "the session's last answer is not closed");
    TN_FAIL_IF(!s->has_logits, err, TERN_E_INVALID, "generate needs a prompt: prefill first");
    TN_FAIL_IF(o.draft_nodes < 0 || o.draft_nodes > TN_TREE_MAX, err, TERN_E_INVALID,
               "draft_nodes %d: want 1 to %d, or 0", o.draft_nodes, TN_TREE_MAX);
    tern_answer *g = tn_calloc(&s->e->ctx, TN_MEM_TEXT, 1, sizeof *g);
    TN_FAIL_IF(!g, err, TERN_E_MEMORY, "no memory to decode");
    *out = g;
    s->answering = true;
    s->ended_with = -1;
    g->s = s;
    g->o = o;
    g->res.reason = TERN_STOP_LENGTH;
    g->end = TERN_STOP_END;
    g->n_prompt = s->n_tok;
    g->max_rows = o.draft_nodes ? o.draft_nodes : TN_TREE_MAX;
    g->status = open_parts(g, &g->err);
    g->more = g->status == TERN_OK && take(g, s->logits);
    return TERN_OK;
}

tern_status tern_answer_close(tern_answer **pg, tern_generate_result *result, tern_error *err) {
    TN_FAIL_IF(!pg || !*pg, err, TERN_E_INVALID, "no answer given");
    tern_answer *g = *pg;
    tern_session *s = g->s;
    *pg = NULL;
    g->res.decode_s = g->res.n_tokens ? tn_now_s() - g->t0 : 0;
    if (g->status == TERN_OK && g->text.has_detok &&
        !g->text.stopped) { /* held-back text, and half a character at the end */
        g->text.n += tn_detok_flush(&g->text.detok, g->text.buf + g->text.n, g->text.cap - g->text.n);
        if (g->text.n && g->o.on_token && !g->o.on_token(g->o.user, -1, g->text.buf, g->text.n, 0))
            g->res.reason = TERN_STOP_CALLBACK; /* a caller that refused it knows why */
    }
    s->stopped_by = g->text.stopped_by;
    s->ended_for = g->end;
    tn_free(&s->e->ctx, g->text.buf);
    tn_free(&s->e->ctx, g->shaped);
    g->s->drawn = NULL;
    g->s->n_drawn = 0;
    if (g->sampler.ctx) tn_sampler_close(&g->sampler);
    tn_storing_commit(s, g->n_prompt);
    tn_constraint_release(s);
    s->answering = false;
    if (result) *result = g->res;
    tern_status st = g->status;
    if (st != TERN_OK && err) *err = g->err;
    tn_free(&s->e->ctx, g);
    return st;
}

tern_status tern_session_generate(tern_session *s, const tern_generate_options *opt,
                                  tern_generate_result *result, tern_error *err) {
    tern_answer *g;
    if (result) *result = (tern_generate_result){.reason = TERN_STOP_LENGTH};
    TN_TRY(tern_answer_open(s, opt, &g, err));
    while (tern_answer_more(g)) (void)tern_answers_step(&g, 1, NULL); /* close tells what failed */
    return tern_answer_close(&g, result, err);
}
