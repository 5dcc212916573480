/* The addresses of Ollama's API. Models are named as GET /v1/models has them; ":latest" after a name says
 * nothing. */
#include "server/ollama.h"

#include "base/clock.h"
#include "engine/sight.h"
#include "server/api.h"
#include "server/prompts.h"
#include "server/reply.h"
#include "text/toolcall.h"
#include "text/tokenizer_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

typedef enum MHD_Result result;

/* The version of the API that is spoken; clients look whether it is new enough. Codex wants 0.13.4, which has
 * /v1/responses, and 0.14.0 has /v1/messages. */
static const char version[] = "0.14.0";

static result refuse(const tn_api_call *a, const tern_error *err) {
    int status = tn_reply_status(err);
    return tn_api_json(a, status, tn_sink_ollama_chat.error(err, status));
}

/* ---- answers ------------------------------------------------------------------------------------------ */

/* The model is in memory, or it leaves. */
static result load(const tn_api_call *a, bool generate, const tn_request *r, const tn_ollama_asked *asked) {
    tern_error err = {0};
    tn_served *k;
    char now[TN_OLLAMA_TIME];
    bool leaves = asked->keeps && !asked->keep_ns;
    if (tn_api_strict(a, r->ignored, &err) != TERN_OK || tn_api_use(a, r->body, &k, &err) != TERN_OK)
        return refuse(a, &err);
    if (asked->keeps) tn_models_keep(k, &asked->keep_ns);
    tn_ollama_time((int64_t)time(NULL), now);
    json_t *v = tn_json_pack("{s:s, s:s, s:b, s:s}", "model", tn_served_name(k), "created_at", now, "done", 1,
                             "done_reason", leaves ? "unload" : "load");
    if (generate) tn_json_set(&v, "response", tn_json_string("", 0));
    else tn_json_set(&v, "message", tn_json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
    tn_models_leave(k);
    return tn_api_body_of(a, 200, "application/json", tn_body_json(v), r->ignored);
}

static result answer(const tn_api_call *a, bool generate) {
    tern_error err = {0};
    tn_request r;
    tn_ollama_asked asked;
    if (tn_ollama_read(generate, a->body, a->n_body, &r, &asked, &err) != TERN_OK) return refuse(a, &err);
    if (asked.keeps) r.keep_ns = asked.keep_ns, r.keeps = true;
    if (!asked.loads) return tn_api_ask(a, &r);
    result ok = load(a, generate, &r, &asked);
    tn_request_free(&r);
    return ok;
}

result tn_ollama_chat(const tn_api_call *a) { return answer(a, false); }
result tn_ollama_generate(const tn_api_call *a) { return answer(a, true); }

/* ---- embeddings --------------------------------------------------------------------------------------- */

/* A request without texts loads the model. */
static result embed_nothing(const tn_api_call *a, const tn_request *r, bool several) {
    tern_error err = {0};
    tn_served *k;
    if (tn_api_strict(a, r->ignored, &err) != TERN_OK || tn_api_use(a, r->body, &k, &err) != TERN_OK)
        return refuse(a, &err);
    if (r->keeps) tn_models_keep(k, &r->keep_ns);
    json_t *v = several ? tn_json_pack("{s:s, s:o}", "model", tn_served_name(k), "embeddings", json_array())
                        : tn_json_pack("{s:o}", "embedding", json_array());
    tn_models_leave(k);
    return tn_api_body_of(a, 200, "application/json", tn_body_json(v), r->ignored);
}

static result embed_texts(const tn_api_call *a, tn_request *r, bool several) {
    tern_error err = {0};
    json_t *v = NULL;
    int64_t t0 = tn_now_ns();
    if (tn_api_embed(a, r, &v, &err) != TERN_OK) return refuse(a, &err);
    const json_t *data = json_object_get(v, "data");
    json_t *rows = json_array();
    for (size_t i = 0; i < json_array_size(data); i++)
        tn_json_append(&rows, json_incref(json_object_get(json_array_get(data, i), "embedding")));
    json_t *reply = several
                        ? tn_json_pack("{s:O, s:O, s:I, s:I, s:O}", "model", json_object_get(v, "model"),
                                       "embeddings", rows, "total_duration", (json_int_t)(tn_now_ns() - t0),
                                       "load_duration", (json_int_t)0, "prompt_eval_count",
                                       json_object_get(json_object_get(v, "usage"), "prompt_tokens"))
                        : tn_json_pack("{s:O}", "embedding", json_array_get(rows, 0));
    json_decref(rows);
    json_decref(v);
    return tn_api_body_of(a, 200, "application/json", tn_body_json(reply), r->ignored);
}

static result embed(const tn_api_call *a, bool several) {
    tern_error err = {0};
    tn_request r;
    tn_ollama_asked asked;
    if (tn_ollama_read_embed(several, a->body, a->n_body, &r, &asked, &err) != TERN_OK)
        return refuse(a, &err);
    result ok = asked.loads ? embed_nothing(a, &r, several) : embed_texts(a, &r, several);
    tn_request_free(&r);
    return ok;
}

result tn_ollama_embed(const tn_api_call *a) { return embed(a, true); }
result tn_ollama_embeddings(const tn_api_call *a) { return embed(a, false); }

/* ---- models ------------------------------------------------------------------------------------------- */

/* What tells one file from another; it is no hash of its content. */
static void digest_of(const json_t *m, char out[65]) {
    const char *id = json_string_value(json_object_get(m, "id"));
    uint64_t h = json_integer_value(json_object_get(m, "file_bytes")) ^
                 (uint64_t)json_integer_value(json_object_get(m, "created")) << 20;
    for (int i = 0; i < 4; i++) {
        h = XXH64(id, strlen(id), h);
        snprintf(out + (ptrdiff_t)16 * i, 17, "%016" PRIx64, h);
    }
}

static json_t *details_of(const json_t *m) {
    const json_t *meta = json_object_get(m, "meta");
    const char *arch = json_string_value(json_object_get(meta, "arch")),
               *scheme = json_string_value(json_object_get(meta, "scheme"));
    double n = json_number_value(json_object_get(meta, "n_params"));
    char size[40] = "";
    if (n > 0) snprintf(size, sizeof size, n < 1e9 ? "%.1fM" : "%.1fB", n < 1e9 ? n / 1e6 : n / 1e9);
    json_t *families = json_array();
    if (arch) tn_json_append(&families, tn_json_string(arch, strlen(arch)));
    return tn_json_pack("{s:s, s:s, s:s, s:o, s:s, s:s}", "parent_model", "", "format", "gguf", "family",
                        arch ? arch : "", "families", families, "parameter_size", size, "quantization_level",
                        scheme ? scheme : "");
}

static json_t *entry_of(const json_t *m) {
    char digest[65], changed[TN_OLLAMA_TIME];
    const json_t *id = json_object_get(m, "id");
    digest_of(m, digest);
    tn_ollama_time(json_integer_value(json_object_get(m, "created")), changed);
    return tn_json_pack("{s:O, s:O, s:s, s:O, s:s, s:o}", "name", id, "model", id, "modified_at", changed,
                        "size", json_object_get(m, "file_bytes"), "digest", digest, "details", details_of(m));
}

static result list(const tn_api_call *a, bool running) {
    json_t *all = tn_models_list(a->models, NULL), *out = json_array();
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *m = json_array_get(all, i), *meta = json_object_get(m, "meta");
        const char *state = json_string_value(json_object_get(m, "state"));
        if (running && strcmp(state, "ready")) continue;
        json_t *v = entry_of(m);
        char until[TN_OLLAMA_TIME];
        int64_t left_ns = json_is_integer(json_object_get(m, "idle_s"))
                              ? json_integer_value(json_object_get(m, "idle_s"))
                              : 100LL * 365 * 86400; /* for ever */
        tn_ollama_time((int64_t)time(NULL) + left_ns, until);
        if (running) tn_json_set(&v, "expires_at", tn_json_string(until, strlen(until)));
        if (running) tn_json_set(&v, "size", json_incref(json_object_get(m, "memory_bytes")));
        if (running) tn_json_set(&v, "size_vram", json_integer(0));
        if (running) tn_json_set(&v, "context_length", json_incref(json_object_get(meta, "n_ctx")));
        tn_json_append(&out, v);
    }
    bool whole = all != NULL;
    json_decref(all);
    if (!whole) json_decref(out);
    return tn_api_json(a, 200, whole ? tn_json_pack("{s:o}", "models", out) : NULL);
}

