/* Ollama's requests, in the words of OpenAI's: then they are read as those are. */
#include "server/ollama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "5m", "1h30m", "300ms", or seconds; what is negative is for ever. */
static tern_status read_keep(const json_t *v, tn_ollama_asked *out, tern_error *err) {
    static const struct {
        const char *name;
        double s;
    } units[] = {{"ms", 1e-3}, {"h", 3600}, {"m", 60}, {"s", 1}};
    if (!v || json_is_null(v)) return TERN_OK;
    double s = json_is_number(v) ? json_number_value(v) : 0;
    bool ok = json_is_number(v) || json_string_length(v);
    const char *p = json_string_value(v);
    bool forever = s < 0 || (p && *p == '-');
    if (p && *p == '-') p++;
    while (ok && p && *p) {
        char *end;
        double x = strtod(p, &end);
        size_t k = 0;
        if (end == p || !isfinite(x) || x < 0) ok = false; /* a sign is for the whole */
        while (ok && k < 4 && strncmp(end, units[k].name, strlen(units[k].name)) != 0) k++;
        if (ok && k == 4 && *end) ok = false;
        if (!ok) break;
        s += x * (k < 4 ? units[k].s : 1);
        p = end + (k < 4 ? strlen(units[k].name) : 0);
    }
    TN_FAIL_IF(
        !ok || !(s <= 1e9), err, TERN_E_INVALID,
        "'keep_alive' must be a time such as \"5m\", or seconds; 0 = the model leaves at once, -1 = never");
    out->keeps = true;
    out->keep_ns = forever ? -1 : (int64_t)(s * 1e9);
    return TERN_OK;
}

/* A call has its arguments as an object and need not have an id; a result names its tool. */
static tern_status read_calls(const json_t *calls, size_t *n_calls, json_t **out, tern_error *err) {
    *out = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *c = json_array_get(calls, i), *f = json_object_get(c, "function"),
                     *args = json_object_get(f, "arguments");
        const char *name = json_string_value(json_object_get(f, "name")),
                   *id = json_string_value(json_object_get(c, "id"));
        char own[32], *text = NULL;
        snprintf(own, sizeof own, "call_%zu", (*n_calls)++);
        if (!name || (args && !json_is_object(args) && !json_is_string(args))) {
            json_decref(*out);
            *out = NULL;
            return tn_fail(err, TERN_E_INVALID, "tool_calls[%zu] needs function.name and function.arguments",
                           i);
        }
        if (json_is_object(args)) (void)tn_json_text(args, JSON_COMPACT, &text, NULL);
        else text = strdup(args ? json_string_value(args) : "{}");
        json_t *call = text ? tn_json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id ? id : own, "type",
                                           "function", "function", "name", name, "arguments", text)
                            : NULL;
        free(text);
        tn_json_append(out, call);
    }
    return *out ? TERN_OK : tn_request_no_memory(err);
}

/* Pictures stand in front of the words. images: a list, or nothing. */
static void put_images(const json_t *images, json_t **message) {
    if (!json_array_size(images)) return;
    json_t *parts = json_array(), *words = json_object_get(*message, "content");
    for (size_t i = 0; i < json_array_size(images); i++)
        tn_json_append(&parts,
                       tn_json_pack("{s:s, s:O}", "type", "image", "data", json_array_get(images, i)));
    if (json_string_length(words))
        tn_json_append(&parts, tn_json_pack("{s:s, s:O}", "type", "text", "text", words));
    tn_json_set(message, "content", parts);
}

