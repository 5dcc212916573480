/* /mcp: the documents as tools of an agent over HTTP (the Model Context Protocol's Streamable HTTP, without sessions and
 * without streams: every message has its whole reply in the response). */
#include "server/api.h"
#include "server/mcp.h"
#include "server/mcp_store.h"
#include "server/rag_body.h"
#include "server/refusals.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

typedef struct asking {
    tn_ctx ctx, *of_hits;
    tn_uploads *uploads;
    const tn_api_call *call;
} asking;

/* Words alone find here: a model of vectors belongs to who runs tern mcp and tern ask. */
static tern_status search(void *user, const char *query, int32_t k, json_t **out, tern_error *err) {
    asking *a = user;
    tn_rag_hit *hits;
    int32_t n;
    TN_TRY(tn_uploads_search(a->uploads, query, k, &hits, &n, err));
    *out = tn_mcp_sources(hits, n);
    tn_rag_hits_free(a->of_hits, &hits, n);
    return TERN_OK;
}

static tern_status read_document(void *user, const char *path, int32_t passage, json_t **out,
                                 tern_error *err) {
    asking *a = user;
    tn_store *s;
    TN_TRY(tn_uploads_enter(a->uploads, &s, err));
    const tern_status st = tn_mcp_store_read(&a->ctx, s, path, passage, out, err);
    tn_uploads_leave(a->uploads, &s);
    return st;
}

static tern_status list(void *user, json_t **out, tern_error *err) {
    asking *a = user;
    tn_store *s;
    TN_TRY(tn_uploads_enter(a->uploads, &s, err));
    const tern_status st = tn_mcp_store_list(s, out, err);
    tn_uploads_leave(a->uploads, &s);
    return st;
}

/* What the first n passages make the model say; TN_E_CONTEXT: they are too much for it. */
static tern_status say(const asking *a, const char *question, const tn_rag_hit *hits, int32_t n,
                       json_t **reply, tern_error *err) {
    char *text = n ? tn_rag_prompt(a->of_hits, question, hits, n) : NULL;
    json_t *body = json_object();
    tn_request r;
    tern_status st = n && !text ? tn_fail(err, TERN_E_MEMORY, "no memory for the passages")
                                : tn_rag_request(body, text ? text : question, &r, err);
    json_decref(body);
    tn_free(a->of_hits, text);
    return st == TERN_OK ? tn_api_answer(a->call, &r, reply, err) : st;
}

/* Answers are the served model's, as chats are. */
static tern_status ask(void *user, const char *question, int32_t k, json_t **out, tern_error *err) {
    const asking *a = user;
    tn_rag_hit *hits;
    int32_t n, n_fit = 0;
    json_t *reply = NULL;
    TN_TRY(tn_uploads_search(a->uploads, question, k, &hits, &n, err));
    for (int32_t i = 0; i < n; i++) n_fit = hits[i].fits ? n : n_fit;
    const bool fits = n_fit > 0;
    tern_status st;
    while ((st = say(a, question, hits, n_fit, &reply, err)) == TN_E_CONTEXT && n_fit) n_fit--;
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0),
                 *said = json_object_get(json_object_get(choice, "message"), "content");
    if (st == TERN_OK) {
        const char *text = json_is_string(said) ? json_string_value(said) : "";
        tn_rag_support(hits, n_fit, question, text);
        qsort(hits, (size_t)n_fit, sizeof *hits, tn_rag_by_support);
        *out = tn_json_pack("{s:s, s:O, s:b, s:o}", "text", text, "stop",
                            json_object_get(choice, "finish_reason"), "fits", (int)fits, "sources",
                            tn_mcp_sources(hits, n_fit));
    }
    json_decref(reply);
    tn_rag_hits_free(a->of_hits, &hits, n);
    return st;
}

enum MHD_Result tn_api_mcp(const tn_api_call *a) {
    asking who = {.of_hits = tn_models_ctx(a->models), .uploads = a->uploads, .call = a};
    const tn_mcp_tools tools = {
        .search = search, .read = read_document, .list = list, .ask = ask, .user = &who};
    const char *version = MHD_lookup_connection_value(a->c, MHD_HEADER_KIND, "MCP-Protocol-Version");
    json_error_t je;
    if (!a->uploads) return tn_api_refuse(a, 503, "this server reads no documents");
    if (version && !tn_mcp_speaks(version))
        return tn_api_refuse(a, 400, "MCP-Protocol-Version %.40s is not spoken here", version);
    json_t *message = tn_json_parse(a->body, a->n_body, TN_JSON_REQUEST, &je);
    if (!message) return tn_api_json(a, 400, tn_mcp_no_json(je.text));
    tn_ctx_init(&who.ctx, NULL);
    bool no_memory = false;
    tn_connection_busy(a->c, true);
    json_t *reply = tn_mcp_answer(&tools, message, &no_memory);
    tn_connection_busy(a->c, false);
    json_decref(message);
    if (reply || no_memory) return tn_api_json(a, 200, reply);
    return tn_api_body(a, 202, "text/plain", tn_body_text(strdup("")));
}
