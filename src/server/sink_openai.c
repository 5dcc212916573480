/* Chats and completions as OpenAI's API has them. */
#include "server/prompts.h"
#include "server/reply.h"

#include <stdlib.h>
#include <string.h>

static bool is_chat(const tn_said *s) { return s->r->api == TN_API_CHAT; }

/* Makes the frame of a reply. It takes choices. */
static json_t *frame(const tn_said *s, bool chunk, json_t *choices) {
    const char *object = !is_chat(s) ? "text_completion"
                         : chunk     ? "chat.completion.chunk"
                                     : "chat.completion";
    return tn_json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", s->id, "object", object, "created",
                        (json_int_t)s->created, "model", s->model, "system_fingerprint",
                        "build-tern-" TERN_VERSION_STRING, "choices", choices);
}

static json_t *one(json_t *choice) { /* takes choice */
    json_t *list = json_array();
    tn_json_append(&list, choice);
    return list;
}

/* Prompts are counted once, whatever answers each has. */
static json_t *usage(tn_said *const *all, size_t n) {
    json_int_t prompt = 0, cached = 0, out = 0, thought = 0;
    for (size_t i = 0; i < n; i++) {
        out += all[i]->res.n_tokens;
        thought += tn_said_thoughts(all[i]);
        if (i % (size_t)all[i]->r->per_prompt) continue;
        prompt += (json_int_t)all[i]->n_ids;
        cached += (json_int_t)all[i]->n_cached;
    }
    json_t *u = tn_json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", out,
                             "total_tokens", prompt + out, "prompt_tokens_details", "cached_tokens", cached);
    if (is_chat(all[0])) /* texts that go on have no thoughts */
        tn_json_set(&u, "completion_tokens_details", tn_json_pack("{s:I}", "reasoning_tokens", thought));
    return u;
}

static const char *reason(const tn_said *s) {
    return tn_said_length(s) ? "length" : tn_said_calls(s) ? "tool_calls" : "stop";
}

/* The passages that the prompt quotes, where it quotes any. */
static json_t *with_sources(const tn_said *s, json_t *f) {
    if (s->r->sources) tn_json_set(&f, "sources", json_incref(s->r->sources));
    return f;
}

/* What a text that begins with its prompt has in front. */
static tern_status echoed(const tn_said *s, char **text, size_t *n) {
    const json_t *p = s->r->prompt;
    *n = json_string_length(p);
    if (!json_is_string(p)) return tn_ids_text(s->e, s->ids, s->n_ids, text, n, NULL);
    *text = malloc(*n + 1);
    if (*text) memcpy(*text, json_string_value(p), *n + 1);
    return *text ? TERN_OK : TERN_E_MEMORY;
}

/* Completions have lists: those of the prompt, where it has any and they are wanted, then of the answer's tokens. */
static json_t *lists_of(tn_said *s, bool prompt, const json_t *list) {
    tn_score_lists x;
    char *text = NULL;
    size_t n;
    tn_score_lists_begin(&x);
    bool ok = !prompt || echoed(s, &text, &n) == TERN_OK;
    if (ok && prompt) tn_score_lists_prompt(&x, &s->scores, s->e, s->ids, s->n_ids, text, n, &s->place);
    free(text);
    for (size_t i = 0; i < json_array_size(list); i++)
        tn_score_lists_token(&x, s->e, json_array_get(list, i), s->r->drawn_probs, &s->place);
    json_t *v = tn_score_lists_end(&x);
    if (ok) return v;
    json_decref(v);
    return NULL;
}

static json_t *logprobs_of(tn_said *s, bool prompt, json_t *list) { /* takes list */
    if (is_chat(s)) return tn_json_pack("{s:o}", "content", list);
    json_t *v = lists_of(s, prompt, list);
    tn_json_set(&v, "content", list); /* as llama.cpp's server has them: of the answer alone */
    return v;
}

