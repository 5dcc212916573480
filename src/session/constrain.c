#include "session/session.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* Returns the engine's tree of tokens. Threads that make one at the same time keep the first. */
static tern_status vocab_of(tern_engine *e, const tn_gvocab **out, tern_error *err) {
    tn_gvocab *v = atomic_load(&e->gvocab), *none = NULL;
    if (!v) {
        TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED,
                   "a grammar needs a tokenizer, and the model has none");
        TN_TRY(tn_gvocab_open(&e->ctx, e->model->tokenizer, (size_t)e->model->h.n_vocab, &v, err));
        if (!atomic_compare_exchange_strong(&e->gvocab, &none, v)) {
            tn_gvocab_close(&v);
            v = none;
        }
    }
    *out = v;
    return TERN_OK;
}

static void forget(tern_session *s) {
    tn_constraint *c = &s->constraint;
    tn_grammar_close(&c->grammar);
    tn_free(&s->e->ctx, c->text);
    c->text = NULL;
}

/* A grammar of the caller's. */
struct tern_grammar {
    tern_engine *e;
    tn_grammar *g;
    atomic_bool busy; /* an answer keeps to it */
};

static const char *text_of(const tern_generate_options *o) {
    return o->json_schema ? o->json_schema : o->grammar;
}

tern_status tn_constraint_compile(tern_engine *e, const tern_generate_options *o, bool checked,
                                  tn_grammar **out, tern_error *err) {
    const tn_gvocab *v;
    const char *text = text_of(o);
    *out = NULL;
    if (!text || (o->grammar && o->json_schema)) return TERN_OK;
    TN_TRY(vocab_of(e, &v, err));
    tern_status st = o->json_schema ? tn_grammar_open_schema(&e->ctx, text, strlen(text), out, err)
                                    : tn_grammar_open_gbnf(&e->ctx, text, strlen(text), out, err);
    if (st == TERN_OK && !checked && tn_grammar_later(*out))
        st = tn_fail(
            err, TERN_E_UNSUPPORTED,
            "json schema: '%s' is not supported here: only the server checks an answer after it was made",
            tn_grammar_later(*out));
    if (st == TERN_OK) st = tn_grammar_bind(*out, v, err);
    if (st != TERN_OK) tn_grammar_close(out);
    return st;
}

static bool has(const tn_constraint *c, const tern_generate_options *o) {
    return c->text && c->schema == (o->json_schema != NULL) && !strcmp(c->text, text_of(o)) &&
           tn_grammar_is_whole(c->grammar);
}

/* *g becomes the session's; without memory for its text it stays the caller's. */
static bool keep(tern_session *s, const tern_generate_options *o, tn_grammar **g) {
    tn_constraint *c = &s->constraint;
    char *text = tn_strdup(&s->e->ctx, TN_MEM_TEXT, text_of(o));
    if (!text) return false;
    forget(s);
    c->text = text;
    c->schema = o->json_schema != NULL;
    c->grammar = *g;
    *g = NULL;
    return true;
}

void tn_constraint_give(tern_session *s, const tern_generate_options *o, tn_grammar **g) {
    if (*g && (has(&s->constraint, o) || !keep(s, o, g))) tn_grammar_close(g);
}

static tern_status open_grammar(tern_session *s, const tern_generate_options *o, tern_error *err) {
    tn_grammar *g;
    if (has(&s->constraint, o)) return TERN_OK;
    TN_TRY(tn_constraint_compile(s->e, o, false, &g, err));
    if (keep(s, o, &g)) return TERN_OK;
    tn_grammar_close(&g);
    return tn_fail(err, TERN_E_MEMORY, "no memory for the grammar");
}

tern_status tern_grammar_open(tern_engine *e, const char *gbnf, const char *json_schema, tern_grammar **out,
                              tern_error *err) {
    if (out) *out = NULL;
    TN_FAIL_IF(!e || !out || !gbnf == !json_schema, err, TERN_E_INVALID,
               "tern_grammar_open needs an engine, a place, and either a grammar or a JSON schema");
    tern_generate_options o = {.grammar = gbnf, .json_schema = json_schema};
    tern_grammar *g = tn_calloc(&e->ctx, TN_MEM_TEXT, 1, sizeof *g);
    TN_FAIL_IF(!g, err, TERN_E_MEMORY, "no memory for a grammar");
    g->e = e;
    tern_status st = tn_constraint_compile(e, &o, false, &g->g, err);
    if (st == TERN_OK) *out = g;
    else tn_free(&e->ctx, g);
    return st;
}

void tern_grammar_close(tern_grammar **pg) {
    tern_grammar *g = pg ? *pg : NULL;
    if (!g) return;
    *pg = NULL;
    tn_grammar_close(&g->g);
    tn_free(&g->e->ctx, g);
}

