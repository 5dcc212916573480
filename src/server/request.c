#include "server/request.h"

#include "base/json.h"
#include "text/toolcall.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* These fields say nothing about the answer, or have the one value that is supported. */
static const char *const ignored[] = {"model",
                                      "user",
                                      "metadata",
                                      "store",
                                      "service_tier",
                                      "stream",
                                      "stream_options",
                                      "safety_identifier",
                                      "verbosity",
                                      "prompt_cache_key",
                                      "seed",
                                      "stop",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "max_tokens",
                                      "response_format",
                                      "grammar",
                                      "json_schema",
                                      "prompt",
                                      "messages",
                                      "logprobs",
                                      "repeat_penalty",
                                      "max_completion_tokens",
                                      "parallel_tool_calls",
                                      "tools",
                                      "tool_choice",
                                      "top_logprobs",
                                      "reasoning_effort",
                                      "chat_template_kwargs",
                                      "lora"};
static const struct {
    const char *name;
    double only; /* NAN: null, false, empty or absent */
} fixed[] = {{"n", 1},
             {"best_of", 1},
             {"presence_penalty", 0},
             {"frequency_penalty", 0},
             {"functions", NAN},
             {"logit_bias", NAN},
             {"echo", NAN},
             {"suffix", NAN},
             {"audio", NAN},
             {"modalities", NAN},
             {"prediction", NAN},
             {"web_search_options", NAN},
             {"function_call", NAN}};

bool tn_says_nothing(const json_t *v) {
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && (!strcmp(json_string_value(v), "none") || !json_string_length(v)));
}

static tern_status check_fields(const json_t *body, tern_error *err) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, name, v) {
        bool known = false;
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored && !known; i++)
            known = !strcmp(ignored[i], name);
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed && !known; i++) {
            if (strcmp(fixed[i].name, name)) continue;
            known = true;
            bool ok = json_is_null(v) ||
                      (isnan(fixed[i].only) ? tn_says_nothing(v)
                                            : json_is_number(v) && json_number_value(v) == fixed[i].only);
            TN_FAIL_IF(!ok, err, TERN_E_UNSUPPORTED, "'%.60s' is not supported", name);
        }
        TN_FAIL_IF(!known, err, TERN_E_UNSUPPORTED, "'%.60s' is unknown", name);
    }
    return TERN_OK;
}

tern_status tn_field_number(const json_t *body, const char *name, double lo, double hi, bool whole,
                            double *out, tern_error *err) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v)) return TERN_OK;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    TN_FAIL_IF(!(x >= lo && x <= hi) || (whole && x != floor(x)), err, TERN_E_INVALID,
               whole ? "'%s' must be a whole number from %.0f to %.0f"
                     : "'%s' must be a number from %g to %g",
               name, lo, hi);
    *out = x;
    return TERN_OK;
}

tern_status tn_field_flag(const json_t *body, const char *name, bool *out, tern_error *err) {
    const json_t *v = json_object_get(body, name);
    TN_FAIL_IF(v && !json_is_boolean(v) && !json_is_null(v), err, TERN_E_INVALID,
               "'%s' must be true or false", name);
    *out = json_is_true(v);
    return TERN_OK;
}

tern_status tn_content_text(const json_t *content, const char *where, json_t **out, tern_error *err) {
    size_t n = 0;
    *out = NULL;
    if (json_is_string(content)) {
        *out = json_incref((json_t *)(uintptr_t)content);
        return TERN_OK;
    }
    TN_FAIL_IF(!json_is_array(content), err, TERN_E_INVALID, "%s has no content: a text, or a list of parts",
               where);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *p = json_array_get(content, i), *t = json_object_get(p, "text");
        const char *type = json_string_value(json_object_get(p, "type"));
        TN_FAIL_IF(!type || strcmp(type, "text") || !json_is_string(t), err, TERN_E_UNSUPPORTED,
                   "%s.content[%zu]: only parts of type text are supported", where, i);
        n += json_string_length(t);
    }
    char *s = malloc(n + 1);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for the request");
    n = 0;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *t = json_object_get(json_array_get(content, i), "text");
        memcpy(s + n, json_string_value(t), json_string_length(t));
        n += json_string_length(t);
    }
    *out = tn_json_string(s, n);
    free(s);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

