/* What a server of tools says: its list of tools, the result of a call. */
#include "base/bytes.h"
#include "server/mcp_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 128, DESCRIPTION = 4096, SCHEMA = 64 << 10 };

/* ---- tools ------------------------------------------------------------------------------------------------ */

/* The beginning of a text, cut between characters. */
static json_t *beginning(const json_t *text, size_t most) {
    const char *p = json_string_value(text);
    size_t n = json_string_length(text);
    if (!p) return json_null();
    if (n > most) {
        n = most;
        while (n && ((unsigned char)p[n] & 0xc0) == 0x80) n--;
    }
    return tn_json_string(p, n);
}

static bool name_ok(const json_t *name) {
    const char *p = json_string_value(name);
    size_t n = json_string_length(name);
    bool ok = p && n && n <= NAME && strlen(p) == n && strcmp(p, "*") != 0; /* which stands for every tool */
    for (size_t i = 0; ok && i < n; i++) ok = (unsigned char)p[i] > 0x20 && p[i] != 0x7f;
    return ok;
}

/* A tool without a usable name, or with a schema that no prompt has room for, is left out. NULL: no memory. */
static json_t *read_tool(const json_t *t, bool *usable) {
    const json_t *name = json_object_get(t, "name"), *given = json_object_get(t, "inputSchema");
    char *text = NULL;
    *usable = name_ok(name);
    if (!*usable) return NULL;
    json_t *schema = json_is_object(given) ? json_incref((json_t *)(uintptr_t)given)
                                           : tn_json_pack("{s:s}", "type", "object");
    bool known = tn_json_text(schema, JSON_COMPACT, &text, NULL) == TERN_OK;
    *usable = !known || strlen(text) <= SCHEMA;
    free(text);
    if (!known || !*usable) {
        json_decref(schema);
        return NULL;
    }
    return tn_json_pack("{s:O, s:o, s:o, s:o}", "name", name, "title",
                        beginning(json_object_get(t, "title"), NAME), "description",
                        beginning(json_object_get(t, "description"), DESCRIPTION), "inputSchema", schema);
}

tern_status tn_mcp_read_tools(const char *name, const json_t *reply, json_t **all, tern_error *err) {
    const json_t *tools = json_object_get(reply, "tools");
    TN_FAIL_IF(!json_is_array(tools), err, TERN_E_FORMAT, "%s: its reply has no list of tools", name);
    for (size_t i = 0; i < json_array_size(tools) && json_array_size(*all) <= TN_MCP_LISTED; i++) {
        bool usable;
        json_t *t = read_tool(json_array_get(tools, i), &usable);
        if (usable) tn_json_append(all, t);
        TN_FAIL_IF(!*all, err, TERN_E_MEMORY, "no memory for the tools");
    }
    return TERN_OK;
}

/* ---- results ---------------------------------------------------------------------------------------------- */

typedef struct writing {
    tn_bytes out;
    size_t most;
    bool ok, cut;
} writing;

static void put(writing *w, const char *p, size_t n) {
    size_t room = w->most - w->out.n;
    if (w->cut || !w->ok) return;
    if (n > room) {
        w->cut = true;
        n = room;
        while (n && ((unsigned char)p[n] & 0xc0) == 0x80) n--;
    }
    w->ok = !n || tn_bytes_add(&w->out, p, n);
}

static void put_text(writing *w, const json_t *text) {
    put(w, json_string_value(text), json_string_length(text));
}

/* What is no text is named: nothing is decoded, opened or fetched. */
static void put_part(writing *w, const json_t *part) {
    const json_t *resource = json_object_get(part, "resource"), *text = json_object_get(part, "text");
    const char *type = json_string_value(json_object_get(part, "type")),
               *kind = json_string_value(json_object_get(part, "mimeType")),
               *uri = json_string_value(json_object_get(part, "uri"));
    char line[400];
    if (!text) text = json_object_get(resource, "text");
    if (!uri) uri = json_string_value(json_object_get(resource, "uri"));
    if (w->out.n) put(w, "\n", 1);
    if (json_is_string(text)) {
        put_text(w, text);
        return;
    }
    int n = snprintf(line, sizeof line, "[%.40s%s%.80s%s%.200s: not shown]", type ? type : "something",
                     kind ? ", " : "", kind ? kind : "", uri ? ", " : "", uri ? uri : "");
    put(w, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

tern_status tn_mcp_result_text(const json_t *result, size_t most, char **text, bool *failed,
                               tern_error *err) {
    writing w = {.most = most, .ok = true};
    const json_t *content = json_object_get(result, "content"),
                 *data = json_object_get(result, "structuredContent");
    static const char rest[] = "\n[the rest of the result is left out: it is too long]";
    *text = NULL;
    *failed = json_is_true(json_object_get(result, "isError"));
    for (size_t i = 0; i < json_array_size(content) && !w.cut; i++) put_part(&w, json_array_get(content, i));
    if (!json_array_size(content) && json_is_object(data)) {
        char *all = NULL;
        w.ok = tn_json_text(data, JSON_COMPACT, &all, err) == TERN_OK;
        if (w.ok) put(&w, all, strlen(all));
        free(all);
    }
    w.ok = w.ok && (!w.cut || tn_bytes_put(&w.out, rest));
    if (w.ok && !w.out.p) w.ok = tn_bytes_put(&w.out, "");
    if (!w.ok) free(w.out.p);
    TN_FAIL_IF(!w.ok, err, TERN_E_MEMORY, "no memory for a result");
    *text = w.out.p;
    return TERN_OK;
}
