#include "server/answering.h"

#include "server/adapters.h"

#include "base/clock.h"
#include "engine/adapters.h"
#include "model/sampler.h"
#include "server/reply.h"
#include "server/watch.h"
#include "session/session.h"
#include "text/grammar/grammar.h"
#include "text/chat.h"
#include "text/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ---- events ------------------------------------------------------------------------------------------- */

static bool put_piece(tn_answering *a, bool ok) {
    ok = ok && (!a->piece.n || a->o.put(a->o.user, a->piece.p, a->piece.n));
    a->piece.n = 0;
    return ok;
}

/* Says nothing where the request wants no stream. */
static bool say(tn_answering *a, tn_saying_kind kind, const char *text, size_t n) {
    static const tn_saying begin = {.kind = TN_SAYS_BEGIN, .text = ""};
    const tn_saying e = {.kind = kind, .text = text, .n = n};
    if (!a->r.stream) return true;
    bool ok = a->begun || a->sink->say(&a->said, &begin, &a->piece);
    a->begun = true;
    return put_piece(a, ok && a->sink->say(&a->said, &e, &a->piece));
}

/* ---- what the answer is made of -------------------------------------------------------------------- */

/* Appends a token's text, of which its entry has no more than this either. */
static bool add_bytes(const tn_answering *a, const json_t *token, tn_bytes *out) {
    char buf[512];
    const json_t *id = json_object_get(token, "id");
    size_t n = tern_token_bytes(a->said.e, (int32_t)json_integer_value(id), true, buf, sizeof buf);
    return tn_bytes_add(out, buf, n < sizeof buf ? n : sizeof buf);
}

/* Where the text begins in what the tokens are. It is not there where a byte is no text, or where it begins in a
 * token that is told already: then it begins with the first. */
static size_t text_begins(const tn_bytes *all, const char *p, size_t n) {
    if (all->n >= n && !memcmp(all->p, p, n)) return 0; /* the usual case; more of it may be held back */
    for (size_t at = all->n; at-- > 0;)
        if (all->n - at >= n && !memcmp(all->p + at, p, n)) return at;
    return 0;
}

/* The tokens whose text this is are told with it. Those in front of them were markup or a thought; those after
 * them are held back. */
static bool tell_tokens(tn_answering *a, const char *p, size_t n) {
    tn_bytes all = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(a->untold); i++)
        ok = add_bytes(a, json_array_get(a->untold, i), &all);
    const size_t begins = text_begins(&all, p, n), ends = begins + n;
    json_t *rest = json_array();
    for (size_t i = 0, at = 0, next; i < json_array_size(a->untold); i++, at = next) {
        json_t *token = json_array_get(a->untold, i);
        next = at + json_array_size(json_object_get(token, "bytes"));
        if (at >= ends) tn_json_append(&rest, json_incref(token));
        else if (next > begins) tn_json_append(&a->said.logprobs, json_incref(token));
    }
    free(all.p);
    json_decref(a->untold);
    a->untold = rest;
    return ok && a->untold && a->said.logprobs;
}

static bool on_text(void *user, const char *p, size_t n) {
    tn_answering *a = user;
    if (a->r.text_logprobs && !tell_tokens(a, p, n)) return false;
    return tn_bytes_add(&a->said.text, p, n) && say(a, TN_SAYS_TEXT, p, n);
}

static bool on_thought(void *user, const char *p, size_t n) {
    tn_answering *a = user;
    return tn_bytes_add(&a->said.thought, p, n) && say(a, TN_SAYS_THOUGHT, p, n);
}

/* Nine letters and digits: the only form that every template takes. */
static void new_id(char out[10]) {
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t rnd[9] = {0};
    if (getrandom(rnd, sizeof rnd, 0) != sizeof rnd) rnd[0] = 1;
    for (int i = 0; i < 9; i++) out[i] = set[rnd[i] % (sizeof set - 1)];
    out[9] = 0;
}

