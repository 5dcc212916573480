/* Embeddings: a text after the other, each when its turn comes. */
#include "engine/adapters.h"
#include "server/api.h"
#include "server/priority.h"
#include "server/prompts.h"
#include "server/refusals.h"
#include "text/tokenizer_impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whose form the reply has. OpenAI's and Ollama's have no place for a vector of each token. */
typedef enum form { OPENAI, LLAMA, OLLAMA } form;

typedef struct embedding {
    size_t n, n_told; /* numbers of a vector; the first of them that are told */
    bool base64;
    form form;
    tn_pooling pool; /* NONE: a vector for each token, as they are */
    bool cuts;       /* a text that is longer than the context is cut to it */
    size_t n_tokens; /* read so far */
    int priority;
    const char *prefix;           /* that texts of the task begin with; NULL: no task was named */
    char lora[TN_LORA_NAME + 32]; /* the adapter of the task, with its scale; "": those of any request */
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

static json_t *vector_of(const embedding *e, float *v) {
    double norm = 0;
    for (size_t i = 0; i < e->n_told; i++) norm += (double)v[i] * (double)v[i];
    for (size_t i = 0; e->n_told < e->n && e->pool != TN_POOL_NONE && norm > 0 && i < e->n_told; i++)
        v[i] = (float)((double)v[i] / sqrt(norm)); /* length 1 again */
    if (e->base64) return base64_of(v, e->n_told);
    json_t *list = json_array();
    for (size_t i = 0; i < e->n_told; i++) tn_json_append(&list, tn_json_real((double)v[i]));
    return list;
}

/* A text's vector, or where each token has one the list of them. */
static json_t *vectors_of(const embedding *e, float *v, size_t n_rows) {
    if (e->pool != TN_POOL_NONE) return vector_of(e, v);
    json_t *list = json_array();
    for (size_t i = 0; i < n_rows; i++) tn_json_append(&list, vector_of(e, v + i * e->n));
    return list;
}

/* Tokens, among which may be texts. */
static bool is_tokens(const json_t *v) {
    bool any = false;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_integer(x) && !json_is_string(x)) return false;
        any |= json_is_integer(x);
    }
    return any;
}

/* A text as llama.cpp's server has it too: {"prompt_string": TEXT}, or {"content": [parts of text]}. *out is the caller's. */
static tern_status read_text(const json_t *v, json_t **out, tern_error *err) {
    const json_t *given = json_object_get(v, "prompt_string"), *content = json_object_get(v, "content");
    *out = NULL;
    if (json_is_array(content)) return tn_content_text(content, "'input'", false, out, err);
    if (!given) given = v;
    TN_FAIL_IF(!json_is_string(given) && !is_tokens(given), err, TERN_E_INVALID,
               "'input' must be a text, a list of tokens, or a list of those, none of them empty");
    *out = json_incref((json_t *)(uintptr_t)given);
    return TERN_OK;
}

/* What the task's texts begin with goes in front; tokens are read as they are. Takes text. */
static json_t *after_prefix(const embedding *e, json_t *text) {
    if (!e->prefix || !*e->prefix || !json_is_string(text)) return text;
    const size_t n_prefix = strlen(e->prefix), n = json_string_length(text);
    char *whole = malloc(n_prefix + n + 1);
    json_t *out = NULL;
    if (whole) {
        memcpy(whole, e->prefix, n_prefix);
        memcpy(whole + n_prefix, json_string_value(text), n);
        out = tn_json_string(whole, n_prefix + n);
    }
    free(whole);
    json_decref(text);
    return out;
}

/* The first tokens of a text, as many as the context holds; the end token stays the last. *out is the caller's. */
static tern_status cut(const tn_queue_options *o, const json_t *text, json_t **out, tern_error *err) {
    const tn_tokenizer *t = o->e->model->tokenizer;
    const tn_request r = {.prompt = text};
    tn_said s = {.e = o->e};
    TN_TRY(tn_prompt_ids(&r, &s, err));
    const size_t n = (size_t)o->n_ctx;
    assert(s.n_ids > n);
    if (t && t->add_eos && s.ids[s.n_ids - 1] == t->eos) s.ids[n - 1] = t->eos;
    *out = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(out, json_integer(s.ids[i]));
    free(s.ids);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the embeddings");
    return TERN_OK;
}

