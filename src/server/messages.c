/* server/messages.c - requests in Anthropic's form (/v1/messages), as the same tn_request that OpenAI's
 * become. */
#include "base/bytes.h"
#include "server/images.h"
#include "text/toolcall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {
    "model",       "max_tokens",   "messages",       "system",        "stop_sequences", "stream",
    "temperature", "top_p",        "top_k",          "tools",         "tool_choice",    "metadata",
    "thinking",    "service_tier", "lora",           "cache_control", "output_config",  "output_format",
    "min_p",       "seed",         "repeat_penalty", "repeat_last_n", "priority"};

/* Adds a message to the request. */
static tern_status add(tn_request *r, json_t *m, tern_error *err) { /* takes m */
    tn_json_append(&r->messages, m);
    return r->messages ? TERN_OK : tn_request_no_memory(err);
}

/* A turn gathers the blocks of a user's or an assistant's message. Texts gather in *text. */
typedef struct turn {
    const char *role, *where;
    json_t *text, *thought, *calls; /* arrays of texts; of calls */
} turn;

/* A document or a search's result as text: its title, what is said of it, then its words. */
static tern_status document_text(const json_t *b, const char *where, json_t **out, tern_error *err) {
    const char *type = json_string_value(json_object_get(b, "type"));
    const json_t *source = json_object_get(b, "source"), *content = json_object_get(source, "content");
    const char *form = json_string_value(json_object_get(source, "type"));
    bool is_result = !strcmp(type, "search_result");
    if (is_result) content = json_object_get(b, "content");
    if (form && !strcmp(form, "text")) content = json_object_get(source, "data");
    TN_FAIL_IF(!is_result && (!form || (strcmp(form, "text") && strcmp(form, "content"))), err,
               TERN_E_UNSUPPORTED,
               "%s: a document's source must be of type text or content: of type base64 it may be "
               "application/pdf where the server reads documents",
               where);
    json_t *words = NULL;
    TN_TRY(tn_content_text(content, where, true, &words, err));
    const char *heads[] = {json_string_value(json_object_get(b, "title")),
                           json_string_value(json_object_get(b, "context")),
                           is_result ? json_string_value(source) : NULL};
    tn_bytes text = {0};
    bool ok = true;
    for (int i = 0; i < 3; i++)
        ok = ok && (!heads[i] || (tn_bytes_put(&text, heads[i]) && tn_bytes_put(&text, "\n")));
    ok = ok && tn_bytes_add(&text, json_string_value(words), json_string_length(words));
    json_decref(words);
    *out = ok ? tn_json_string(text.p, text.n) : NULL;
    free(text.p);
    return *out ? TERN_OK : tn_request_no_memory(err);
}

static bool is_document(const json_t *b) {
    const char *type = json_string_value(json_object_get(b, "type"));
    return type && (!strcmp(type, "document") || !strcmp(type, "search_result"));
}

/* Content whose documents are texts. *out is a new value. */
static tern_status with_documents(const json_t *content, const char *where, json_t **out, tern_error *err) {
    *out = json_incref((json_t *)(uintptr_t)content);
    if (!json_is_array(content)) return TERN_OK;
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *b = json_array_get(content, i), *text = NULL;
        if (!is_document(b)) {
            tn_json_append(&list, json_incref(b));
            continue;
        }
        tern_status st = document_text(b, where, &text, err);
        if (st != TERN_OK) {
            json_decref(list);
            json_decref(*out);
            *out = NULL;
            return st;
        }
        tn_json_append(&list, tn_json_pack("{s:s, s:o}", "type", "text", "text", text));
    }
    json_decref(*out);
    *out = list;
    return list ? TERN_OK : tn_request_no_memory(err);
}

static tern_status result_block(tn_request *r, const turn *t, const json_t *b, tern_error *err) {
    const char *id = json_string_value(json_object_get(b, "tool_use_id"));
    const json_t *c = json_object_get(b, "content");
    json_t *text = NULL;
    TN_FAIL_IF(strcmp(t->role, "user") || !id, err, TERN_E_INVALID,
               "%s: a tool_result is the user's, with a tool_use_id", t->where);
    if (!c || json_is_null(c)) {
        text = tn_json_string("", 0);
    } else {
        json_t *plain = NULL;
        TN_TRY(with_documents(c, t->where, &plain, err));
        tern_status st = tn_images_content(r, plain, t->where, true, &text, err);
        json_decref(plain);
        if (st != TERN_OK) return st;
    }
    json_t *name = json_object_get(r->call_names, id);
    json_t *m = tn_json_pack("{s:s, s:o, s:s}", "role", "tool", "content", text, "tool_call_id", id);
    if (name) tn_json_set(&m, "name", json_incref(name));
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
    return t->calls ? TERN_OK : tn_request_no_memory(err);
}

