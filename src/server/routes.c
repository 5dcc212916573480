/* The addresses of the API, and the small ones of them. */
#include "engine/engine.h"
#include "engine/sight.h"
#include "server/adapters.h"
#include "server/api.h"
#include "server/refusals.h"
#include "server/responses.h"
#include "text/tokenizer_impl.h"
#include "base/utf8.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum MHD_Result result;

/* ---- models ------------------------------------------------------------------------------------------- */

/* Anthropic's clients say so by their header. */
static bool is_anthropic(const tn_api_call *a) {
    return MHD_lookup_connection_value(a->c, MHD_HEADER_KIND, "anthropic-version") != NULL;
}

/* What a model has in Anthropic's form, beside the rest. */
static void put_anthropic(json_t **v) {
    char when[40];
    const time_t made = (time_t)json_integer_value(json_object_get(*v, "created"));
    struct tm day;
    size_t n = gmtime_r(&made, &day) ? strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &day) : 0;
    tn_json_set(v, "type", tn_json_string("model", 5));
    tn_json_set(v, "display_name", json_incref(json_object_get(*v, "id")));
    tn_json_set(v, "created_at", tn_json_string(when, n));
}

static result models(const tn_api_call *a) {
    json_t *all = tn_models_list(a->models, NULL), *list = all;
    const size_t n = json_array_size(all);
    if (is_anthropic(a)) {
        list = all ? json_array() : NULL;
        for (size_t i = 0; i < n; i++) {
            json_t *one = json_incref(json_array_get(all, i));
            put_anthropic(&one);
            tn_json_append(&list, one);
        }
    }
    json_t *v = tn_json_pack("{s:s, s:o}", "object", "list", "data", list);
    if (is_anthropic(a)) {
        json_t *first = json_object_get(json_array_get(all, 0), "id"),
               *last = n ? json_object_get(json_array_get(all, n - 1), "id") : NULL;
        tn_json_set(&v, "has_more", json_false());
        tn_json_set(&v, "first_id", first ? json_incref(first) : json_null());
        tn_json_set(&v, "last_id", last ? json_incref(last) : json_null());
        json_decref(all);
    }
    return tn_api_json(a, 200, v);
}

static result one_model(const tn_api_call *a, const char *name) {
    json_t *v = tn_models_list(a->models, name);
    if (v && is_anthropic(a)) put_anthropic(&v);
    if (v) return tn_api_json(a, 200, v);
    tern_error err = {0};
    (void)tn_fail(&err, TN_E_ABSENT, "there is no model '%.80s'", name);
    return tn_api_error(a, &err, is_anthropic(a) ? TN_API_MESSAGES : TN_API_CHAT);
}

static result metrics(const tn_api_call *a) {
    return tn_api_body(a, 200, "text/plain; version=0.0.4", tn_body_text(tn_models_metrics(a->models)));
}

/* The model that the body names, and its engine; NULL after an answer of its own: *ok. */
static tn_served *model_of(const tn_api_call *a, const json_t *body, const tern_engine **e, result *ok) {
    tern_error err = {0};
    tn_served *k;
    if (tn_api_use(a, body, &k, &err) != TERN_OK) {
        *ok = tn_api_error(a, &err, TN_API_CHAT);
        return NULL;
    }
    *e = tn_queue_opts(tn_served_queue(k))->e;
    return k;
}

static bool is_text(const char *p, size_t n) {
    const uint8_t *at = (const uint8_t *)p, *end = at + n;
    for (uint32_t cp; at < end;) {
        size_t k = tn_utf8_decode(at, end, &cp);
        if (!k) return false;
        at += k;
    }
    return true;
}

/* A token's bytes, as a text where they are one. */
static json_t *piece_of(const tern_engine *e, int32_t id) {
    char buf[512];
    size_t n = tern_token_bytes(e, id, true, buf, sizeof buf);
    if (n > sizeof buf) n = sizeof buf;
    if (is_text(buf, n)) return tn_json_string(buf, n);
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&bytes, json_integer((uint8_t)buf[i]));
    return bytes;
}

