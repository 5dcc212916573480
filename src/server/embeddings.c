/* Embeddings: a text after the other, each when its turn comes. */
#include "engine/engine.h"
#include "server/api.h"

#include <stdlib.h>
#include <string.h>

typedef struct embedding {
    float *v; /* [n] */
    size_t n;
    bool base64, mean;
    size_t n_tokens; /* read so far */
} embedding;

static json_t *base64_of(const float *v, size_t n) {
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = (const uint8_t *)v; /* little-endian, as the API has it and this machine too */
    size_t bytes = 4 * n, at = 0;
    char *out = malloc((bytes + 2) / 3 * 4);
    if (!out) return NULL;
    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t w = (uint32_t)p[i] << 16 | (i + 1 < bytes ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < bytes ? p[i + 2] : 0);
        for (int k = 0; k < 4; k++) out[at++] = i + (size_t)k > bytes ? '=' : set[w >> (18 - 6 * k) & 63];
    }
    json_t *text = tn_json_string(out, at);
    free(out);
    return text;
}

static json_t *vector_of(const embedding *e) {
    if (e->base64) return base64_of(e->v, e->n);
    json_t *list = json_array();
    for (size_t i = 0; i < e->n; i++) tn_json_append(&list, tn_json_real((double)e->v[i]));
    return list;
}

static bool gone(void *c) { return tn_client_gone(c); }

/* One text of the request as a vector of the list. */
static tern_status embed_one(const tn_api_call *a, tn_queue *q, const json_t *text, embedding *e, size_t i,
                             json_t **list, tern_error *err) {
    TN_FAIL_IF(!json_is_string(text) || !json_string_length(text), err, TERN_E_INVALID,
               "'input' must be a text or a list of texts, none of them empty");
    TN_TRY(tn_queue_embed(q, json_string_value(text), json_string_length(text), e->mean, a->client, gone,
                          a->c, e->v, &e->n_tokens, err));
    tn_json_append(list, tn_json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)i, "embedding",
                                      vector_of(e)));
    TN_FAIL_IF(!*list, err, TERN_E_MEMORY, "no memory for the embeddings");
    return TERN_OK;
}

/* What the body asks for, beside the texts. */
static tern_status read_fields(const json_t *body, size_t n_texts, embedding *e, tern_error *err) {
    static const char *const known[] = {"input", "model", "encoding_format", "dimensions", "user", "pooling"};
    const json_t *dims = json_object_get(body, "dimensions");
    const char *format = json_string_value(json_object_get(body, "encoding_format")), *field,
               *pooling = json_string_value(json_object_get(body, "pooling"));
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, field, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(field, known[i]);
        TN_FAIL_IF(!is_known, err, TERN_E_UNSUPPORTED, "'%.60s' is not supported", field);
    }
    TN_FAIL_IF(format && strcmp(format, "float") && strcmp(format, "base64"), err, TERN_E_INVALID,
               "'encoding_format' must be float or base64");
    TN_FAIL_IF(pooling && strcmp(pooling, "mean") && strcmp(pooling, "last"), err, TERN_E_INVALID,
               "'pooling' must be mean or last");
    TN_FAIL_IF(dims && json_integer_value(dims) != (json_int_t)e->n, err, TERN_E_INVALID,
               "'dimensions' must be %zu, as the model has them", e->n);
    TN_FAIL_IF(!n_texts || n_texts > 2048, err, TERN_E_INVALID, "'input' must have 1 to 2048 texts");
    e->base64 = format && !strcmp(format, "base64");
    e->mean = pooling && !strcmp(pooling, "mean");
    e->v = malloc(e->n * sizeof *e->v);
    TN_FAIL_IF(!e->v, err, TERN_E_MEMORY, "no memory for the embeddings");
    return TERN_OK;
}

enum MHD_Result tn_api_embeddings(const tn_api_call *a, const json_t *body) {
    const json_t *input = json_object_get(body, "input");
    size_t n = json_is_array(input) ? json_array_size(input) : 1;
    embedding e = {0};
    tn_served *model;
    tern_error err = {0};
    tern_model_info info;
    tern_status st = tn_api_use(a, body, &model, &err);
    if (st != TERN_OK) return tn_api_error(a, &err, TN_API_CHAT);
    tn_queue *q = tn_served_queue(model);
    tern_engine_info(tn_queue_opts(q)->e, &info);
    e.n = (size_t)info.n_embd;
    st = read_fields(body, n, &e, &err);
    json_t *list = json_array();
    tn_connection_busy(a->c, true);
    for (size_t i = 0; st == TERN_OK && i < n; i++)
        st = embed_one(a, q, json_is_array(input) ? json_array_get(input, i) : input, &e, i, &list, &err);
    tn_connection_busy(a->c, false);
    free(e.v);
    enum MHD_Result ok;
    if (st == TERN_OK) {
        ok = tn_api_json(a, 200,
                         tn_json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", list,
                                      "model", tn_served_name(model), "usage", "prompt_tokens",
                                      (json_int_t)e.n_tokens, "total_tokens", (json_int_t)e.n_tokens));
    } else {
        json_decref(list);
        ok = tn_api_error(a, &err, TN_API_CHAT);
    }
    tn_models_leave(model);
    return ok;
}
