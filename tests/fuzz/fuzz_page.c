/* What the server's page sends, on a conversation that was damaged or made by someone else: two lines, the
 * conversation's file and a body. It is changed, something is said in it, and a request for the answer is
 * made of it. */
#include "base/json.h"
#include "server/talk_nodes.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *nl = size ? memchr(text, '\n', size) : NULL;
    tern_error err;
    if (!nl) return 0;
    json_t *talk = tn_json_parse(text, (size_t)(nl - text), JSON_REJECT_DUPLICATES, NULL),
           *body = tn_json_parse(nl + 1, size - (size_t)(nl - text) - 1, JSON_REJECT_DUPLICATES, NULL),
           *list = json_array();
    int64_t asked, node;
    tn_request r;
    if (json_is_object(body) && json_is_array(json_object_get(talk, "nodes"))) {
        (void)tn_talk_apply(talk, body, &err);
        if (tn_talk_say(talk, body, &list, &asked, &err) == TERN_OK) {
            if (tn_talk_request(talk, asked, &(tn_talk_asked){.settings = json_object_get(body, "settings")},
                                &r, &err) == TERN_OK)
                tn_request_free(&r);
            if (tn_talk_request(
                    talk, asked,
                    &(tn_talk_asked){.prompt = "a prompt", .settings = json_object_get(body, "settings")}, &r,
                    &err) == TERN_OK)
                tn_request_free(&r);
            (void)tn_talk_add(talk, asked, "assistant", "x", 1, "writing", &node, &err);
        }
    }
    json_t *imported = json_object();
    if (json_is_object(body)) (void)tn_talk_import(imported, body, &err);
    json_decref(imported);
    json_decref(list);
    json_decref(body);
    json_decref(talk);
    return 0;
}