/* Tokens of a text after those that are there. */
static tern_status put_tokens(const tern_engine *e, const json_t *text, bool special, bool parses,
                              int32_t **ids, size_t *n, tern_error *err) {
    const size_t n_bytes = json_string_length(text), cap = n_bytes + 16;
    size_t more = 0;
    int32_t *grown = realloc(*ids, (*n + cap) * sizeof **ids);
    TN_FAIL_IF(!grown, err, TERN_E_MEMORY, "no memory for the tokens");
    *ids = grown;
    TN_TRY(tern_tokenize(e, json_string_value(text), n_bytes, special, parses, grown + *n, cap, &more, err));
    *n += more;
    return TERN_OK;
}

/* The content is a text, or a list of texts and tokens. */
static tern_status tokens_of(const tern_engine *e, const json_t *body, int32_t **ids, size_t *n,
                             tern_error *err) {
    const json_t *content = json_object_get(body, "content");
    bool special, told;
    TN_TRY(tn_field_flag(body, "add_special", &special, err));
    TN_TRY(tn_field_flag(body, "parse_special", &told, err));
    TN_TRY(tn_field_flag(body, "with_pieces", &told, err)); /* of the reply */
    const bool parses = !json_is_false(json_object_get(body, "parse_special"));
    tern_model_info info;
    tern_engine_info(e, &info);
    if (json_is_string(content)) return put_tokens(e, content, special, parses, ids, n, err);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *x = json_array_get(content, i);
        if (json_is_string(x)) {
            TN_TRY(put_tokens(e, x, special && !i, parses, ids, n, err));
            continue;
        }
        const json_int_t id = json_is_integer(x) ? json_integer_value(x) : -1;
        TN_FAIL_IF(id < 0 || id >= info.n_vocab, err, TERN_E_INVALID,
                   "content[%zu] is neither a text nor a token of this model: want 0 to %d", i,
                   info.n_vocab - 1);
        int32_t *grown = realloc(*ids, (*n + 1) * sizeof **ids);
        TN_FAIL_IF(!grown, err, TERN_E_MEMORY, "no memory for the tokens");
        (*ids = grown)[(*n)++] = (int32_t)id;
    }
    return TERN_OK;
}

static result tokenize(const tn_api_call *a, const json_t *body) {
    const json_t *t = json_object_get(body, "content");
    bool pieces = json_is_true(json_object_get(body, "with_pieces"));
    const tern_engine *e;
    result ok;
    if (!json_is_string(t) && !json_is_array(t))
        return tn_api_refuse(a, 400, "'content' must be a text, or a list of texts and tokens");
    tn_served *model = model_of(a, body, &e, &ok);
    if (!model) return ok;
    size_t n_ids = 0;
    int32_t *ids = NULL;
    tern_error err = {0};
    tern_status st = tokens_of(e, body, &ids, &n_ids, &err);
    json_t *list = json_array();
    for (size_t i = 0; st == TERN_OK && i < n_ids; i++) {
        json_t *id = json_integer(ids[i]);
        tn_json_append(&list,
                       pieces ? tn_json_pack("{s:o, s:o}", "id", id, "piece", piece_of(e, ids[i])) : id);
    }
    tn_models_leave(model);
    free(ids);
    if (st == TERN_OK) return tn_api_json(a, 200, tn_json_pack("{s:o}", "tokens", list));
    json_decref(list);
    return tn_api_error(a, &err, TN_API_CHAT);
}

/* The text of tokens: *text is freed by the caller. */
static tern_status text_of(const tern_engine *e, const json_t *list, char **text, size_t *n,
                           tern_error *err) {
    tern_model_info info;
    tern_engine_info(e, &info);
    size_t cap = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        json_int_t id = json_is_integer(k) ? json_integer_value(k) : -1;
        TN_FAIL_IF(id < 0 || id >= info.n_vocab, err, TERN_E_INVALID,
                   "tokens[%zu] is no token of this model: want 0 to %d", i, info.n_vocab - 1);
        size_t more = tern_token_bytes(e, (int32_t)id, true, NULL, 0);
        if (*n + more > cap) {
            char *grown = realloc(*text, cap = 2 * (*n + more));
            TN_FAIL_IF(!grown, err, TERN_E_MEMORY, "no memory for the text");
            *text = grown;
        }
        *n += tern_token_bytes(e, (int32_t)id, true, *text + *n, more);
    }
    return TERN_OK;
}

