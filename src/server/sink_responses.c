/* Answers as OpenAI's Responses have them: items, each with its events. */
#include "server/reply.h"
#include "server/responses.h"

#include <stdio.h>
#include <string.h>

/* ---- items -------------------------------------------------------------------------------------------- */

/* kind is 't' for words, 'T' for a thought, 'c' for a call. */
static void item_id(const tn_said *s, char kind, int index, char out[80]) {
    const char *id = strchr(s->id, '_');
    snprintf(out, 80, "%s%s%d", kind == 't' ? "msg" : kind == 'T' ? "rs" : "fc", id ? id : "_", index);
}

/* logprobs: of the text's tokens, or NULL. */
static json_t *part(char kind, const char *text, size_t n, json_t *logprobs) {
    if (kind == 'T') return tn_json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", text, n);
    return tn_json_pack("{s:s, s:s%, s:o, s:o}", "type", "output_text", "text", text, n, "annotations",
                        json_array(), "logprobs", logprobs ? json_incref(logprobs) : json_array());
}

static json_t *call_item(const tn_said *s, const json_t *c, const char *id, const char *status,
                         const char *text, size_t n) {
    const json_t *name = json_object_get(c, "name"),
                 *in = json_object_get(json_object_get(s->r->kept, "names"), json_string_value(name));
    json_t *v = tn_json_pack("{s:s, s:s, s:s, s:O, s:O, s:s%}", "id", id, "type", "function_call", "status",
                             status, "call_id", json_object_get(c, "id"), "name",
                             in ? json_object_get(in, "name") : name, "arguments", text, n);
    if (in) tn_json_set(&v, "namespace", json_incref(json_object_get(in, "namespace")));
    return v;
}

/* text NULL: the item begins, and has nothing yet. cut: it ends because there was no room. */
static json_t *item(const tn_said *s, char kind, int index, size_t i_call, const char *text, size_t n,
                    json_t *logprobs, bool cut) {
    char id[80];
    const json_t *c = kind == 'c' ? json_array_get(s->calls, i_call) : NULL;
    const char *status = !text                                 ? "in_progress"
                         : cut || json_object_get(c, "broken") ? "incomplete"
                                                               : "completed";
    json_t *parts = json_array();
    item_id(s, kind, index, id);
    if (text && kind != 'c') tn_json_append(&parts, part(kind, text, n, logprobs));
    if (kind == 't')
        return tn_json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status,
                            "role", "assistant", "content", parts);
    if (kind == 'T')
        return tn_json_pack("{s:s, s:s, s:s, s:o, s:o}", "id", id, "type", "reasoning", "status", status,
                            "summary", json_array(), "content", parts);
    json_decref(parts);
    return call_item(s, c, id, status, text ? text : "", n);
}

/* ---- the response ------------------------------------------------------------------------------------- */

static json_t *usage(const tn_said *s) {
    return tn_json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)s->n_ids,
                        "input_tokens_details", "cached_tokens", (json_int_t)s->n_cached, "output_tokens",
                        (json_int_t)s->res.n_tokens, "output_tokens_details", "reasoning_tokens",
                        (json_int_t)tn_said_thoughts(s), "total_tokens",
                        (json_int_t)s->n_ids + s->res.n_tokens);
}

