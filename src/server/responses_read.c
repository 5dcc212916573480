/* Requests of Responses, in the words of a chat: then they are read as those are. */
#include "server/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const json_t *v, const char *word) {
    return json_is_string(v) && !strcmp(json_string_value(v), word);
}

/* ---- items -------------------------------------------------------------------------------------------- */

/* What the model said is one message: its thought, its words and its calls, which are items here. */
typedef struct turns {
    tn_responses *kept;  /* whose items may be named */
    json_t *list, *said; /* said: the message of the assistant that grows, or NULL */
} turns;

static void end_said(turns *t) {
    if (t->said) tn_json_append(&t->list, t->said);
    t->said = NULL;
}

static void begin_said(turns *t) {
    if (!t->said) t->said = tn_json_pack("{s:s, s:s}", "role", "assistant", "content", "");
}

static void add_text(json_t **to, const char *key, const json_t *text) {
    const char *before = json_string_value(json_object_get(*to, key));
    tn_bytes b = {0};
    bool ok = tn_bytes_put(&b, before ? before : "") &&
              tn_bytes_add(&b, json_string_value(text), json_string_length(text));
    tn_json_set(to, key, ok ? tn_json_string(b.p, b.n) : NULL);
    free(b.p);
}

/* Content is a text, or parts, which become those of a chat. */
static tern_status content_of(const json_t *content, size_t i, json_t **out, tern_error *err) {
    if (json_is_string(content)) {
        *out = json_incref((json_t *)(uintptr_t)content);
        return TERN_OK;
    }
    TN_FAIL_IF(!json_is_array(content), err, TERN_E_INVALID,
               "input[%zu] has no content: a text, or a list of parts", i);
    json_t *list = json_array();
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *p = json_array_get(content, k), *type = json_object_get(p, "type"),
                     *text = json_object_get(p, is(type, "refusal") ? "refusal" : "text");
        if (is(type, "input_image")) {
            tn_json_append(&list, json_incref((json_t *)(uintptr_t)p));
            continue;
        }
        bool ok = json_is_string(text) && (is(type, "input_text") || is(type, "output_text") ||
                                           is(type, "text") || is(type, "refusal"));
        if (!ok) {
            char where[64], there_are[128];
            const char *kind = json_is_string(type) ? json_string_value(type) : "";
            json_decref(list);
            snprintf(where, sizeof where, "input[%zu].content[%zu]", i, k);
            snprintf(
                there_are, sizeof there_are,
                "parts of type '%.40s' are not supported; there are input_text, input_image and output_text",
                kind);
            return tn_content_refuse(where, kind, there_are, err);
        }
        tn_json_append(&list, tn_json_pack("{s:s, s:O}", "type", "text", "text", text));
    }
    *out = list;
    return list ? TERN_OK : tn_request_no_memory(err);
}

static tern_status read_message(turns *t, const json_t *item, size_t i, tern_error *err) {
    const json_t *role = json_object_get(item, "role");
    json_t *content = NULL, *text = NULL;
    TN_TRY(content_of(json_object_get(item, "content"), i, &content, err));
    if (!is(role, "assistant")) {
        end_said(t);
        json_t *m = json_object();
        if (role) tn_json_set(&m, "role", json_incref((json_t *)(uintptr_t)role));
        tn_json_set(&m, "content", content);
        tn_json_append(&t->list, m);
        return TERN_OK;
    }
    tern_status st = tn_content_text(content, "input", false, &text, err);
    json_decref(content);
    if (st != TERN_OK) return st;
    if (json_object_get(t->said, "tool_calls")) end_said(t);
    begin_said(t);
    add_text(&t->said, "content", text);
    json_decref(text);
    return TERN_OK;
}

