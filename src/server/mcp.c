#include "server/mcp.h"

#include "base/hex.h"
#include "base/bytes.h"
#include "tern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON-RPC's numbers for what is wrong. */
enum { NO_JSON = -32700, NO_REQUEST = -32600, NO_METHOD = -32601, WRONG_PARAMS = -32602, FAILED = -32603 };

static json_t *reply(const json_t *id, json_t *result) {
    return tn_json_pack("{s:s, s:O, s:o}", "jsonrpc", "2.0", "id", id, "result", result);
}

static json_t *refusal(const json_t *id, int code, const char *why) {
    json_t *null = id ? NULL : json_null();
    return tn_json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id ? id : null, "error", "code",
                        code, "message", why);
}

json_t *tn_mcp_no_json(const char *why) { return refusal(NULL, NO_JSON, why); }

/* ---- what there is ------------------------------------------------------------------------------------ */

static json_t *property(const char *type, const char *about) {
    return tn_json_pack("{s:s, s:s}", "type", type, "description", about);
}

static json_t *count(const char *about) {
    return tn_json_pack("{s:s, s:s, s:i, s:i}", "type", "integer", "description", about, "minimum", 1,
                        "maximum", TN_MCP_MOST_PASSAGES);
}

static json_t *schema(json_t *properties, const char *required) {
    json_t *v = tn_json_pack("{s:s, s:o, s:b}", "type", "object", "properties", properties,
                             "additionalProperties", 0);
    json_t *names = json_array();
    if (required) tn_json_append(&names, tn_json_string(required, strlen(required)));
    tn_json_set(&v, "required", names);
    return v;
}

static json_t *tool(const char *name, const char *title, const char *about, json_t *input) {
    return tn_json_pack("{s:s, s:s, s:s, s:o, s:{s:b, s:b}}", "name", name, "title", title, "description",
                        about, "inputSchema", input, "annotations", "readOnlyHint", 1, "openWorldHint", 0);
}

static json_t *tools(const tn_mcp_tools *t) {
    json_t *all = json_array();
    tn_json_append(&all,
                   tool("search_documents", "Search documents",
                        "Passages of the user's own documents on this machine that fit a question or some "
                        "words best, with "
                        "the file, the passage's number and its line or page.",
                        schema(tn_json_pack("{s:o, s:o}", "query", property("string", "a question, or words"),
                                            "limit", count("how many passages at most (default 8)")),
                               "query")));
    tn_json_append(
        &all, tool("read_document", "Read a document",
                   "The text of one of the user's documents, whole or a passage of it, by the path that "
                   "search_documents or list_documents gives.",
                   schema(tn_json_pack("{s:o, s:o}", "path", property("string", "the document's path"),
                                       "passage", property("integer", "a passage's number (default: all)")),
                          "path")));
    tn_json_append(&all,
                   tool("list_documents", "List documents",
                        "The user's documents that can be searched and read.", schema(json_object(), NULL)));
    if (t->ask)
        tn_json_append(
            &all,
            tool(
                "ask_documents", "Ask the documents",
                "A short answer from the user's documents by a model on this machine, with the passages that "
                "it came from. Slower than search_documents.",
                schema(tn_json_pack("{s:o, s:o}", "question", property("string", "the question"), "limit",
                                    count("how many passages the model reads (default 4)")),
                       "question")));
    return tn_json_pack("{s:o}", "tools", all);
}

static const char *const versions[] = {"2025-06-18", "2025-03-26", "2024-11-05"};

bool tn_mcp_speaks(const char *version) {
    bool ok = false;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) ok = ok || !strcmp(version, versions[i]);
    return ok;
}