static json_t *call_of(const tn_said *s, size_t i, const char *arguments) {
    const json_t *c = json_array_get(s->calls, i);
    json_t *args = arguments ? tn_json_string(arguments, strlen(arguments))
                             : json_incref(json_object_get(c, "arguments"));
    return tn_json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", json_object_get(c, "id"), "type", "function",
                        "function", "name", json_object_get(c, "name"), "arguments", args);
}

/* ---- streams ------------------------------------------------------------------------------------------ */

static bool put_choice(const tn_said *s, json_t *c, tn_bytes *out) { /* takes c */
    json_t *f = frame(s, true, one(c));
    tn_said_set_timings(s, &f);
    return tn_sink_event(out, NULL, f);
}

/* Takes d, and lps, which may be NULL. */
static bool put_delta(tn_said *s, json_t *d, json_t *lps, tn_bytes *out) {
    json_t *c =
        tn_json_pack("{s:i, s:o, s:o}", "index", (int)s->choice, "delta", d, "finish_reason", json_null());
    if (lps) tn_json_set(&c, "logprobs", logprobs_of(s, false, lps));
    return put_choice(s, c, out);
}

static bool put_text(tn_said *s, const char *field, const char *text, size_t n, tn_bytes *out) {
    json_t *lps = tn_said_waiting(s);
    if (is_chat(s)) {
        json_t *d = json_object();
        tn_json_set(&d, field, tn_json_string(text, n));
        return put_delta(s, d, lps, out);
    }
    json_t *c = tn_json_pack("{s:i, s:s%, s:o}", "index", (int)s->choice, "text", text, n, "finish_reason",
                             json_null());
    if (lps) tn_json_set(&c, "logprobs", logprobs_of(s, false, lps));
    return put_choice(s, c, out);
}

static bool put_role(const tn_said *s, tn_bytes *out) {
    json_t *d = tn_json_pack("{s:s, s:o}", "role", "assistant", "content", json_null());
    json_t *c =
        tn_json_pack("{s:i, s:o, s:o}", "index", (int)s->choice, "delta", d, "finish_reason", json_null());
    return tn_sink_event(out, NULL, with_sources(s, frame(s, true, one(c))));
}

static bool put_call(tn_said *s, json_t *call, tn_bytes *out) { /* takes call */
    json_t *list = json_array(), *d = json_object();
    tn_json_set(&call, "index", json_integer((json_int_t)s->n_calls - 1));
    tn_json_append(&list, call);
    tn_json_set(&d, "tool_calls", list);
    return put_delta(s, d, NULL, out);
}

static bool put_end(const tn_said *s, tn_bytes *out) { /* with timings where no usage follows */
    json_t *c;
    if (is_chat(s))
        c = tn_json_pack("{s:i, s:o, s:s}", "index", (int)s->choice, "delta", json_object(), "finish_reason",
                         reason(s));
    else c = tn_json_pack("{s:i, s:s, s:s}", "index", (int)s->choice, "text", "", "finish_reason", reason(s));
    tn_said_set_check(s, &c);
    json_t *f = frame(s, true, one(c));
    if (s->r->verbose) tn_json_set(&f, "__verbose", tn_said_verbose(s));
    return tn_sink_event(out, NULL, f);
}

static bool put_echo(tn_said *s, tn_bytes *out) {
    char *text = NULL;
    size_t n = 0;
    if (echoed(s, &text, &n) != TERN_OK) return false;
    json_t *c = tn_json_pack("{s:i, s:s%, s:o}", "index", (int)s->choice, "text", text, n, "finish_reason",
                             json_null());
    if (s->r->scores) tn_json_set(&c, "logprobs", logprobs_of(s, true, json_array()));
    free(text);
    return put_choice(s, c, out);
}

static bool put_progress(const tn_said *s, tn_bytes *out) {
    json_t *f = frame(s, true, json_array());
    tn_json_set(&f, "prompt_progress", tn_said_progress(s));
    return tn_sink_event(out, NULL, f);
}