static bool on_call(void *user, const char *name, const char *arguments) {
    tn_answering *a = user;
    tn_said *s = &a->said;
    char id[10];
    if (a->r.one_call && tn_said_calls(s)) return true;
    new_id(id);
    tn_json_append(&s->calls,
                   tn_json_pack("{s:s, s:s, s:s}", "id", id, "name", name, "arguments", arguments));
    if (!s->calls) return false;
    s->n_calls++;
    a->enough = a->r.one_call;
    return say(a, TN_SAYS_CALL, "", 0) && say(a, TN_SAYS_ARGUMENTS, arguments, strlen(arguments)) &&
           say(a, TN_SAYS_CALLED, "", 0);
}

static bool on_piece(void *user, tn_call_piece what, const char *text, size_t n) {
    tn_answering *a = user;
    tn_said *s = &a->said;
    char id[10];
    if (what == TN_PIECE_NAME) {
        a->skips = a->r.one_call && tn_said_calls(s);
        a->arguments.n = 0;
        if (a->skips) return true;
        new_id(id);
        tn_json_append(&s->calls, tn_json_pack("{s:s, s:s, s:s}", "id", id, "name", text, "arguments", ""));
        if (!s->calls) return false;
        s->n_calls++;
        return say(a, TN_SAYS_CALL, "", 0);
    }
    if (a->skips) return true;
    if (what == TN_PIECE_MORE)
        return tn_bytes_add(&a->arguments, text, n) && say(a, TN_SAYS_ARGUMENTS, text, n);
    json_t *call = json_incref(json_array_get(s->calls, s->n_calls - 1));
    tn_json_set(&call, "arguments", tn_json_string(a->arguments.p ? a->arguments.p : "", a->arguments.n));
    if (what == TN_PIECE_BROKEN) tn_json_set(&call, "broken", json_true());
    bool ok = call != NULL;
    json_decref(call);
    s->n_broken += what == TN_PIECE_BROKEN;
    a->enough = a->r.one_call && what == TN_PIECE_WHOLE;
    return ok && say(a, what == TN_PIECE_WHOLE ? TN_SAYS_CALLED : TN_SAYS_BROKEN, "", 0);
}

static int by_prob(const void *a, const void *b) {
    const tn_candidate *x = a, *y = b;
    return x->p != y->p ? (x->p > y->p ? -1 : 1) : x->id - y->id;
}

/* The probability that the token was drawn with, and the likeliest of those it was drawn from. */
static json_t *drawn(tn_answering *a, int32_t token) {
    const tn_candidate *c = a->on->drawn;
    double p = a->on->n_drawn ? 0 : 1; /* nothing but the likeliest: it is sure */
    tn_candidate best[TN_REQUEST_TOP + 1];
    size_t n = 0, want = (size_t)a->r.n_top;
    json_t *top = json_array();
    for (size_t i = 0; i < a->on->n_drawn; i++) {
        if (c[i].id == token) p = c[i].p;
        best[n < want ? n++ : want] = c[i];
        if (n == want) qsort(best, i < want ? n : want + 1, sizeof *best, by_prob);
    }
    if (n < want) qsort(best, n, sizeof *best, by_prob);
    for (size_t i = 0; i < n; i++)
        if (best[i].p > 0) tn_json_append(&top, tn_said_prob(a->said.e, best[i].id, best[i].p, NULL));
    if (!a->on->n_drawn && want) tn_json_append(&top, tn_said_prob(a->said.e, token, 1, NULL));
    return tn_said_prob(a->said.e, token, p, top);
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    tn_answering *a = user;
    tn_said *s = &a->said;
    if (atomic_load(a->o.cancelled)) return false;
    tn_watch_token(a->r.watch, token);
    if (token >= 0) {
        a->o.token(a->o.user);
        tn_said_took(s);
        tn_shaping_took(&a->shaping, token);
        if (s->tokens) tn_json_append(&s->tokens, json_integer(token));
        if (a->r.tokens && !s->tokens) return false;
    }
    if (a->r.logprobs && token >= 0) {
        if ((!a->r.stream || a->r.text_logprobs) && !a->o.keep_probs(a->o.user, 1 + (size_t)a->r.n_top))
            return false;
        if (a->r.drawn_probs && a->on) {
            tn_json_append(&s->logprobs, drawn(a, token));
        } else {
            tn_json_append(a->r.text_logprobs ? &a->untold : &s->logprobs,
                           tn_said_logprob(s->e, token, logprob, a->top ? a->top : json_array()));
            a->top = NULL;
        }
        if (!s->logprobs || !a->untold) return false;
    }
    if (a->reader) {
        if (!tn_answer_put(a->reader, text, n) || a->enough) return false;
    } else if (n && !on_text(a, text, n)) {
        return false;
    }
    return say(a, TN_SAYS_TOKEN, "", 0);
}