/* What the model calls a tool: by its namespace and its name. The caller's. */
static json_t *full_name(const json_t *space, const json_t *name) {
    if (!json_is_string(name) || !json_string_length(space)) return json_incref((json_t *)(uintptr_t)name);
    tn_bytes b = {0};
    bool ok = tn_bytes_put(&b, json_string_value(space)) && tn_bytes_put(&b, "__") &&
              tn_bytes_put(&b, json_string_value(name));
    json_t *v = ok ? tn_json_string(b.p, b.n) : NULL;
    free(b.p);
    return v;
}

static tern_status read_call(turns *t, const json_t *item, size_t i, tern_error *err) {
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
                 *args = json_object_get(item, "arguments");
    TN_FAIL_IF(!json_is_string(id) || !json_is_string(name) || !json_is_string(args), err, TERN_E_INVALID,
               "input[%zu]: a function_call needs call_id, name and arguments, all texts", i);
    begin_said(t);
    json_t *calls = json_object_get(t->said, "tool_calls")
                        ? json_incref(json_object_get(t->said, "tool_calls"))
                        : json_array();
    tn_json_append(&calls,
                   tn_json_pack("{s:O, s:s, s:{s:o, s:O}}", "id", id, "type", "function", "function", "name",
                                full_name(json_object_get(item, "namespace"), name), "arguments", args));
    tn_json_set(&t->said, "tool_calls", calls);
    return TERN_OK;
}

static tern_status read_result(turns *t, const json_t *item, size_t i, tern_error *err) {
    const json_t *id = json_object_get(item, "call_id");
    json_t *content = NULL;
    TN_FAIL_IF(!json_is_string(id), err, TERN_E_INVALID, "input[%zu]: a function_call_output needs a call_id",
               i);
    TN_TRY(content_of(json_object_get(item, "output"), i, &content, err));
    end_said(t);
    tn_json_append(&t->list,
                   tn_json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content));
    return TERN_OK;
}

/* The thought itself, where it came back, else its summary. */
static void read_reasoning(turns *t, const json_t *item) {
    const json_t *parts = json_object_get(item, "content");
    if (!json_array_size(parts)) parts = json_object_get(item, "summary");
    if (!json_array_size(parts)) return;
    begin_said(t);
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");
        if (json_is_string(text)) add_text(&t->said, "reasoning_content", text);
    }
}

static tern_status read_item(turns *t, const json_t *item, size_t i, tern_error *err);

/* An item that an earlier response had, named by its id. */
static tern_status read_reference(turns *t, const json_t *item, size_t i, tern_error *err) {
    const json_t *id = json_object_get(item, "id");
    json_t *named;
    TN_FAIL_IF(!json_is_string(id), err, TERN_E_INVALID, "input[%zu]: an item_reference needs an id", i);
    TN_TRY(tn_responses_item(t->kept, json_string_value(id), &named, err));
    tern_status st = read_item(t, named, i, err);
    json_decref(named);
    return st;
}

static tern_status read_item(turns *t, const json_t *item, size_t i, tern_error *err) {
    const json_t *type = json_object_get(item, "type");
    TN_FAIL_IF(!json_is_object(item), err, TERN_E_INVALID, "input[%zu] is not an object", i);
    if (!type || is(type, "message")) return read_message(t, item, i, err);
    if (is(type, "function_call")) return read_call(t, item, i, err);
    if (is(type, "function_call_output")) return read_result(t, item, i, err);
    if (is(type, "reasoning")) {
        read_reasoning(t, item);
        return TERN_OK;
    }
    if (is(type, "item_reference")) return read_reference(t, item, i, err);
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "input[%zu]: items of type '%.40s' are not supported; there are message, function_call, "
                   "function_call_output, reasoning and item_reference",
                   i, json_is_string(type) ? json_string_value(type) : "");
}

