/* Reranking: how well each of several texts answers a question, one after the other, each when its turn comes. A reranker
 * reads both together; a model that embeds compares their vectors. */
#include "engine/engine.h"
#include "server/api.h"
#include "server/priority.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ranked {
    size_t index;
    float score;
} ranked;

static int better_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The question and a text as the model reads both, as a list of tokens. */
static tern_status both(const tern_engine *e, const json_t *query, const json_t *text, json_t **out,
                        tern_error *err) {
    const char *const t[2] = {json_string_value(query), json_string_value(text)};
    const size_t n_bytes[2] = {json_string_length(query), json_string_length(text)};
    size_t n = 0, cap = tn_tokenize_pair_max(e->model->tokenizer, n_bytes);
    int32_t *ids = malloc(cap * sizeof *ids);
    TN_FAIL_IF(!ids, err, TERN_E_MEMORY, "no memory for a text of %zu bytes", n_bytes[1]);
    tern_status st = tn_tokenize_pair(e->model->tokenizer, t, n_bytes, ids, cap, &n, err);
    *out = json_array();
    for (size_t i = 0; st == TERN_OK && i < n; i++) tn_json_append(out, json_integer(ids[i]));
    free(ids);
    TN_FAIL_IF(st == TERN_OK && !*out, err, TERN_E_MEMORY, "no memory for %zu tokens", n);
    return st;
}

