/* What a server of tools says (Model Context Protocol), the first byte in which pieces: however it is cut, the same is heard; what goes back
 * is lines of JSON, and a result is a text of bounded length. */
#include "server/mcp_client.h"

#include <stdlib.h>
#include <string.h>

static char *hear(const uint8_t *data, size_t n, size_t step, json_t **result) {
    tn_mcp_client *c;
    tern_error err;
    if (tn_mcp_client_new("t", &c, &err) != TERN_OK) abort();
    (void)tn_mcp_client_ask(c, "tools/list", json_object());
    for (size_t i = 0; i < n; i += step)
        tn_mcp_client_hear(c, (const char *)data + i, n - i < step ? n - i : step);
    (void)tn_mcp_client_reply(c, result, &err);
    char *told = tn_mcp_client_told(c);
    tn_mcp_client_close(&c);
    return told;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST = 1000 };
    json_t *whole, *cut, *list;
    tern_error err;
    bool failed;
    char *text;
    if (!size) return 0;
    char *a = hear(data + 1, size - 1, size, &whole), *b = hear(data + 1, size - 1, data[0] % 16 + 1u, &cut);
    if (strcmp(a, b) != 0 || !whole != !cut || (whole && !json_equal(whole, cut))) abort();
    for (char *at = a, *end; *at; at = end + 1) {
        if (!(end = strchr(at, '\n'))) abort();
        json_t *v = tn_json_parse(at, (size_t)(end - at), 0, NULL);
        if (!json_is_object(v)) abort();
        json_decref(v);
    }
    if (tn_mcp_result_text(whole, MOST, &text, &failed, &err) != TERN_OK || strlen(text) > MOST + 100)
        abort();
    free(text);
    list = json_array();
    (void)tn_mcp_read_tools("t", whole, &list, &err);
    if (json_array_size(list) > TN_MCP_LISTED) abort();
    json_decref(list);
    json_decref(whole);
    json_decref(cut);
    free(a);
    free(b);
    return 0;
}