/* The new turns after those before; *list is taken and given back. */
static tern_status read_input(tn_responses *x, const json_t *input, json_t **list, tern_error *err) {
    turns t = {.kept = x, .list = *list};
    tern_status st = TERN_OK;
    if (json_is_string(input))
        tn_json_append(&t.list, tn_json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (!json_is_array(input))
        st = tn_fail(err, TERN_E_INVALID, "'input' must be a text or a list of items");
    for (size_t i = 0; st == TERN_OK && i < json_array_size(input); i++)
        st = read_item(&t, json_array_get(input, i), i, err);
    if (st == TERN_OK) end_said(&t);
    else json_decref(t.said);
    *list = t.list;
    return st != TERN_OK || t.list ? st : tn_request_no_memory(err);
}

/* ---- the rest ----------------------------------------------------------------------------------------- */

/* The tools as chats have them, and what those of namespaces are named there: {"SPACE__NAME": {namespace, name}}. */
typedef struct toolbox {
    json_t *list, *names; /* owned */
    tn_request *ignored;
} toolbox;

static void put_tool(toolbox *b, const json_t *t, const json_t *space) {
    json_t *f = tn_json_copy_flat(t), *name = full_name(space, json_object_get(t, "name"));
    if (f) json_object_del(f, "type");
    if (json_string_length(space) && json_is_string(name)) {
        tn_json_set(&b->names, json_string_value(name),
                    tn_json_pack("{s:O, s:O}", "namespace", space, "name", json_object_get(t, "name")));
        tn_json_set(&f, "name", json_incref(name));
    }
    json_decref(name);
    tn_json_append(&b->list, tn_json_pack("{s:s, s:o}", "type", "function", "function", f));
}

/* Tools that the API's own servers would run are left out, and named. */
static void put_tools(toolbox *b, const json_t *tools, const json_t *space) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *type = json_object_get(t, "type");
        if (!type || is(type, "function")) {
            put_tool(b, t, space);
        } else if (is(type, "namespace") && !space && json_is_string(json_object_get(t, "name"))) {
            put_tools(b, json_object_get(t, "tools"), json_object_get(t, "name"));
        } else {
            char name[64];
            snprintf(name, sizeof name, "tools.%.40s", json_is_string(type) ? json_string_value(type) : "?");
            tn_request_ignore(b->ignored, name);
        }
    }
}

/* What is missing is null in the chat, whose reader refuses it. The caller's. */
static json_t *or_null(json_t *v) { return v ? json_incref(v) : json_null(); }

static json_t *named(const json_t *tool) {
    json_t *name = json_object_get(tool, "name");
    return tn_json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name",
                        name ? full_name(json_object_get(tool, "namespace"), name) : json_null());
}

static json_t *choice_of(const json_t *choice) {
    if (json_is_string(choice)) return json_incref((json_t *)(uintptr_t)choice);
    if (!is(json_object_get(choice, "type"), "allowed_tools")) return named(choice);
    const json_t *tools = json_object_get(choice, "tools");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++)
        tn_json_append(&list, named(json_array_get(tools, i)));
    return tn_json_pack("{s:s, s:{s:o, s:o}}", "type", "allowed_tools", "allowed_tools", "mode",
                        or_null(json_object_get(choice, "mode")), "tools", list);
}

static void put_format(const json_t *text, json_t **chat) {
    json_t *f = json_object_get(text, "format");
    const json_t *type = json_object_get(f, "type");
    if (!json_is_object(f)) return;
    if (is(type, "json_schema"))
        tn_json_set(chat, "response_format",
                    tn_json_pack("{s:s, s:{s:o}}", "type", "json_schema", "json_schema", "schema",
                                 or_null(json_object_get(f, "schema"))));
    else tn_json_set(chat, "response_format", json_incref(f));
}

/* The other words that may be included are of items that never come. */
static bool wants_logprobs(const json_t *body) {
    const json_t *include = json_object_get(body, "include");
    for (size_t i = 0; i < json_array_size(include); i++)
        if (is(json_array_get(include, i), "message.output_text.logprobs")) return true;
    return false;
}