static json_t *initialize(const json_t *params) {
    const char *asked = json_string_value(json_object_get(params, "protocolVersion")),
               *version = asked && tn_mcp_speaks(asked) ? asked : versions[0];
    return tn_json_pack("{s:s, s:{s:o, s:o}, s:{s:s, s:s, s:s}, s:s}", "protocolVersion", version,
                        "capabilities", "tools", json_object(), "resources", json_object(), "serverInfo",
                        "name", "tern", "title", "tern: your documents", "version", tern_version(),
                        "instructions",
                        "The user's own documents, indexed on this machine. search_documents finds passages, "
                        "read_document reads on. Name the file and its line or page when you quote.");
}

/* ---- tools -------------------------------------------------------------------------------------------- */

/* What a tool gave: text for models, and where it is given the values themselves for programs. */
static json_t *told(json_t *text, json_t *values, bool is_error) {
    json_t *content = json_array();
    tn_json_append(&content, tn_json_pack("{s:s, s:o}", "type", "text", "text", text));
    json_t *v = tn_json_pack("{s:o, s:b}", "content", content, "isError", (int)is_error);
    if (!is_error)
        tn_json_set(&v, "structuredContent", values); /* nothing, where there was no memory for them */
    return v;
}

static json_t *failed(const char *why) { return told(tn_json_string(why, strlen(why)), NULL, true); }

/* "[1] /path/file.md, passage 3, line 20", and the passage. */
static bool add_source(tn_bytes *b, size_t number, const json_t *v, bool with_text) {
    char place[96];
    const json_t *line = json_object_get(v, "line"), *page = json_object_get(v, "page");
    int n = snprintf(place, sizeof place, ", passage %" JSON_INTEGER_FORMAT,
                     json_integer_value(json_object_get(v, "passage")));
    if (line)
        n += snprintf(place + n, sizeof place - (size_t)n, ", line %" JSON_INTEGER_FORMAT,
                      json_integer_value(line));
    if (page)
        (void)snprintf(place + n, sizeof place - (size_t)n, ", page %" JSON_INTEGER_FORMAT,
                       json_integer_value(page));
    char head[32];
    snprintf(head, sizeof head, "[%zu] ", number);
    const char *path = json_string_value(json_object_get(v, "path")),
               *text = json_string_value(json_object_get(v, "text"));
    bool ok = tn_bytes_put(b, head) && tn_bytes_put(b, path ? path : "") && tn_bytes_put(b, place) &&
              tn_bytes_put(b, "\n");
    return ok && (!with_text || (tn_bytes_put(b, text ? text : "") && tn_bytes_put(b, "\n\n")));
}

static json_t *text_of(tn_bytes *b, bool ok) {
    json_t *text = ok ? tn_json_string(b->p ? b->p : "", b->n) : NULL;
    free(b->p);
    return text;
}

static json_t *told_passages(const char *begin, json_t *passages) {
    tn_bytes b = {0};
    bool ok = tn_bytes_put(&b, begin);
    for (size_t i = 0; ok && i < json_array_size(passages); i++)
        ok = add_source(&b, i + 1, json_array_get(passages, i), true);
    return told(text_of(&b, ok), tn_json_pack("{s:o}", "passages", passages), false);
}

static json_t *told_answer(json_t *answer) {
    tn_bytes b = {0};
    const char *text = json_string_value(json_object_get(answer, "text"));
    const json_t *sources = json_object_get(answer, "sources");
    bool ok = tn_bytes_put(&b, text ? text : "") && tn_bytes_put(&b, "\n\nSources:\n"), any = false;
    for (size_t i = 0; ok && i < json_array_size(sources); i++) {
        const json_t *v = json_array_get(sources, i);
        if (!json_is_true(json_object_get(v, "cited"))) continue;
        any = true;
        ok = add_source(&b, i + 1, v, false);
    }
    if (ok && !any) ok = tn_bytes_put(&b, "none of the passages has what the answer says\n");
    return told(text_of(&b, ok), answer, false);
}