/* The likeliest tokens, told with the one drawn next. */
static bool note_top(tn_answering *a, const float *logits, size_t n_vocab) {
    int32_t best[TN_REQUEST_TOP];
    float logprobs[TN_REQUEST_TOP];
    int n = tn_top_logprobs(logits, n_vocab, a->r.n_top, best, logprobs);
    json_decref(a->top);
    a->top = json_array();
    for (int k = 0; k < n; k++)
        tn_json_append(&a->top, tn_said_logprob(a->said.e, best[k], logprobs[k], NULL));
    return a->top != NULL;
}

static bool on_logits(void *user, float *logits, size_t n_vocab) {
    tn_answering *a = user;
    if (a->r.n_top && !a->r.drawn_probs && !note_top(a, logits, n_vocab)) return false;
    tn_shaping_apply(&a->shaping, logits, n_vocab);
    return true;
}

/* ---- the prompt ------------------------------------------------------------------------------------ */

/* Templates of before strftime_now are told the day, in the words that each has for it, and some the tools as one
 * text; and all whether thoughts come first, where the server says so and the request does not. */
static tern_status put_variables(tn_answering *a, const char *tools, tern_error *err) {
    static const char *const names[][2] = {{"date_string", "%d %b %Y"}, {"datetime", "%b %d %Y"}};
    time_t now = time(NULL);
    struct tm day;
    json_t *all = json_object();
    TN_FAIL_IF(!localtime_r(&now, &day), err, TERN_E_INVALID, "the time cannot be told");
    for (int i = 0; i < 2; i++) {
        char text[40];
        size_t n = strftime(text, sizeof text, names[i][1], &day);
        tn_json_set(&all, names[i][0], tn_json_string(text, n));
    }
    tn_json_set(&all, "functions", tn_json_string(tools ? tools : "", tools ? strlen(tools) : 0));
    if (a->o.usual && a->o.usual->thinking)
        tn_json_set(&all, "enable_thinking", json_boolean(a->o.usual->thinking > 0));
    const char *name;
    json_t *v;
    json_object_foreach(a->r.variables, name, v) tn_json_set(&all, name, json_incref(v));
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory for the prompt");
    json_decref(a->r.variables);
    a->r.variables = all;
    return TERN_OK;
}

/* The prompt as a text, and what is begun of the answer. */
static tern_status render(tn_answering *a, const tern_chat_options *o, tern_error *err) {
    const tn_tokenizer *t = a->o.e->model->tokenizer;
    size_t cap = 0, n = 0;
    char *text = NULL;
    TN_FAIL_IF(!t, err, TERN_E_UNSUPPORTED, "the model has no tokenizer");
    tern_status st = tn_chat_render(t, NULL, 0, o, NULL, 0, &n, err);
    while (st == TERN_E_LIMIT && n > cap) {
        free(text);
        text = malloc(cap = n);
        st = text ? tn_chat_render(t, NULL, 0, o, text, cap, &n, err)
                  : tn_fail(err, TERN_E_MEMORY, "no memory for the prompt");
    }
    bool ok = st != TERN_OK || (tn_bytes_add(&a->said.text, text ? text : "", n) &&
                                tn_bytes_add(&a->said.text, a->r.begun ? json_string_value(a->r.begun) : "",
                                             json_string_length(a->r.begun)));
    free(text);
    return ok ? st : tn_fail(err, TERN_E_MEMORY, "no memory for the prompt");
}

