#include "server/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fields that say nothing about the answer, and those with the one value that is supported. */
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
                                      "parallel_tool_calls"};
static const struct {
    const char *name;
    double only; /* NAN: null, false, empty or absent */
} fixed[] = {{"n", 1},
             {"best_of", 1},
             {"presence_penalty", 0},
             {"frequency_penalty", 0},
             {"top_logprobs", 0},
             {"tools", NAN},
             {"functions", NAN},
             {"logit_bias", NAN},
             {"echo", NAN},
             {"suffix", NAN},
             {"audio", NAN},
             {"modalities", NAN},
             {"prediction", NAN},
             {"web_search_options", NAN},
             {"tool_choice", NAN},
             {"function_call", NAN},
             {"reasoning_effort", NAN}};

static bool says_nothing(const json_t *v) {
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
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
                      (isnan(fixed[i].only) ? says_nothing(v)
                                            : json_is_number(v) && json_number_value(v) == fixed[i].only);
            TN_FAIL_IF(!ok, err, TERN_E_UNSUPPORTED, "'%.60s' is not supported", name);
        }
        TN_FAIL_IF(!known, err, TERN_E_UNSUPPORTED, "'%.60s' is unknown", name);
    }
    return TERN_OK;
}

/* A number in [lo, hi], or *out as it is where the field is absent or null. */
static tern_status number(const json_t *body, const char *name, double lo, double hi, bool whole, double *out,
                          tern_error *err) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v)) return TERN_OK;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    TN_FAIL_IF(!(x >= lo && x <= hi) || (whole && x != floor(x)), err, TERN_E_INVALID,
               "'%s' must be a %snumber from %g to %g", name, whole ? "whole " : "", lo, hi);
    *out = x;
    return TERN_OK;
}

static tern_status flag(const json_t *body, const char *name, bool *out, tern_error *err) {
    const json_t *v = json_object_get(body, name);
    TN_FAIL_IF(v && !json_is_boolean(v) && !json_is_null(v), err, TERN_E_INVALID,
               "'%s' must be true or false", name);
    *out = json_is_true(v);
    return TERN_OK;
}

/* A content made of parts of type text, joined. */
static tern_status parts(const json_t *list, size_t i_msg, char **out, tern_error *err) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i), *t = json_object_get(p, "text");
        const char *type = json_string_value(json_object_get(p, "type"));
        TN_FAIL_IF(!type || strcmp(type, "text") || !json_is_string(t), err, TERN_E_UNSUPPORTED,
                   "messages[%zu].content[%zu]: only parts of type text are supported", i_msg, i);
        n += json_string_length(t);
    }
    char *s = malloc(n + 1);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for the request");
    n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_object_get(json_array_get(list, i), "text");
        memcpy(s + n, json_string_value(t), json_string_length(t));
        n += json_string_length(t);
    }
    s[n] = 0;
    *out = s;
    return TERN_OK;
}

static tern_status messages(tn_request *r, tern_error *err) {
    const json_t *list = json_object_get(r->body, "messages");
    size_t n = json_array_size(list);
    TN_FAIL_IF(!n, err, TERN_E_INVALID, "'messages' must be a list of at least one message");
    TN_FAIL_IF(n > TN_REQUEST_MESSAGES, err, TERN_E_LIMIT, "%zu messages: at most %d are read", n,
               TN_REQUEST_MESSAGES);
    r->msgs = calloc(n, sizeof *r->msgs);
    r->texts = calloc(n, sizeof *r->texts);
    TN_FAIL_IF(!r->msgs || !r->texts, err, TERN_E_MEMORY, "no memory for the request");
    r->n_msgs = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(list, i), *c = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        TN_FAIL_IF(!role, err, TERN_E_INVALID, "messages[%zu] has no role", i);
        if (!strcmp(role, "developer")) role = "system";
        TN_FAIL_IF(strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant"), err,
                   TERN_E_UNSUPPORTED,
                   "messages[%zu]: role '%.40s' is not supported; there are system, user and assistant", i,
                   role);
        TN_FAIL_IF(!says_nothing(json_object_get(m, "tool_calls")) && json_object_get(m, "tool_calls"), err,
                   TERN_E_UNSUPPORTED, "messages[%zu]: 'tool_calls' is not supported", i);
        if (json_is_array(c)) TN_TRY(parts(c, i, &r->texts[i], err));
        TN_FAIL_IF(!json_is_array(c) && !json_is_string(c), err, TERN_E_INVALID,
                   "messages[%zu] has no content: a text, or a list of parts", i);
        r->msgs[i] = (tern_message){role, r->texts[i] ? r->texts[i] : json_string_value(c)};
    }
    return TERN_OK;
}

