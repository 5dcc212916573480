/* A message of an agent (Model Context Protocol): whatever it says, the reply is JSON, or there is none. */
#include "server/mcp.h"

#include <stdlib.h>
#include <string.h>

static tern_status passages(void *user, const char *query, int32_t k, json_t **out, tern_error *err) {
    (void)user;
    (void)err;
    if (k < 1 || k > TN_MCP_MOST_PASSAGES) abort();
    *out = json_array();
    tn_json_append(out, tn_json_pack("{s:s, s:i, s:i, s:s}", "path", query, "passage", (int)k, "line", 7,
                                     "text", query));
    return TERN_OK;
}

static tern_status text(void *user, const char *path, int32_t passage, json_t **out, tern_error *err) {
    (void)user;
    if (passage < 0) abort();
    if (passage > 3) return tn_fail(err, TERN_E_INVALID, "no such passage");
    *out = tn_json_pack("{s:s, s:s}", "path", path, "text", path);
    return TERN_OK;
}

static tern_status list(void *user, json_t **out, tern_error *err) {
    (void)user;
    (void)err;
    *out = json_array();
    for (int i = 0; i < 2 * TN_MCP_PAGE; i++)
        tn_json_append(out, tn_json_pack("{s:s, s:i}", "path", "/a b%/\xc3\xa9", "passages", i));
    return TERN_OK;
}

static tern_status answer(void *user, const char *question, int32_t k, json_t **out, tern_error *err) {
    json_t *sources = NULL;
    (void)passages(user, question, k, &sources, err);
    *out = tn_json_pack("{s:s, s:o}", "text", question, "sources", sources);
    return TERN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const tn_mcp_tools tools = {.search = passages, .read = text, .list = list, .ask = answer};
    json_t *m = tn_json_parse((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (!m) return 0;
    bool no_memory;
    char id[128], written[128], *out = NULL;
    tern_error err;
    tn_mcp_id(m, id);
    tn_mcp_cancels(m, written);
    (void)tn_mcp_progress_token(m);
    json_t *v = tn_mcp_answer(&tools, m, &no_memory);
    if (v && tn_json_text(v, JSON_COMPACT, &out, &err) != TERN_OK) abort();
    if (out && strchr(out, '\n')) abort(); /* a message is a line */
    if (v && json_is_object(v) && id[0] &&
        json_object_get(v, "result")) { /* and answers the one that asked */
        tn_mcp_id(v, written);
        if (strcmp(written, id) != 0) abort();
    }
    free(out);
    json_decref(v);
    json_decref(m);
    return 0;
}
