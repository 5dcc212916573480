#include "server/papers.h"

#include "base/bytes.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const json_t *o, const char *key, const char *word) {
    const char *v = json_string_value(json_object_get(o, key));
    return v && !strcmp(v, word);
}

static tern_status read_source(tn_uploads *u, json_t *source, tern_error *err) {
    const json_t *data = json_object_get(source, "data");
    tn_bytes bytes = {0};
    size_t bad = 0, n = json_string_length(data), n_text = 0;
    char *text = NULL;
    TN_FAIL_IF(!json_is_string(data), err, TERN_E_INVALID, "a document of type base64 needs data");
    if (!tn_bytes_from_base64(&bytes, json_string_value(data), n, &bad)) {
        free(bytes.p);
        TN_FAIL_IF(bad < n, err, TERN_E_INVALID, "a document is not base64 at byte %zu", bad);
        return tn_fail(err, TERN_E_MEMORY, "no memory for a document of %zu bytes", n);
    }
    tern_status st = tn_uploads_text(u, "x.pdf", bytes.p, bytes.n, &text, &n_text, err);
    free(bytes.p);
    if (st != TERN_OK) return st;
    json_t *own = json_incref(source);
    tn_json_set(&own, "data", tn_json_string(text, n_text));
    tn_json_set(&own, "type", tn_json_string("text", 4));
    free(text);
    const bool ok = own != NULL;
    json_decref(own);
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for a document's words");
    return TERN_OK;
}

/* deep: of messages, whose results of tools have content of their own. */
static tern_status read_content(tn_uploads *u, json_t *content, bool deep, const char *where, int *n,
                                tern_error *err) {
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
        json_t *b = json_array_get(content, i), *source = json_object_get(b, "source");
        if (deep && is(b, "type", "tool_result"))
            TN_TRY(read_content(u, json_object_get(b, "content"), false, where, n, err));
        if (!is(b, "type", "document") || !is(source, "type", "base64") ||
            !is(source, "media_type", "application/pdf"))
            continue;
        TN_FAIL_IF(++*n > TN_REQUEST_PAPERS, err, TERN_E_LIMIT, "more than %d documents in one request",
                   TN_REQUEST_PAPERS);
        tern_error why;
        if (read_source(u, source, &why) != TERN_OK)
            return tn_fail(err, why.code, "%s: %s", where, why.message);
    }
    return TERN_OK;
}

tern_status tn_papers_read(tn_uploads *u, json_t *body, tern_error *err) {
    const json_t *messages = json_object_get(body, "messages");
    int n = 0;
    for (size_t i = 0; u && json_is_array(messages) && i < json_array_size(messages); i++) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", i);
        TN_TRY(
            read_content(u, json_object_get(json_array_get(messages, i), "content"), true, where, &n, err));
    }
    return TERN_OK;
}