static json_t *told_list(json_t *documents) {
    tn_bytes b = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(documents); i++) {
        const char *path = json_string_value(json_object_get(json_array_get(documents, i), "path"));
        ok = tn_bytes_put(&b, path ? path : "") && tn_bytes_put(&b, "\n");
    }
    if (!json_array_size(documents))
        ok = tn_bytes_put(&b, "There are no documents yet: tern rag add PATH brings them in.\n");
    return told(text_of(&b, ok), tn_json_pack("{s:o}", "documents", documents), false);
}

/* A whole number from 1 to most, or `usual` where it is absent; 0: it is something else. */
static int32_t number_of(const json_t *args, const char *name, int32_t usual, json_int_t most) {
    const json_t *v = json_object_get(args, name);
    if (!v || json_is_null(v)) return usual;
    const double x = json_is_real(v) ? json_real_value(v) : 0;
    json_int_t n = json_is_integer(v)            ? json_integer_value(v)
                   : x >= 1 && x <= (double)most ? (json_int_t)x
                                                 : 0;
    if (json_is_real(v) && (double)n != x) return 0;
    return n >= 1 && n <= most ? (int32_t)n : 0;
}

/* A text that is not empty and has no NUL, or NULL. */
static const char *text_arg(const json_t *args, const char *name) {
    const json_t *v = json_object_get(args, name);
    const char *text = json_string_value(v);
    return text && *text && strlen(text) == json_string_length(v) ? text : NULL;
}

/* What a tool gave, or that it could not be made for want of memory. */
static tern_status given(tern_status st, json_t *const *out, tern_error *err) {
    return st == TERN_OK && !*out ? tn_fail(err, TERN_E_MEMORY, "no memory for the reply") : st;
}

static json_t *call(const tn_mcp_tools *t, const json_t *id, const json_t *params) {
    const char *name = json_string_value(json_object_get(params, "name"));
    const json_t *args = json_object_get(params, "arguments");
    tern_error err = {0};
    json_t *out = NULL;
    if (!name) return refusal(id, WRONG_PARAMS, "'name' must be the name of a tool");
    if (args && !json_is_object(args)) return refusal(id, WRONG_PARAMS, "'arguments' must be an object");
    const bool searches = !strcmp(name, "search_documents"), asks = t->ask && !strcmp(name, "ask_documents");
    if (searches || asks) {
        const char *text = text_arg(args, searches ? "query" : "question");
        int32_t k = number_of(args, "limit", searches ? 8 : 4, TN_MCP_MOST_PASSAGES);
        if (!text)
            return reply(id, failed(searches ? "'query' must be a text" : "'question' must be a text"));
        if (!k) return reply(id, failed("'limit' must be a whole number from 1 to 64"));
        tern_status st = given((searches ? t->search : t->ask)(t->user, text, k, &out, &err), &out, &err);
        if (st != TERN_OK) return reply(id, failed(err.message));
        return reply(id, asks                   ? told_answer(out)
                         : json_array_size(out) ? told_passages("", out)
                                                : told_passages("No passage has any of these words.\n", out));
    }
    if (!strcmp(name, "read_document")) {
        const char *path = text_arg(args, "path");
        int32_t passage = json_object_get(args, "passage") ? number_of(args, "passage", 0, INT32_MAX) : 0;
        if (!path) return reply(id, failed("'path' must be a document's path"));
        if (!passage && json_object_get(args, "passage") && !json_is_null(json_object_get(args, "passage")))
            return reply(id, failed("'passage' must be a whole number from 1 on"));
        if (given(t->read(t->user, path, passage, &out, &err), &out, &err) != TERN_OK)
            return reply(id, failed(err.message));
        const json_t *text = json_object_get(out, "text");
        return reply(id, told(tn_json_string(json_string_value(text), json_string_length(text)), out, false));
    }
    if (!strcmp(name, "list_documents")) {
        if (given(t->list(t->user, &out, &err), &out, &err) != TERN_OK) return reply(id, failed(err.message));
        return reply(id, told_list(out));
    }
    return refusal(id, WRONG_PARAMS, "there is no such tool; tools/list tells those there are");
}