/* The prompt of a conversation with pictures. */
static tern_status looking_ids(tn_answering *a, const tern_chat_options *o, const json_t *messages,
                               tern_error *err) {
    int32_t *ids;
    size_t n = 0;
    free(a->shown);
    a->n_shown = tn_images_count(messages);
    a->shown = malloc((a->n_shown + 1) * sizeof(tn_look *));
    TN_FAIL_IF(!a->shown, err, TERN_E_MEMORY, "no memory for the prompt");
    TN_FAIL_IF(a->n_shown != tn_images_count(a->r.messages), err, TERN_E_UNSUPPORTED,
               "the model's chat template knows no results of tools: it takes no pictures in them");
    tn_images_shown(messages, a->looks, a->shown);
    TN_TRY(tn_look_chat(a->o.e, o, a->shown, a->n_shown, &ids, &n, err));
    free(a->said.ids);
    a->said.ids = realloc(ids, (n + 64) * sizeof *ids); /* and a prefix */
    a->said.n_ids = n;
    if (!a->said.ids) free(ids);
    TN_FAIL_IF(!a->said.ids, err, TERN_E_MEMORY, "no memory for the prompt");
    return TERN_OK;
}

/* One prompt after the other until it fits: the number needed is told. */
static tern_status plain_ids(tn_answering *a, const tern_chat_options *o, tern_error *err) {
    tern_status st = TERN_OK;
    for (size_t cap = 0; st == TERN_OK || (st == TERN_E_LIMIT && cap < a->said.n_ids);) {
        free(a->said.ids);
        cap = a->said.n_ids;
        a->said.ids = malloc((cap + 64) * sizeof *a->said.ids); /* and a prefix */
        if (!a->said.ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for the prompt");
        else st = tern_chat_tokens(a->o.e, NULL, 0, o, a->said.ids, cap, &a->said.n_ids, err);
        if (st == TERN_OK) break;
    }
    return st;
}

static tern_status chat_ids(tn_answering *a, tern_error *err) {
    tn_request *r = &a->r;
    char *messages = NULL, *tools = NULL, *variables = NULL;
    json_t *as_text = NULL;
    tern_status st = TERN_OK;
    if (!a->form.knows_tools) st = tn_tools_as_text(r->messages, r->tools, &as_text, err);
    if (st == TERN_OK) st = tn_json_text(as_text ? as_text : r->messages, JSON_COMPACT, &messages, err);
    if (st == TERN_OK && r->tools && !as_text) st = tn_json_text(r->tools, JSON_COMPACT, &tools, err);
    if (st == TERN_OK) st = put_variables(a, tools, err);
    if (st == TERN_OK && json_object_size(r->variables))
        st = tn_json_text(r->variables, JSON_COMPACT, &variables, err);
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = messages;
    o.tools = tools;
    o.variables = variables;
    o.chat_template = a->o.chat_template;
    o.no_answer = r->no_answer;
    if (st == TERN_OK && r->renders) st = render(a, &o, err);
    if (st == TERN_OK && !r->renders)
        st = a->looks ? looking_ids(a, &o, as_text ? as_text : r->messages, err) : plain_ids(a, &o, err);
    free(messages);
    free(tools);
    free(variables);
    json_decref(as_text);
    return st;
}

/* The first message of a user after `from`, but not the last message; 0: there is none. */
static size_t next_turn(const json_t *messages, size_t from) {
    for (size_t i = from + 1; i + 1 < json_array_size(messages); i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role && !strcmp(role, "user")) return i;
    }
    return 0;
}