static result detokenize(const tn_api_call *a, const json_t *body) {
    const json_t *list = json_object_get(body, "tokens");
    const tern_engine *e;
    result ok;
    if (!json_is_array(list)) return tn_api_refuse(a, 400, "'tokens' must be a list of token numbers");
    tn_served *model = model_of(a, body, &e, &ok);
    if (!model) return ok;
    char *text = NULL;
    size_t n = 0;
    tern_error err = {0};
    tern_status st = text_of(e, list, &text, &n, &err);
    tn_models_leave(model);
    ok = st == TERN_OK ? tn_api_json(a, 200, tn_json_pack("{s:s%}", "content", text ? text : "", n))
                       : tn_api_error(a, &err, TN_API_CHAT);
    free(text);
    return ok;
}

/* ---- what llama.cpp's server tells of itself ---------------------------------------------------------- */

static result health(const tn_api_call *a) {
    return tn_api_json(a, 200, tn_json_pack("{s:s}", "status", "ok"));
}

static json_t *text_of_token(const tern_engine *e, int32_t id) {
    return id < 0 ? tn_json_string("", 0) : piece_of(e, id);
}

/* Its model_path is a name: clients are not told where files lie. */
static json_t *props_of(const tn_queue_options *q) {
    const tn_tokenizer *t = q->e->model->tokenizer;
    const char *slash = q->path ? strrchr(q->path, '/') : NULL, *file = slash ? slash + 1 : q->path;
    const char *template = q->chat_template        ? q->chat_template
                           : t && t->chat_template ? t->chat_template
                                                   : "";
    const tn_usual *u = &q->usual;
    tern_sampling s = u->sampling;
    if (!u->known) tern_sampling_defaults(&s);
    json_t *params = tn_json_pack("{s:I, s:f, s:i, s:f, s:f, s:f, s:i}", "seed",
                                  u->seeded ? (json_int_t)s.seed : (json_int_t)0xffffffff, "temperature",
                                  (double)s.temperature, "top_k", (int)s.top_k, "top_p", (double)s.top_p,
                                  "min_p", (double)s.min_p, "repeat_penalty", (double)s.repeat_penalty,
                                  "n_predict", u->limited ? (int)u->max_tokens : -1);
    json_t *v = tn_json_pack("{s:{s:o, s:i}, s:i, s:s, s:s, s:s, s:s}", "default_generation_settings",
                             "params", params, "n_ctx", (int)q->n_ctx, "total_slots", (int)q->n_sessions,
                             "model_alias", q->model, "model_path", file ? file : q->model, "chat_template",
                             template, "build_info", "tern-" TERN_VERSION_STRING);
    tn_json_set(&v, "modalities",
                tn_json_pack("{s:b, s:b}", "vision", (int)tn_sight_can(q->e, NULL), "audio", 0));
    tn_queue_tell_from(q, &v);
    tn_json_set(&v, "bos_token", text_of_token(q->e, t ? t->bos : -1));
    tn_json_set(&v, "eos_token", text_of_token(q->e, t ? t->eos : -1));
    return v;
}

/* Answers with what `make` says of the model that the address names (?model=), or of the default. */
static result of_model(const tn_api_call *a, json_t *(*make)(tn_queue *q)) {
    tern_error err = {0};
    tn_served *model;
    if (tn_api_use_at(a, NULL, &model, &err) != TERN_OK) return tn_api_error(a, &err, TN_API_CHAT);
    json_t *v = make(tn_served_queue(model));
    tn_models_leave(model);
    return tn_api_json(a, 200, v);
}

static json_t *make_props(tn_queue *q) { return props_of(tn_queue_opts(q)); }

static json_t *make_slots(tn_queue *q) {
    const tn_queue_options *o = tn_queue_opts(q);
    json_t *list = json_array();
    for (int i = 0; i < o->n_sessions; i++)
        tn_json_append(&list, tn_json_pack("{s:i, s:i, s:b, s:b}", "id", i, "n_ctx", (int)o->n_ctx,
                                           "speculative", (int)(strcmp(o->draft, "none") != 0),
                                           "is_processing", (int)tn_queue_slot_busy(q, i)));
    return list;
}

static json_t *make_adapters(tn_queue *q) {
    const tn_lora_mix mix = tn_queue_adapters(q);
    return tn_adapters_list(tn_queue_opts(q)->e, &mix);
}

