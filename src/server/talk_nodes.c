#include "server/talk_nodes.h"

#include "server/answer_tools.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { TITLE_MAX = 200, TITLE_WORDS = 60 };

json_t *tn_talk_node(const json_t *talk, int64_t id) {
    const json_t *nodes = json_object_get(talk, "nodes"); /* their numbers ascend */
    size_t from = 0, to = json_array_size(nodes);
    while (from < to) {
        size_t at = from + (to - from) / 2;
        json_t *n = json_array_get(nodes, at);
        int64_t here = json_integer_value(json_object_get(n, "id"));
        if (here == id) return n;
        if (here < id) from = at + 1;
        else to = at;
    }
    return NULL;
}

static int64_t next_id(const json_t *talk) {
    const json_t *nodes = json_object_get(talk, "nodes");
    int64_t most = 0;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        int64_t id = json_integer_value(json_object_get(json_array_get(nodes, i), "id"));
        most = id > most ? id : most;
    }
    return most < INT64_MAX ? most + 1 : 0; /* 0: there are no more */
}

tern_status tn_talk_add(json_t *talk, int64_t parent, const char *role, const char *content, size_t n,
                        const char *state, int64_t *id, tern_error *err) {
    *id = next_id(talk);
    TN_FAIL_IF(!*id, err, TERN_E_FORMAT, "the conversation is damaged: its nodes have no more numbers");
    json_t *v =
               tn_json_pack("{s:I, s:I, s:s, s:s%, s:I}", "id", (json_int_t)*id, "parent", (json_int_t)parent,
                            "role", role, "content", content, n, "created", (json_int_t)time(NULL)),
           *nodes = json_incref(json_object_get(talk, "nodes"));
    if (state) tn_json_set(&v, "state", tn_json_string(state, strlen(state)));
    bool ok = v != NULL;
    tn_json_append(&nodes, v);
    json_t *t = json_incref(talk);
    tn_json_set(&t, "leaf", json_integer(*id));
    if (t) tn_json_set(&t, "updated", json_integer((json_int_t)time(NULL)));
    ok = ok && nodes && t;
    json_decref(nodes);
    json_decref(t);
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for the conversation");
    return TERN_OK;
}

/* A node's words, with the pictures in front of them where it has some. */
static json_t *content_of(const json_t *node) {
    json_t *words = json_object_get(node, "content");
    const json_t *images = json_object_get(node, "images");
    if (!json_array_size(images)) return json_incref(words);
    json_t *parts = json_array();
    for (size_t i = 0; i < json_array_size(images); i++)
        tn_json_append(&parts, tn_json_pack("{s:s, s:{s:O}}", "type", "image_url", "image_url", "url",
                                            json_array_get(images, i)));
    tn_json_append(&parts, tn_json_pack("{s:s, s:O}", "type", "text", "text", words));
    return parts;
}

/* The texts from the first node down to `id`, as messages; *list takes them in order. */
static tern_status path_messages(const json_t *talk, int64_t id, json_t **list, tern_error *err) {
    const json_t *at[TN_REQUEST_MESSAGES];
    size_t n = 0;
    for (int64_t i = id; i;) {
        const json_t *v = tn_talk_node(talk, i);
        int64_t parent = json_integer_value(json_object_get(v, "parent"));
        TN_FAIL_IF(!v || parent >= i || n == TN_REQUEST_MESSAGES, err, TERN_E_FORMAT,
                   "the conversation is damaged at node %lld", (long long)i);
        at[n++] = v;
        i = parent;
    }
    while (n--) {
        tn_tool_messages(json_object_get(at[n], "steps"), list);
        tn_json_append(list, tn_json_pack("{s:O, s:o}", "role", json_object_get(at[n], "role"), "content",
                                          content_of(at[n])));
    }
    return TERN_OK;
}

/* The words of a message, in whatever form it has them. */
static void put_words(json_t **message, const char *words) {
    json_t *content = json_object_get(*message, "content"), *text = tn_json_string(words, strlen(words));
    if (!json_is_array(content)) {
        tn_json_set(message, "content", text);
        return;
    }
    json_t *parts = tn_json_copy_flat(content);
    if (parts) json_array_remove(parts, json_array_size(parts) - 1);
    tn_json_append(&parts, tn_json_pack("{s:s, s:o}", "type", "text", "text", text));
    tn_json_set(message, "content", parts);
}

/* The body without its messages. */
static json_t *body_of(const json_t *settings, const json_t *tools) {
    static const char *const passed[] = {"temperature", "top_p",          "top_k",
                                         "min_p",       "repeat_penalty", "max_tokens"};
    const json_t *seed = json_object_get(settings, "seed"), *thinking = json_object_get(settings, "thinking");
    json_t *body = json_object();
    uint32_t any = 0;
    tn_json_set(&body, "stream", json_true());
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        if (json_object_get(settings, passed[i]))
            tn_json_set(&body, passed[i], json_incref(json_object_get(settings, passed[i])));
    if (!json_is_integer(seed) && getrandom(&any, sizeof any, 0) != sizeof any) any = (uint32_t)tn_now_ns();
    tn_json_set(&body, "seed",
                json_is_integer(seed) ? json_incref((json_t *)(uintptr_t)seed) : json_integer(any));
    if (json_is_boolean(thinking))
        tn_json_set(&body, "chat_template_kwargs", tn_json_pack("{s:O}", "enable_thinking", thinking));
    if (json_array_size(tools)) tn_json_set(&body, "tools", json_incref((json_t *)(uintptr_t)tools));
    return body;
}

