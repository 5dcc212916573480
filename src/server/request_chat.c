/* What a request says of a conversation: its messages, tools, and what the template is told besides. */
#include "server/images.h"
#include "text/toolcall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tern_status tn_content_refuse(const char *where, const char *type, const char *there_are, tern_error *err) {
    static const char *const kinds[][2] = {
        {"image_url", "image"}, {"input_image", "image"}, {"image", "image"},    {"input_audio", "audio"},
        {"audio", "audio"},     {"input_video", "video"}, {"video_url", "video"}};
    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++)
        TN_FAIL_IF(!strcmp(type, kinds[i][0]), err, TERN_E_UNSUPPORTED, "%s: %s input is not supported here",
                   where, kinds[i][1]);
    return tn_fail(err, TERN_E_UNSUPPORTED, "%s: %s", where, there_are);
}

/* The text of a part; what an assistant refused with is one too. NULL: it has none. */
static const json_t *text_of(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type || (strcmp(type, "text") && strcmp(type, "refusal"))) return NULL;
    const json_t *text = json_object_get(part, type);
    return json_is_string(text) ? text : NULL;
}

tern_status tn_content_text(const json_t *content, const char *where, bool lines, json_t **out,
                            tern_error *err) {
    size_t n = 0;
    *out = NULL;
    if (json_is_string(content)) {
        *out = json_incref((json_t *)(uintptr_t)content);
        return TERN_OK;
    }
    TN_FAIL_IF(!json_is_array(content), err, TERN_E_INVALID, "%s has no content: a text, or a list of parts",
               where);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *p = json_array_get(content, i), *t = text_of(p);
        const char *type = json_string_value(json_object_get(p, "type"));
        if (!t) {
            char part[160];
            snprintf(part, sizeof part, "%.120s.content[%zu]", where, i);
            return tn_content_refuse(
                part, type, "only parts of type text are supported here, and pictures of a user and of tools",
                err);
        }
        n += json_string_length(t) + 1;
    }
    char *s = malloc(n + 1);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for the request");
    n = 0;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *t = text_of(json_array_get(content, i));
        if (i && lines) s[n++] = '\n';
        memcpy(s + n, json_string_value(t), json_string_length(t));
        n += json_string_length(t);
    }
    *out = tn_json_string(s, n);
    free(s);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

/* A call whose arguments are an object has them as a text. */
static json_t *call_of(const json_t *call) {
    const json_t *f = json_object_get(call, "function"), *args = json_object_get(f, "arguments");
    char *text;
    json_t *out = tn_json_copy(call);
    if (!json_is_object(args)) return out;
    json_t *own = tn_json_copy_flat(f);
    tern_status st = tn_json_text(args, JSON_COMPACT, &text, NULL);
    tn_json_set(&own, "arguments", st == TERN_OK ? tn_json_string(text, strlen(text)) : NULL);
    tn_json_set(&out, "function", own);
    free(text);
    return out;
}

/* Checks the calls of an assistant's message; *out is a new list of them. */
static tern_status read_calls(const json_t *calls, const char *where, json_t **out, tern_error *err) {
    TN_FAIL_IF(!json_is_array(calls), err, TERN_E_INVALID, "%s.tool_calls must be a list", where);
    *out = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function"),
                     *args = json_object_get(f, "arguments");
        if (!json_is_string(json_object_get(f, "name")) || (!json_is_string(args) && !json_is_object(args))) {
            json_decref(*out);
            return tn_fail(
                err, TERN_E_INVALID,
                "%s.tool_calls[%zu] needs function.name, a text, and function.arguments, a text or "
                "an object",
                where, i);
        }
        tn_json_append(out, call_of(call));
    }
    return *out ? TERN_OK : tn_request_no_memory(err);
}