/* Oldest turns leave until the prompt leaves a quarter of the context to the answer; by halves of what is
 * too much, so that the cut stays where it is for some turns. */
static tern_status shift(tn_answering *a, tern_error *err) {
    size_t n_ctx = (size_t)a->o.n_ctx, most = n_ctx - n_ctx / 4, wanted = n_ctx / 2;
    json_t *all = a->r.messages;
    const char *role = json_string_value(json_object_get(json_array_get(all, 0), "role"));
    size_t sys = role && !strcmp(role, "system");
    if (a->said.n_ids <= most) return TERN_OK;
    for (size_t cut = next_turn(all, sys), block = 0; cut; cut = next_turn(all, cut)) {
        if (cut / 8 == block && next_turn(all, cut)) continue; /* eight messages at a time */
        block = cut / 8;
        json_t *rest = json_array();
        for (size_t i = 0; i < json_array_size(all); i++)
            if (i < sys || i >= cut) tn_json_append(&rest, json_incref(json_array_get(all, i)));
        TN_FAIL_IF(!rest, err, TERN_E_MEMORY, "no memory for the request");
        a->r.messages = rest;
        tern_status st = chat_ids(a, err);
        a->r.messages = all;
        json_decref(rest);
        if (st != TERN_OK || a->said.n_ids <= wanted) return st;
    }
    return TERN_OK;
}

/* The markup in front of a call that must come, where the model would have written it. */
static tern_status put_prefix(tn_answering *a, tern_error *err) {
    const char *p = tn_tools_prefix(a->form.calls);
    size_t n = 0;
    if (!*p || !a->form.knows_tools || a->thinking) return TERN_OK;
    TN_TRY(tern_tokenize(a->o.e, p, strlen(p), false, true, a->said.ids + a->said.n_ids, 64, &n, err));
    a->said.n_ids += n;
    return TERN_OK;
}

/* What comes after the thoughts of a text that an answer goes on from. NULL: it ends within a thought. */
static const char *after_thoughts(const tn_answering *a, const char *text) {
    const char *opens = a->form.think, *ends = a->form.think_ends;
    if (!opens || !*opens || !ends || !*ends) return text;
    for (const char *p; (p = strstr(text, ends));) text = p + strlen(ends);
    return strstr(text, opens) ? NULL : text;
}

/* A thought that the template opened is closed first, unless the text has thoughts itself: what is begun is the answer. */
static tern_status put_begun(tn_answering *a, const json_t *text, tern_error *err) {
    tn_said *s = &a->said;
    const char *begun = json_string_value(text), *rest = after_thoughts(a, begun);
    const char *ends = a->thinking && rest == begun ? a->form.think_ends : "";
    size_t n = 0, n_text = json_string_length(text), cap = s->n_ids + n_text + 64;
    int32_t *more = realloc(s->ids, cap * sizeof *more);
    TN_FAIL_IF(!more, err, TERN_E_MEMORY, "no memory for the prompt");
    s->ids = more;
    TN_TRY(tern_tokenize(s->e, ends, strlen(ends), false, true, s->ids + s->n_ids, 48, &n, err));
    s->n_ids += n;
    a->thinking = !rest;
    TN_TRY(tn_text_ids(s->e, begun, n_text, s->ids + s->n_ids, cap - s->n_ids, &n, err));
    s->n_ids += n;
    return TERN_OK;
}

