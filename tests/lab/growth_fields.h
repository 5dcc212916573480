/* lab/growth_fields.h - requests in which one field is long. The fields are those that the readers ask for, as their
 * sources have them: a new one is here as soon as it is read. Each is put at every place of a request that
 * a field may have, as a text, as lists of texts, numbers and objects, and as an object, and all the APIs read it. */
#ifndef TN_TESTS_LAB_GROWTH_FIELDS_H
#define TN_TESTS_LAB_GROWTH_FIELDS_H

#include "base/json.h"
#include "lab/growth_buf.h"
#include "server/answering.h"
#include "server/ollama.h"
#include "server/rag_body.h"
#include "server/responses.h"

#include <ctype.h>

enum { FIELDS = 160, FIELD_UNIT = 2 << 10, SHAPES = 5 };
enum { AT_TOP, IN_MESSAGE, IN_PART, IN_TOOL, IN_FUNCTION, IN_CALL, IN_OPTIONS, PLACES };
static char fields[FIELDS][32];
static int n_fields;

static void add_field(const char *name, size_t n) {
    if (!n || n >= sizeof fields[0]) return;
    for (int i = 0; i < n_fields; i++)
        if (strlen(fields[i]) == n && !memcmp(fields[i], name, n)) return;
    if (n_fields == FIELDS) abort();
    snprintf(fields[n_fields++], sizeof fields[0], "%.*s", (int)n, name);
}

/* Names in calls of those who read fields, and in the tables of fields. */
static void fields_in_line(const char *line) {
    static const char *const callers[] = {"json_object_get(", "tn_field_", "tn_text_field("};
    bool asks = strstr(line, ", BOTH}") || strstr(line, ", TEXT}") || strstr(line, ", CHAT}"), only = true;
    for (size_t i = 0; i < sizeof callers / sizeof *callers; i++) asks = asks || strstr(line, callers[i]);
    for (const char *c = line; *c; c++)
        only = only && (isspace((unsigned char)*c) || strchr("\",_}{;", *c) || islower((unsigned char)*c));
    if (!asks && !only) return;
    for (const char *at = strchr(line, '"'); at;) {
        const char *end = strchr(at + 1, '"');
        if (!end) return;
        size_t n = (size_t)(end - at - 1), k = 0;
        while (k < n && (islower((unsigned char)at[1 + k]) || at[1 + k] == '_')) k++;
        if (k == n && n > 1) add_field(at + 1, n);
        at = strchr(end + 1, '"');
    }
}

static void fields_find(void) {
    static const char *const readers[] = {"request",        "request_chat", "messages", "ollama_read",
                                          "responses_read", "rag_body",     "prompts",  "answering"};
    char path[512], line[512];
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        snprintf(path, sizeof path, TN_SOURCE_DIR "/src/server/%s.c", readers[i]);
        FILE *f = fopen(path, "r");
        if (!f) abort();
        while (fgets(line, sizeof line, f)) fields_in_line(line);
        fclose(f);
    }
}

static const char *field_name(int c) {
    static char name[60];
    snprintf(name, sizeof name, "request: %s", fields[c]);
    return name;
}

/* n bytes of a value, about. */
static json_t *long_value(int shape, size_t n) {
    json_t *v = shape == 4 ? json_object() : json_array(), *one = NULL;
    char key[24];
    if (shape == 0) {
        char *text = malloc(n);
        memset(text, 'a', n);
        json_decref(v);
        v = tn_json_string(text, n);
        free(text);
        return v;
    }
    if (shape == 1) one = tn_json_pack("s", "a");
    if (shape == 2) one = json_integer(1);
    if (shape == 3)
        one = tn_json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s}}", "type", "text", "text", "a",
                           "role", "user", "content", "a", "name", "f", "id", "a", "function", "name", "f",
                           "arguments", "{}");
    for (size_t i = 0; i < n / (shape == 4 ? 12 : shape == 3 ? 24 : 4); i++) {
        snprintf(key, sizeof key, "k%zu", i);
        if (shape == 4) tn_json_set(&v, key, json_integer(1));
        else tn_json_append(&v, json_incref(one));
    }
    json_decref(one);
    return v;
}

