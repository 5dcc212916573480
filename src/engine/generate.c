/* The decode loop: sample, detokenise, watch for the end. */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/status.h"
#include "model/sampler.h"

#include <string.h>

void tern_sampling_defaults(tern_sampling *p) {
    *p = (tern_sampling){.size_bytes = sizeof *p, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f, .repeat_last_n = 64};
}

void tern_generate_options_defaults(tern_generate_options *o) {
    *o = (tern_generate_options){.size_bytes = sizeof *o, .max_tokens = 128};
    tern_sampling_defaults(&o->sampling);
}

/* Text on its way to the caller; holds back what may be the start of a stop string. */
typedef struct outlet {
    tn_ctx *ctx;
    const tern_generate_options *o;
    tn_detok detok;
    bool has_detok;
    char *buf; /* held-back text, then new text */
    size_t n, cap, longest_stop;
    bool stopped;
} outlet;

/* Bytes of out->buf that can go: all of it, less a tail that a stop string may begin with. Sets stopped on a match. */
static size_t releasable(outlet *t) {
    size_t go = t->n;
    for (const char *const *p = t->o->stop; p && *p; p++) {
        size_t len = strlen(*p);
        if (!len) continue;
        for (size_t i = 0; i < t->n && i < go; i++) {
            size_t rest = t->n - i, cmp = rest < len ? rest : len;
            if (memcmp(t->buf + i, *p, cmp)) continue;
            if (cmp == len) t->stopped = true;
            go = i;
            break;
        }
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
    for (const char *const *p = o->stop; p && *p; p++) t->longest_stop = strlen(*p) > t->longest_stop ? strlen(*p) : t->longest_stop;
    if (tok) {
        tn_detok_init(&t->detok, tok, false, false);
        t->has_detok = true;
    }
    t->cap = t->longest_stop + (tok ? 8 * tn_tokenizer_max_token_bytes(tok) : 0) + 64;
    t->buf = tn_alloc(t->ctx, TN_MEM_TEXT, t->cap, 1);
    TN_FAIL_IF(!t->buf, err, TERN_E_MEMORY, "no memory for output text");
    return TERN_OK;
}

tern_status tern_session_generate(tern_session *s, const tern_generate_options *opt, tern_generate_result *result, tern_error *err) {
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    if (opt) memcpy(&o, opt, opt->size_bytes < sizeof o ? opt->size_bytes : sizeof o);
    tern_generate_result res = {.reason = TERN_STOP_LENGTH};
    if (result) *result = res;
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(!s->has_logits, err, TERN_E_INVALID, "generate needs a prompt: prefill first");
    tn_sampler sampler = {0};
    outlet text = {0};
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    tern_status st = tn_sampler_open(&s->e->ctx, &o.sampling, n_vocab, &sampler, err);
    if (st == TERN_OK) st = outlet_open(&text, s, &o, err);
    double t0 = 0;
    while (st == TERN_OK && (o.max_tokens < 0 || res.n_tokens < o.max_tokens)) {
        if (atomic_exchange(&s->cancel, false)) {
            st = tn_fail(err, TERN_E_CANCELLED, "cancelled after %d tokens", res.n_tokens);
            break;
        }
        if (s->n_tok >= s->n_ctx) {
            res.reason = TERN_STOP_CONTEXT;
            break;
        }
        int32_t token = tn_sampler_draw(&sampler, s->logits, s->tokens, (size_t)s->n_tok);
        if (!res.n_tokens) t0 = tn_now_s();
        if (!o.ignore_end && tern_token_is_end(s->e, token)) {
            res.reason = TERN_STOP_END;
            break;
        }
        float logprob = o.on_token ? tn_logprob(s->logits, n_vocab, token) : 0;
        if (text.has_detok) text.n += tn_detok_push(&text.detok, token, text.buf + text.n, text.cap - text.n);
        res.n_tokens++;
        bool more = emit(&text, token, logprob);
        if (text.stopped || !more) {
            res.reason = text.stopped ? TERN_STOP_STRING : TERN_STOP_CALLBACK;
            break;
        }
        st = tern_session_step(s, token, err);
    }
    res.decode_s = res.n_tokens ? tn_now_s() - t0 : 0;
    if (st == TERN_OK && text.has_detok && !text.stopped) { /* what was held back, and half a character at the end */
        text.n += tn_detok_flush(&text.detok, text.buf + text.n, text.cap - text.n);
        if (text.n && o.on_token) o.on_token(o.user, -1, text.buf, text.n, 0);
    }
    tn_free(&s->e->ctx, text.buf);
    if (sampler.ctx) tn_sampler_close(&sampler);
    if (result) *result = res;
    return st;
}