tern_status tn_talk_request(const json_t *talk, int64_t id, const tn_talk_asked *asked, tn_request *r,
                            tern_error *err) {
    const char *system = json_string_value(json_object_get(asked->settings, "system"));
    json_t *messages = json_array(), *body = body_of(asked->settings, asked->tools);
    if (system && *system)
        tn_json_append(&messages, tn_json_pack("{s:s, s:s}", "role", "system", "content", system));
    tern_status st = path_messages(talk, id, &messages, err);
    if (st == TERN_OK && asked->prompt && json_array_size(messages)) {
        json_t *last = json_incref(json_array_get(messages, json_array_size(messages) - 1));
        put_words(&last, asked->prompt);
        if (!last) st = tn_fail(err, TERN_E_MEMORY, "no memory for the request");
        json_decref(last);
    }
    tn_tool_messages(asked->steps, &messages);
    tn_json_set(&body, "messages", messages);
    char *text = NULL;
    if (st == TERN_OK) st = tn_json_text(body, JSON_COMPACT, &text, err);
    json_decref(body);
    if (st == TERN_OK) st = tn_request_read(TN_API_CHAT, text, strlen(text), r, err);
    free(text);
    return st;
}

/* The first line of the first words. */
static void entitle(json_t *talk, const char *content) {
    const char *title = json_string_value(json_object_get(talk, "title"));
    if (title && *title) return;
    content += strspn(content, " \t\r\n");
    size_t n = strcspn(content, "\r\n");
    if (n > TITLE_WORDS) {
        n = TITLE_WORDS;
        while (n && ((uint8_t)content[n] & 0xc0) == 0x80) n--;
    }
    json_t *t = json_incref(talk);
    tn_json_set(&t, "title", tn_json_string(content, n));
    json_decref(t);
}

/* Pictures come with the question: no address of anything else is kept. */
static tern_status check_images(const json_t *images, tern_error *err) {
    TN_FAIL_IF(images && !json_is_null(images) && !json_is_array(images), err, TERN_E_INVALID,
               "'images' must be a list of data: URLs");
    TN_FAIL_IF(json_array_size(images) > TN_TALK_IMAGES, err, TERN_E_LIMIT, "a message may have %d pictures",
               TN_TALK_IMAGES);
    for (size_t i = 0; i < json_array_size(images); i++) {
        const char *url = json_string_value(json_array_get(images, i));
        TN_FAIL_IF(!url || strncmp(url, "data:image/", 11), err, TERN_E_INVALID,
                   "images[%zu] is no data: URL of a picture", i);
    }
    return TERN_OK;
}

tern_status tn_talk_say(json_t *talk, const json_t *body, json_t **list, int64_t *asked, tern_error *err) {
    const json_t *content = json_object_get(body, "content");
    const json_t *to = json_object_get(body, "parent");
    int64_t parent = json_integer_value(to);
    TN_FAIL_IF(to && !json_is_integer(to) && !json_is_null(to), err, TERN_E_INVALID,
               "'parent' must be the number of a node, or 0");
    TN_FAIL_IF(content && (!json_is_string(content) || !json_string_length(content)), err, TERN_E_INVALID,
               "'content' must be a text that is not empty");
    TN_FAIL_IF(json_string_length(content) > TN_TALK_WORDS, err, TERN_E_LIMIT,
               "a message may have %d bytes, this one has %zu", TN_TALK_WORDS, json_string_length(content));
    const json_t *before = tn_talk_node(talk, parent);
    const char *role = json_string_value(json_object_get(before, "role"));
    TN_FAIL_IF(parent ? !before : !content, err, TERN_E_INVALID, "'parent' is no node of the conversation");
    TN_FAIL_IF(role && !strcmp(role, content ? "user" : "assistant"), err, TERN_E_INVALID,
               "'parent' must be %s", content ? "an answer" : "a question");
    *asked = parent;
    TN_TRY(check_images(json_object_get(body, "images"), err));
    if (!content) return TERN_OK;
    TN_TRY(tn_talk_add(talk, parent, "user", json_string_value(content), json_string_length(content), NULL,
                       asked, err));
    json_t *node = json_incref(tn_talk_node(talk, *asked)), *images = json_object_get(body, "images");
    if (json_array_size(images)) tn_json_set(&node, "images", json_incref(images));
    TN_FAIL_IF(!node, err, TERN_E_MEMORY, "no memory for the conversation");
    json_decref(node);
    entitle(talk, json_string_value(content));
    tn_json_append(list, json_incref(tn_talk_node(talk, *asked)));
    return TERN_OK;
}

tern_status tn_talk_apply(json_t *talk, const json_t *body, tern_error *err) {
    const json_t *title = json_object_get(body, "title"), *leaf = json_object_get(body, "leaf"),
                 *settings = json_object_get(body, "settings");
    TN_FAIL_IF(title && (!json_is_string(title) || json_string_length(title) > TITLE_MAX), err,
               TERN_E_INVALID, "'title' must be a text of at most %d bytes", TITLE_MAX);
    TN_FAIL_IF(leaf && !json_is_integer(leaf), err, TERN_E_INVALID, "'leaf' must be the number of a node");
    TN_FAIL_IF(settings && !json_is_object(settings), err, TERN_E_INVALID, "'settings' must be an object");
    json_t *t = json_incref(talk);
    if (title) tn_json_set(&t, "title", json_incref((json_t *)(uintptr_t)title));
    if (t && leaf) tn_json_set(&t, "leaf", json_incref((json_t *)(uintptr_t)leaf));
    if (t && settings) tn_json_set(&t, "settings", json_incref((json_t *)(uintptr_t)settings));
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for the conversation");
    json_decref(t);
    return TERN_OK;
}
