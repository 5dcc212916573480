/* text/toolcall_tools.c - which markup a template teaches; tools as schemas and as text. */
#include "base/json.h"
#include "base/status.h"
#include "text/toolcall_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tn_answer_form tn_answer_form_of(const char *template) {
    static const struct {
        const char *sign, *also;
        tn_call_form form;
        bool has_markers;
    } forms[] = {{"<|channel|>", "<|message|>", TN_CALLS_HARMONY, true},
                 {"<start_function_call>", NULL, TN_CALLS_GEMMA, true},
                 {"<|tool_call_start|>", NULL, TN_CALLS_LFM2, true},
                 {"<|tool_list_start|>", NULL, TN_CALLS_LFM2, true},
                 {"[TOOL_CALLS]", NULL, TN_CALLS_MISTRAL, true},
                 {"<tool_call>", NULL, TN_CALLS_HERMES, false},
                 {"<|python_tag|>", NULL, TN_CALLS_LLAMA3, true},
                 {"\"parameters\"", "<|start_header_id|>", TN_CALLS_LLAMA3, true},
                 {"<function=", NULL, TN_CALLS_HERMES, false}};
    /* other call markup, which would be taken for text */
    static const char *const foreign[] = {"<arg_key>",
                                          "<minimax:tool_call>",
                                          "<seed:tool_call>",
                                          "<|tool_call_begin|>",
                                          "tool\xe2\x96\x81"
                                          "call",
                                          "<|tools_prefix|>",
                                          "DSML",
                                          "<|recipient|>",
                                          ">>>all"};
    static const char *const thoughts[][2] = {
        {"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<seed:think>", "</seed:think>"}};
    tn_answer_form f = {.calls = TN_CALLS_GENERIC};
    if (!template) return f;
    f.knows_tools = strstr(template, "tools") != NULL;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign && f.knows_tools && !f.foreign; i++)
        if (strstr(template, foreign[i])) f.foreign = foreign[i];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (!strstr(template, forms[i].sign) || (forms[i].also && !strstr(template, forms[i].also))) continue;
        f.calls = forms[i].form;
        f.has_markers = forms[i].has_markers;
        break;
    }
    if (f.knows_tools && f.calls == TN_CALLS_GENERIC && !f.foreign) f.foreign = "markup of its own";
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts && !f.think; i++) {
        if (!strstr(template, thoughts[i][1])) continue;
        f.think = thoughts[i][0];
        f.think_ends = thoughts[i][1];
        f.has_markers |= thoughts[i][0][0] == '[';
    }
    if (f.calls == TN_CALLS_HARMONY) f.think = f.think_ends = NULL;
    return f;
}

tern_status tn_tools_check(const json_t *tools, tern_error *err) {
    TN_FAIL_IF(!json_is_array(tools), err, TERN_E_INVALID, "'tools' must be a list");
    TN_FAIL_IF(json_array_size(tools) > 1024, err, TERN_E_LIMIT, "%zu tools: at most 1024",
               json_array_size(tools));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *f = json_object_get(t, "function"), *v;
        const char *type = json_string_value(json_object_get(t, "type")),
                   *name = json_string_value(json_object_get(f, "name"));
        TN_FAIL_IF(!type || strcmp(type, "function"), err, TERN_E_UNSUPPORTED,
                   "tools[%zu]: only tools of type 'function' are supported", i);
        TN_FAIL_IF(!name || !*name || strlen(name) >= TN_CALL_NAME_MAX, err, TERN_E_INVALID,
                   "tools[%zu].function has no name of 1 to %d bytes", i, TN_CALL_NAME_MAX - 1);
        v = json_object_get(f, "parameters");
        TN_FAIL_IF(v && !json_is_object(v) && !json_is_null(v), err, TERN_E_INVALID,
                   "tools[%zu].function.parameters is not a JSON schema", i);
        TN_FAIL_IF(tn_tools_find(tools, name, strlen(name)) != f, err, TERN_E_INVALID,
                   "there are two tools '%.60s'", name);
    }
    return TERN_OK;
}

/* ---- as a schema ----------------------------------------------------------------------------------- */

