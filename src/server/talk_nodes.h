/* server/talk_nodes.h - what stands in a conversation of the page (server/answers.h), read and changed.
 * Its JSON and the bodies of requests come from outside: neither is trusted. */
#ifndef TN_SERVER_TALK_NODES_H
#define TN_SERVER_TALK_NODES_H

#include "server/request.h"

enum {
    TN_TALK_WORDS = 1 << 20 /* bytes of a message */,
    TN_TALK_NODES = 10000,
    TN_TALK_IMAGES = 16 /* of one */
};

/* NULL: there is none. Borrowed. */
json_t *tn_talk_node(const json_t *talk, int64_t id);
/* Adds a node, and makes it the one that the page shows. *id gets its number. state may be NULL. */
tern_status tn_talk_add(json_t *talk, int64_t parent, const char *role, const char *content, size_t n,
                        const char *state, int64_t *id, tern_error *err);
/* body: {parent, content}. The words become a node, appended to *list; without words `parent` is answered
 * again. *asked gets the node to answer. */
tern_status tn_talk_say(json_t *talk, const json_t *body, json_t **list, int64_t *asked, tern_error *err);
/* What a request has besides the conversation. */
typedef struct tn_talk_asked {
    const char *prompt;     /* in the place of the last node's words; NULL: those */
    const json_t *settings; /* or NULL */
    const json_t *steps;    /* of the answer so far (answer_tools.h); NULL: it begins */
    const json_t *tools;    /* as OpenAI's API has them; NULL: none */
} tn_talk_asked;
/* The request whose answer follows node `id`. */
tern_status tn_talk_request(const json_t *talk, int64_t id, const tn_talk_asked *asked, tn_request *r,
                            tern_error *err);
/* What a page may change of a conversation, beside saying something: {title, leaf, settings}. */
tern_status tn_talk_apply(json_t *talk, const json_t *body, tern_error *err);
/* A conversation from elsewhere, {title, leaf, settings, nodes: [{id, parent, role, content, thinking, created}]}: what is
 * not known of it is left out. On failure talk is as it was. */
tern_status tn_talk_import(json_t *talk, const json_t *body, tern_error *err);

#endif