static tern_status open_chat(tn_answering *a, tern_error *err) {
    const tn_tokenizer *t = a->o.e->model->tokenizer;
    tn_request *r = &a->r;
    const char *source = a->o.chat_template;
    if (!source && t) source = r->tools && t->tool_template ? t->tool_template : t->chat_template;
    a->form = tn_answer_form_of(source);
    TN_FAIL_IF(r->tools && a->form.foreign && !r->renders, err, TERN_E_UNSUPPORTED,
               "the model writes calls of tools in a form that is not read (%s)", a->form.foreign);
    if (!r->renders) TN_TRY(tn_images_look(r, a->o.e, &a->o.images, &a->looks, err));
    TN_TRY(chat_ids(a, err));
    if (r->renders) return TERN_OK;
    if (a->o.shift) TN_TRY(shift(a, err));
    a->thinking = a->form.think && tn_prompt_ends_with(t, a->said.ids, a->said.n_ids, a->form.think);
    if (r->begun) TN_TRY(put_begun(a, r->begun, err));
    if (r->forced) {
        tn_call_form form = a->form.knows_tools ? a->form.calls : TN_CALLS_GENERIC;
        TN_TRY(tn_tools_schema(r->tools, r->forced_tool, form, &r->schema, err));
        TN_TRY(put_prefix(a, err));
    }
    const tn_answer_options o = {
        .form = a->form,
        .tools = r->tools,
        .thinking = a->thinking,
        .forced = r->forced,
        .on = {on_text, on_thought, on_call, a, r->stream && a->sink->pieces ? on_piece : NULL}};
    return tn_answer_open((tn_ctx *)&a->o.e->ctx, &o, &a->reader, err);
}

static tern_status make_prompt(tn_answering *a, tern_error *err) {
    tn_said *s = &a->said;
    TN_FAIL_IF(!s->calls || !s->logprobs || !a->untold, err, TERN_E_MEMORY, "no memory for the request");
    TN_TRY(tn_adapters_read(a->o.e, json_object_get(a->r.body, "lora"), &a->o.own, &a->mix, err));
    TN_TRY(a->r.prompt ? tn_prompt_ids(&a->r, s, err) : open_chat(a, err));
    if (a->r.renders) return TERN_OK;
    TN_TRY(tn_shaping_open(&a->shaping, &a->r, s->e, err));
    TN_FAIL_IF(!s->n_ids, err, TERN_E_INVALID, "%s",
               a->r.embeds
                   ? "'input' must be a text, a list of tokens, or a list of those, none of them empty"
                   : "the prompt is empty: it has no tokens");
    if (a->r.embeds)
        return s->n_ids > (size_t)a->o.n_ctx ? tn_fail_context_of_text(s->n_ids, a->o.n_ctx, err) : TERN_OK;
    const size_t answer = a->r.max_tokens != 0; /* room for one token of it */
    if (s->n_ids + answer > (size_t)a->o.n_ctx) return tn_fail_context(s->n_ids, a->o.n_ctx, err);
    return TERN_OK;
}

tern_status tn_answering_open(tn_answering *a, tn_request *r, const tn_answering_options *o,
                              tern_error *err) {
    *a = (tn_answering){.r = *r, .o = *o};
    *r = (tn_request){0};
    a->untold = json_array();
    if (o->usual) tn_request_settle(&a->r, o->usual);
    a->sink = a->r.sink ? a->r.sink : tn_sink_of(a->r.api);
    a->said = (tn_said){.r = &a->r,
                        .e = o->e,
                        .model = o->model,
                        .choice = a->r.choice,
                        .created = (int64_t)time(NULL),
                        .n_ctx = o->n_ctx,
                        .calls = json_array(),
                        .logprobs = json_array(),
                        .tokens = a->r.tokens ? json_array() : NULL,
                        .user = a->r.sink_user};
    tn_request_name(&a->r);
    snprintf(a->said.id, sizeof a->said.id, "%s%016llx%08llx", a->sink->prefix,
             (unsigned long long)a->r.id[0], (unsigned long long)(a->r.id[1] & 0xffffffff));
    return make_prompt(a, err);
}