/* ---- resources: the documents by their paths ---------------------------------------------------------- */

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("-._~/", c));
}

/* file:///path with every other byte as %XX. */
static json_t *uri_of(const char *path) {
    tn_bytes b = {0};
    bool ok = tn_bytes_put(&b, "file://");
    for (; ok && *path; path++) {
        char hex[4];
        snprintf(hex, sizeof hex, "%%%02X", (unsigned char)*path);
        ok = is_plain(*path) ? tn_bytes_add(&b, path, 1) : tn_bytes_add(&b, hex, 3);
    }
    return text_of(&b, ok);
}

/* The path of such an address, the caller's; NULL: it is none, or there is no memory. */
static char *path_of(const char *uri) {
    char *path = strncmp(uri, "file:///", 8) ? NULL : strdup(uri + 7);
    if (path) (void)tn_percent_decode(path);
    return path;
}

static json_t *list_resources(const tn_mcp_tools *t, const json_t *id, const json_t *params) {
    const char *cursor = json_string_value(json_object_get(params, "cursor"));
    char *end = NULL;
    size_t from = cursor ? strtoul(cursor, &end, 10) : 0;
    json_t *documents = NULL, *all = json_array();
    tern_error err = {0};
    if (cursor && (end == cursor || *end)) {
        json_decref(all);
        return refusal(id, WRONG_PARAMS, "'cursor' is none that was given");
    }
    if (given(t->list(t->user, &documents, &err), &documents, &err) != TERN_OK) {
        json_decref(all);
        return refusal(id, FAILED, err.message);
    }
    const size_t n = json_array_size(documents);
    for (size_t i = from; i < n && i - from < TN_MCP_PAGE; i++) {
        const char *path = json_string_value(json_object_get(json_array_get(documents, i), "path"));
        const char *slash = path ? strrchr(path, '/') : NULL;
        if (path)
            tn_json_append(&all, tn_json_pack("{s:o, s:s, s:s}", "uri", uri_of(path), "name",
                                              slash ? slash + 1 : path, "mimeType", "text/plain"));
    }
    json_t *result = tn_json_pack("{s:o}", "resources", all);
    char next[32];
    snprintf(next, sizeof next, "%zu", from + TN_MCP_PAGE);
    if (from < n && n - from > TN_MCP_PAGE)
        tn_json_set(&result, "nextCursor", tn_json_string(next, strlen(next)));
    json_decref(documents);
    return reply(id, result);
}

