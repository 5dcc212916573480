/* A conversation that comes from elsewhere: what tern itself wrote of one, or what the page made of another program's. */
#include "server/talk_nodes.h"

#include <string.h>
#include <time.h>

enum { TITLE_MAX = 200 };

/* One node, of nothing but what is known and has the right kind. Numbers ascend, parents come before. */
static tern_status import_node(const json_t *from, const json_t *nodes, int64_t last, json_t **out,
                               tern_error *err) {
    const json_t *id = json_object_get(from, "id"), *parent = json_object_get(from, "parent"),
                 *content = json_object_get(from, "content"), *thinking = json_object_get(from, "thinking"),
                 *created = json_object_get(from, "created");
    const char *role = json_string_value(json_object_get(from, "role"));
    const int64_t number = json_integer_value(id), above = json_integer_value(parent);
    const json_t *holder = tn_json_pack("{s:O}", "nodes", nodes);
    const json_t *before = holder && above ? tn_talk_node(holder, above) : NULL;
    const char *role_before = json_string_value(json_object_get(before, "role"));
    const bool has_parent = before != NULL;
    const bool alternates = !role || !role_before || strcmp(role, role_before) != 0;
    json_decref((json_t *)(uintptr_t)holder);
    TN_FAIL_IF(!json_is_integer(id) || number <= last || !json_is_integer(parent) || (above && !has_parent),
               err, TERN_E_INVALID,
               "node %zu: numbers must ascend, and each 'parent' be 0 or a node before it",
               json_array_size(nodes));
    TN_FAIL_IF(!role || (strcmp(role, "user") && strcmp(role, "assistant")) || !alternates ||
                   (!above && strcmp(role, "user")),
               err, TERN_E_INVALID, "node %lld: questions ('user') and answers ('assistant') must alternate",
               (long long)number);
    TN_FAIL_IF(!json_is_string(content) || json_string_length(content) > TN_TALK_WORDS, err, TERN_E_LIMIT,
               "node %lld: 'content' must be a text of at most %d bytes", (long long)number, TN_TALK_WORDS);
    *out = tn_json_pack("{s:I, s:I, s:s, s:O, s:I, s:s}", "id", (json_int_t)number, "parent",
                        (json_int_t)above, "role", role, "content", content, "created",
                        json_is_integer(created) ? json_integer_value(created) : (json_int_t)time(NULL),
                        "state", "done");
    if (*out && json_is_string(thinking) && json_string_length(thinking) <= TN_TALK_WORDS)
        tn_json_set(out, "thinking", json_incref((json_t *)(uintptr_t)thinking));
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the conversation");
    return TERN_OK;
}

tern_status tn_talk_import(json_t *talk, const json_t *body, tern_error *err) {
    const json_t *title = json_object_get(body, "title"), *from = json_object_get(body, "nodes"),
                 *leaf = json_object_get(body, "leaf"), *settings = json_object_get(body, "settings");
    TN_FAIL_IF(!json_is_array(from) || !json_array_size(from) || json_array_size(from) > TN_TALK_NODES, err,
               TERN_E_INVALID, "'nodes' must be a list of 1 to %d messages", TN_TALK_NODES);
    TN_FAIL_IF(title && (!json_is_string(title) || json_string_length(title) > TITLE_MAX), err,
               TERN_E_INVALID, "'title' must be a text of at most %d bytes", TITLE_MAX);
    TN_FAIL_IF(settings && !json_is_object(settings), err, TERN_E_INVALID, "'settings' must be an object");
    json_t *nodes = json_array(), *t = json_incref(talk);
    tern_status st = TERN_OK;
    int64_t last = 0;
    for (size_t i = 0; st == TERN_OK && nodes && i < json_array_size(from); i++) {
        json_t *node = NULL;
        st = import_node(json_array_get(from, i), nodes, last, &node, err);
        last = json_integer_value(json_object_get(node, "id"));
        if (node) tn_json_append(&nodes, node);
    }
    if (st == TERN_OK && nodes) {
        tn_json_set(&t, "nodes", json_incref(nodes));
        const bool known = json_is_integer(leaf) && t && tn_talk_node(t, json_integer_value(leaf));
        if (t) tn_json_set(&t, "leaf", json_integer(known ? json_integer_value(leaf) : (json_int_t)last));
        if (t && title) tn_json_set(&t, "title", json_incref((json_t *)(uintptr_t)title));
        if (t && settings) tn_json_set(&t, "settings", json_incref((json_t *)(uintptr_t)settings));
    }
    if (st == TERN_OK && (!nodes || !t)) st = tn_fail(err, TERN_E_MEMORY, "no memory for the conversation");
    json_decref(nodes);
    json_decref(t);
    return st;
}
