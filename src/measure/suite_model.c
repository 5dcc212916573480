/* measure/suite_model.c - the model's side of a suite: prompts, and answers of the likeliest tokens. */
#include "base/status.h"
#include "measure/suite_impl.h"
#include "session/constrain.h"
#include "text/tokenizer_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chat templates that tell the day are told this one (1 January 2025): answers do not depend on when they were asked for. */
static const int64_t DAY = 1735689600;

/* Room for so many tokens. */
static tern_status reserve(tn_suite_prompt *p, size_t cap, tern_error *err) {
    if (p->cap >= cap) return TERN_OK;
    int32_t *more = realloc(p->ids, cap * sizeof *more);
    TN_FAIL_IF(!more, err, TERN_E_MEMORY, "no memory for a prompt of %zu tokens", cap);
    p->ids = more;
    p->cap = cap;
    return TERN_OK;
}

tern_status tn_suite_tokens(const tn_suite *u, const char *text, size_t n_bytes, bool add_special,
                            tn_suite_prompt *p, tern_error *err) {
    for (size_t cap = n_bytes / 3 + 16;; cap = p->n) { /* the number needed is told */
        TN_TRY(reserve(p, cap, err));
        tern_status st = tern_tokenize(u->e, text, n_bytes, add_special, false, p->ids, p->cap, &p->n, err);
        if (st != TERN_E_LIMIT || p->n <= p->cap) return st;
    }
}

/* The template's tokens, with what is set in o. */
static tern_status chat_tokens(const tn_suite *u, const tern_chat_options *o, tn_suite_prompt *p,
                               tern_error *err) {
    for (size_t cap = 1024;; cap = p->n) {
        TN_TRY(reserve(p, cap, err));
        tern_status st = tern_chat_tokens(u->e, NULL, 0, o, p->ids, p->cap, &p->n, err);
        if (st != TERN_E_LIMIT || p->n <= p->cap) return st;
    }
}

/* Appends a text to a prompt, whose thought it ends first. */
static tern_status append(const tn_suite *u, const char *text, tn_suite_prompt *p, tern_error *err) {
    const char *ends = p->thinking ? p->form.think_ends : "";
    size_t n = 0;
    TN_TRY(reserve(p, p->n + strlen(ends) + strlen(text) + 16, err));
    TN_TRY(tern_tokenize(u->e, ends, strlen(ends), false, true, p->ids + p->n, p->cap - p->n, &n, err));
    p->n += n;
    TN_TRY(tern_tokenize(u->e, text, strlen(text), false, false, p->ids + p->n, p->cap - p->n, &n, err));
    p->n += n;
    p->thinking = false;
    return TERN_OK;
}

tern_status tn_suite_chat(const tn_suite *u, const json_t *messages, const json_t *tools, const char *begins,
                          tn_suite_prompt *p, tern_error *err) {
    const tn_tokenizer *t = u->e->model->tokenizer;
    char *text = NULL, *tools_text = NULL;
    json_t *as_text = NULL;
    const char *source = tools && t->tool_template ? t->tool_template : t->chat_template;
    p->form = tn_answer_form_of(source);
    TN_FAIL_IF(u->o->thinking && source && !strstr(source, "enable_thinking"), err, TERN_E_UNSUPPORTED,
               "thoughts cannot be turned on or off: the model's chat template has no enable_thinking");
    TN_FAIL_IF(tools && p->form.foreign, err, TERN_E_UNSUPPORTED,
               "the model writes calls of tools in a form that is not read (%s)", p->form.foreign);
    tern_status st = TERN_OK;
    if (tools && !p->form.knows_tools) st = tn_tools_as_text(messages, tools, &as_text, err);
    if (st == TERN_OK) st = tn_json_text(as_text ? as_text : messages, JSON_COMPACT, &text, err);
    if (st == TERN_OK && tools && !as_text) st = tn_json_text(tools, JSON_COMPACT, &tools_text, err);
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = text;
    o.tools = tools_text;
    o.now_s = DAY;
    if (u->o->thinking)
        o.variables = u->o->thinking > 0 ? "{\"enable_thinking\":true}" : "{\"enable_thinking\":false}";
    if (st == TERN_OK) st = chat_tokens(u, &o, p, err);
    free(text);
    free(tools_text);
    json_decref(as_text);
    if (st != TERN_OK) return st;
    p->thinking = p->form.think && tn_prompt_ends_with(t, p->ids, p->n, p->form.think);
    return begins ? append(u, begins, p, err) : TERN_OK;
}