/* One text of the request as a vector of the list. */
static tern_status embed_one(const tn_api_call *a, tn_queue *q, const json_t *text, embedding *e, size_t i,
                             json_t **list, tern_error *err) {
    const size_t before = e->n_tokens;
    json_t *prompt;
    float *v;
    TN_TRY(read_text(text, &prompt, err));
    prompt = after_prefix(e, prompt);
    TN_FAIL_IF(!prompt, err, TERN_E_MEMORY, "no memory for the embeddings");
    const char *lora = *e->lora ? e->lora : NULL;
    tern_status st = tn_queue_embed(q, prompt, lora, e->pool, a->client, e->priority, tn_client_gone, a->c,
                                    &v, &e->n_tokens, err);
    if (st == TN_E_CONTEXT && e->cuts) {
        json_t *begin;
        st = cut(tn_queue_opts(q), prompt, &begin, err);
        json_decref(prompt);
        prompt = st == TERN_OK ? begin : NULL;
        if (prompt)
            st = tn_queue_embed(q, prompt, lora, e->pool, a->client, e->priority, tn_client_gone, a->c, &v,
                                &e->n_tokens, err);
    }
    json_decref(prompt);
    if (st != TERN_OK) return st;
    tn_json_append(list, tn_json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)i, "embedding",
                                      vectors_of(e, v, e->n_tokens - before)));
    free(v);
    TN_FAIL_IF(e->pool == TN_POOL_NONE && *list && e->n_tokens > TN_EMBED_NUMBERS / e->n, err, TERN_E_LIMIT,
               "the input is too large: a vector for each of more than %zu tokens", TN_EMBED_NUMBERS / e->n);
    TN_FAIL_IF(!*list, err, TERN_E_MEMORY, "no memory for the embeddings");
    return TERN_OK;
}

static const char *pooling_name(const tn_hparams *h) {
    static const char *const names[TN_N_POOLINGS] = {
        [TN_POOL_MEAN] = "mean", [TN_POOL_FIRST] = "cls", [TN_POOL_LAST] = "last"};
    const char *name = names[h->pooling];
    return name ? name : h->bidirectional ? "mean" : "last";
}

/* A field that has a word, or says nothing. */
static bool is_word(const json_t *v) { return !v || json_is_null(v) || json_is_string(v); }

/* The task that the texts are embedded for, as Jina's own interface has it. A model without tasks does not follow it. */
static tern_status read_task(const json_t *body, const tern_engine *engine, embedding *e, tn_request *ignored,
                             tern_error *err) {
    const json_t *said = json_object_get(body, "task");
    tn_lora_mix mix;
    if (tn_says_nothing(said)) return TERN_OK;
    if (!tn_engine_has_tasks(engine)) {
        tn_request_ignore(ignored, "task");
        return TERN_OK;
    }
    TN_FAIL_IF(!json_is_string(said), err, TERN_E_INVALID, "'task' must be the name of a task");
    TN_TRY(tn_task_parse(engine, json_string_value(said), &mix, &e->prefix, err));
    snprintf(e->lora, sizeof e->lora, "%s:%.9g", mix.at[0]->name, (double)mix.scale[0]);
    return TERN_OK;
}

/* What the body asks for, beside the texts. */
static tern_status read_fields(const json_t *body, const tn_queue_options *o, size_t n_texts, embedding *e,
                               tn_request *ignored, tern_error *err) {
    const tn_hparams *h = &o->e->model->h;
    static const char *const known[] = {"input",   "model",   "encoding_format", "dimensions", "user",
                                        "pooling", "content", "priority",        "task"};
    const json_t *said = json_object_get(body, "pooling"),
                 *said_format = json_object_get(body, "encoding_format");
    const char *format = json_string_value(said_format), *field, *pooling = json_string_value(said);
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, field, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= !strcmp(field, known[i]);
        is_known |= e->form == OLLAMA && !strcmp(field, "truncate");
        is_known |= !strcmp(field, "embd_normalize") && json_number_value(value) == 2; /* as they are */
        if (!is_known && !tn_says_nothing(value)) tn_request_ignore(ignored, field);
    }
    TN_FAIL_IF(!is_word(said_format) || (format && strcmp(format, "float") && strcmp(format, "base64")), err,
               TERN_E_INVALID, "'encoding_format' must be float or base64");
    const char *own = pooling_name(h);
    TN_FAIL_IF(h->pooling == TN_POOL_RANK, err, TERN_E_UNSUPPORTED,
               "this model scores texts (/v1/rerank) and makes no vectors");
    TN_FAIL_IF(!is_word(said), err, TERN_E_INVALID,
               "'pooling' must be mean, none, or this model's own, which is %s", own);
    /* a request of Ollama's form cannot say it, and keeps the model's own */
    if (!pooling && o->pooling && (strcmp(o->pooling, "none") || e->form != OLLAMA)) pooling = o->pooling;
    TN_FAIL_IF(pooling && strcmp(pooling, "mean") && strcmp(pooling, "none") && strcmp(pooling, own), err,
               TERN_E_INVALID, "'pooling' must be mean, none, or this model's own, which is %s", own);
    TN_FAIL_IF(pooling && !strcmp(pooling, "none") && e->form != LLAMA, err, TERN_E_INVALID,
               "pooling 'none' makes a vector for each token, which POST /embeddings tells; here it must be "
               "mean, or this model's own, which is %s",
               own);
    TN_TRY(read_task(body, o->e, e, ignored, err));
    double wanted = (double)e->n;
    TN_TRY(tn_field_number(body, "dimensions", 1, (double)e->n, true, &wanted, err));
    e->n_told = (size_t)wanted;
    TN_FAIL_IF(!n_texts || n_texts > 2048, err, TERN_E_INVALID, "'input' must have 1 to 2048 texts");
    e->base64 = format && !strcmp(format, "base64");
    e->cuts = e->form == OLLAMA && !json_is_false(json_object_get(body, "truncate"));
    if (pooling && !strcmp(pooling, "mean")) e->pool = TN_POOL_MEAN;
    if (pooling && !strcmp(pooling, "none")) e->pool = TN_POOL_NONE;
    return TERN_OK;
}