result tn_ollama_tags(const tn_api_call *a) { return list(a, false); }
result tn_ollama_ps(const tn_api_call *a) { return list(a, true); }
result tn_ollama_version(const tn_api_call *a) {
    return tn_api_json(a, 200, tn_json_pack("{s:s, s:s}", "version", version, "tern", TERN_VERSION_STRING));
}

static json_t *info_of(const tern_model_info *i) {
    char name[80];
    json_t *v = tn_json_pack("{s:s, s:I}", "general.architecture", i->arch, "general.parameter_count",
                             (json_int_t)i->n_params);
    const struct {
        const char *name;
        int64_t n;
    } all[] = {
        {"context_length", i->ctx_train}, {"embedding_length", i->n_embd}, {"block_count", i->n_layers}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        snprintf(name, sizeof name, "%.40s.%s", i->arch, all[k].name);
        tn_json_set(&v, name, json_integer(all[k].n));
    }
    return v;
}

/* A model that says how texts become vectors is for those, as Ollama has it; a reranker's scores have no word there. */
static bool writes(const tn_hparams *h) { return h->pooling <= TN_POOL_NONE && !h->bidirectional; }

static json_t *abilities_of(tern_engine *e, const char *template) {
    const tn_hparams *h = &e->model->h;
    const tn_answer_form form = tn_answer_form_of(template);
    json_t *list = json_array();
    if (!writes(h)) {
        if (h->pooling != TN_POOL_RANK) tn_json_append(&list, tn_json_string("embedding", 9));
        return list;
    }
    tn_json_append(&list, tn_json_string("completion", 10));
    if (tn_fills_in(e)) tn_json_append(&list, tn_json_string("insert", 6));
    if (form.knows_tools && !form.foreign) tn_json_append(&list, tn_json_string("tools", 5));
    if (tn_sight_can(e, NULL)) tn_json_append(&list, tn_json_string("vision", 6));
    if (form.think) tn_json_append(&list, tn_json_string("thinking", 8));
    return list;
}