static void put_logprobs(const json_t *body, json_t **chat) {
    json_t *top = json_object_get(body, "top_logprobs");
    if (!wants_logprobs(body)) return;
    tn_json_set(chat, "logprobs", json_true());
    if (top) tn_json_set(chat, "top_logprobs", json_incref(top));
}

static void put_rest(const json_t *body, json_t **chat, json_t **kept, tn_request *ignored) {
    static const char *const same[][2] = {{"model", "model"},
                                          {"stream", "stream"},
                                          {"temperature", "temperature"},
                                          {"top_p", "top_p"},
                                          {"max_output_tokens", "max_tokens"},
                                          {"parallel_tool_calls", "parallel_tool_calls"},
                                          {"user", "user"},
                                          {"seed", "seed"},
                                          {"stop", "stop"},
                                          {"grammar", "grammar"},
                                          {"chat_template_kwargs", "chat_template_kwargs"},
                                          {"return_progress", "return_progress"},
                                          {"timings_per_token", "timings_per_token"},
                                          {"lora", "lora"},
                                          {"priority", "priority"},
                                          {"service_tier", "service_tier"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(body, same[i][0]))
            tn_json_set(chat, same[i][1], json_incref(json_object_get(body, same[i][0])));
    const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    json_t *effort = json_object_get(json_object_get(body, "reasoning"), "effort");
    if (json_array_size(tools)) {
        toolbox b = {.list = json_array(), .names = json_object(), .ignored = ignored};
        put_tools(&b, tools, NULL);
        tn_json_set(chat, "tools", b.list);
        tn_json_set(kept, "names", b.names);
    } else if (tools) {
        tn_json_set(chat, "tools", json_incref((json_t *)(uintptr_t)tools)); /* no list: an error */
    }
    /* one of a tool that was left out is left out with it */
    const bool left_out =
        json_is_object(choice) && json_array_size(tools) && !json_array_size(json_object_get(*chat, "tools"));
    if (choice && !json_is_null(choice) && !left_out) tn_json_set(chat, "tool_choice", choice_of(choice));
    if (json_is_string(effort)) tn_json_set(chat, "reasoning_effort", json_incref(effort));
    put_format(json_object_get(body, "text"), chat);
    put_logprobs(body, chat);
}

static void note_ignored(const json_t *body, tn_request *r) {
    static const char *const known[] = {"model",
                                        "stream",
                                        "temperature",
                                        "top_p",
                                        "max_output_tokens",
                                        "parallel_tool_calls",
                                        "user",
                                        "seed",
                                        "stop",
                                        "grammar",
                                        "lora",
                                        "priority",
                                        "return_progress",
                                        "timings_per_token",
                                        "tools",
                                        "tool_choice",
                                        "reasoning",
                                        "text",
                                        "input",
                                        "instructions",
                                        "metadata",
                                        "store",
                                        "chat_template_kwargs",
                                        "previous_response_id",
                                        "service_tier",
                                        "prompt_cache_key",
                                        "prompt_cache_retention",
                                        "safety_identifier",
                                        "stream_options",
                                        "include",
                                        "top_logprobs"};
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, name, v) {
        bool is_known = tn_says_nothing(v) || (!strcmp(name, "truncation") && is(v, "disabled"));
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(name, known[i]);
        if (!is_known) tn_request_ignore(r, name);
    }
    const json_t *verbosity = json_object_get(json_object_get(body, "text"), "verbosity");
    if (!tn_says_nothing(verbosity) && !is(verbosity, "medium")) tn_request_ignore(r, "text.verbosity");
    if (!wants_logprobs(body) && !tn_says_nothing(json_object_get(body, "top_logprobs")))
        tn_request_ignore(r, "top_logprobs");
}