static double dot(const float *x, const float *y, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* By a model that embeds: the cosine of the question's vector and a text's. */
static tern_status compare_all(const tn_api_call *a, tn_queue *q, int priority, const json_t *query,
                               const json_t *texts, ranked *out, size_t *n_tokens, tern_error *err) {
    tern_model_info info;
    float *asked = NULL;
    tern_engine_info(tn_queue_opts(q)->e, &info);
    const size_t n = (size_t)info.n_embd;
    TN_TRY(tn_queue_embed(q, query, NULL, TN_POOL_UNSAID, a->client, priority, tn_client_gone, a->c, &asked,
                          n_tokens, err));
    const double square = dot(asked, asked, n);
    tern_status st = TERN_OK;
    size_t i;
    json_t *text;
    json_array_foreach(texts, i, text) {
        float *v = NULL;
        if (!json_is_string(text)) st = tn_fail(err, TERN_E_INVALID, "'documents' must be a list of texts");
        else
            st = tn_queue_embed(q, text, NULL, TN_POOL_UNSAID, a->client, priority, tn_client_gone, a->c, &v,
                                n_tokens, err);
        if (st != TERN_OK) break;
        const double length = sqrt(square * dot(v, v, n));
        out[i] = (ranked){i, length > 0 ? (float)(dot(asked, v, n) / length) : 0};
        free(v);
    }
    free(asked);
    return st;
}

static tern_status score_all(const tn_api_call *a, tn_queue *q, int priority, const json_t *query,
                             const json_t *texts, ranked *out, size_t *n_tokens, tern_error *err) {
    const tern_engine *e = tn_queue_opts(q)->e;
    tern_status st = TERN_OK;
    size_t i;
    json_t *text;
    json_array_foreach(texts, i, text) {
        json_t *ids = NULL;
        float *v = NULL;
        if (st == TERN_OK && !json_is_string(text))
            st = tn_fail(err, TERN_E_INVALID, "'documents' must be a list of texts");
        if (st == TERN_OK) st = both(e, query, text, &ids, err);
        if (st == TERN_OK)
            st = tn_queue_embed(q, ids, NULL, TN_POOL_UNSAID, a->client, priority, tn_client_gone, a->c, &v,
                                n_tokens, err);
        json_decref(ids);
        if (st != TERN_OK) break;
        out[i] = (ranked){i, v[0]};
        free(v);
    }
    return st;
}

static tern_status read_fields(const json_t *body, const json_t **query, const json_t **texts, size_t *top,
                               tn_request *ignored, tern_error *err) {
    static const char *const known[] = {"model", "query",       "documents", "texts",
                                        "top_n", "return_text", "priority"};
    const char *field;
    json_t *value;
    *query = json_object_get(body, "query");
    *texts = json_object_get(body, "documents");
    if (!*texts) *texts = json_object_get(body, "texts"); /* as Hugging Face's server has it */
    json_object_foreach((json_t *)(uintptr_t)body, field, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(field, known[i]);
        if (!is_known && !tn_says_nothing(value)) tn_request_ignore(ignored, field);
    }
    TN_FAIL_IF(!json_is_string(*query), err, TERN_E_INVALID, "'query' must be a text");
    size_t n = json_array_size(*texts);
    TN_FAIL_IF(!n || n > 2048, err, TERN_E_INVALID, "'documents' must be a list of 1 to 2048 texts");
    double wanted = (double)n;
    TN_TRY(tn_field_number(body, "top_n", 0, 1e9, true, &wanted, err));
    *top = wanted < (double)n ? (size_t)wanted : n;
    return TERN_OK;
}

/* In the form of `texts`: [{index, score}]; else of Jina's API, as llama.cpp's server has it. */
static json_t *reply(const json_t *body, const char *model, const ranked *r, size_t top, const json_t *texts,
                     size_t n_tokens) {
    bool short_form = !json_object_get(body, "documents");
    bool with_text = json_is_true(json_object_get(body, "return_text"));
    json_t *list = json_array();
    for (size_t i = 0; i < top; i++) {
        json_t *one = tn_json_pack("{s:I, s:f}", "index", (json_int_t)r[i].index,
                                   short_form ? "score" : "relevance_score", (double)r[i].score);
        if (with_text) tn_json_set(&one, "text", json_incref(json_array_get(texts, r[i].index)));
        tn_json_append(&list, one);
    }
    if (short_form) return list;
    return tn_json_pack("{s:s, s:s, s:{s:I, s:I}, s:o}", "model", model, "object", "list", "usage",
                        "prompt_tokens", (json_int_t)n_tokens, "total_tokens", (json_int_t)n_tokens,
                        "results", list);
}

static tern_status rerank(const tn_api_call *a, const json_t *body, tn_request *ignored, json_t **out,
                          tern_error *err) {
    const json_t *query, *texts;
    size_t top, n_tokens = 0;
    int priority = TN_BACKGROUND;
    TN_TRY(tn_api_priority(a, body, &priority, err));
    TN_TRY(read_fields(body, &query, &texts, &top, ignored, err));
    tn_served *model;
    TN_TRY(tn_api_use(a, body, &model, err));
    tn_queue *q = tn_served_queue(model);
    ranked *r = calloc(json_array_size(texts), sizeof *r);
    tern_status st = tn_api_strict(a, ignored->ignored, err);
    if (st == TERN_OK && !r) st = tn_fail(err, TERN_E_MEMORY, "no memory for the scores");
    tern_model_info info;
    tern_engine_info(tn_queue_opts(q)->e, &info);
    const tn_pooling pooling = tn_queue_opts(q)->e->model->h.pooling;
    const bool ranks = pooling == TN_POOL_RANK;
    if (st == TERN_OK && !ranks && !info.embeds && pooling <= TN_POOL_NONE)
        st = tn_fail(err, TERN_E_UNSUPPORTED,
                     "model '%s' does not score texts: that takes a reranker, or a model that embeds",
                     tn_served_name(model));
    tn_connection_busy(a->c, true);
    if (st == TERN_OK)
        st = (ranks ? score_all : compare_all)(a, q, priority, query, texts, r, &n_tokens, err);
    tn_connection_busy(a->c, false);
    if (st == TERN_OK) qsort(r, json_array_size(texts), sizeof *r, better_first);
    if (st == TERN_OK) *out = reply(body, tn_served_name(model), r, top, texts, n_tokens);
    free(r);
    tn_models_leave(model);
    return st;
}

enum MHD_Result tn_api_rerank(const tn_api_call *a, const json_t *body) {
    tn_request ignored = {0}; /* of it the list of fields alone */
    tern_error err = {0};
    json_t *v = NULL;
    if (rerank(a, body, &ignored, &v, &err) != TERN_OK) return tn_api_error(a, &err, TN_API_CHAT);
    return tn_api_body_of(a, 200, "application/json", tn_body_json(v), ignored.ignored);
}