/* Copies a schema that will lie at `at` of a larger one and rebases its references. Returns NULL without
 * memory. It is no deeper than tn_json_parse allows. */
static json_t *moved(const json_t *v, const char *at) {
    if (json_is_array(v)) {
        json_t *list = json_array();
        for (size_t i = 0; i < json_array_size(v); i++)
            tn_json_append(&list, moved(json_array_get(v, i), at));
        return list;
    }
    if (!json_is_object(v)) return tn_json_copy(v);
    json_t *out = json_object(), *m;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)v, key, m) {
        const char *ref = json_string_value(m);
        if (strcmp(key, "$ref") || !ref || *ref != '#') {
            tn_json_set(&out, key, moved(m, at));
            continue;
        }
        size_t n = strlen(at), k = strlen(ref);
        char *text = malloc(n + k);
        if (text) {
            memcpy(text, at, n);
            memcpy(text + n, ref + 1, k);
        }
        tn_json_set(&out, key, text ? tn_json_string(text, n + k - 1) : NULL);
        free(text);
    }
    return out;
}

static json_t *call_schema(const json_t *f, const char *arguments, const char *at) {
    const json_t *params = json_object_get(f, "parameters");
    json_t *args = json_object_size(params) ? moved(params, at) : tn_json_pack("{s:s}", "type", "object");
    if (args && !json_object_get(args, "type")) tn_json_set(&args, "type", tn_json_string("object", 6));
    json_t *required = json_array(), *props = json_object();
    tn_json_append(&required, tn_json_string("name", 4));
    tn_json_append(&required, tn_json_string(arguments, strlen(arguments)));
    tn_json_set(&props, "name",
                tn_json_pack("{s:s}", "const", json_string_value(json_object_get(f, "name"))));
    tn_json_set(&props, arguments, args);
    return tn_json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", props, "required", required,
                        "additionalProperties", 0);
}

tern_status tn_tools_schema(const json_t *tools, const char *name, tn_call_form form, char **out,
                            tern_error *err) {
    const char *arguments = form == TN_CALLS_LLAMA3 ? "parameters" : "arguments";
    bool array = form == TN_CALLS_MISTRAL;
    json_t *s;
    *out = NULL;
    if (name || json_array_size(tools) == 1) {
        const json_t *f = name ? tn_tools_find(tools, name, strlen(name))
                               : json_object_get(json_array_get(tools, 0), "function");
        TN_FAIL_IF(!f, err, TERN_E_INVALID, "there is no tool '%.60s'", name);
        s = call_schema(f, arguments,
                        !array
                            ? form == TN_CALLS_LLAMA3 ? "#/properties/parameters" : "#/properties/arguments"
                            : "#/items/properties/arguments");
    } else {
        TN_FAIL_IF(!json_array_size(tools), err, TERN_E_INVALID, "there are no tools to choose from");
        json_t *any = json_array();
        for (size_t i = 0; i < json_array_size(tools); i++) {
            char at[80];
            snprintf(at, sizeof at, "#%s/anyOf/%zu/properties/%s", array ? "/items" : "", i, arguments);
            tn_json_append(&any,
                           call_schema(json_object_get(json_array_get(tools, i), "function"), arguments, at));
        }
        s = tn_json_pack("{s:o}", "anyOf", any);
    }
    if (array)
        s = tn_json_pack("{s:s, s:i, s:i, s:o}", "type", "array", "minItems", 1, "maxItems", 1, "items", s);
    tern_status st = tn_json_text(s, JSON_COMPACT, out, err);
    json_decref(s);
    return st;
}

const char *tn_tools_prefix(tn_call_form form) {
    return form == TN_CALLS_HERMES ? "<tool_call>\n" : form == TN_CALLS_MISTRAL ? "[TOOL_CALLS]" : "";
}

const char *tn_tools_mark(tn_call_form form) {
    switch (form) {
    case TN_CALLS_HERMES: return "<tool_call>";
    case TN_CALLS_MISTRAL: return "[TOOL_CALLS]";
    case TN_CALLS_GEMMA: return "<start_function_call>";
    case TN_CALLS_LFM2: return "<|tool_call_start|>";
    default: return NULL;
    }
}