/* What is dropped where it has the wrong kind, and what would then have another answer. */
static tern_status kinds(const json_t *body, tern_error *err) {
    const json_t *choice = json_object_get(body, "tool_choice"), *text = json_object_get(body, "text"),
                 *reasoning = json_object_get(body, "reasoning");
    bool store;
    TN_TRY(tn_field_kind(body, "instructions", JSON_STRING, err));
    TN_TRY(tn_field_kind(body, "include", JSON_ARRAY, err));
    TN_TRY(tn_field_flag(body, "store", &store, err));
    TN_TRY(tn_field_kind(body, "text", JSON_OBJECT, err));
    TN_FAIL_IF(tn_field_kind(text, "format", JSON_OBJECT, NULL) != TERN_OK, err, TERN_E_INVALID,
               "'text.format' must be an object");
    TN_TRY(tn_field_kind(body, "reasoning", JSON_OBJECT, err));
    TN_TRY(tn_field_word(json_object_get(reasoning, "effort"), "reasoning.effort", TN_EFFORTS, err));
    TN_TRY(tn_field_word(json_object_get(text, "verbosity"), "text.verbosity", TN_VERBOSITIES, err));
    TN_FAIL_IF(choice && !json_is_string(choice) && !json_is_object(choice) && !json_is_null(choice), err,
               TERN_E_INVALID, "'tool_choice' must be a text or an object");
    return TERN_OK;
}

/* The chat, and *kept: {body, messages} for the reply and the next turn. */
static tern_status translate(tn_responses *x, const json_t *body, json_t **chat, json_t **kept,
                             tn_request *ignored, tern_error *err) {
    const json_t *before = json_object_get(body, "previous_response_id"),
                 *instructions = json_object_get(body, "instructions");
    json_t *list = NULL;
    TN_TRY(kinds(body, err));
    static const char *const refused[] = {"background", "conversation", "prompt"};
    for (int i = 0; i < 3; i++)
        TN_FAIL_IF(!tn_says_nothing(json_object_get(body, refused[i])), err, TERN_E_UNSUPPORTED,
                   "'%s' is not supported", refused[i]);
    TN_FAIL_IF(before && !json_is_null(before) && !json_is_string(before), err, TERN_E_INVALID,
               "'previous_response_id' must be a text");
    if (json_is_string(before)) TN_TRY(tn_responses_find(x, json_string_value(before), NULL, &list, err));
    else list = json_array();
    tern_status st = read_input(x, json_object_get(body, "input"), &list, err);
    if (st != TERN_OK) {
        json_decref(list);
        return st;
    }
    json_t *all = json_array();
    if (json_string_length(instructions))
        tn_json_append(&all, tn_json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    for (size_t i = 0; i < json_array_size(list); i++)
        tn_json_append(&all, json_incref(json_array_get(list, i)));
    *kept = tn_json_pack("{s:O, s:o}", "body", body, "messages", list);
    tn_json_set(chat, "messages", all);
    put_rest(body, chat, kept, ignored);
    return *chat && *kept ? TERN_OK : tn_request_no_memory(err);
}

tern_status tn_responses_read(tn_responses *x, const char *body, size_t n_bytes, tn_request *r,
                              tern_error *err) {
    tn_request ignored = {0}; /* of it the list of fields alone */
    json_t *in, *chat = json_object(), *kept = NULL;
    tern_status st = tn_request_object(body, n_bytes, &in, err);
    *r = (tn_request){0};
    if (st == TERN_OK) st = translate(x, in, &chat, &kept, &ignored, err);
    if (st == TERN_OK) st = tn_request_of(TN_API_CHAT, json_incref(chat), r, err);
    if (st == TERN_OK) {
        note_ignored(in, &ignored);

        memcpy(r->ignored, ignored.ignored, sizeof r->ignored);
        r->kept = kept;
        r->sink = &tn_sink_responses;
        r->sink_user = x;
        r->text_logprobs = r->logprobs;
        kept = NULL;
    }
    json_decref(kept);
    json_decref(chat);
    json_decref(in);
    return st;
}