static tern_status read_message(const json_t *m, size_t *n_calls, json_t **list, tern_error *err) {
    const json_t *calls = json_object_get(m, "tool_calls"), *tool = json_object_get(m, "tool_name");
    TN_TRY(tn_field_kind(m, "images", JSON_ARRAY, err));
    TN_TRY(tn_field_kind(m, "tool_calls", JSON_ARRAY, err));
    json_t *out = json_object(), *v = NULL;
    static const char *const same[] = {"role", "content", "name", "tool_call_id"};
    for (int i = 0; i < 4; i++)
        if (json_object_get(m, same[i])) tn_json_set(&out, same[i], json_incref(json_object_get(m, same[i])));
    if (!json_object_get(m, "content")) tn_json_set(&out, "content", tn_json_string("", 0));
    put_images(json_object_get(m, "images"), &out);
    if (json_object_get(m, "thinking"))
        tn_json_set(&out, "reasoning_content", json_incref(json_object_get(m, "thinking")));
    if (tool) tn_json_set(&out, "name", json_incref((json_t *)(uintptr_t)tool));
    tern_status st = TERN_OK;
    if (!tn_says_nothing(calls)) {
        st = read_calls(calls, n_calls, &v, err);
        if (st == TERN_OK) tn_json_set(&out, "tool_calls", v);
    }
    if (st == TERN_OK) tn_json_append(list, out);
    else json_decref(out);
    return st != TERN_OK || *list ? st : tn_request_no_memory(err);
}

static tern_status read_messages(const json_t *body, json_t **chat, tern_error *err) {
    const json_t *list = json_object_get(body, "messages");
    json_t *out = json_array();
    size_t n_calls = 0;
    tern_status st = TERN_OK;
    for (size_t i = 0; st == TERN_OK && i < json_array_size(list); i++)
        st = read_message(json_array_get(list, i), &n_calls, &out, err);
    if (st == TERN_OK) tn_json_set(chat, "messages", out);
    else json_decref(out);
    return st;
}

/* A prompt is what a user says, after the system's words, unless it is `raw` or has a suffix. */
static tern_status read_prompt(const json_t *body, json_t **chat, bool *raw, tern_error *err) {
    json_t *prompt = json_object_get(body, "prompt"), *system = json_object_get(body, "system");
    TN_TRY(tn_field_flag(body, "raw", raw, err));
    TN_TRY(tn_field_kind(body, "suffix", JSON_STRING, err));
    TN_TRY(tn_field_kind(body, "system", JSON_STRING, err));
    TN_TRY(tn_field_kind(body, "images", JSON_ARRAY, err));
    if (json_string_length(json_object_get(body, "suffix"))) *raw = true;
    TN_FAIL_IF(*raw && !tn_says_nothing(json_object_get(body, "images")), err, TERN_E_UNSUPPORTED,
               "'images' go through the model's template: not with 'raw' or 'suffix'");
    if (*raw) {
        tn_json_set(chat, "prompt", json_incref(prompt));
        if (json_object_get(body, "suffix"))
            tn_json_set(chat, "suffix", json_incref(json_object_get(body, "suffix")));
        return TERN_OK;
    }
    json_t *list = json_array();
    if (json_string_length(system))
        tn_json_append(&list, tn_json_pack("{s:s, s:O}", "role", "system", "content", system));
    json_t *asked = tn_json_pack("{s:s, s:O}", "role", "user", "content", prompt);
    put_images(json_object_get(body, "images"), &asked);
    tn_json_append(&list, asked);
    tn_json_set(chat, "messages", list);
    return TERN_OK;
}

/* An option says how it is computed, and nothing of what. */
static bool is_silent(const char *option) {
    static const char *const silent[] = {"num_ctx",  "num_thread", "num_gpu",         "num_batch",
                                         "num_keep", "use_mmap",   "use_mlock",       "main_gpu",
                                         "numa",     "low_vram",   "penalize_newline"};
    bool is = false;
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) is |= !strcmp(option, silent[i]);
    return is;
}

/* A field that stands beside the options says it, and is not said by one: what is asked, of whom, and in which form the answer
 * comes. */
static bool is_beside(const char *option) {
    static const char *const beside[] = {"model",          "messages", "prompt", "suffix",
                                         "tools",          "stream",   "echo",   "tool_choice",
                                         "stream_options", "n",        "n_cmpl"};
    bool is = false;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) is |= !strcmp(option, beside[i]);
    return is;
}

