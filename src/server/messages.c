/* server/messages.c - requests in Anthropic's form (/v1/messages), as the same tn_request that OpenAI's
 * become. */
#include "server/request.h"
#include "text/toolcall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"model",          "max_tokens",   "messages",    "system",
                                    "stop_sequences", "stream",       "temperature", "top_p",
                                    "top_k",          "tools",        "tool_choice", "metadata",
                                    "thinking",       "service_tier", "lora"};

static tern_status no_memory(tern_error *err) {
    return tn_fail(err, TERN_E_MEMORY, "no memory for the request");
}

/* Adds a message to the request. */
static tern_status add(tn_request *r, json_t *m, tern_error *err) { /* takes m */
    tn_json_append(&r->messages, m);
    return r->messages ? TERN_OK : no_memory(err);
}

/* A turn gathers the blocks of a user's or an assistant's message. Texts gather in *text. */
typedef struct turn {
    const char *role, *where;
    json_t *text, *thought, *calls; /* arrays of texts; of calls */
} turn;

static const char *tool_name(const json_t *messages, const char *id) {
    for (size_t i = json_array_size(messages); id && i-- > 0;) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            const char *its = json_string_value(json_object_get(json_array_get(calls, k), "id"));
            if (its && !strcmp(its, id))
                return json_string_value(
                    json_object_get(json_object_get(json_array_get(calls, k), "function"), "name"));
        }
    }
    return NULL;
}

static tern_status result_block(tn_request *r, const turn *t, const json_t *b, tern_error *err) {
    const char *id = json_string_value(json_object_get(b, "tool_use_id"));
    const json_t *c = json_object_get(b, "content");
    json_t *text = NULL;
    TN_FAIL_IF(strcmp(t->role, "user") || !id, err, TERN_E_INVALID,
               "%s: a tool_result is the user's, with a tool_use_id", t->where);
    if (!c || json_is_null(c)) text = tn_json_string("", 0);
    else TN_TRY(tn_content_text(c, t->where, &text, err));
    const char *name = tool_name(r->messages, id);
    json_t *m = tn_json_pack("{s:s, s:o, s:s}", "role", "tool", "content", text, "tool_call_id", id);
    if (name) tn_json_set(&m, "name", tn_json_string(name, strlen(name)));
    return add(r, m, err);
}

static tern_status use_block(turn *t, const json_t *b, tern_error *err) {
    const char *id = json_string_value(json_object_get(b, "id")),
               *name = json_string_value(json_object_get(b, "name"));
    const json_t *input = json_object_get(b, "input");
    char *args;
    TN_FAIL_IF(strcmp(t->role, "assistant") || !id || !name || !json_is_object(input), err, TERN_E_INVALID,
               "%s: a tool_use is the assistant's, with id, name and input", t->where);
    TN_TRY(tn_json_text(input, JSON_COMPACT, &args, err));
    tn_json_append(&t->calls, tn_json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function",
                                           "function", "name", name, "arguments", args));
    free(args);
    return t->calls ? TERN_OK : no_memory(err);
}

static tern_status block(tn_request *r, turn *t, const json_t *b, tern_error *err) {
    const char *type = json_string_value(json_object_get(b, "type"));
    const json_t *text = json_object_get(b, "text"), *thought = json_object_get(b, "thinking");
    TN_FAIL_IF(!type, err, TERN_E_INVALID, "%s: a block has no type", t->where);
    if (!strcmp(type, "tool_result")) return result_block(r, t, b, err);
    if (!strcmp(type, "tool_use")) return use_block(t, b, err);
    if (!strcmp(type, "text") && json_is_string(text)) {
        tn_json_append(&t->text, json_deep_copy(b));
    } else if (!strcmp(type, "thinking") && json_is_string(thought)) {
        tn_json_append(&t->thought,
                       tn_json_pack("{s:s, s:s}", "type", "text", "text", json_string_value(thought)));
    } else {
        return tn_fail(err, TERN_E_UNSUPPORTED,
                       "%s: blocks of type '%.40s' are not supported; there are text, tool_use, tool_result "
                       "and thinking",
                       t->where, type);
    }
    return t->text && t->thought ? TERN_OK : no_memory(err);
}

static tern_status blocks(tn_request *r, turn *t, const json_t *content, tern_error *err) {
    for (size_t i = 0; i < json_array_size(content); i++)
        TN_TRY(block(r, t, json_array_get(content, i), err));
    if (!json_array_size(t->text) && !json_array_size(t->calls) && strcmp(t->role, "assistant"))
        return TERN_OK;
    json_t *text = NULL, *thought = NULL;
    TN_TRY(tn_content_text(t->text, t->where, &text, err));
    json_t *m = tn_json_pack("{s:s, s:o}", "role", t->role, "content", text);
    if (json_array_size(t->calls)) tn_json_set(&m, "tool_calls", json_incref(t->calls));
    if (json_array_size(t->thought)) {
        tern_status st = tn_content_text(t->thought, t->where, &thought, err);
        if (st != TERN_OK) {
            json_decref(m);
            return st;
        }
        tn_json_set(&m, "reasoning_content", thought);
    }
    return add(r, m, err);
}

static tern_status message(tn_request *r, const json_t *m, const char *where, tern_error *err) {
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    TN_FAIL_IF(!role || (strcmp(role, "user") && strcmp(role, "assistant")), err, TERN_E_INVALID,
               "%s: the role must be user or assistant", where);
    if (json_is_string(content))
        return add(r, tn_json_pack("{s:s, s:O}", "role", role, "content", content), err);
    TN_FAIL_IF(!json_is_array(content), err, TERN_E_INVALID, "%s has no content: a text, or a list of blocks",
               where);
    turn t = {
        .role = role, .where = where, .text = json_array(), .thought = json_array(), .calls = json_array()};
    tern_status st = t.text && t.thought && t.calls ? blocks(r, &t, content, err) : no_memory(err);
    json_decref(t.text);
    json_decref(t.thought);
    json_decref(t.calls);
    return st;
}