static tern_status stops(tn_request *r, tern_error *err) {
    const json_t *v = json_object_get(r->body, "stop");
    if (!v || json_is_null(v)) return TERN_OK;
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    TN_FAIL_IF(!json_is_string(v) && !json_is_array(v), err, TERN_E_INVALID,
               "'stop' must be a text or a list of texts");
    TN_FAIL_IF(n > TN_REQUEST_STOPS, err, TERN_E_LIMIT, "%zu stop texts: at most %d", n, TN_REQUEST_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_string(v) ? v : json_array_get(v, i);
        TN_FAIL_IF(!json_is_string(s) || !json_string_length(s) || json_string_length(s) > 1000, err,
                   TERN_E_INVALID, "'stop' must hold texts of 1 to 1000 bytes");
        r->stop[i] = json_string_value(s);
    }
    return TERN_OK;
}

/* response_format of OpenAI; grammar and json_schema as llama.cpp's server has them. */
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
    TN_TRY(number(r->body, "temperature", 0, 100, false, &temperature, err));
    TN_TRY(number(r->body, "top_p", 1e-6, 1, false, &top_p, err));
    TN_TRY(number(r->body, "top_k", 0, 1e9, true, &top_k, err));
    TN_TRY(number(r->body, "min_p", 0, 0.999, false, &min_p, err));
    TN_TRY(number(r->body, "repeat_penalty", 0.01, 100, false, &penalty, err));
    TN_TRY(number(r->body, "seed", -9007199254740992, 9007199254740992, true, &seed, err));
    TN_TRY(number(r->body, "max_tokens", 0, TN_REQUEST_TOKENS, true, &max, err));
    TN_TRY(number(r->body, "max_completion_tokens", 0, TN_REQUEST_TOKENS, true, &max, err));
    tern_sampling_defaults(&r->sampling);
    r->sampling.temperature = (float)temperature;
    r->sampling.top_p = (float)top_p;
    r->sampling.top_k = (int32_t)top_k;
    r->sampling.min_p = (float)min_p;
    r->sampling.repeat_penalty = (float)penalty;
    r->sampling.seed = (uint64_t)(int64_t)seed;
    r->max_tokens = (int32_t)max;
    if (r->chat) return flag(r->body, "logprobs", &r->logprobs, err);
    TN_TRY(number(r->body, "logprobs", 0, 0, true, &logprobs,
                  err)); /* completions: alternatives, of which there are none */
    r->logprobs = json_is_integer(json_object_get(r->body, "logprobs"));
    if (max < 0) r->max_tokens = 16; /* as the API has it */
    return TERN_OK;
}

static tern_status read_all(tn_request *r, tern_error *err) {
    TN_TRY(check_fields(r->body, err));
    TN_TRY(flag(r->body, "stream", &r->stream, err));
    const json_t *so = json_object_get(r->body, "stream_options");
    if (so && !json_is_null(so)) {
        TN_FAIL_IF(!json_is_object(so) || !r->stream, err, TERN_E_INVALID,
                   "'stream_options' goes with 'stream'");
        TN_TRY(flag(so, "include_usage", &r->include_usage, err));
    }
    TN_TRY(read_numbers(r, err));
    TN_TRY(stops(r, err));
    TN_TRY(format(r, err));
    if (r->chat) return messages(r, err);
    const json_t *p = json_object_get(r->body, "prompt");
    if (json_is_array(p) && json_array_size(p) == 1) p = json_array_get(p, 0);
    TN_FAIL_IF(!json_is_string(p), err, TERN_E_INVALID, "'prompt' must be one text");
    r->prompt = json_string_value(p);
    r->n_prompt = json_string_length(p);
    return TERN_OK;
}

tern_status tn_request_read(bool chat, const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    *r = (tn_request){.chat = chat};
    json_error_t je;
    r->body = json_loadb(body, n_bytes, JSON_REJECT_DUPLICATES, &je);
    TN_FAIL_IF(!r->body, err, TERN_E_INVALID, "the body is not valid JSON, line %d: %.200s", je.line,
               je.text);
    tern_status st = TERN_OK;
    if (!json_is_object(r->body)) st = tn_fail(err, TERN_E_INVALID, "the body is not a JSON object");
    if (st == TERN_OK) st = read_all(r, err);
    if (st != TERN_OK) tn_request_free(r);
    return st;
}

void tn_request_free(tn_request *r) {
    for (size_t i = 0; r->texts && i < r->n_msgs; i++) free(r->texts[i]);
    free(r->texts);
    free(r->msgs);
    free(r->schema);
    json_decref(r->body);
    *r = (tn_request){0};
}