void tn_answering_options_of(tn_answering *a, tern_generate_options *o) {
    tern_generate_options_defaults(o);
    o->max_tokens = a->r.max_tokens;
    o->sampling = a->r.sampling;
    o->stop = a->r.stop;
    o->grammar = a->r.grammar;
    o->json_schema = a->r.schema;
    if (a->thinking && (o->grammar || o->json_schema)) o->grammar_after = a->form.think_ends;
    o->special_text = a->reader && a->form.has_markers &&
                      (a->r.tools || a->form.calls == TN_CALLS_HARMONY || a->form.think);
    o->no_logprobs = !a->r.logprobs;
    o->on_token = on_token;
    o->ignore_end = a->r.ignore_end;
    o->leave_last = true; /* a next prompt brings it */
    if (a->r.n_top || tn_shaping_any(&a->shaping)) o->on_logits = on_logits;
    o->user = a;
}

bool tn_answering_read(tn_answering *a, size_t n_read) {
    a->said.n_read = n_read;
    return !a->r.progress || say(a, TN_SAYS_PROGRESS, "", 0);
}

static bool on_prompt_logits(void *user, size_t i, const float *logits) {
    tn_answering *a = user;
    if (atomic_load(a->o.cancelled)) return false;
    if (i + 1 < a->said.n_ids)
        tn_scores_put(&a->said.scores, i + 1, a->said.ids[i + 1], logits, (size_t)a->o.e->model->h.n_vocab);
    return true;
}

tern_status tn_answering_score(tn_answering *a, tern_error *err) {
    a->scorer = (tn_scorer){.on_logits = on_prompt_logits, .user = a};
    return tn_scores_open(&a->said.scores, a->said.n_ids, a->r.n_top, err);
}

bool tn_answering_scored(tn_answering *a) { return say(a, TN_SAYS_PROMPT, "", 0); }

bool tn_answering_ended(tn_answering *a, int32_t token, const float *logits) {
    tn_said *s = &a->said;
    const float logprob = tn_logprob(logits, (size_t)a->o.e->model->h.n_vocab, token);
    tn_json_append(&s->logprobs, tn_said_logprob(s->e, token, logprob, a->top ? a->top : json_array()));
    a->top = NULL;
    return s->logprobs && say(a, TN_SAYS_TOKEN, "", 0);
}

const char *tn_answering_mark(const tn_answering *a) {
    const tn_request *r = &a->r;
    return r->tools && r->schema && !r->forced && a->form.knows_tools ? tn_tools_mark(a->form.calls) : NULL;
}

/* Of a call that is required the arguments have a format, and no text in front of it. Thoughts and white space before JSON are
 * none of it. */
const char *tn_answering_begun(const tn_answering *a, size_t *n_bytes) {
    const tn_request *r = &a->r;
    if (!r->begun || r->forced || (!r->grammar && !r->schema)) return NULL;
    const char *p = json_string_value(r->begun), *end = p + json_string_length(r->begun);
    p = after_thoughts(a, p);
    if (!p) return NULL;
    while (r->schema && p < end && memchr(" \n\r\t", *p, 4)) p++;
    *n_bytes = (size_t)(end - p);
    return p;
}

