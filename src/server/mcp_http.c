/* /mcp: the documents as tools of an agent over HTTP (the Model Context Protocol's Streamable HTTP, without sessions and
 * without streams: every message has its whole reply in the response). */
#include "server/api.h"
#include "server/mcp.h"
#include "server/mcp_store.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

typedef struct asking {
    tn_ctx ctx, *of_hits;
    tn_uploads *uploads;
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

enum MHD_Result tn_api_mcp(const tn_api_call *a) {
    asking who = {.of_hits = tn_models_ctx(a->models), .uploads = a->uploads};
    const tn_mcp_tools tools = {.search = search, .read = read_document, .list = list, .user = &who};
    const char *version = MHD_lookup_connection_value(a->c, MHD_HEADER_KIND, "MCP-Protocol-Version");
    json_error_t je;
    if (!a->uploads) return tn_api_refuse(a, 503, "this server reads no documents");
    if (version && !tn_mcp_speaks(version))
        return tn_api_refuse(a, 400, "MCP-Protocol-Version %.40s is not spoken here", version);
    json_t *message = tn_json_parse(a->body, a->n_body, JSON_REJECT_DUPLICATES, &je);
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
