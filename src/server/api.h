/* server/api.h - one request of the API: what its routes are given, and how they answer.
 *
 *   routes.c  the addresses, and the small ones   completions.c  chats, completions, messages
 *   embeddings.c  embeddings   rerank.c  scores of texts   rag.c  documents
 *   mcp_http.c  documents as an agent's tools   ollama.c  Ollama's API */
#ifndef TN_SERVER_API_H
#define TN_SERVER_API_H

#include "base/json.h"
#include "server/connection.h"
#include "server/models.h"
#include "server/uploads.h"

typedef struct tn_api_call {
    struct MHD_Connection *c;
    const char *url; /* tells whose form an error has that is told before a route is found */
    tn_models *models;
    tn_uploads *uploads;            /* NULL: nobody reads documents */
    struct tn_responses *responses; /* what is remembered of them */
    const char *body;               /* complete; "" where there is none */
    size_t n_body;
    const char *origin;   /* of another site's page, which may read the reply; NULL: none */
    bool strict;          /* fields that are not followed are refused, else the reply names them */
    uint64_t client;      /* who asks, for fair turns */
    const char *priority; /* what the header X-Tern-Priority says, or NULL */
    int64_t asked_ns;
    const char *allow; /* of a method that is refused: those that the address has; NULL else */
} tn_api_call;

/* They answer the request. The JSON value is taken; NULL is no memory, which ends the connection. An error
 * has the form of the API that was asked. */
enum MHD_Result tn_api_json(const tn_api_call *a, int status, json_t *v);
enum MHD_Result tn_api_body(const tn_api_call *a, int status, const char *type, struct MHD_Response *body);
/* Like tn_api_body, and names fields that were not followed: "a, b", or "". */
enum MHD_Result tn_api_body_of(const tn_api_call *a, int status, const char *type, struct MHD_Response *body,
                               const char *ignored);
/* What a strict server says of them: TERN_OK where there are none, or it is not strict. */
tern_status tn_api_strict(const tn_api_call *a, const char *ignored, tern_error *err);
enum MHD_Result tn_api_error(const tn_api_call *a, const tern_error *err, tn_api api);
enum MHD_Result tn_api_refuse(const tn_api_call *a, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 405: what ("a document") has only the methods of allow ("GET, POST"), which the header Allow names. */
enum MHD_Result tn_api_wants(const tn_api_call *a, const char *what, const char *allow);

/* The model that the body names, as soon as it is in memory; to be left. While somebody waits the
 * connection is not idle. */
tern_status tn_api_use(const tn_api_call *a, const json_t *body, tn_served **out, tern_error *err);
/* The same of a request whose address may name the model (?model=); a body that names one goes first. body may be NULL. */
tern_status tn_api_use_at(const tn_api_call *a, const json_t *body, tn_served **out, tern_error *err);

/* Who asks: the connection's client, and the user that the body names. */
uint64_t tn_api_client(const tn_api_call *a, const json_t *body);
/* What the header and the body say of it; *out stays as it is where they say nothing. The body counts. */
tern_status tn_api_priority(const tn_api_call *a, const json_t *body, int *out, tern_error *err);
/* Asks the model and answers with what it says, streamed where that was asked for. It takes r. */
enum MHD_Result tn_api_ask(const tn_api_call *a, tn_request *r);
/* The same whose whole reply is wanted for something else: *out is the caller's. */
tern_status tn_api_answer(const tn_api_call *a, tn_request *r, json_t **out, tern_error *err);

/* The embeddings that a request of Ollama's asks for (tn_ollama_read_embed), as OpenAI has them; *out is the
 * caller's. */
tern_status tn_api_embed(const tn_api_call *a, tn_request *r, json_t **out, tern_error *err);

/* ---- routes ----------------------------------------------------------------------------------------- */

enum MHD_Result tn_api_route(const tn_api_call *a, const char *url, const char *method);
enum MHD_Result tn_api_complete(const tn_api_call *a, tn_api api);
enum MHD_Result tn_api_infill(const tn_api_call *a);
enum MHD_Result tn_api_responses(const tn_api_call *a);
enum MHD_Result tn_api_count_tokens(const tn_api_call *a); /* of Anthropic's form */
enum MHD_Result tn_api_count_chat(const tn_api_call *a);
enum MHD_Result tn_api_count_response(const tn_api_call *a);
enum MHD_Result tn_api_embeddings(const tn_api_call *a, const json_t *body); /* as OpenAI has them */
enum MHD_Result tn_api_rerank(const tn_api_call *a, const json_t *body);
enum MHD_Result tn_api_embedding(const tn_api_call *a, const json_t *body); /* as llama.cpp's server does */
/* Ollama's */
enum MHD_Result tn_ollama_chat(const tn_api_call *a);
enum MHD_Result tn_ollama_generate(const tn_api_call *a);
enum MHD_Result tn_ollama_embed(const tn_api_call *a);
enum MHD_Result tn_ollama_embeddings(const tn_api_call *a);
enum MHD_Result tn_ollama_tags(const tn_api_call *a);
enum MHD_Result tn_ollama_show(const tn_api_call *a);
enum MHD_Result tn_ollama_ps(const tn_api_call *a);
enum MHD_Result tn_ollama_version(const tn_api_call *a);
enum MHD_Result tn_ollama_unsupported(const tn_api_call *a);
enum MHD_Result tn_api_mcp(const tn_api_call *a);
/* POST /slots/NUMBER. */
enum MHD_Result tn_api_slot(const tn_api_call *a, const char *number);
/* url is after /v1/rag */
enum MHD_Result tn_api_rag(const tn_api_call *a, const char *url, const char *method);

#endif