/* Borrows the caller's grammar until the answer ends. */
static tern_status borrow(tern_session *s, tern_grammar *g, tern_error *err) {
    TN_FAIL_IF(g->e != s->e, err, TERN_E_INVALID, "the grammar was compiled for another engine");
    TN_FAIL_IF(!tn_grammar_is_whole(g->g), err, TERN_E_INVALID,
               "the grammar ran out of memory or bounds in an earlier answer: open it again");
    TN_FAIL_IF(atomic_exchange(&g->busy, true), err, TERN_E_INVALID,
               "the grammar is in use by another answer");
    s->constraint.lent = g;
    s->constraint.in_use = g->g;
    return TERN_OK;
}

void tn_constraint_release(tern_session *s) {
    tn_constraint *c = &s->constraint;
    if (c->in_use) (void)tn_grammar_unless(c->in_use, NULL);
    c->active = false;
    c->in_use = NULL;
    c->unless = c->begun = NULL;
    if (c->lent) atomic_store(&c->lent->busy, false);
    c->lent = NULL;
}

bool tn_prompt_ends_with(const tn_tokenizer *t, const int32_t *ids, size_t n_ids, const char *open) {
    enum { LAST = 8 };
    char tail[512];
    size_t n = 0, len = strlen(open);
    for (size_t i = n_ids > LAST ? n_ids - LAST : 0; i < n_ids; i++) {
        size_t k = tn_token_bytes(t, ids[i], true, tail + n, sizeof tail - n);
        if (k > sizeof tail - n) return false;
        n += k;
    }
    while (n && strchr(" \n\r\t", tail[n - 1])) n--;
    return n >= len && !memcmp(tail + n - len, open, len);
}

static bool is_thinking(const tern_session *s) {
    return tn_prompt_ends_with(s->e->model->tokenizer, s->tokens, (size_t)s->n_tok, "<think>");
}

tern_status tn_constraint_use(tern_session *s, const tern_generate_options *o, tern_error *err) {
    tn_constraint *c = &s->constraint;
    c->active = false;
    TN_FAIL_IF(!!o->grammar + !!o->json_schema + !!o->compiled > 1, err, TERN_E_INVALID,
               "a grammar and a JSON schema: want one of them");
    if (!o->grammar && !o->json_schema && !o->compiled) {
        TN_FAIL_IF(o->grammar_after, err, TERN_E_INVALID,
                   "grammar_after goes with a grammar or a JSON schema");
        return TERN_OK;
    }
    TN_FAIL_IF(o->ignore_end, err, TERN_E_INVALID,
               "ignore_end: a text that keeps to a grammar ends where it ends");
    if (o->compiled) {
        TN_TRY(borrow(s, o->compiled, err));
    } else {
        TN_TRY(open_grammar(s, o, err));
        c->in_use = c->grammar;
    }
    if (!c->shaped) {
        c->shaped =
            tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, (size_t)s->e->model->h.n_vocab, sizeof *c->shaped);
        TN_FAIL_IF(!c->shaped, err, TERN_E_MEMORY, "no memory for masked logits");
    }
    const char *after = o->grammar_after ? o->grammar_after : is_thinking(s) ? "</think>" : NULL;
    (void)tn_grammar_unless(c->in_use, c->unless); /* else the grammar holds for all answers */
    TN_TRY(tn_grammar_begin(c->in_use, after, err));
    if (c->begun) (void)tn_grammar_pass(c->in_use, c->begun, c->n_begun); /* else it begins after that */
    c->active = true;
    return TERN_OK;
}

void tn_constraint_close(tern_session *s) {
    forget(s);
    tn_free(&s->e->ctx, s->constraint.shaped);
}

bool tn_constraint_done(const tn_constraint *c) { return c->active && tn_grammar_must_end(c->in_use); }

tern_status tn_constraint_shape(tn_constraint *c, const float **logits, size_t n_vocab, tern_error *err) {
    const uint64_t *mask;
    TN_TRY(tn_grammar_mask(c->in_use, &mask, err));
    for (size_t i = 0; i < n_vocab; i += 64) {
        size_t n = n_vocab - i < 64 ? n_vocab - i : 64;
        uint64_t w = mask[i / 64];
        if (w == UINT64_MAX) memcpy(c->shaped + i, *logits + i, n * sizeof *c->shaped);
        else
            for (size_t k = 0; k < n; k++) c->shaped[i + k] = w >> k & 1 ? (*logits)[i + k] : -INFINITY;
    }
    *logits = c->shaped;
    return TERN_OK;
}

tern_status tn_constraint_took(tn_constraint *c, int32_t *token, int32_t left, bool *closing,
                               tern_error *err) {
    /* the sampler draws from what is above -infinity, unless nothing is: logits that are no numbers */
    return tn_grammar_take_within(c->in_use, token, (size_t)left, closing, err);
}