/* The name of the call with this id is what a result is of. */
tern_status tn_request_note_calls(tn_request *r, const json_t *calls, tern_error *err) {
    if (!r->call_names) r->call_names = json_object();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *c = json_array_get(calls, i);
        json_t *name = json_object_get(json_object_get(c, "function"), "name");
        const char *id = json_string_value(json_object_get(c, "id"));
        if (id && name) tn_json_set(&r->call_names, id, json_incref(name));
    }
    TN_FAIL_IF(!r->call_names, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

static tern_status message(tn_request *r, const json_t *m, const char *where, tern_error *err) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *c = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls"),
                 *id = json_object_get(m, "tool_call_id"), *thought = json_object_get(m, "reasoning_content");
    bool known = false;
    TN_FAIL_IF(!role, err, TERN_E_INVALID, "%s has no role", where);
    if (!strcmp(role, "developer")) role = "system";
    for (int i = 0; i < 4; i++) known |= !strcmp(role, roles[i]);
    TN_FAIL_IF(!known, err, TERN_E_UNSUPPORTED,
               "%s: role '%.40s' is not supported; there are system, user, assistant and tool", where, role);
    if (tn_says_nothing(calls)) calls = NULL;
    if (!strcmp(role, "assistant") && (!c || json_is_null(c)) &&
        json_is_string(json_object_get(m, "refusal")))
        c = json_object_get(m, "refusal");
    TN_FAIL_IF(calls && strcmp(role, "assistant"), err, TERN_E_INVALID, "%s: only an assistant calls tools",
               where);
    json_t *own = NULL;
    if (calls) TN_TRY(read_calls(calls, where, &own, err));
    json_t *out = tn_json_pack("{s:s}", "role", role), *text = NULL;
    const bool thinks = !strcmp(role, "assistant") && json_is_string(thought);
    if ((calls || thinks) && (!c || json_is_null(c))) {
        text = tn_json_string("", 0);
    } else {
        const bool sees = !strcmp(role, "user") || !strcmp(role, "tool");
        tern_status st = sees ? tn_images_content(r, c, where, true, &text, err)
                              : tn_content_text(c, where, strcmp(role, "assistant") != 0, &text, err);
        if (st != TERN_OK) {
            json_decref(out);
            json_decref(own);
            return st;
        }
    }
    tn_json_set(&out, "content", text);
    if (calls) tn_json_set(&out, "tool_calls", own);
    if (json_is_string(thought)) tn_json_set(&out, "reasoning_content", tn_json_copy(thought));
    if (!strcmp(role, "tool")) {
        const char *name = json_string_value(json_object_get(m, "name"));
        if (!name) name = json_string_value(json_object_get(r->call_names, json_string_value(id)));
        if (json_is_string(id)) tn_json_set(&out, "tool_call_id", tn_json_copy(id));
        if (name) tn_json_set(&out, "name", tn_json_string(name, strlen(name)));
    }
    tn_json_append(&r->messages, out);
    TN_FAIL_IF(!r->messages, err, TERN_E_MEMORY, "no memory for the request");
    return tn_request_note_calls(r, calls, err);
}

/* An answer that is begun already is the last message; two of them are nobody's turn. */
static bool is_answer(const json_t *list, size_t back) {
    size_t n = json_array_size(list);
    const char *role =
        n >= back ? json_string_value(json_object_get(json_array_get(list, n - back), "role")) : NULL;
    return role && !strcmp(role, "assistant");
}

static tern_status messages(tn_request *r, tern_error *err) {
    const json_t *list = json_object_get(r->body, "messages");
    size_t n = json_array_size(list);
    TN_FAIL_IF(!n, err, TERN_E_INVALID, "'messages' must be a list of at least one message");
    TN_FAIL_IF(n > TN_REQUEST_MESSAGES, err, TERN_E_LIMIT, "%zu messages: at most %d are read", n,
               TN_REQUEST_MESSAGES);
    r->messages = json_array();
    TN_FAIL_IF(!r->messages, err, TERN_E_MEMORY, "no memory for the request");
    for (size_t i = 0; i < n; i++) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", i);
        TN_TRY(message(r, json_array_get(list, i), where, err));
    }
    TN_FAIL_IF(is_answer(list, 1) && is_answer(list, 2), err, TERN_E_INVALID,
               "'messages' ends with two messages of the assistant: want one that is continued, at most");
    return TERN_OK;
}

/* {"mode", "tools": [{"type": "function", "function": {"name"}}]}: those tools alone. *out is a new list. */
static tern_status allowed_of(const json_t *allowed, const json_t *tools, json_t **out, tern_error *err) {
    const json_t *names = json_object_get(allowed, "tools");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(names); i++) {
        const json_t *f = json_object_get(json_array_get(names, i), "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        bool found = false;
        for (size_t k = 0; name && k < json_array_size(tools); k++) {
            json_t *t = json_array_get(tools, k);
            const char *its = json_string_value(json_object_get(json_object_get(t, "function"), "name"));
            if (!its || strcmp(its, name)) continue;
            found = true;
            tn_json_append(&list, json_incref(t));
        }
        if (!found) {
            json_decref(list);
            return tn_fail(err, TERN_E_INVALID, "'tool_choice' allows '%.80s', and there is no such tool",
                           name ? name : "");
        }
    }
    *out = list;
    return list ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the request");
}

typedef struct choice {
    bool none, required;
    const char *named;
    const json_t *allowed; /* or NULL */
} choice;

static tern_status read_choice(const json_t *v, choice *out, tern_error *err) {
    const char *word = json_string_value(v), *type = json_string_value(json_object_get(v, "type"));
    *out = (choice){.named = json_string_value(json_object_get(json_object_get(v, "function"), "name"))};
    if (type && !strcmp(type, "allowed_tools")) {
        out->allowed = json_object_get(v, "allowed_tools");
        word = json_string_value(json_object_get(out->allowed, "mode"));
        TN_FAIL_IF(!word || (strcmp(word, "auto") && strcmp(word, "required")), err, TERN_E_INVALID,
                   "'tool_choice' of type allowed_tools needs the mode auto or required");
    }
    out->none = word && !strcmp(word, "none");
    out->required = word && !strcmp(word, "required");
    TN_FAIL_IF(v && !json_is_null(v) && !out->named && !out->none && !out->required &&
                   (!word || strcmp(word, "auto")),
               err, TERN_E_INVALID,
               "'tool_choice' must be none, auto, required, a function by its name, or allowed_tools");
    return TERN_OK;
}