/* The options' names are llama.cpp's, but for one. */
static void read_options(const json_t *options, json_t **chat) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)options, name, v) {
        if (is_silent(name) || is_beside(name)) continue;
        double n = json_number_value(v);
        if (strcmp(name, "num_predict") != 0) tn_json_set(chat, name, json_incref(v));
        else tn_json_set(chat, "max_tokens", n < 0 ? json_integer(-1) : json_incref(v));
    }
}

/* `think` is a switch, or how much; "json" and {} any object, or a schema. */
static tern_status read_rest(const json_t *body, json_t **chat, tern_error *err) {
    json_t *think = json_object_get(body, "think"), *format = json_object_get(body, "format");
    const char *word = json_string_value(format);
    TN_FAIL_IF(!json_is_boolean(think) && tn_field_word(think, "think", TN_EFFORTS, NULL) != TERN_OK, err,
               TERN_E_INVALID, "'think' must be true, false or one of " TN_EFFORTS);
    if (json_is_boolean(think))
        tn_json_set(chat, "chat_template_kwargs", tn_json_pack("{s:O}", "enable_thinking", think));
    else if (json_is_string(think)) tn_json_set(chat, "reasoning_effort", json_incref(think));
    TN_FAIL_IF(format && !json_is_null(format) && !json_is_object(format) &&
                   (!word || (*word && strcmp(word, "json"))),
               err, TERN_E_INVALID, "'format' must be \"json\" or a JSON schema");
    const bool empty = json_is_object(format) && !json_object_size(format);
    if (empty || (word && *word))
        tn_json_set(chat, "response_format", tn_json_pack("{s:s}", "type", "json_object"));
    else if (json_is_object(format)) tn_json_set(chat, "json_schema", json_incref(format));
    return TERN_OK;
}

static tern_status translate(bool generate, const json_t *body, json_t **chat, bool *raw,
                             tn_ollama_asked *asked, tern_error *err) {
    static const char *const same[] = {"model", "tools", "stop", "lora", "user"};
    const json_t *stream = json_object_get(body, "stream"), *options = json_object_get(body, "options");
    const char *key = generate ? "prompt" : "messages";
    const json_t *what = json_object_get(body, key);
    TN_TRY(tn_field_kind(body, key, generate ? JSON_STRING : JSON_ARRAY, err));
    *asked = (tn_ollama_asked){.loads = generate ? !json_string_length(what) : !json_array_size(what)};
    TN_TRY(read_keep(json_object_get(body, "keep_alive"), asked, err));
    TN_FAIL_IF(options && !json_is_object(options) && !json_is_null(options), err, TERN_E_INVALID,
               "'options' must be an object");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(body, same[i]))
            tn_json_set(chat, same[i], json_incref(json_object_get(body, same[i])));
    tn_json_set(chat, "stream", stream ? json_incref((json_t *)(uintptr_t)stream) : json_true());
    if (asked->loads) return TERN_OK;
    read_options(options, chat);
    TN_TRY(read_rest(body, chat, err));
    return generate ? read_prompt(body, chat, raw, err) : read_messages(body, chat, err);
}

/* What of the body has no place in the chat. */
static void note_ignored(const json_t *body, tn_request *r) {
    static const char *const known[] = {"model",  "messages",   "tools",  "format",   "options",
                                        "stream", "keep_alive", "think",  "prompt",   "suffix",
                                        "system", "raw",        "images", "stop",     "lora",
                                        "user",   "truncate",   "shift",  "logprobs", "top_logprobs"};
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, name, v) {
        bool is_known = tn_says_nothing(v);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(name, known[i]);
        if (!is_known) tn_request_ignore(r, name);
    }
    json_object_foreach(json_object_get(body, "options"), name, v) {
        if (is_beside(name) && !json_is_null(v)) tn_request_ignore(r, name);
    }
}