static tern_status tools(tn_request *r, tern_error *err) {
    const json_t *list = json_object_get(r->body, "tools"), *choice = json_object_get(r->body, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    bool any = type && !strcmp(type, "any"), one = type && !strcmp(type, "tool"),
         none = type && !strcmp(type, "none");
    TN_FAIL_IF(choice && !json_is_null(choice) && !any && !one && !none && (!type || strcmp(type, "auto")),
               err, TERN_E_INVALID, "'tool_choice' must have the type auto, any, tool or none");
    r->one_call = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
    size_t n = json_array_size(list);
    TN_FAIL_IF(!n && (any || one), err, TERN_E_INVALID,
               "'tool_choice' asks for a call, and there are no tools");
    if (!n) return TERN_OK;
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(list, i), *schema = json_object_get(t, "input_schema");
        const char *name = json_string_value(json_object_get(t, "name")),
                   *kind = json_string_value(json_object_get(t, "type"));
        if (!name || !json_is_object(schema) || (kind && strcmp(kind, "custom"))) {
            json_decref(out);
            return tn_fail(err, TERN_E_UNSUPPORTED,
                           "tools[%zu]: want a tool of one's own, with name and input_schema", i);
        }
        json_t *f = tn_json_pack("{s:s, s:O}", "name", name, "parameters", schema);
        const json_t *about = json_object_get(t, "description");
        if (json_is_string(about)) tn_json_set(&f, "description", json_deep_copy(about));
        tn_json_append(&out, tn_json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    if (none) {
        json_decref(out);
        return TERN_OK;
    }
    r->tools = out;
    if (!out) return no_memory(err);
    r->forced = any || one;
    if (one) r->forced_tool = json_string_value(json_object_get(choice, "name"));
    TN_FAIL_IF(one && !r->forced_tool, err, TERN_E_INVALID, "'tool_choice' of type tool has no name");
    return tn_tools_check(r->tools, err);
}

static tern_status system_text(tn_request *r, tern_error *err) {
    const json_t *s = json_object_get(r->body, "system");
    json_t *text = NULL;
    if (!s || json_is_null(s)) return TERN_OK;
    TN_TRY(tn_content_text(s, "system", &text, err));
    return add(r, tn_json_pack("{s:s, s:o}", "role", "system", "content", text), err);
}

tern_status tn_messages_read(tn_request *r, tern_error *err) {
    const char *field;
    json_t *v;
    json_object_foreach(r->body, field, v) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(field, known[i]);
        TN_FAIL_IF(!is_known, err, TERN_E_UNSUPPORTED, "'%.60s' is not supported", field);
    }
    double temperature = 1, top_p = 1, top_k = 0, max = -1;
    TN_TRY(tn_field_flag(r->body, "stream", &r->stream, err));
    TN_TRY(tn_field_number(r->body, "temperature", 0, 100, false, &temperature, err));
    TN_TRY(tn_field_number(r->body, "top_p", 1e-6, 1, false, &top_p, err));
    TN_TRY(tn_field_number(r->body, "top_k", 0, 1e9, true, &top_k, err));
    TN_TRY(tn_field_number(r->body, "max_tokens", 1, TN_REQUEST_TOKENS, true, &max, err));
    TN_FAIL_IF(max < 0 && !r->counts, err, TERN_E_INVALID, "'max_tokens' is missing");
    tern_sampling_defaults(&r->sampling);
    r->sampling.temperature = (float)temperature;
    r->sampling.top_p = (float)top_p;
    r->sampling.top_k = (int32_t)top_k;
    r->sampling.min_p = 0;
    r->max_tokens = (int32_t)max;
    TN_TRY(tn_field_stops(r, "stop_sequences", err));
    TN_TRY(tools(r, err));
    const json_t *how = json_object_get(r->body, "thinking");
    const char *thinking = json_string_value(json_object_get(how, "type"));
    bool known_way = thinking && (!strcmp(thinking, "enabled") || !strcmp(thinking, "disabled") ||
                                  !strcmp(thinking, "adaptive")); /* the template's own way */
    TN_FAIL_IF(how && !json_is_null(how) && !known_way, err, TERN_E_INVALID,
               "'thinking' must have the type enabled, disabled or adaptive");
    r->variables = json_object();
    if (thinking && !strcmp(thinking, "disabled"))
        tn_json_set(&r->variables, "enable_thinking", json_false());
    if (thinking && !strcmp(thinking, "enabled")) tn_json_set(&r->variables, "enable_thinking", json_true());
    r->messages = json_array();
    if (!r->variables || !r->messages) return no_memory(err);
    TN_TRY(system_text(r, err));
    const json_t *list = json_object_get(r->body, "messages");
    size_t n = json_array_size(list);
    TN_FAIL_IF(!n, err, TERN_E_INVALID, "'messages' must be a list of at least one message");
    TN_FAIL_IF(n > TN_REQUEST_MESSAGES, err, TERN_E_LIMIT, "%zu messages: at most %d are read", n,
               TN_REQUEST_MESSAGES);
    for (size_t i = 0; i < n; i++) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", i);
        TN_TRY(message(r, json_array_get(list, i), where, err));
    }
    return TERN_OK;
}