/* Says what was asked, with what holds where nothing was. */
static void put_asked(const tn_said *s, json_t **v) {
    const json_t *body = json_object_get(s->r->kept, "body");
    static const char *const same[] = {
        "instructions", "max_output_tokens", "previous_response_id", "reasoning",
        "user",         "prompt_cache_key",  "top_logprobs"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *x = json_object_get(body, same[i]);
        tn_json_set(v, same[i], x ? json_incref(x) : json_null());
    }
    json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice"),
           *text = json_object_get(body, "text"), *metadata = json_object_get(body, "metadata"),
           *parallel = json_object_get(body, "parallel_tool_calls");
    tn_json_set(v, "tools", json_is_array(tools) ? json_incref(tools) : json_array());
    tn_json_set(v, "tool_choice", choice ? json_incref(choice) : tn_json_string("auto", 4));
    tn_json_set(v, "text", text ? json_incref(text) : tn_json_pack("{s:{s:s}}", "format", "type", "text"));
    tn_json_set(v, "metadata", metadata ? json_incref(metadata) : json_object());
    tn_json_set(v, "parallel_tool_calls", parallel ? json_incref(parallel) : json_true());
    tn_json_set(v, "temperature", tn_json_real((double)s->r->sampling.temperature));
    tn_json_set(v, "top_p", tn_json_real((double)s->r->sampling.top_p));
    tn_json_set(v, "truncation", tn_json_string("disabled", 8));
    tn_json_set(v, "store", json_boolean(!json_is_false(json_object_get(body, "store"))));
}

/* Takes output. */
static json_t *response(const tn_said *s, const char *status, json_t *output) {
    bool cut = !strcmp(status, "incomplete"), done = cut || !strcmp(status, "completed");
    json_t *v =
        tn_json_pack("{s:s, s:s, s:I, s:s, s:o, s:s, s:o, s:o, s:o}", "id", s->id, "object", "response",
                     "created_at", (json_int_t)s->created, "status", status, "error", json_null(), "model",
                     s->model, "output", output, "usage", done ? usage(s) : json_null(), "incomplete_details",
                     cut ? tn_json_pack("{s:s}", "reason", "max_output_tokens") : json_null());
    put_asked(s, &v);
    if (done) tn_said_set_check(s, &v);
    return v;
}

static const char *end_of(const tn_said *s) { return tn_said_length(s) ? "incomplete" : "completed"; }

/* The conversation with what was said, for the next turn. */
static void keep(const tn_said *s, const json_t *v) {
    const json_t *before = json_object_get(s->r->kept, "messages");
    if (json_is_false(json_object_get(json_object_get(s->r->kept, "body"), "store"))) return;
    json_t *list = json_array(), *calls = json_array();
    for (size_t i = 0; i < json_array_size(before); i++)
        tn_json_append(&list, json_incref(json_array_get(before, i)));
    json_t *m = tn_json_pack("{s:s, s:o}", "role", "assistant", "content", tn_said_text(&s->text));
    if (s->thought.n) tn_json_set(&m, "reasoning_content", tn_said_text(&s->thought));
    for (size_t i = 0; i < s->n_calls; i++) {
        const json_t *c = json_array_get(s->calls, i);
        if (json_object_get(c, "broken")) continue;
        tn_json_append(&calls,
                       tn_json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(c, "id"), "type",
                                    "function", "function", "name", json_object_get(c, "name"), "arguments",
                                    json_object_get(c, "arguments")));
    }
    if (tn_said_calls(s)) tn_json_set(&m, "tool_calls", json_incref(calls));
    json_decref(calls);
    tn_json_append(&list, m);
    tn_responses_keep(s->user, s->id, v, list);
    json_decref(list);
}

/* ---- streams ------------------------------------------------------------------------------------------ */

/* Takes v, whose type is the event's name. Events are numbered. */
static bool event(tn_said *s, const char *type, json_t *v, tn_bytes *out) {
    tn_json_set(&v, "type", tn_json_string(type, strlen(type)));
    tn_json_set(&v, "sequence_number", json_integer((json_int_t)s->n_events++));
    return tn_sink_event(out, type, v);
}

/* Those that came with a delta, which the open item keeps. */
static json_t *new_logprobs(tn_said *s) {
    json_t *list = tn_said_waiting(s);
    if (!list) return json_array();
    if (!s->block_logprobs) s->block_logprobs = json_array();
    for (size_t i = 0; i < json_array_size(list); i++)
        tn_json_append(&s->block_logprobs, json_incref(json_array_get(list, i)));
    if (s->block_logprobs) return list;
    json_decref(list);
    return NULL;
}