result tn_ollama_show(const tn_api_call *a) {
    tern_error err = {0};
    tn_served *k;
    json_t *body = tn_json_parse(a->body, a->n_body, TN_JSON_REQUEST, NULL);
    if (json_is_object(body) && !json_object_get(body, "model") && json_object_get(body, "name"))
        tn_json_set(&body, "model", json_incref(json_object_get(body, "name")));
    tern_status st = json_is_object(body) ? tn_api_use(a, body, &k, &err)
                                          : tn_fail(&err, TERN_E_INVALID, "the body is not a JSON object");
    json_decref(body);
    if (st != TERN_OK) return refuse(a, &err);
    const tn_queue_options *q = tn_queue_opts(tn_served_queue(k));
    const tn_tokenizer *t = q->e->model->tokenizer;
    const char *template = !writes(&q->e->model->h) ? ""
                           : q->chat_template       ? q->chat_template
                           : t && t->chat_template  ? t->chat_template
                                                    : "";
    tern_model_info info;
    tern_engine_info(q->e, &info);
    json_t *m = tn_models_list(a->models, tn_served_name(k));
    char changed[TN_OLLAMA_TIME], parameters[64];
    tn_ollama_time(json_integer_value(json_object_get(m, "created")), changed);
    snprintf(parameters, sizeof parameters, "num_ctx %d", q->n_ctx);
    json_t *v =
        tn_json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:s}", "modelfile", "", "parameters", parameters,
                     "template", template, "details", m ? details_of(m) : NULL, "model_info", info_of(&info),
                     "capabilities", abilities_of(q->e, template), "modified_at", changed);
    json_decref(m);
    tn_models_leave(k);
    return tn_api_json(a, 200, v);
}

result tn_ollama_unsupported(const tn_api_call *a) {
    return tn_api_json(
        a, 501,
        tn_json_pack("{s:s}", "error",
                     "this server takes no models over HTTP and erases none: put files into the folder "
                     "that it serves (tern serve --models DIR)"));
}
