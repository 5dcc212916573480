/* server/request.h - the body of a request for a completion, read and checked. Nothing in it is ignored that would change
 * the answer: what is not supported is refused by its name. */
#ifndef TN_SERVER_REQUEST_H
#define TN_SERVER_REQUEST_H

#include "base/json.h"
#include "base/status.h"

enum { TN_REQUEST_STOPS = 16, TN_REQUEST_MESSAGES = 4096, TN_REQUEST_TOKENS = 1 << 20 };

typedef struct tn_request {
    bool chat;
    json_t *body;       /* what strings below point into */
    tern_message *msgs; /* chat */
    char **texts;       /* [n_msgs] contents made of parts, or NULL */
    size_t n_msgs;
    const char *prompt; /* completions: a text of n_prompt bytes */
    size_t n_prompt;
    bool stream, include_usage, logprobs;
    int32_t max_tokens; /* -1: until the end */
    tern_sampling sampling;
    const char *stop[TN_REQUEST_STOPS + 1];
    const char *grammar;
    char *schema; /* owned */
} tn_request;

/* On failure *r holds nothing and err says what is wrong with the body. */
tern_status tn_request_read(bool chat, const char *body, size_t n_bytes, tn_request *r, tern_error *err);
void tn_request_free(tn_request *r);

#endif