/* An event of the open item: where it belongs, and one more field, which it takes. */
static bool put(tn_said *s, const char *type, const char *field, json_t *value, bool of_part, tn_bytes *out) {
    char id[80];
    item_id(s, s->block, s->n_blocks, id);
    json_t *v = tn_json_pack("{s:s, s:i}", "item_id", id, "output_index", s->n_blocks);
    if (of_part) tn_json_set(&v, "content_index", json_integer(0));
    if (of_part && s->block == 't' && !strcmp(field, "delta")) tn_json_set(&v, "logprobs", new_logprobs(s));
    if (of_part && s->block == 't' && !strcmp(field, "text"))
        tn_json_set(&v, "logprobs", s->block_logprobs ? json_incref(s->block_logprobs) : json_array());
    tn_json_set(&v, field, value);
    if (!strcmp(field, "delta")) tn_said_set_timings(s, &v);
    return event(s, type, v, out);
}

static bool put_item(tn_said *s, const char *type, json_t *v, tn_bytes *out) { /* takes v */
    return event(s, type, tn_json_pack("{s:i, s:o}", "output_index", s->n_blocks, "item", v), out);
}

/* What the open item has of all that was said. */
static const char *text_of(const tn_said *s, size_t *n) {
    if (s->block == 'c') {
        const json_t *args = json_object_get(json_array_get(s->calls, s->n_calls - 1), "arguments");
        *n = json_string_length(args);
        return json_string_value(args);
    }
    const tn_bytes *b = s->block == 't' ? &s->text : &s->thought;
    *n = b->n - s->n_sent;
    return b->p + s->n_sent;
}

/* A call that never was one has no event that says that its arguments are done. cut: the answer ends in the item. */
static bool close_item(tn_said *s, bool broken, bool cut, tn_bytes *out) {
    size_t n;
    if (!s->block) return true;
    char kind = s->block;
    const char *text = text_of(s, &n);
    const char *done = kind == 't'   ? "response.output_text.done"
                       : kind == 'T' ? "response.reasoning_text.done"
                                     : "response.function_call_arguments.done";
    json_t *v = item(s, kind, s->n_blocks, s->n_calls - 1, text, n, s->block_logprobs, cut);
    bool ok =
        broken || put(s, done, kind == 'c' ? "arguments" : "text", tn_json_string(text, n), kind != 'c', out);
    ok = ok && (kind == 'c' || put(s, "response.content_part.done", "part",
                                   part(kind, text, n, s->block_logprobs), true, out));
    if (!s->items) s->items = json_array();
    tn_json_append(&s->items, v ? json_incref(v) : NULL);
    ok = put_item(s, "response.output_item.done", v, out) && ok && s->items;
    json_decref(s->block_logprobs);
    s->block_logprobs = NULL;
    s->block = 0;
    s->n_blocks++;
    return ok;
}

/* The text of an item begins with what the event brings. */
static bool open_item(tn_said *s, char kind, size_t n_new, tn_bytes *out) {
    if (!close_item(s, false, false, out)) return false;
    s->block = kind;
    s->n_sent = kind == 't' ? s->text.n - n_new : kind == 'T' ? s->thought.n - n_new : 0;
    return put_item(s, "response.output_item.added",
                    item(s, kind, s->n_blocks, s->n_calls - 1, NULL, 0, NULL, false), out) &&
           (kind == 'c' || put(s, "response.content_part.added", "part", part(kind, "", 0, NULL), true, out));
}

static bool put_delta(tn_said *s, char kind, const tn_saying *e, tn_bytes *out) {
    const char *type = kind == 't'   ? "response.output_text.delta"
                       : kind == 'T' ? "response.reasoning_text.delta"
                                     : "response.function_call_arguments.delta";
    if (s->block != kind && !open_item(s, kind, e->n, out)) return false;
    return put(s, type, "delta", tn_json_string(e->text, e->n), kind != 'c', out);
}