/* Checks the calls of an assistant's message. The name of the one with this id is what a result is of. */
static tern_status check_calls(const json_t *calls, const char *where, tern_error *err) {
    TN_FAIL_IF(!json_is_array(calls), err, TERN_E_INVALID, "%s.tool_calls must be a list", where);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        TN_FAIL_IF(!json_is_string(json_object_get(f, "name")) ||
                       !json_is_string(json_object_get(f, "arguments")),
                   err, TERN_E_INVALID,
                   "%s.tool_calls[%zu] needs function.name and function.arguments, both texts", where, i);
    }
    return TERN_OK;
}

static const char *name_of_call(const json_t *messages, const char *id) {
    for (size_t i = json_array_size(messages); id && i-- > 0;) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            const json_t *c = json_array_get(calls, k);
            const char *its = json_string_value(json_object_get(c, "id"));
            if (its && !strcmp(its, id))
                return json_string_value(json_object_get(json_object_get(c, "function"), "name"));
        }
    }
    return NULL;
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
    TN_FAIL_IF(calls && strcmp(role, "assistant"), err, TERN_E_INVALID, "%s: only an assistant calls tools",
               where);
    if (calls) TN_TRY(check_calls(calls, where, err));
    json_t *out = tn_json_pack("{s:s}", "role", role), *text = NULL;
    if (calls && (!c || json_is_null(c))) {
        text = tn_json_string("", 0);
    } else {
        tern_status st = tn_content_text(c, where, &text, err);
        if (st != TERN_OK) {
            json_decref(out);
            return st;
        }
    }
    tn_json_set(&out, "content", text);
    if (calls) tn_json_set(&out, "tool_calls", json_deep_copy(calls));
    if (json_is_string(thought)) tn_json_set(&out, "reasoning_content", json_deep_copy(thought));
    if (!strcmp(role, "tool")) {
        const char *name = json_string_value(json_object_get(m, "name"));
        if (!name) name = name_of_call(r->messages, json_string_value(id));
        if (json_is_string(id)) tn_json_set(&out, "tool_call_id", json_deep_copy(id));
        if (name) tn_json_set(&out, "name", tn_json_string(name, strlen(name)));
    }
    tn_json_append(&r->messages, out);
    TN_FAIL_IF(!r->messages, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
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
    return TERN_OK;
}