static tern_status block(tn_request *r, turn *t, const json_t *b, tern_error *err) {
    const char *type = json_string_value(json_object_get(b, "type"));
    const json_t *text = json_object_get(b, "text"), *thought = json_object_get(b, "thinking");
    TN_FAIL_IF(!type, err, TERN_E_INVALID, "%s: a block has no type", t->where);
    if (!strcmp(type, "tool_result")) return result_block(r, t, b, err);
    if (!strcmp(type, "tool_use")) return use_block(t, b, err);
    if (!strcmp(type, "text") && json_is_string(text)) {
        tn_json_append(&t->text, tn_json_copy(b));
    } else if (!strcmp(type, "thinking") && json_is_string(thought)) {
        tn_json_append(&t->thought,
                       tn_json_pack("{s:s, s:s}", "type", "text", "text", json_string_value(thought)));
    } else if (!strcmp(type, "image") && !strcmp(t->role, "user")) {
        tn_json_append(&t->text, json_incref((json_t *)(uintptr_t)b));
    } else if (is_document(b)) {
        json_t *words = NULL;
        TN_TRY(document_text(b, t->where, &words, err));
        tn_json_append(&t->text, tn_json_pack("{s:s, s:o}", "type", "text", "text", words));
    } else if (strcmp(type, "redacted_thinking")) { /* which nobody here can read */
        char there_are[160];
        snprintf(there_are, sizeof there_are,
                 "blocks of type '%.40s' are not supported; there are text, image, document, search_result, "
                 "tool_use, "
                 "tool_result and thinking",
                 type);
        return tn_content_refuse(t->where, type, there_are, err);
    }
    return t->text && t->thought ? TERN_OK : tn_request_no_memory(err);
}

static tern_status blocks(tn_request *r, turn *t, const json_t *content, tern_error *err) {
    for (size_t i = 0; i < json_array_size(content); i++)
        TN_TRY(block(r, t, json_array_get(content, i), err));
    if (!json_array_size(t->text) && !json_array_size(t->calls) && strcmp(t->role, "assistant"))
        return TERN_OK;
    json_t *text = NULL, *thought = NULL;
    if (strcmp(t->role, "assistant")) TN_TRY(tn_images_content(r, t->text, t->where, true, &text, err));
    else TN_TRY(tn_content_text(t->text, t->where, false, &text, err));
    json_t *m = tn_json_pack("{s:s, s:o}", "role", t->role, "content", text);
    if (json_array_size(t->calls)) tn_json_set(&m, "tool_calls", json_incref(t->calls));
    if (json_array_size(t->thought)) {
        tern_status st = tn_content_text(t->thought, t->where, true, &thought, err);
        if (st != TERN_OK) {
            json_decref(m);
            return st;
        }
        tn_json_set(&m, "reasoning_content", thought);
    }
    return add(r, m, err);
}

/* Claude Code's system begins with a note for Anthropic's bills that has a hash of the first question: with it no two
 * conversations would begin alike, and each would be read from its first token. */
static json_t *without_note(const json_t *s) {
    static const char note[] = "x-anthropic-billing-header:";
    const char *first = json_string_value(json_object_get(json_array_get(s, 0), "text"));
    if (!first || strncmp(first, note, sizeof note - 1) != 0) return json_incref((json_t *)(uintptr_t)s);
    json_t *rest = json_array();
    for (size_t i = 1; i < json_array_size(s); i++) tn_json_append(&rest, json_incref(json_array_get(s, i)));
    return rest;
}

static tern_status system_text(tn_request *r, const json_t *s, const char *where, tern_error *err) {
    json_t *text = NULL;
    if (!s || json_is_null(s)) return TERN_OK;
    json_t *said = without_note(s);
    tern_status st = said ? tn_content_text(said, where, true, &text, err) : tn_request_no_memory(err);
    json_decref(said);
    TN_TRY(st);
    if (!json_string_length(text)) { /* nothing is said, which templates would write as a turn */
        json_decref(text);
        return TERN_OK;
    }
    return add(r, tn_json_pack("{s:s, s:o}", "role", "system", "content", text), err);
}

static tern_status message(tn_request *r, const json_t *m, const char *where, tern_error *err) {
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    TN_FAIL_IF(!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")), err,
               TERN_E_INVALID, "%s: the role must be user, assistant or system", where);
    if (!strcmp(role, "system")) return system_text(r, content, where, err);
    if (json_is_string(content))
        return add(r, tn_json_pack("{s:s, s:O}", "role", role, "content", content), err);
    TN_FAIL_IF(!json_is_array(content), err, TERN_E_INVALID, "%s has no content: a text, or a list of blocks",
               where);
    turn t = {
        .role = role, .where = where, .text = json_array(), .thought = json_array(), .calls = json_array()};
    tern_status st = t.text && t.thought && t.calls ? blocks(r, &t, content, err) : tn_request_no_memory(err);
    if (st == TERN_OK) st = tn_request_note_calls(r, t.calls, err);
    json_decref(t.text);
    json_decref(t.thought);
    json_decref(t.calls);
    return st;
}