/* ---- as text --------------------------------------------------------------------------------------- */

static void put_json(tn_sb *b, const json_t *v) {
    char *text = NULL;
    if (tn_json_text(v, JSON_COMPACT | JSON_ENCODE_ANY, &text, NULL) != TERN_OK) b->failed = true;
    else tn_sb_put(b, text);
    free(text);
}

static const char *role_of(const json_t *m) {
    const char *r = json_string_value(json_object_get(m, "role"));
    return r ? r : "";
}

/* Puts the system message: its own text, then the tools. */
static void put_system(tn_sb *b, const json_t *own, const json_t *tools) {
    if (own && json_string_length(own)) {
        tn_sb_add(b, json_string_value(own), json_string_length(own));
        tn_sb_put(b, "\n\n");
    }
    tn_sb_put(b, "You can call these tools:\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        put_json(b, json_object_get(json_array_get(tools, i), "function"));
        tn_sb_put(b, "\n");
    }
    tn_sb_put(
        b, "To call one, answer with nothing but this JSON: {\"name\": \"<the tool's name>\", \"arguments\": "
           "{<its arguments>}}. The user then gives you its result. Otherwise answer in words.");
}

/* Puts a message with its calls, as the model wrote them. */
static void put_calls(tn_sb *b, const json_t *m) {
    const json_t *content = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls");
    tn_sb_add(b, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        const json_t *args = json_object_get(f, "arguments"), *name = json_object_get(f, "name");
        if (b->n) tn_sb_put(b, "\n");
        tn_sb_put(b, "{\"name\": ");
        tn_sb_json(b, json_string_value(name), json_string_length(name));
        tn_sb_put(b, ", \"arguments\": ");
        const char *said = json_string_value(args);
        if (said && !said[strspn(said, " \t\r\n")]) tn_sb_put(b, "{}"); /* no words are no arguments */
        else if (said) tn_sb_add(b, said, json_string_length(args));
        else put_json(b, args ? args : json_null());
        tn_sb_put(b, "}");
    }
}

static void add_message(json_t **out, const char *role, const tn_sb *b) {
    tn_json_append(out, tn_json_pack("{s:s, s:s%}", "role", role, "content", b->p ? b->p : "", b->n));
}

tern_status tn_tools_as_text(const json_t *messages, const json_t *tools, json_t **out, tern_error *err) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_sb b = {.ctx = &ctx};
    size_t i = 0, n = json_array_size(messages);
    const json_t *first = json_array_get(messages, 0);
    bool has_system = !strcmp(role_of(first), "system");
    *out = json_array();
    if (json_array_size(tools)) {
        put_system(&b, has_system ? json_object_get(first, "content") : NULL, tools);
        add_message(out, "system", &b);
        i = has_system;
    }
    while (i < n) {
        const json_t *m = json_array_get(messages, i);
        b.n = 0;
        if (!strcmp(role_of(m), "tool")) { /* consecutive results are one message: templates want turns */
            for (; i < n && !strcmp(role_of(m = json_array_get(messages, i)), "tool"); i++) {
                const json_t *name = json_object_get(m, "name"), *content = json_object_get(m, "content");
                tn_sb_put(&b, b.n ? "\nThe result of " : "The result of ");
                tn_sb_put(&b, json_string_length(name) ? json_string_value(name) : "the tool");
                tn_sb_put(&b, ": ");
                tn_sb_add(&b, json_string_value(content), json_string_length(content));
            }
            add_message(out, "user", &b);
            continue;
        }
        if (json_array_size(json_object_get(m, "tool_calls"))) {
            put_calls(&b, m);
            add_message(out, "assistant", &b);
        } else {
            tn_json_append(out, tn_json_copy(m));
        }
        i++;
    }
    bool failed = b.failed || !*out;
    tn_sb_free(&b);
    if (!failed) return TERN_OK;
    json_decref(*out);
    *out = NULL;
    return tn_fail(err, TERN_E_MEMORY, "out of memory for the conversation");
}