static json_t *read_resource(const tn_mcp_tools *t, const json_t *id, const json_t *params) {
    enum { NOT_FOUND = -32002 };
    const char *uri = text_arg(params, "uri");
    char *path = uri ? path_of(uri) : NULL;
    json_t *document = NULL, *contents = json_array();
    tern_error err = {0};
    if (!path) {
        json_decref(contents);
        return refusal(id, WRONG_PARAMS, "'uri' must be a document's address: file:///...");
    }
    tern_status st = given(t->read(t->user, path, 0, &document, &err), &document, &err);
    free(path);
    if (st != TERN_OK) {
        json_decref(contents);
        return refusal(id, NOT_FOUND, err.message);
    }
    const json_t *text = json_object_get(document, "text");
    tn_json_append(&contents, tn_json_pack("{s:s, s:s, s:s%}", "uri", uri, "mimeType", "text/plain", "text",
                                           json_string_value(text), json_string_length(text)));
    json_decref(document);
    return reply(id, tn_json_pack("{s:o}", "contents", contents));
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static json_t *answer_one(const tn_mcp_tools *t, const json_t *m) {
    const json_t *id = json_object_get(m, "id"), *params = json_object_get(m, "params");
    const char *method = json_string_value(json_object_get(m, "method")),
               *rpc = json_string_value(json_object_get(m, "jsonrpc"));
    if (!json_is_object(m) || !rpc || strcmp(rpc, "2.0") ||
        (!method && !json_object_get(m, "result") && !json_object_get(m, "error")))
        return refusal(json_is_string(id) || json_is_integer(id) ? id : NULL, NO_REQUEST,
                       "this is no request of JSON-RPC 2.0");
    if (!method || !id) return NULL; /* a reply, or a notification */
    if (!json_is_string(id) && !json_is_number(id))
        return refusal(NULL, NO_REQUEST, "'id' must be a text or a number");
    if (params && !json_is_object(params)) return refusal(id, WRONG_PARAMS, "'params' must be an object");
    if (!strcmp(method, "initialize")) return reply(id, initialize(params));
    if (!strcmp(method, "ping")) return reply(id, json_object());
    if (!strcmp(method, "tools/list")) return reply(id, tools(t));
    if (!strcmp(method, "tools/call")) return call(t, id, params);
    if (!strcmp(method, "resources/list")) return list_resources(t, id, params);
    if (!strcmp(method, "resources/read")) return read_resource(t, id, params);
    if (!strcmp(method, "resources/templates/list"))
        return reply(id, tn_json_pack("{s:o}", "resourceTemplates", json_array()));
    return refusal(id, NO_METHOD, "this server has no such method");
}

/* Whether a message gets a reply at all. */
static bool wants_reply(const json_t *m) {
    return !json_is_object(m) || json_object_get(m, "id") || !json_is_string(json_object_get(m, "method"));
}

/* The reply to one message; NULL: it wants none, or *no_memory. Where the reply could not be made, a short one says so. */
static json_t *reply_to(const tn_mcp_tools *t, const json_t *m, bool *no_memory) {
    json_t *v = answer_one(t, m);
    if (v || !wants_reply(m) || !json_object_get(m, "method")) return v;
    v = refusal(json_object_get(m, "id"), FAILED, "no memory for the reply");
    *no_memory |= !v;
    return v;
}

json_t *tn_mcp_answer(const tn_mcp_tools *t, const json_t *message, bool *no_memory) {
    *no_memory = false;
    if (!json_is_array(message)) return reply_to(t, message, no_memory);
    if (!json_array_size(message)) return refusal(NULL, NO_REQUEST, "an empty list is no request");
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(message); i++) {
        json_t *v = reply_to(t, json_array_get(message, i), no_memory);
        if (v) tn_json_append(&all, v);
    }
    *no_memory |= !all;
    if (all && json_array_size(all)) return all;
    json_decref(all);
    return NULL;
}

static void write_id(const json_t *id, char out[128]) {
    out[0] = 0;
    if (json_is_string(id)) snprintf(out, 128, "\"%s", json_string_value(id));
    else if (json_is_integer(id)) snprintf(out, 128, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    else if (json_is_real(id)) snprintf(out, 128, "%.17g", json_real_value(id));
}

void tn_mcp_id(const json_t *message, char out[128]) { write_id(json_object_get(message, "id"), out); }

void tn_mcp_cancels(const json_t *message, char out[128]) {
    const char *method = json_string_value(json_object_get(message, "method"));
    out[0] = 0;
    if (method && !strcmp(method, "notifications/cancelled"))
        write_id(json_object_get(json_object_get(message, "params"), "requestId"), out);
}

const json_t *tn_mcp_progress_token(const json_t *message) {
    const json_t *v =
        json_object_get(json_object_get(json_object_get(message, "params"), "_meta"), "progressToken");
    return json_is_string(v) || json_is_number(v) ? v : NULL;
}

json_t *tn_mcp_progress(const json_t *token, int64_t done, const char *what) {
    return tn_json_pack("{s:s, s:s, s:{s:O, s:I, s:s}}", "jsonrpc", "2.0", "method", "notifications/progress",
                        "params", "progressToken", token, "progress", (json_int_t)done, "message", what);
}