static tern_status tools(tn_request *r, tern_error *err) {
    const json_t *list = json_object_get(r->body, "tools"), *choice = json_object_get(r->body, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    TN_FAIL_IF(list && !json_is_null(list) && !json_is_array(list), err, TERN_E_INVALID,
               "'tools' must be a list");
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
        if (kind && strcmp(kind, "custom")) { /* the API's own servers would run it */
            char left_out[64];
            snprintf(left_out, sizeof left_out, "tools.%.40s", kind);
            tn_request_ignore(r, left_out);
            continue;
        }
        if (!name || !json_is_object(schema)) {
            json_decref(out);
            return tn_fail(err, TERN_E_UNSUPPORTED,
                           "tools[%zu]: want a tool of one's own, with name and input_schema", i);
        }
        json_t *f = tn_json_pack("{s:s, s:O}", "name", name, "parameters", schema);
        const json_t *about = json_object_get(t, "description");
        if (json_is_string(about)) tn_json_set(&f, "description", tn_json_copy(about));
        tn_json_append(&out, tn_json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    if (none || (out && !json_array_size(out))) {
        json_decref(out);
        TN_FAIL_IF(!none && (any || one), err, TERN_E_INVALID,
                   "'tool_choice' asks for a call, and none of the tools is one's own");
        return TERN_OK;
    }
    r->tools = out;
    if (!out) return tn_request_no_memory(err);
    r->forced = any || one;
    if (one) r->forced_tool = json_string_value(json_object_get(choice, "name"));
    TN_FAIL_IF(one && !r->forced_tool, err, TERN_E_INVALID, "'tool_choice' of type tool has no name");
    return tn_tools_check(r->tools, err);
}

/* output_config: {"format": {"type": "json_schema", "schema"}, "effort"}; output_format is its older name. */
static tern_status output(tn_request *r, tern_error *err) {
    const json_t *config = json_object_get(r->body, "output_config"), *f = json_object_get(config, "format");
    json_t *effort = json_object_get(config, "effort");
    TN_TRY(tn_field_kind(r->body, "output_config", JSON_OBJECT, err));
    TN_TRY(tn_field_word(effort, "output_config.effort", TN_EFFORTS, err));
    if (!f || json_is_null(f)) f = json_object_get(r->body, "output_format");
    if (json_string_length(effort)) tn_json_set(&r->variables, "reasoning_effort", json_incref(effort));
    if (!r->variables) return tn_request_no_memory(err);
    if (!f || json_is_null(f)) return TERN_OK;
    const char *type = json_string_value(json_object_get(f, "type"));
    TN_FAIL_IF(!type || strcmp(type, "json_schema") || !json_is_object(json_object_get(f, "schema")), err,
               TERN_E_INVALID, "the format of the output must be {\"type\": \"json_schema\", \"schema\"}");
    TN_FAIL_IF(r->forced, err, TERN_E_INVALID,
               "a format for the answer, and 'tool_choice' that asks for a call: want one of them");
    return tn_json_text(json_object_get(f, "schema"), JSON_COMPACT, &r->schema, err);
}

static tern_status conversation(tn_request *r, const json_t *list, tern_error *err) {
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

tern_status tn_messages_read(tn_request *r, tern_error *err) {
    const char *field;
    json_t *v;
    json_object_foreach(r->body, field, v) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(field, known[i]);
        if (!is_known && !tn_says_nothing(v)) tn_request_ignore(r, field);
    }
    double max = -1;
    TN_TRY(tn_field_flag(r->body, "stream", &r->stream, err));
    TN_TRY(tn_request_sampling(r, err));
    TN_TRY(tn_field_number(r->body, "max_tokens", 1, TN_REQUEST_UNLIMITED, true, &max, err));
    TN_FAIL_IF(max < 0 && !r->counts, err, TERN_E_INVALID, "'max_tokens' is missing");
    if (max >= 0) r->says |= TN_SAYS_MAX;
    r->max_tokens = tn_request_most(max);
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
    if (!r->variables || !r->messages) return tn_request_no_memory(err);
    TN_TRY(output(r, err));
    TN_TRY(system_text(r, json_object_get(r->body, "system"), "system", err));
    TN_TRY(conversation(r, json_object_get(r->body, "messages"), err));
    tn_request_split_begun(r);
    return TERN_OK;
}