static result props(const tn_api_call *a) { return of_model(a, make_props); }
static result slots(const tn_api_call *a) { return of_model(a, make_slots); }
static result adapters(const tn_api_call *a) { return of_model(a, make_adapters); }

/* The scales of requests that name no adapters, from now on; those that are not in the list have none. */
static result set_adapters(const tn_api_call *a) {
    json_error_t je;
    tern_error err = {0};
    tn_served *model = NULL;
    tn_lora_mix mix;
    json_t *list = tn_json_parse(a->body, a->n_body, TN_JSON_REQUEST, &je);
    tern_status st = TERN_OK;
    if (!json_is_array(list))
        st = tn_fail(&err, TERN_E_INVALID, "the body must be a list of {\"id\", \"scale\"}");
    if (st == TERN_OK) st = tn_api_use_at(a, NULL, &model, &err);
    tn_queue *q = model ? tn_served_queue(model) : NULL;
    if (st == TERN_OK) st = tn_adapters_read(tn_queue_opts(q)->e, list, NULL, &mix, &err);
    if (st == TERN_OK) tn_queue_adapt(q, &mix);
    if (model) tn_models_leave(model);
    json_decref(list);
    return st == TERN_OK ? tn_api_json(a, 200, tn_json_pack("{s:b}", "success", 1))
                         : tn_api_error(a, &err, TN_API_CHAT);
}

static result unsupported(const tn_api_call *a) {
    return tn_api_refuse(a, 501,
                         "this server does not do that: its models generate and embed, and its settings are "
                         "those that it was started with");
}

/* ---- templates ---------------------------------------------------------------------------------------- */