static json_t *openai_reply(json_t *list, const char *model, const embedding *e) { /* takes list */
    return tn_json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", list, "model", model,
                        "usage", "prompt_tokens", (json_int_t)e->n_tokens, "total_tokens",
                        (json_int_t)e->n_tokens);
}

/* [{index, embedding: [vector of the text, or of each token]}]. Takes v, OpenAI's form. */
static json_t *llama_reply(json_t *v, bool each) {
    const json_t *list = json_object_get(v, "data");
    json_t *out = v ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *told = json_incref(json_object_get(json_array_get(list, i), "embedding")),
               *rows = each ? told : json_array();
        if (!each) tn_json_append(&rows, told);
        tn_json_append(&out, tn_json_pack("{s:i, s:o}", "index", (int)i, "embedding", rows));
    }
    json_decref(v);
    return out;
}

/* The reply in OpenAI's form. Of r count `keeps` and the fields that are not followed. */
static tern_status embed(const tn_api_call *a, const json_t *body, form form, tn_request *r, bool *each,
                         json_t **out, tern_error *err) {
    const json_t *input = json_object_get(body, "input");
    if (!input) input = json_object_get(body, "content"); /* as llama.cpp's server has it */
    bool many = json_is_array(input) && !is_tokens(input);
    size_t n = many ? json_array_size(input) : 1;
    embedding e = {.priority = TN_BACKGROUND, .form = form};
    tn_served *model;
    tern_model_info info;
    TN_TRY(tn_api_priority(a, body, &e.priority, err));
    TN_TRY(tn_api_use(a, body, &model, err));
    tn_queue *q = tn_served_queue(model);
    tern_engine_info(tn_queue_opts(q)->e, &info);
    e.n = (size_t)info.n_embd;
    tern_status st = read_fields(body, tn_queue_opts(q), n, &e, r, err);
    if (st == TERN_OK) st = tn_api_strict(a, r->ignored, err);
    if (st == TERN_OK && r->keeps) tn_models_keep(model, &r->keep_ns);
    json_t *list = json_array();
    tn_connection_busy(a->c, true);
    for (size_t i = 0; st == TERN_OK && i < n; i++)
        st = embed_one(a, q, many ? json_array_get(input, i) : input, &e, i, &list, err);
    tn_connection_busy(a->c, false);
    *each = e.pool == TN_POOL_NONE;
    if (st == TERN_OK) *out = openai_reply(list, tn_served_name(model), &e);
    else json_decref(list);
    tn_models_leave(model);
    return st;
}

tern_status tn_api_embed(const tn_api_call *a, tn_request *r, json_t **out, tern_error *err) {
    bool each;
    return embed(a, r->body, OLLAMA, r, &each, out, err);
}

static enum MHD_Result answer(const tn_api_call *a, const json_t *body, form form) {
    tn_request ignored = {0}; /* of it the list of fields alone */
    tern_error err = {0};
    json_t *v = NULL;
    bool each;
    if (embed(a, body, form, &ignored, &each, &v, &err) != TERN_OK) return tn_api_error(a, &err, TN_API_CHAT);
    if (form == LLAMA) v = llama_reply(v, each);
    return tn_api_body_of(a, 200, "application/json", tn_body_json(v), ignored.ignored);
}

enum MHD_Result tn_api_embeddings(const tn_api_call *a, const json_t *body) {
    return answer(a, body, OPENAI);
}
enum MHD_Result tn_api_embedding(const tn_api_call *a, const json_t *body) { return answer(a, body, LLAMA); }