/* Reads tools and tool_choice. With "none" the model is not told of any. */
static tern_status read_tools(tn_request *r, tern_error *err) {
    const json_t *tools = json_object_get(r->body, "tools"),
                 *many = json_object_get(r->body, "parallel_tool_calls");
    choice c;
    TN_TRY(read_choice(json_object_get(r->body, "tool_choice"), &c, err));
    TN_FAIL_IF(many && !json_is_boolean(many) && !json_is_null(many), err, TERN_E_INVALID,
               "'parallel_tool_calls' must be true or false");
    r->one_call = json_is_false(many);
    TN_FAIL_IF(tools && !json_is_null(tools) && !json_is_array(tools), err, TERN_E_INVALID,
               "'tools' must be a list");
    if (tn_says_nothing(tools)) tools = NULL;
    TN_FAIL_IF(!tools && (c.named || c.required), err, TERN_E_INVALID,
               "'tool_choice' asks for a call, and there are no tools");
    if (!tools) return TERN_OK;
    TN_TRY(tn_tools_check(tools, err));
    if (c.none) return TERN_OK;
    if (c.allowed) TN_TRY(allowed_of(c.allowed, tools, &r->tools, err));
    else r->tools = tn_json_copy(tools);
    TN_FAIL_IF(!r->tools, err, TERN_E_MEMORY, "no memory for the request");
    r->forced = c.required || c.named;
    r->forced_tool = c.named;
    TN_FAIL_IF(
        r->forced && (r->grammar || r->schema), err, TERN_E_INVALID,
        "a grammar or format for the answer, and 'tool_choice' that asks for a call: want one of them");
    return TERN_OK;
}

/* Reads what a template is told besides: {"enable_thinking": false}, and reasoning_effort under the names
 * that templates know. */
static tern_status read_variables(tn_request *r, tern_error *err) {
    const json_t *v = json_object_get(r->body, "chat_template_kwargs"),
                 *e = json_object_get(r->body, "reasoning_effort");
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};
    TN_FAIL_IF(v && !json_is_object(v) && !json_is_null(v), err, TERN_E_INVALID,
               "'chat_template_kwargs' must be an object");
    for (int i = 0; i < 3; i++)
        TN_FAIL_IF(json_object_get(v, own[i]), err, TERN_E_INVALID, "'chat_template_kwargs' cannot set '%s'",
                   own[i]);
    TN_TRY(tn_field_word(e, "reasoning_effort", TN_EFFORTS, err));
    if (json_is_object(v)) r->variables = tn_json_copy(v);
    else r->variables = json_object();
    if (json_string_length(e)) {
        bool none = !strcmp(json_string_value(e), "none");
        if (none) tn_json_set(&r->variables, "enable_thinking", json_false());
        else tn_json_set(&r->variables, "reasoning_effort", tn_json_copy(e));
    }
    TN_FAIL_IF(!r->variables, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

void tn_request_split_begun(tn_request *r) {
    size_t n = json_array_size(r->messages);
    const json_t *m = json_array_get(r->messages, n - 1);
    const char *role = json_string_value(json_object_get(m, "role"));
    json_t *text = json_object_get(m, "content");
    if (n < 2 || r->no_answer || strcmp(role, "assistant") || json_object_get(m, "tool_calls") ||
        !json_string_length(text))
        return;
    r->begun = json_incref(text);
    json_array_remove(r->messages, n - 1);
}

tern_status tn_chat_read(tn_request *r, tern_error *err) {
    const json_t *answers = json_object_get(r->body, "add_generation_prompt"),
                 *goes_on = json_object_get(r->body, "continue_final_message");
    const char *what = json_string_value(goes_on);
    const bool continues = json_is_true(goes_on) || (what && !strcmp(what, "content"));
    bool wanted;
    TN_TRY(tn_field_flag(r->body, "add_generation_prompt", &wanted, err));
    TN_FAIL_IF(goes_on && !json_is_boolean(goes_on) && !json_is_null(goes_on) && !continues, err,
               TERN_E_INVALID, "'continue_final_message' must be true, false or \"content\"");
    TN_FAIL_IF(wanted && continues, err, TERN_E_INVALID,
               "'add_generation_prompt' and 'continue_final_message' are both true: want one of them");
    r->no_answer = json_is_false(answers) && !continues;
    TN_TRY(read_tools(r, err));
    TN_TRY(read_variables(r, err));
    TN_TRY(messages(r, err));
    if (!json_is_false(goes_on)) tn_request_split_begun(r);
    return TERN_OK;
}