/* Reads tools and tool_choice. With "none" the model is not told of any. */
static tern_status read_tools(tn_request *r, tern_error *err) {
    const json_t *tools = json_object_get(r->body, "tools"),
                 *choice = json_object_get(r->body, "tool_choice");
    const json_t *many = json_object_get(r->body, "parallel_tool_calls");
    const char *word = json_string_value(choice),
               *named = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    TN_FAIL_IF(many && !json_is_boolean(many) && !json_is_null(many), err, TERN_E_INVALID,
               "'parallel_tool_calls' must be true or false");
    r->one_call = json_is_false(many);
    bool none = word && !strcmp(word, "none"), required = word && !strcmp(word, "required");
    TN_FAIL_IF(choice && !json_is_null(choice) && !named && !none && !required &&
                   (!word || strcmp(word, "auto")),
               err, TERN_E_INVALID, "'tool_choice' must be none, auto, required or a function by its name");
    TN_FAIL_IF(tools && !json_is_null(tools) && !json_is_array(tools), err, TERN_E_INVALID,
               "'tools' must be a list");
    if (tn_says_nothing(tools)) tools = NULL;
    TN_FAIL_IF(!tools && (named || required), err, TERN_E_INVALID,
               "'tool_choice' asks for a call, and there are no tools");
    if (!tools) return TERN_OK;
    TN_TRY(tn_tools_check(tools, err));
    if (none) return TERN_OK;
    r->tools = json_deep_copy(tools);
    TN_FAIL_IF(!r->tools, err, TERN_E_MEMORY, "no memory for the request");
    r->forced = required || named;
    r->forced_tool = named;
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
    TN_FAIL_IF(e && !json_is_string(e) && !json_is_null(e), err, TERN_E_INVALID,
               "'reasoning_effort' must be a text");
    if (json_is_object(v)) r->variables = json_deep_copy(v);
    else r->variables = json_object();
    if (json_is_string(e)) {
        bool none = !strcmp(json_string_value(e), "none");
        if (none) tn_json_set(&r->variables, "enable_thinking", json_false());
        else tn_json_set(&r->variables, "reasoning_effort", json_deep_copy(e));
    }
    TN_FAIL_IF(!r->variables, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

tern_status tn_field_stops(tn_request *r, const char *name, tern_error *err) {
    const json_t *v = json_object_get(r->body, name);
    if (!v || json_is_null(v)) return TERN_OK;
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    TN_FAIL_IF(!json_is_string(v) && !json_is_array(v), err, TERN_E_INVALID,
               "'%s' must be a text or a list of texts", name);
    TN_FAIL_IF(n > TN_REQUEST_STOPS, err, TERN_E_LIMIT, "%zu stop texts: at most %d", n, TN_REQUEST_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_string(v) ? v : json_array_get(v, i);
        TN_FAIL_IF(!json_is_string(s) || !json_string_length(s) || json_string_length(s) > 1000, err,
                   TERN_E_INVALID, "'%s' must hold texts of 1 to 1000 bytes", name);
        r->stop[i] = json_string_value(s);
    }
    return TERN_OK;
}

/* Reads response_format of OpenAI, and grammar and json_schema as llama.cpp's server has them. */
static tern_status format(tn_request *r, tern_error *err) {
    const json_t *f = json_object_get(r->body, "response_format"), *g = json_object_get(r->body, "grammar");
    const json_t *schema = json_object_get(r->body, "json_schema");
    if (json_is_null(schema)) schema = NULL;
    if (g && !json_is_null(g)) {
        TN_FAIL_IF(!json_is_string(g), err, TERN_E_INVALID, "'grammar' must be a text");
        r->grammar = json_string_value(g);
    }
    if (f && !json_is_null(f)) {
        const char *type = json_string_value(json_object_get(f, "type"));
        TN_FAIL_IF(!type, err, TERN_E_INVALID, "'response_format' has no type");
        TN_FAIL_IF(schema && strcmp(type, "text"), err, TERN_E_INVALID,
                   "'response_format' and 'json_schema': want one of them");
        if (!strcmp(type, "json_object")) {
            r->schema = strdup("{\"type\":\"object\"}");
            TN_FAIL_IF(!r->schema, err, TERN_E_MEMORY, "no memory for the request");
        } else if (!strcmp(type, "json_schema")) {
            schema = json_object_get(json_object_get(f, "json_schema"), "schema");
            TN_FAIL_IF(!schema, err, TERN_E_INVALID, "'response_format.json_schema' has no schema");
        } else {
            TN_FAIL_IF(strcmp(type, "text"), err, TERN_E_UNSUPPORTED,
                       "response_format '%.40s' is not supported", type);
        }
    }
    if (schema) TN_TRY(tn_json_text(schema, JSON_ENCODE_ANY | JSON_COMPACT, &r->schema, err));
    TN_FAIL_IF(r->schema && r->grammar, err, TERN_E_INVALID, "a grammar and a JSON schema: want one of them");
    return TERN_OK;
}

static tern_status read_numbers(tn_request *r, tern_error *err) {
    double temperature = 1, top_p = 1, top_k = 0, min_p = 0, penalty = 1, seed = 0, max = -1, logprobs = 0;
    TN_TRY(tn_field_number(r->body, "temperature", 0, 100, false, &temperature, err));
    TN_TRY(tn_field_number(r->body, "top_p", 1e-6, 1, false, &top_p, err));
    TN_TRY(tn_field_number(r->body, "top_k", 0, 1e9, true, &top_k, err));
    TN_TRY(tn_field_number(r->body, "min_p", 0, 0.999, false, &min_p, err));
    TN_TRY(tn_field_number(r->body, "repeat_penalty", 0.01, 100, false, &penalty, err));
    TN_TRY(tn_field_number(r->body, "seed", -9007199254740992, 9007199254740992, true, &seed, err));
    TN_TRY(tn_field_number(r->body, "max_tokens", 0, TN_REQUEST_TOKENS, true, &max, err));
    TN_TRY(tn_field_number(r->body, "max_completion_tokens", 0, TN_REQUEST_TOKENS, true, &max, err));
    tern_sampling_defaults(&r->sampling);
    r->sampling.temperature = (float)temperature;
    r->sampling.top_p = (float)top_p;
    r->sampling.top_k = (int32_t)top_k;
    r->sampling.min_p = (float)min_p;
    r->sampling.repeat_penalty = (float)penalty;
    r->sampling.seed = (uint64_t)(int64_t)seed;
    r->max_tokens = (int32_t)max;
    if (r->api != TN_API_COMPLETIONS) {
        double top = 0;
        TN_TRY(tn_field_flag(r->body, "logprobs", &r->logprobs, err));
        TN_TRY(tn_field_number(r->body, "top_logprobs", 0, TN_REQUEST_TOP, true, &top, err));
        TN_FAIL_IF(top > 0 && !r->logprobs, err, TERN_E_INVALID, "'top_logprobs' goes with 'logprobs'");
        r->n_top = (int32_t)top;
        return TERN_OK;
    }
    TN_TRY(tn_field_number(r->body, "logprobs", 0, INT32_MAX, true, &logprobs, err));
    TN_FAIL_IF(logprobs > 0, err, TERN_E_INVALID,
               "'logprobs' of a completion must be 0: that of the token itself, without alternatives");
    r->logprobs = json_is_integer(json_object_get(r->body, "logprobs"));
    if (max < 0) r->max_tokens = 16; /* as the API has it */
    return TERN_OK;
}

static tern_status read_all(tn_request *r, tern_error *err) {
    TN_TRY(check_fields(r->body, err));
    TN_TRY(tn_field_flag(r->body, "stream", &r->stream, err));
    const json_t *so = json_object_get(r->body, "stream_options");
    if (so && !json_is_null(so)) {
        TN_FAIL_IF(!json_is_object(so) || !r->stream, err, TERN_E_INVALID,
                   "'stream_options' goes with 'stream'");
        TN_TRY(tn_field_flag(so, "include_usage", &r->include_usage, err));
    }
    TN_TRY(read_numbers(r, err));
    TN_TRY(tn_field_stops(r, "stop", err));
    TN_TRY(format(r, err));
    if (r->api == TN_API_CHAT) {
        TN_TRY(read_tools(r, err));
        TN_TRY(read_variables(r, err));
        return messages(r, err);
    }
    static const char *const chat_only[] = {"tools", "tool_choice", "top_logprobs", "reasoning_effort",
                                            "chat_template_kwargs"};
    for (int i = 0; i < 5; i++)
        TN_FAIL_IF(!tn_says_nothing(json_object_get(r->body, chat_only[i])) &&
                       json_object_get(r->body, chat_only[i]),
                   err, TERN_E_UNSUPPORTED, "'%s' belongs to a chat", chat_only[i]);
    const json_t *p = json_object_get(r->body, "prompt");
    if (json_is_array(p) && json_array_size(p) == 1) p = json_array_get(p, 0);
    TN_FAIL_IF(!json_is_string(p), err, TERN_E_INVALID, "'prompt' must be one text");
    r->prompt = json_string_value(p);
    r->n_prompt = json_string_length(p);
    return TERN_OK;
}

static tern_status read_body(const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    json_error_t je;
    r->body = tn_json_parse(body, n_bytes, JSON_REJECT_DUPLICATES, &je);
    TN_FAIL_IF(!r->body, err, TERN_E_INVALID, "the body is not valid JSON, line %d: %.200s", je.line,
               je.text);
    tern_status st = TERN_OK;
    if (!json_is_object(r->body)) st = tn_fail(err, TERN_E_INVALID, "the body is not a JSON object");
    if (st == TERN_OK) st = r->api == TN_API_MESSAGES ? tn_messages_read(r, err) : read_all(r, err);
    if (st != TERN_OK) tn_request_free(r);
    return st;
}

tern_status tn_request_read(tn_api api, const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    *r = (tn_request){.api = api};
    return read_body(body, n_bytes, r, err);
}

tern_status tn_request_read_count(const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    *r = (tn_request){.api = TN_API_MESSAGES, .counts = true};
    return read_body(body, n_bytes, r, err);
}

void tn_request_free(tn_request *r) {
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->variables);
    json_decref(r->sources);
    free(r->schema);
    json_decref(r->body);
    *r = (tn_request){0};
}