static result apply_template(const tn_api_call *a) {
    tern_error err = {0};
    tn_request r;
    tn_served *model = NULL;
    char *text = NULL;
    size_t n = 0;
    tern_status st = tn_request_read(TN_API_CHAT, a->body, a->n_body, &r, &err);
    if (st == TERN_OK) {
        st = tn_api_use(a, r.body, &model, &err);
        if (st == TERN_OK) st = tn_queue_render(tn_served_queue(model), &r, &text, &n, &err);
        else tn_request_free(&r);
    }
    if (model) tn_models_leave(model);
    json_t *v = st == TERN_OK ? tn_json_pack("{s:s%}", "prompt", text, n) : NULL;
    free(text);
    return st == TERN_OK ? tn_api_json(a, 200, v) : tn_api_error(a, &err, TN_API_CHAT);
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static result with_body(const tn_api_call *a, result (*route)(const tn_api_call *, const json_t *)) {
    tern_error err;
    json_t *body;
    if (tn_request_object(a->body, a->n_body, &body, &err) != TERN_OK)
        return tn_api_error(a, &err, TN_API_CHAT);
    result ok = route(a, body);
    json_decref(body);
    return ok;
}
static result chat(const tn_api_call *a) { return tn_api_complete(a, TN_API_CHAT); }
static result completions(const tn_api_call *a) { return tn_api_complete(a, TN_API_COMPLETIONS); }
static result completion(const tn_api_call *a) { return tn_api_complete(a, TN_API_LLAMA); }
static result messages(const tn_api_call *a) { return tn_api_complete(a, TN_API_MESSAGES); }
static result embeddings(const tn_api_call *a) { return with_body(a, tn_api_embeddings); }
static result embedding(const tn_api_call *a) { return with_body(a, tn_api_embedding); }
static result rerank(const tn_api_call *a) { return with_body(a, tn_api_rerank); }
static result tokens(const tn_api_call *a) { return with_body(a, tokenize); }
static result texts(const tn_api_call *a) { return with_body(a, detokenize); }

static const struct {
    const char *method, *url;
    result (*answer)(const tn_api_call *a);
} routes[] = {{"POST", "/v1/chat/completions", chat},
              {"POST", "/chat/completions", chat},
              {"POST", "/v1/chat/completions/input_tokens", tn_api_count_chat},
              {"POST", "/chat/completions/input_tokens", tn_api_count_chat},
              {"POST", "/v1/completions", completions},
              {"POST", "/completions", completion},
              {"POST", "/completion", completion},
              {"POST", "/v1/responses", tn_api_responses},
              {"POST", "/responses", tn_api_responses},
              {"POST", "/v1/responses/input_tokens", tn_api_count_response},
              {"POST", "/responses/input_tokens", tn_api_count_response},
              {"POST", "/infill", tn_api_infill},
              {"POST", "/v1/messages", messages},
              {"POST", "/v1/messages/count_tokens", tn_api_count_tokens},
              {"POST", "/v1/embeddings", embeddings},
              {"POST", "/embeddings", embedding},
              {"POST", "/embedding", embedding},
              {"POST", "/tokenize", tokens},
              {"POST", "/detokenize", texts},
              {"POST", "/apply-template", apply_template},
              {"POST", "/lora-adapters", set_adapters},
              {"POST", "/props", unsupported},
              {"POST", "/mcp", tn_api_mcp},
              {"POST", "/rerank", rerank},
              {"POST", "/reranking", rerank},
              {"POST", "/v1/rerank", rerank},
              {"POST", "/v1/reranking", rerank},
              {"POST", "/api/chat", tn_ollama_chat},
              {"POST", "/api/generate", tn_ollama_generate},
              {"POST", "/api/embed", tn_ollama_embed},
              {"POST", "/api/embeddings", tn_ollama_embeddings},
              {"POST", "/api/show", tn_ollama_show},
              {"POST", "/api/pull", tn_ollama_unsupported},
              {"POST", "/api/push", tn_ollama_unsupported},
              {"POST", "/api/create", tn_ollama_unsupported},
              {"POST", "/api/copy", tn_ollama_unsupported},
              {"DELETE", "/api/delete", tn_ollama_unsupported},
              {"GET", "/api/tags", tn_ollama_tags},
              {"GET", "/api/ps", tn_ollama_ps},
              {"GET", "/api/version", tn_ollama_version},
              {"GET", "/v1/models", models},
              {"GET", "/models", models},
              {"GET", "/health", health},
              {"GET", "/v1/health", health},
              {"GET", "/props", props},
              {"GET", "/slots", slots},
              {"GET", "/lora-adapters", adapters},
              {"GET", "/metrics", metrics}};

/* A response that is remembered; it can be erased. */
static result one_response(const tn_api_call *a, const char *id, const char *method) {
    tern_error err = {0};
    json_t *v = NULL;
    bool erases = !strcmp(method, "DELETE");
    const char *part = strchr(id, '/');
    if (part && !strcmp(part, "/input_items"))
        return tn_api_refuse(
            a, 501, "the items of a response's input are not listed: they are not kept as they came");
    if (part) return tn_api_refuse(a, 404, "there is no such address");
    if (!erases && strcmp(method, "GET")) return tn_api_wants(a, "a response", "GET, DELETE");
    tern_status st = erases ? tn_responses_forget(a->responses, id, &err)
                            : tn_responses_find(a->responses, id, &v, NULL, &err);
    if (st != TERN_OK) return tn_api_error(a, &err, TN_API_CHAT);
    if (erases) v = tn_json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1);
    return tn_api_json(a, 200, v);
}

result tn_api_route(const tn_api_call *a, const char *url, const char *method) {
    static const char *const of_models[] = {"/v1/models/", "/models/"};
    bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    char allow[40] = "";
    if (!strncmp(url, "/v1/rag/", 8)) return tn_api_rag(a, url + 7, method);
    if (!strncmp(url, "/v1/responses/", 14) && strcmp(url + 14, "input_tokens") != 0)
        return one_response(a, url + 14, method);
    if (!strncmp(url, "/slots/", 7))
        return strcmp(method, "POST") ? tn_api_wants(a, "a slot", "POST") : tn_api_slot(a, url + 7);
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(of_models[i]);
        if (strncmp(url, of_models[i], n) != 0) continue;
        return reads ? one_model(a, url + n) : tn_api_wants(a, "a model", "GET, HEAD");
    }
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].url, url) != 0) continue;
        if (routes[i].method[0] == 'G' ? reads : !strcmp(routes[i].method, method))
            return routes[i].answer(a);
        const size_t n = strlen(allow);
        snprintf(allow + n, sizeof allow - n, "%s%s%s", n ? ", " : "", routes[i].method,
                 routes[i].method[0] == 'G' ? ", HEAD" : "");
    }
    return *allow ? tn_api_wants(a, url, allow) : tn_api_refuse(a, 404, "there is no such address");
}