/* A request that is read, but for the field. It takes v. */
static json_t *request_with(int place, const char *field, json_t *v) {
    json_t *call = tn_json_pack("{s:s, s:s}", "name", "f", "arguments", "{}"),
           *function = tn_json_pack("{s:s, s:{}}", "name", "f", "parameters"), *options = json_object(),
           *part = tn_json_pack("{s:s, s:s}", "type", "text", "text", "x"),
           *user = tn_json_pack("{s:s, s:s}", "role", "user", "content", "x"), *content = json_array(),
           *messages = json_array(), *calls = json_array(), *tools = json_array();
    if (place == IN_CALL) tn_json_set(&call, field, json_incref(v));
    if (place == IN_FUNCTION) tn_json_set(&function, field, json_incref(v));
    if (place == IN_OPTIONS) tn_json_set(&options, field, json_incref(v));
    if (place == IN_PART) {
        tn_json_set(&part, field, json_incref(v));
        tn_json_append(&content, json_incref(part));
        tn_json_set(&user, "content", json_incref(content));
    }
    if (place == IN_MESSAGE) tn_json_set(&user, field, json_incref(v));
    tn_json_append(&messages, user);
    json_t *tool = tn_json_pack("{s:s, s:s, s:{}, s:o}", "type", "function", "name", "f", "input_schema",
                                "function", function);
    if (place == IN_TOOL) tn_json_set(&tool, field, json_incref(v));
    tn_json_append(&tools, tool);
    tn_json_append(&calls, tn_json_pack("{s:s, s:s, s:o}", "id", "a", "type", "function", "function", call));
    if (place == IN_CALL) {
        tn_json_append(&messages, tn_json_pack("{s:s, s:O}", "role", "assistant", "tool_calls", calls));
        tn_json_append(&messages,
                       tn_json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", "a", "content", "x"));
    }
    json_t *body = tn_json_pack("{s:s, s:I, s:s, s:s, s:o}", "model", "x", "max_tokens", (json_int_t)1,
                                "prompt", "x", "input", "x", "messages", messages);
    tn_json_set(&body, "question", tn_json_string("x", 1));
    tn_json_set(&body, "input_prefix", tn_json_string("x", 1));
    tn_json_set(&body, "input_suffix", tn_json_string("x", 1));
    if (place == IN_TOOL || place == IN_FUNCTION) tn_json_set(&body, "tools", json_incref(tools));
    if (place == IN_OPTIONS) tn_json_set(&body, "options", json_incref(options));
    if (place == AT_TOP) tn_json_set(&body, field, json_incref(v));
    json_decref(v);
    json_decref(options);
    json_decref(content);
    json_decref(part);
    json_decref(tools);
    json_decref(calls);
    return body;
}

/* What each API reads of a body: fields that are another's are passed over by all. */
enum { PARSED = TN_API_N };
static json_t *parsed[PLACES][SHAPES][PARSED];
static char *written[PLACES][SHAPES];

static void fields_make(int c, size_t n) {
    for (int i = 0; i < PLACES * SHAPES; i++) {
        int place = i / SHAPES, shape = i % SHAPES;
        tern_error err;
        json_t *body = request_with(place, fields[c], long_value(shape, n));
        bool is_text = place == AT_TOP || place == IN_OPTIONS;
        if (!body || (is_text && tn_json_text(body, JSON_COMPACT, &written[place][shape], &err) != TERN_OK))
            abort();
        for (int a = 0; a < PARSED; a++) {
            bool chats = a == TN_API_CHAT || a == TN_API_MESSAGES;
            const char *foreign = chats ? "prompt" : "messages";
            parsed[place][shape][a] = tn_json_copy_flat(body);
            if (strcmp(fields[c], foreign) != 0) json_object_del(parsed[place][shape][a], foreign);
        }
        json_decref(body);
    }
}

static void read_as_text(const char *text) {
    static tn_responses *none;
    tn_request r;
    tn_ollama_asked asked;
    json_t *body;
    tern_error err;
    const char *question;
    size_t n = strlen(text);
    if (!none && tn_responses_open(&none, &err) != TERN_OK) abort();
    for (int generate = 0; generate < 2; generate++)
        if (tn_ollama_read(generate, text, n, &r, &asked, &err) == TERN_OK) tn_request_free(&r);
    if (tn_responses_read(none, text, n, &r, &err) == TERN_OK) tn_request_free(&r);
    if (tn_request_read_infill(text, n, &r, &err) == TERN_OK) tn_request_free(&r);
    if (tn_rag_read_question(text, n, &body, &question, &err) == TERN_OK) {
        if (tn_rag_request(body, question, &r, &err) == TERN_OK) tn_request_free(&r);
        json_decref(body);
    }
}

static void fields_run(void) {
    for (int i = 0; i < PLACES * SHAPES; i++) {
        int place = i / SHAPES, shape = i % SHAPES;
        tn_request r;
        tern_error err;
        for (int a = 0; a < PARSED; a++)
            if (tn_request_of((tn_api)a, parsed[place][shape][a], &r, &err) == TERN_OK) tn_request_free(&r);
        if (written[place][shape]) read_as_text(written[place][shape]);
        free(written[place][shape]);
        written[place][shape] = NULL;
    }
}

#endif