tern_status tn_suite_prefill(tn_suite *u, const int32_t *ids, size_t n, tern_error *err) {
    if (u->fresh) tn_session_truncate(u->s, 0);
    return tern_session_prefill(u->s, ids, n, err);
}

/* ---- the answer ---------------------------------------------------------------------------------- */

typedef struct listener {
    tn_suite_answer *a;
    tn_answer *reader;
} listener;

static bool on_text(void *user, const char *p, size_t n) {
    tn_suite_answer *a = user;
    tn_bytes_add(&a->text, p, n);
    return !a->text.failed;
}

static bool on_thought(void *user, const char *p, size_t n) { return (void)user, (void)p, (void)n, true; }

static bool on_call(void *user, const char *name, const char *arguments) {
    tn_suite_answer *a = user;
    tn_json_append(&a->calls, tn_json_pack("{s:s, s:s}", "name", name, "arguments", arguments));
    return a->calls != NULL;
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    const listener *l = user;
    (void)token;
    (void)logprob;
    return tn_answer_put(l->reader, text, n);
}

tern_status tn_suite_generate(tn_suite *u, const tn_suite_prompt *p, const json_t *tools, int32_t max_tokens,
                              tn_suite_answer *a, tern_error *err) {
    tern_generate_options g;
    tern_generate_result res = {0};
    listener l = {.a = a};
    *a = (tn_suite_answer){.calls = json_array()};
    TN_FAIL_IF(!a->calls, err, TERN_E_MEMORY, "no memory for an answer");
    const tn_answer_options o = {.form = p->form,
                                 .tools = json_array_size(tools) ? tools : NULL,
                                 .thinking = p->thinking,
                                 .on = {on_text, on_thought, on_call, a, NULL}};
    tern_generate_options_defaults(&g);
    g.max_tokens = max_tokens;
    g.sampling.temperature = 0;
    g.no_logprobs = true;
    g.leave_last = true;
    g.on_token = on_token;
    g.user = &l;
    g.special_text = p->form.has_markers;
    TN_TRY(tn_answer_open((tn_ctx *)&u->e->ctx, &o, &l.reader, err));
    tern_status st = tn_suite_prefill(u, p->ids, p->n, err);
    if (st == TERN_OK) st = tern_session_generate(u->s, &g, &res, err);
    bool ok = st != TERN_OK || (tn_answer_end(l.reader) && !tn_answer_failed(l.reader));
    tn_answer_close(&l.reader);
    a->n_tokens = res.n_tokens;
    a->cut = res.reason == TERN_STOP_LENGTH || res.reason == TERN_STOP_CONTEXT;
    tn_bytes_add(&a->text, "", 0);
    return ok && !a->text.failed && a->calls ? st : tn_fail(err, TERN_E_MEMORY, "no memory for an answer");
}

void tn_suite_answer_free(tn_suite_answer *a) {
    free(a->text.p);
    json_decref(a->calls);
    *a = (tn_suite_answer){0};
}

int32_t tn_suite_max_tokens(const tn_suite *u, const tn_suite_task *t) {
    return u->o->max_tokens > 0 ? u->o->max_tokens : t->max_tokens;
}

void tn_suite_skip(json_t **record, const char *format, ...) {
    char why[200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    tn_json_set(record, "score", json_null());
    tn_json_set(record, "skipped", tn_json_string(why, strlen(why)));
}

void tn_suite_skip_long(json_t **record, const tn_suite *u, size_t n_tokens, int32_t n_answer) {
    tn_suite_skip(record, "a prompt of %zu tokens and an answer of %d do not fit the context of %d", n_tokens,
                  (int)n_answer, (int)tern_session_capacity(u->s));
}

void tn_suite_tell(json_t **record, const tn_suite_answer *a) {
    tn_json_set(record, "answer", tn_json_string(a->text.p, a->text.n));
    tn_json_set(record, "tokens", json_integer(a->n_tokens));
    if (a->cut) tn_json_set(record, "cut", json_true());
}