/* They stand beside the options, and go with a prompt that is raw too. */
static tern_status read_logprobs(const json_t *body, tn_request *r, tern_error *err) {
    double top = 0;
    bool wanted;
    TN_TRY(tn_field_flag(body, "logprobs", &wanted, err));
    TN_TRY(tn_field_number(body, "top_logprobs", 0, TN_REQUEST_TOP, true, &top, err));
    TN_FAIL_IF(top > 0 && !wanted, err, TERN_E_INVALID, "'top_logprobs' goes with 'logprobs'");
    if (!wanted) return TERN_OK;
    r->logprobs = true;
    r->n_top = (int32_t)top;
    return TERN_OK;
}

tern_status tn_ollama_read(bool generate, const char *body, size_t n_bytes, tn_request *r,
                           tn_ollama_asked *asked, tern_error *err) {
    bool raw = false;
    json_t *in, *chat = json_object();
    *r = (tn_request){0};
    tern_status st = tn_request_object(body, n_bytes, &in, err);
    if (st == TERN_OK) st = translate(generate, in, &chat, &raw, asked, err);
    if (st == TERN_OK && !chat) st = tn_request_no_memory(err);
    if (st == TERN_OK && asked->loads) {
        r->body = json_incref(chat);
        r->stream = json_is_true(json_object_get(chat, "stream"));
    } else if (st == TERN_OK) {
        st = tn_request_of(raw ? TN_API_LLAMA : TN_API_CHAT, json_incref(chat), r, err);
        if (st == TERN_OK) st = read_logprobs(in, r, err);
        if (st != TERN_OK) tn_request_free(r);
    }
    if (st == TERN_OK) note_ignored(in, r);
    r->sink = generate ? &tn_sink_ollama_generate : &tn_sink_ollama_chat;
    json_decref(in);
    json_decref(chat);
    return st;
}

static bool is_nothing(const json_t *v) {
    return !v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

static tern_status read_embed(bool several, const json_t *in, tn_request *r, tn_ollama_asked *asked,
                              tern_error *err) {
    static const char *const same[] = {"model", "dimensions", "truncate"};
    const char *key = several ? "input" : "prompt", *name;
    json_t *texts = json_object_get(in, key), *v;
    bool cuts;
    *asked = (tn_ollama_asked){.loads = is_nothing(texts)};
    TN_TRY(read_keep(json_object_get(in, "keep_alive"), asked, err));
    TN_TRY(tn_field_flag(in, "truncate", &cuts, err)); /* of its kind; a copy is read */
    TN_TRY(tn_field_kind(in, "options", JSON_OBJECT, err));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(in, same[i]))
            tn_json_set(&r->body, same[i], json_incref(json_object_get(in, same[i])));
    if (texts) tn_json_set(&r->body, "input", json_incref(texts));
    json_object_foreach((json_t *)(uintptr_t)in, name, v) {
        bool is_known = tn_says_nothing(v) || !strcmp(name, key) || !strcmp(name, "keep_alive") ||
                        !strcmp(name, "options");
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) is_known |= !strcmp(name, same[i]);
        if (!is_known) tn_request_ignore(r, name);
    }
    json_object_foreach(json_object_get(in, "options"), name, v) {
        if (!is_silent(name) && !tn_says_nothing(v)) tn_request_ignore(r, name);
    }
    return r->body ? TERN_OK : tn_request_no_memory(err);
}

tern_status tn_ollama_read_embed(bool several, const char *body, size_t n_bytes, tn_request *r,
                                 tn_ollama_asked *asked, tern_error *err) {
    json_t *in;
    *asked = (tn_ollama_asked){0};
    *r = (tn_request){.body = json_object()};
    tern_status st = tn_request_object(body, n_bytes, &in, err);
    if (st == TERN_OK) st = read_embed(several, in, r, asked, err);
    json_decref(in);
    r->keeps = asked->keeps, r->keep_ns = asked->keep_ns;
    if (st != TERN_OK) tn_request_free(r);
    return st;
}