tern_status tn_answering_grammar(tn_answering *a, tn_grammar *g, tern_error *err) {
    size_t n;
    const char *begun = tn_answering_begun(a, &n), *keywords = tn_grammar_later(g);
    char list[256]; /* keywords are no longer than expr.h lets them be */
    a->apart = begun && a->r.schema && !tn_grammar_begins(g, begun, n);
    if (!a->apart && !keywords) return TERN_OK;
    snprintf(list, sizeof list, "%s%s%s", keywords ? keywords : "", a->apart && keywords ? ", " : "",
             a->apart ? "prefill" : "");
    a->said.later = strdup(list);
    TN_FAIL_IF(!a->said.later, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

/* Whether each call's arguments are what its tool takes. */
static bool calls_fit(const tn_answering *a, tn_ctx *ctx) {
    bool fit = a->said.n_calls && !a->said.n_broken;
    for (size_t i = 0; i < a->said.n_calls && fit; i++) {
        const json_t *call = json_array_get(a->said.calls, i), *tool;
        const char *name = json_string_value(json_object_get(call, "name")), *text;
        size_t k;
        json_array_foreach(a->r.tools, k, tool) {
            const json_t *f = json_object_get(tool, "function"), *takes = json_object_get(f, "parameters");
            char *schema = NULL;
            text = json_string_value(json_object_get(f, "name"));
            if (!takes || !name || !text || strcmp(name, text) != 0) continue;
            const json_t *given = json_object_get(call, "arguments");
            fit = tn_json_text(takes, JSON_COMPACT, &schema, NULL) == TERN_OK &&
                  tn_schema_fits(ctx, schema, strlen(schema), json_string_value(given),
                                 json_string_length(given));
            free(schema);
            break;
        }
    }
    return fit;
}

/* Whether the turn is what the schema takes, with the text that it began with. */
static bool turn_fits(const tn_answering *a, tn_ctx *ctx) {
    size_t n = 0;
    const char *begun = tn_answering_begun(a, &n);
    tn_bytes all = {0};
    const bool fit = tn_bytes_add(&all, begun ? begun : "", n) &&
                     tn_bytes_add(&all, a->said.text.p ? a->said.text.p : "", a->said.text.n) &&
                     tn_schema_fits(ctx, a->r.schema, strlen(a->r.schema), all.p ? all.p : "", all.n);
    free(all.p);
    return fit;
}

/* Calls have no format to fit, unless a call was all that was asked for. */
static void check(tn_answering *a) {
    tn_ctx ctx;
    if (tn_said_calls(&a->said) && !a->r.forced) {
        free(a->said.later);
        a->said.later = NULL;
        return;
    }
    tn_ctx_init(&ctx, NULL);
    a->said.fits = a->r.forced ? calls_fit(a, &ctx) : !a->apart && turn_fits(a, &ctx);
}

bool tn_answering_finish(tn_answering *a, tern_status st, const tern_error *err) {
    if (st == TERN_OK && a->reader && !tn_answer_end(a->reader)) return false;
    if (st == TERN_OK && a->said.later) check(a);
    if (st == TERN_OK) return a->told = say(a, TN_SAYS_END, "", 0);
    /* where nothing was said, the reply is the failure's own */
    return !a->begun || (a->told = put_piece(a, a->sink->fail(err, &a->piece)));
}

tern_status tn_answering_see(tn_answering *a, size_t n_known, bool *more, tern_error *err) {
    const int32_t n_vocab = a->o.e->model->h.n_vocab;
    size_t at = 0;
    *more = false;
    for (size_t i = 0; i < a->n_shown; i++) {
        tn_look *l = a->shown[i];
        int32_t n_skipped = 0;
        for (int32_t k = 0; k < l->medium.n_views; k++) { /* views whose rows are all known */
            for (int32_t r = 0; r < l->views[k]->n; at++) r += a->said.ids[at] >= n_vocab;
            n_skipped += at <= n_known;
        }
        tn_look_skip(l, n_skipped);
        if (*more || tn_look_done(l)) {
            *more = *more || !tn_look_done(l);
            continue;
        }
        l->pause = a->on ? a->on->pause : NULL; /* a view lets go first what a chunk of the prompt does */
        const tern_status st = tn_look_encode(l, a->o.cancelled, more, err);
        l->pause = NULL;
        TN_TRY(st);
    }
    return TERN_OK;
}

void tn_answering_free(tn_answering *a) {
    tn_images_free(a->looks, json_array_size(a->r.pictures));
    free(a->shown);
    tn_answer_close(&a->reader);
    json_decref(a->said.calls);
    json_decref(a->said.logprobs);
    json_decref(a->said.tokens);
    json_decref(a->said.items);
    json_decref(a->said.block_logprobs);
    json_decref(a->top);
    json_decref(a->untold);
    free(a->said.ids);
    free(a->said.text.p);
    free(a->said.thought.p);
    free(a->piece.p);
    free(a->arguments.p);
    tn_scores_close(&a->said.scores);
    tn_shaping_close(&a->shaping);
    tn_request_free(&a->r);
}
