/* server/reply_messages.c - replies as Anthropic's API has them. */
#include "server/reply.h"

#include "base/json.h"

#include <string.h>

static json_t *usage(const tn_job *j, bool all) {
    json_t *u = tn_json_pack("{s:I}", "output_tokens", (json_int_t)j->res.n_tokens);
    if (!all) return u;
    tn_json_set(&u, "input_tokens", json_integer((json_int_t)(j->n_ids - j->n_cached)));
    tn_json_set(&u, "cache_read_input_tokens", json_integer((json_int_t)j->n_cached));
    tn_json_set(&u, "cache_creation_input_tokens", json_integer(0));
    return u;
}

static const char *reason(const tn_job *j) {
    if (j->res.reason == TERN_STOP_LENGTH || j->res.reason == TERN_STOP_CONTEXT) return "max_tokens";
    if (j->n_calls) return "tool_use";
    return j->res.reason == TERN_STOP_STRING ? "stop_sequence" : "end_turn";
}

static json_t *stop_text(const tn_job *j) {
    return j->res.reason == TERN_STOP_STRING && j->stopped_by
               ? tn_json_string(j->stopped_by, strlen(j->stopped_by))
               : json_null();
}

static json_t *message(const tn_job *j, json_t *content, const char *why) {
    return tn_json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "id", j->id, "type", "message", "role",
                        "assistant", "model", tn_queue_opts(j->q)->model, "content", content, "stop_reason",
                        why ? tn_json_string(why, strlen(why)) : json_null(), "stop_sequence",
                        why ? stop_text(j) : json_null(), "usage", usage(j, true));
}

json_t *tn_message_start(const tn_job *j) {
    return tn_json_pack("{s:s, s:o}", "type", "message_start", "message", message(j, json_array(), NULL));
}

/* Makes a whole block, or an empty one for the beginning of a stream. */
static json_t *block(const tn_job *j, char kind, size_t i_call, const char *text, size_t n) {
    if (kind == 't') return tn_json_pack("{s:s, s:s%}", "type", "text", "text", text, n);
    if (kind == 'T')
        return tn_json_pack("{s:s, s:s%, s:s}", "type", "thinking", "thinking", text, n, "signature", "");
    const json_t *c = json_array_get(j->calls, i_call);
    return tn_json_pack("{s:s, s:O, s:O, s:o}", "type", "tool_use", "id", json_object_get(c, "id"), "name",
                        json_object_get(c, "name"), "input", json_object());
}

json_t *tn_message_block_start(const tn_job *j, char kind, size_t i_call) {
    return tn_json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", j->n_blocks,
                        "content_block", block(j, kind, i_call, "", 0));
}

json_t *tn_message_block_delta(const tn_job *j, char kind, const char *text, size_t n) {
    const char *type = kind == 't' ? "text_delta" : kind == 'T' ? "thinking_delta" : "input_json_delta";
    json_t *d = kind == 't'   ? tn_json_pack("{s:s, s:s%}", "type", type, "text", text, n)
                : kind == 'T' ? tn_json_pack("{s:s, s:s%}", "type", type, "thinking", text, n)
                              : tn_json_pack("{s:s, s:s%}", "type", type, "partial_json", text, n);
    return tn_json_pack("{s:s, s:i, s:o}", "type", "content_block_delta", "index", j->n_blocks, "delta", d);
}

json_t *tn_message_block_stop(const tn_job *j) {
    return tn_json_pack("{s:s, s:i}", "type", "content_block_stop", "index", j->n_blocks);
}

json_t *tn_message_delta(const tn_job *j) {
    json_t *d = tn_json_pack("{s:s, s:o}", "stop_reason", reason(j), "stop_sequence", stop_text(j));
    return tn_json_pack("{s:s, s:o, s:o}", "type", "message_delta", "delta", d, "usage", usage(j, false));
}

/* Reads a call's arguments. Whole numbers beyond 63 bits are told as fractions are. */
static json_t *input_of(const char *arguments) {
    json_t *v = tn_json_parse(arguments, strlen(arguments), 0, NULL);
    return v ? v : tn_json_parse(arguments, strlen(arguments), JSON_DECODE_INT_AS_REAL, NULL);
}

json_t *tn_message_whole(const tn_job *j) {
    json_t *content = json_array();
    if (j->thought.n) tn_json_append(&content, block(j, 'T', 0, j->thought.p, j->thought.n));
    if (j->text.n) tn_json_append(&content, block(j, 't', 0, j->text.p, j->text.n));
    for (size_t i = 0; i < j->n_calls; i++) {
        json_t *b = block(j, 'c', i, "", 0);
        const char *args = json_string_value(json_object_get(json_array_get(j->calls, i), "arguments"));
        tn_json_set(&b, "input", input_of(args));
        tn_json_append(&content, b);
    }
    return message(j, content, reason(j));
}