static bool put_begun(tn_said *s, const char *type, tn_bytes *out) {
    json_t *v = response(s, "in_progress", json_array());
    return event(s, type, tn_json_pack("{s:o}", "response", v), out);
}

static bool put_progress(tn_said *s, tn_bytes *out) {
    json_t *v = tn_json_pack("{s:o, s:o}", "response", response(s, "in_progress", json_array()),
                             "prompt_progress", tn_said_progress(s));
    return event(s, "response.in_progress", v, out);
}

static bool say(tn_said *s, const tn_saying *e, tn_bytes *out) {
    switch (e->kind) {
    case TN_SAYS_PROGRESS: return put_progress(s, out);
    case TN_SAYS_BEGIN:
        return put_begun(s, "response.created", out) && put_begun(s, "response.in_progress", out);
    case TN_SAYS_TEXT: return put_delta(s, 't', e, out);
    case TN_SAYS_THOUGHT: return put_delta(s, 'T', e, out);
    case TN_SAYS_CALL: return open_item(s, 'c', 0, out);
    case TN_SAYS_ARGUMENTS: return put_delta(s, 'c', e, out);
    case TN_SAYS_CALLED: return close_item(s, false, false, out);
    case TN_SAYS_END: return close_item(s, false, tn_said_length(s), out);
    case TN_SAYS_BROKEN: return close_item(s, true, true, out);
    default: return true;
    }
}

/* It is kept before the client knows that it is complete, and may go on from it; by the connection, which what
 * is kept outlives. */
static bool tail(tn_said *const *all, size_t n, tn_bytes *out) {
    tn_said *s = all[0];
    (void)n; /* there is one answer */
    json_t *v = response(s, end_of(s), s->items ? json_incref(s->items) : json_array());
    if (v) keep(s, v);
    json_t *last = tn_json_pack("{s:o}", "response", v);
    tn_said_set_timings(s, &last);
    return event(s, tn_said_length(s) ? "response.incomplete" : "response.completed", last, out);
}

static bool fail(const tern_error *err, tn_bytes *out) {
    json_t *v = tn_sink_error(err, tn_reply_status(err)), *e = json_object_get(v, "error");
    json_t *told = tn_json_pack("{s:s, s:O, s:O, s:o}", "type", "error", "code", json_object_get(e, "code"),
                                "message", json_object_get(e, "message"), "param", json_null());
    json_decref(v);
    return tn_sink_event(out, "error", told);
}

/* ---- whole replies ------------------------------------------------------------------------------------ */

static json_t *whole(tn_said *const *all, size_t n) {
    const tn_said *s = all[0];
    json_t *list = json_array();
    int index = 0;
    (void)n;                                           /* there is one answer */
    const bool cut = tn_said_length(s) && !s->n_calls; /* then its last item is */
    if (s->thought.n)
        tn_json_append(&list, item(s, 'T', index++, 0, s->thought.p, s->thought.n, NULL, cut && !s->text.n));
    if (s->text.n) tn_json_append(&list, item(s, 't', index++, 0, s->text.p, s->text.n, s->logprobs, cut));
    for (size_t i = 0; i < s->n_calls; i++) {
        const json_t *args = json_object_get(json_array_get(s->calls, i), "arguments");
        tn_json_append(
            &list, item(s, 'c', index++, i, json_string_value(args), json_string_length(args), NULL, false));
    }
    json_t *v = response(s, end_of(s), list);
    if (v) keep(s, v);
    return v;
}

const tn_sink tn_sink_responses = {.pieces = true,
                                   .prefix = "resp_",
                                   .type = "text/event-stream",
                                   .say = say,
                                   .tail = tail,
                                   .ping = tn_sink_ping,
                                   .fail = fail,
                                   .whole = whole,
                                   .error = tn_sink_error};
