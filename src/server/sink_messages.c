/* Messages as Anthropic's API has them: blocks of text, of thoughts and of calls. */
#include "server/reply.h"
#include "server/sink.h"

#include <string.h>

/* Clients send a thought back only where it is signed. Nothing is proved by it here. */
static const char signature[] = "tern";

static json_t *usage(const tn_said *s, bool all) {
    json_t *u = tn_json_pack("{s:I}", "output_tokens", (json_int_t)s->res.n_tokens);
    if (!all) return u;
    tn_json_set(&u, "input_tokens", json_integer((json_int_t)(s->n_ids - s->n_cached)));
    tn_json_set(&u, "cache_read_input_tokens", json_integer((json_int_t)s->n_cached));
    tn_json_set(&u, "cache_creation_input_tokens", json_integer(0));
    return u;
}

static const char *reason(const tn_said *s) {
    if (tn_said_length(s)) return "max_tokens";
    if (tn_said_calls(s)) return "tool_use";
    return s->res.reason == TERN_STOP_STRING ? "stop_sequence" : "end_turn";
}

static json_t *stop_text(const tn_said *s) {
    return s->res.reason == TERN_STOP_STRING && s->stopped_by
               ? tn_json_string(s->stopped_by, strlen(s->stopped_by))
               : json_null();
}

static json_t *message(const tn_said *s, json_t *content, const char *why) {
    json_t *m = tn_json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "id", s->id, "type", "message",
                             "role", "assistant", "model", s->model, "content", content, "stop_reason",
                             why ? tn_json_string(why, strlen(why)) : json_null(), "stop_sequence",
                             why ? stop_text(s) : json_null(), "usage", usage(s, true));
    if (json_object_get(s->r->body, "context_management")) /* whose edits are not made */
        tn_json_set(&m, "context_management", tn_json_pack("{s:o}", "applied_edits", json_array()));
    return m;
}

/* Makes a whole block, or an empty one for the beginning of a stream. kind is 't' for text, 'T' for a
 * thought, 'c' for a call. */
static json_t *block(const tn_said *s, char kind, size_t i_call, const char *text, size_t n) {
    if (kind == 't') return tn_json_pack("{s:s, s:s%}", "type", "text", "text", text, n);
    if (kind == 'T')
        return tn_json_pack("{s:s, s:s%, s:s}", "type", "thinking", "thinking", text, n, "signature",
                            text && n ? signature : "");
    const json_t *c = json_array_get(s->calls, i_call);
    return tn_json_pack("{s:s, s:O, s:O, s:o}", "type", "tool_use", "id", json_object_get(c, "id"), "name",
                        json_object_get(c, "name"), "input", json_object());
}

/* ---- streams ------------------------------------------------------------------------------------------ */

/* Takes value, whose type is the event's name. */
static bool event(tn_bytes *out, json_t *value) {
    char name[40] = "";
    const char *type = json_string_value(json_object_get(value, "type"));
    if (type) strncat(name, type, sizeof name - 1);
    return tn_sink_event(out, name, value);
}

static bool close_block(tn_said *s, tn_bytes *out) {
    if (!s->block) return true;
    json_t *d = tn_json_pack("{s:s, s:s}", "type", "signature_delta", "signature", signature);
    json_t *v =
        tn_json_pack("{s:s, s:i, s:o}", "type", "content_block_delta", "index", s->n_blocks, "delta", d);
    if (s->block != 'T') json_decref(v);
    else if (!event(out, v)) return false;
    s->block = 0;
    return event(out, tn_json_pack("{s:s, s:i}", "type", "content_block_stop", "index", s->n_blocks++));
}

static bool open_block(tn_said *s, char kind, tn_bytes *out) {
    if (!close_block(s, out)) return false;
    s->block = kind;
    return event(out, tn_json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", s->n_blocks,
                                   "content_block", block(s, kind, s->n_calls - 1, "", 0)));
}

