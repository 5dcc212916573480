/* server/request.h - the body of a request for a completion, read and checked. Nothing in it is ignored
 * that would change the answer: what is not supported is refused by its name. */
#ifndef TN_SERVER_REQUEST_H
#define TN_SERVER_REQUEST_H

#include "base/json.h"
#include "base/status.h"

enum { TN_REQUEST_TOP = 20, TN_REQUEST_STOPS = 16, TN_REQUEST_MESSAGES = 4096, TN_REQUEST_TOKENS = 1 << 20 };

typedef enum tn_api { TN_API_COMPLETIONS, TN_API_CHAT, TN_API_MESSAGES } tn_api;

typedef struct tn_request {
    tn_api api;
    json_t *body; /* what texts below point into */
    /* These are of chats, and owned: messages and tools in OpenAI's form, every content a text; variables of
     * the template or NULL. */
    json_t *messages, *tools, *variables;
    bool forced, one_call;   /* the answer is a call; no second one */
    const char *forced_tool; /* of this tool, or NULL: any */
    const char *prompt;      /* completions: a text of n_prompt bytes */
    size_t n_prompt;
    bool counts; /* max_tokens is not needed */
    bool stream, include_usage, logprobs;
    int32_t n_top;      /* alternatives told for every token */
    int32_t max_tokens; /* -1: until the end */
    tern_sampling sampling;
    const char *stop[TN_REQUEST_STOPS + 1];
    const char *grammar;
    char *schema;           /* owned */
    json_t *sources;        /* owned, or NULL: the passages that the prompt quotes, told with the answer */
    uint64_t client;        /* who asks, for fair turns */
    int64_t asked_ns;       /* when; 0: when it is put into the queue */
    struct tn_watch *watch; /* borrowed: told what the request does (server/watch.h); NULL: nobody asks */
} tn_request;

/* Reads a request. On failure *r holds nothing and err says what is wrong with the body. */
tern_status tn_request_read(tn_api api, const char *body, size_t n_bytes, tn_request *r, tern_error *err);
/* Reads a request that only counts tokens, which needs no max_tokens. */
tern_status tn_request_read_count(const char *body, size_t n_bytes, tn_request *r, tern_error *err);
void tn_request_free(tn_request *r);

/* ---- for server/messages.c ------------------------------------------------------------------------- */

/* Reads the rest of a body of Anthropic's form. */
tern_status tn_messages_read(tn_request *r, tern_error *err);

bool tn_says_nothing(const json_t *v); /* null, false, empty, "none" */
/* Reads a number in [lo, hi]. *out stays as it is where the field is absent or null. */
tern_status tn_field_number(const json_t *body, const char *name, double lo, double hi, bool whole,
                            double *out, tern_error *err);
tern_status tn_field_flag(const json_t *body, const char *name, bool *out, tern_error *err);
/* Reads `stop`, or what it is called there. */
tern_status tn_field_stops(tn_request *r, const char *name, tern_error *err);
/* Reads a text, or joins parts of type text; where says whose it is. *out is a new value. */
tern_status tn_content_text(const json_t *content, const char *where, json_t **out, tern_error *err);

#endif
