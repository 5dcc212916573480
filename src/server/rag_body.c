#include "server/rag_body.h"

#include "base/bytes.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { QUESTION_MAX = 1 << 16 };

static tern_status from_base64(const char *p, size_t n, char **out, size_t *n_out, tern_error *err) {
    tn_bytes b = {0};
    size_t bad;
    if (tn_bytes_from_base64(&b, p, n, &bad)) {
        *out = b.p;
        *n_out = b.n;
        return TERN_OK;
    }
    TN_FAIL_IF(bad < n, err, TERN_E_INVALID, "'data' is not base64 at byte %zu", bad);
    return tn_fail(err, TERN_E_MEMORY, "no memory for the document");
}

static tern_status read_document(tn_rag_given *g, tern_error *err) {
    const json_t *name = json_object_get(g->body, "name"), *text = json_object_get(g->body, "text"),
                 *data = json_object_get(g->body, "data");
    const char *field;
    json_t *v;
    json_object_foreach(g->body, field, v) {
        TN_FAIL_IF(strcmp(field, "name") && strcmp(field, "text") && strcmp(field, "data"), err,
                   TERN_E_UNSUPPORTED, "'%.60s' is not supported", field);
    }
    TN_FAIL_IF(!json_string_length(name), err, TERN_E_INVALID, "'name' must be what the document is called");
    TN_FAIL_IF(!json_is_string(text) == !json_is_string(data), err, TERN_E_INVALID,
               "want the document's 'text', or its bytes as 'data' in base64");
    g->name = json_string_value(name);
    if (data) {
        TN_TRY(from_base64(json_string_value(data), json_string_length(data), &g->decoded, &g->n, err));
        g->bytes = g->decoded;
    } else {
        g->bytes = json_string_value(text);
        g->n = json_string_length(text);
    }
    TN_FAIL_IF(!g->n, err, TERN_E_INVALID, "the document is empty");
    return TERN_OK;
}

tern_status tn_rag_read_document(const char *body, size_t n_bytes, tn_rag_given *out, tern_error *err) {
    *out = (tn_rag_given){0};
    TN_TRY(tn_request_object(body, n_bytes, &out->body, err));
    tern_status st = read_document(out, err);
    if (st != TERN_OK) tn_rag_given_free(out);
    return st;
}

void tn_rag_given_free(tn_rag_given *g) {
    json_decref(g->body);
    free(g->decoded);
    *g = (tn_rag_given){0};
}

tern_status tn_rag_read_question(const char *body, size_t n_bytes, json_t **out, const char **question,
                                 tern_error *err) {
    json_t *v;
    TN_TRY(tn_request_object(body, n_bytes, &v, err));
    const json_t *q = json_object_get(v, "question");
    tern_status st = TERN_OK;
    if (!json_string_length(q)) st = tn_fail(err, TERN_E_INVALID, "'question' must be a text");
    else if (json_string_length(q) > QUESTION_MAX)
        st = tn_fail(err, TERN_E_LIMIT, "a question may have %d bytes, this one has %zu", QUESTION_MAX,
                     json_string_length(q));
    else if (json_object_get(v, "messages"))
        st = tn_fail(err, TERN_E_INVALID, "'messages' and 'question': want the question alone");
    *question = json_string_value(q);
    *out = v;
    if (st == TERN_OK) return TERN_OK;
    json_decref(v);
    *out = NULL;
    return st;
}

tern_status tn_rag_request(const json_t *body, const char *prompt, tn_request *r, tern_error *err) {
    json_t *chat = tn_json_copy_flat(body);
    char *text = NULL;
    if (chat) json_object_del(chat, "question");
    json_t *messages = json_array();
    tn_json_append(&messages, tn_json_pack("{s:s, s:s}", "role", "user", "content", prompt));
    tn_json_set(&chat, "messages", messages);
    TN_FAIL_IF(!chat, err, TERN_E_MEMORY, "no memory for the request");
    tern_status st = tn_json_text(chat, JSON_COMPACT, &text, err);
    json_decref(chat);
    if (st == TERN_OK) st = tn_request_read(TN_API_CHAT, text, strlen(text), r, err);
    free(text);
    return st;
}