static bool put_delta(tn_said *s, char kind, const tn_saying *e, tn_bytes *out) {
    static const char *const names[][2] = {
        {"text_delta", "text"}, {"thinking_delta", "thinking"}, {"input_json_delta", "partial_json"}};
    const char *const *name = names[kind == 't' ? 0 : kind == 'T' ? 1 : 2];
    if (s->block != kind && !open_block(s, kind, out)) return false;
    json_t *d = tn_json_pack("{s:s}", "type", name[0]);
    tn_json_set(&d, name[1], tn_json_string(e->text, e->n));
    return event(out, tn_json_pack("{s:s, s:i, s:o}", "type", "content_block_delta", "index", s->n_blocks,
                                   "delta", d));
}

static bool put_end(tn_said *s, tn_bytes *out) {
    json_t *d = tn_json_pack("{s:s, s:o}", "stop_reason", reason(s), "stop_sequence", stop_text(s));
    json_t *v =
        tn_json_pack("{s:s, s:o, s:o}", "type", "message_delta", "delta", d, "usage", usage(s, false));
    tn_said_set_check(s, &v);
    if (!close_block(s, out)) {
        json_decref(v);
        return false;
    }
    return event(out, v) && event(out, tn_json_pack("{s:s}", "type", "message_stop"));
}

static bool say(tn_said *s, const tn_saying *e, tn_bytes *out) {
    switch (e->kind) {
    case TN_SAYS_BEGIN:
        return event(out, tn_json_pack("{s:s, s:o}", "type", "message_start", "message",
                                       message(s, json_array(), NULL)));
    case TN_SAYS_TEXT: return put_delta(s, 't', e, out);
    case TN_SAYS_THOUGHT: return put_delta(s, 'T', e, out);
    case TN_SAYS_CALL: return open_block(s, 'c', out);
    case TN_SAYS_ARGUMENTS: return put_delta(s, 'c', e, out);
    case TN_SAYS_CALLED:
    case TN_SAYS_BROKEN: return close_block(s, out);
    case TN_SAYS_END: return put_end(s, out);
    default: return true;
    }
}

static bool ping(const tn_said *s, tn_bytes *out) {
    (void)s;
    /* also in front of message_start: the API has pings anywhere, its own client and Vercel's skip them before they look at the
     * order of events, and a program that counts events to see whether its stream lives never sees a comment */
    return event(out, tn_json_pack("{s:s}", "type", "ping"));
}

static json_t *error(const tern_error *err, int status) { return tn_reply_error(err, status, true); }

static bool fail(const tern_error *err, tn_bytes *out) {
    return event(out, error(err, tn_reply_status(err)));
}

/* ---- whole replies ------------------------------------------------------------------------------------ */

/* Reads a call's arguments. Whole numbers beyond 63 bits are told as fractions are. */
static json_t *input_of(const char *arguments) {
    json_t *v = tn_json_parse(arguments, strlen(arguments), 0, NULL);
    return v ? v : tn_json_parse(arguments, strlen(arguments), JSON_DECODE_INT_AS_REAL, NULL);
}

static json_t *whole(tn_said *const *all, size_t n) {
    const tn_said *s = all[0];
    json_t *content = json_array();
    (void)n; /* there is one answer */
    if (s->thought.n) tn_json_append(&content, block(s, 'T', 0, s->thought.p, s->thought.n));
    if (s->text.n) tn_json_append(&content, block(s, 't', 0, s->text.p, s->text.n));
    for (size_t i = 0; i < s->n_calls; i++) {
        json_t *b = block(s, 'c', i, "", 0);
        const char *args = json_string_value(json_object_get(json_array_get(s->calls, i), "arguments"));
        tn_json_set(&b, "input", input_of(args));
        tn_json_append(&content, b);
    }
    json_t *v = message(s, content, reason(s));
    tn_said_set_check(s, &v);
    return v;
}

const tn_sink tn_sink_messages = {.pieces = true,
                                  .prefix = "msg_",
                                  .type = "text/event-stream",
                                  .say = say,
                                  .ping = ping,
                                  .fail = fail,
                                  .whole = whole,
                                  .error = error};
