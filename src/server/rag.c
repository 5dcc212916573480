/* /v1/rag: documents given as bytes, and questions that are answered from them. */
#include "server/api.h"
#include "server/rag_body.h"
#include "server/refusals.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

static enum MHD_Result error(const tn_api_call *a, const tern_error *err) {
    return tn_api_error(a, err, TN_API_CHAT);
}

static enum MHD_Result list(const tn_api_call *a) {
    tern_error err = {0};
    json_t *found = NULL, *data = json_array();
    if (tn_uploads_list(a->uploads, &found, &err) != TERN_OK) {
        json_decref(data);
        return error(a, &err);
    }
    const json_t *docs = json_object_get(found, "documents");
    for (size_t i = 0; i < json_array_size(docs); i++) {
        json_t *d = json_incref(json_array_get(docs, i));
        tn_json_set(&d, "object", tn_json_string("document", 8));
        tn_json_append(&data, d);
    }
    json_t *v = tn_json_pack("{s:s, s:o, s:O}", "object", "list", "data", data, "others",
                             json_object_get(found, "others"));
    json_decref(found);
    return tn_api_json(a, 200, v);
}

/* Programs do not always say what they send: JSON is told by how it begins, where no name is in the address. */
static bool is_json(const tn_api_call *a) {
    size_t i = 0;
    while (i < a->n_body && strchr(" \t\r\n", a->body[i]) && a->body[i]) i++;
    return i < a->n_body && (a->body[i] == '{' || a->body[i] == '[');
}

static enum MHD_Result add(const tn_api_call *a) {
    tern_error err = {0};
    tn_rag_given g = {.name = MHD_lookup_connection_value(a->c, MHD_GET_ARGUMENT_KIND, "name"),
                      .bytes = a->body,
                      .n = a->n_body};
    json_t *doc = NULL;
    tern_status st = TERN_OK;
    if (!g.name && is_json(a)) st = tn_rag_read_document(a->body, a->n_body, &g, &err);
    else if (!g.name || !*g.name || !g.n)
        st = tn_fail(&err, TERN_E_INVALID,
                     "a document needs bytes, and a name (?name=NAME), or a body of JSON with both");
    tn_connection_busy(a->c, true);
    if (st == TERN_OK) st = tn_uploads_add(a->uploads, g.name, g.bytes, g.n, &doc, &err);
    tn_connection_busy(a->c, false);
    tn_rag_given_free(&g);
    if (st != TERN_OK) return error(a, &err);
    tn_json_set(&doc, "object", tn_json_string("document", 8));
    return tn_api_json(a, 200, doc);
}

static enum MHD_Result remove_one(const tn_api_call *a, const char *id) {
    tern_error err = {0};
    if (tn_uploads_remove(a->uploads, id, &err) != TERN_OK) return error(a, &err);
    return tn_api_json(a, 200, tn_json_pack("{s:s, s:s, s:b}", "id", id, "object", "document", "deleted", 1));
}

static enum MHD_Result ask(const tn_api_call *a) {
    tern_error err = {0};
    json_t *body, *sources = NULL;
    const char *question;
    char *prompt = NULL;
    tn_request r;
    if (tn_rag_read_question(a->body, a->n_body, &body, &question, &err) != TERN_OK) return error(a, &err);
    tn_connection_busy(a->c, true); /* a reranker takes its time */
    tern_status st = tn_uploads_ask(a->uploads, question, &prompt, &sources, &err);
    tn_connection_busy(a->c, false);
    if (st == TERN_OK) st = tn_rag_request(body, prompt ? prompt : question, &r, &err);
    free(prompt);
    json_decref(body);
    if (st != TERN_OK) {
        json_decref(sources);
        return error(a, &err);
    }
    r.sources = sources;
    return tn_api_ask(a, &r);
}

enum MHD_Result tn_api_rag(const tn_api_call *a, const char *url, const char *method) {
    bool get = !strcmp(method, "GET"), post = !strcmp(method, "POST");
    if (!a->uploads) return tn_api_refuse(a, 503, "this server reads no documents");
    if (!strcmp(url, "/documents")) {
        if (get) return list(a);
        return post ? add(a) : tn_api_wants(a, "this address", "GET, POST");
    }
    if (!strncmp(url, "/documents/", 11))
        return !strcmp(method, "DELETE") ? remove_one(a, url + 11) : tn_api_wants(a, "a document", "DELETE");
    if (!strcmp(url, "/ask")) return post ? ask(a) : tn_api_wants(a, "this address", "POST");
    return tn_api_refuse(a, 404, "there is no such address");
}