static bool say(tn_said *s, const tn_saying *e, tn_bytes *out) {
    switch (e->kind) {
    case TN_SAYS_BEGIN:
        return is_chat(s) ? put_role(s, out) : !s->r->echo || s->r->scores || put_echo(s, out);
    case TN_SAYS_PROMPT: return put_echo(s, out);
    case TN_SAYS_PROGRESS: return put_progress(s, out);
    case TN_SAYS_TEXT: return put_text(s, "content", e->text, e->n, out);
    case TN_SAYS_THOUGHT: return put_text(s, "reasoning_content", e->text, e->n, out);
    case TN_SAYS_CALL: return put_call(s, call_of(s, s->n_calls - 1, ""), out);
    case TN_SAYS_ARGUMENTS:
        return put_call(s, tn_json_pack("{s:{s:s%}}", "function", "arguments", e->text, e->n), out);
    case TN_SAYS_TOKEN: /* whose text is held back */
        return !s->r->logprobs || !json_array_size(s->logprobs) || put_text(s, "content", "", 0, out);
    case TN_SAYS_END: return put_end(s, out);
    default: return true;
    }
}

static bool tail(tn_said *const *all, size_t n, tn_bytes *out) {
    const tn_said *s = all[0];
    if (s->r->include_usage) {
        json_t *f = frame(s, true, json_array());
        tn_json_set(&f, "usage", usage(all, n));
        tn_json_set(&f, "timings", tn_said_timings(s));
        if (!tn_sink_event(out, NULL, f)) return false;
    }
    return tn_bytes_put(out, "data: [DONE]\n\n");
}

/* ---- whole replies ------------------------------------------------------------------------------------ */

static json_t *message(const tn_said *s) {
    json_t *m = tn_json_pack("{s:s, s:o}", "role", "assistant", "content",
                             s->n_calls && !s->text.n ? json_null() : tn_said_text(&s->text));
    if (s->thought.n) tn_json_set(&m, "reasoning_content", tn_said_text(&s->thought));
    if (!s->n_calls) return m;
    json_t *calls = json_array();
    for (size_t i = 0; i < s->n_calls; i++) tn_json_append(&calls, call_of(s, i, NULL));
    tn_json_set(&m, "tool_calls", calls);
    return m;
}

static json_t *text_of(const tn_said *s) {
    char *text = NULL;
    size_t n = 0;
    if (!s->r->echo) return tn_said_text(&s->text);
    tn_bytes all = {0};
    bool ok = echoed(s, &text, &n) == TERN_OK && tn_bytes_add(&all, text, n) &&
              tn_bytes_add(&all, s->text.p ? s->text.p : "", s->text.n);
    json_t *v = ok ? tn_said_text(&all) : NULL;
    free(text);
    free(all.p);
    return v;
}

static json_t *whole(tn_said *const *all, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        tn_said *s = all[i];
        json_t *c = tn_json_pack("{s:i, s:o, s:s}", "index", (int)s->choice, is_chat(s) ? "message" : "text",
                                 is_chat(s) ? message(s) : text_of(s), "finish_reason", reason(s));
        tn_json_set(&c, "logprobs",
                    s->r->logprobs ? logprobs_of(s, s->r->scores, json_incref(s->logprobs)) : json_null());
        tn_said_set_check(s, &c);
        tn_json_append(&list, c);
    }
    json_t *f = frame(all[0], false, list);
    tn_json_set(&f, "usage", usage(all, n));
    tn_json_set(&f, "timings", tn_said_timings(all[0]));
    if (all[0]->r->verbose) tn_json_set(&f, "__verbose", tn_said_verbose(all[0]));
    return with_sources(all[0], f);
}

const tn_sink tn_sink_chat = {.prefix = "chatcmpl-",
                              .pieces = true,
                              .type = "text/event-stream",
                              .say = say,
                              .tail = tail,
                              .ping = tn_sink_ping,
                              .fail = tn_sink_fail,
                              .whole = whole,
                              .error = tn_sink_error};
const tn_sink tn_sink_completions = {.prefix = "cmpl-",
                                     .type = "text/event-stream",
                                     .say = say,
                                     .tail = tail,
                                     .ping = tn_sink_ping,
                                     .fail = tn_sink_fail,
                                     .whole = whole,
                                     .error = tn_sink_error};
