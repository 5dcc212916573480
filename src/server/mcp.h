/* server/mcp.h - the Model Context Protocol (versions 2024-11-05 to 2025-06-18): an agent's requests as JSON-RPC 2.0, and the
 * user's documents as its tools and resources.
 *
 *   a message -> tn_mcp_answer -> a tool of tn_mcp_tools -> a reply
 *
 * How messages come and go is the caller's affair: cli/mcp.c has lines on standard input and output, mcp_http.c requests. What a document
 * says is content in a reply and nothing else. */
#ifndef TN_SERVER_MCP_H
#define TN_SERVER_MCP_H

#include "base/json.h"

enum { TN_MCP_MOST_PASSAGES = 64, TN_MCP_PAGE = 500 /* resources in one reply */ };

/* What there is to be asked. Each gives *out, or fails with what is wrong, which the agent reads as the tool's answer. */
typedef struct tn_mcp_tools {
    /* Passages as tern ask --json tells its sources: [{path, passage, line?, page?, score, text}], best first. */
    tern_status (*search)(void *user, const char *query, int32_t k, json_t **out, tern_error *err);
    /* {path, passage?, text}; passage 0: the whole document, as far as it may be read at once ("truncated": true). */
    tern_status (*read)(void *user, const char *path, int32_t passage, json_t **out, tern_error *err);
    /* [{path, passages, bytes, added}] */
    tern_status (*list)(void *user, json_t **out, tern_error *err);
    /* {text, stop, fits, sources}; NULL: there is no model. */
    tern_status (*ask)(void *user, const char *question, int32_t k, json_t **out, tern_error *err);
    void *user;
} tn_mcp_tools;

bool tn_mcp_speaks(const char *version); /* of the protocol */
/* The reply to a message, or NULL where it wants none. A reply that could not be made for want of memory is one that says
 * so; *no_memory: not even that could be made, of all or of a part. */
json_t *tn_mcp_answer(const tn_mcp_tools *t, const json_t *message, bool *no_memory);
/* The reply to a text that is no JSON. */
json_t *tn_mcp_no_json(const char *why);
/* The id of a request as text, for comparing; "" where the message has none. */
void tn_mcp_id(const json_t *message, char out[128]);
/* The id that a notification cancels, as above; "" where it is none of that kind. */
void tn_mcp_cancels(const json_t *message, char out[128]);
/* What a request for a tool wants to be told while it goes on; NULL: nothing. Borrowed. */
const json_t *tn_mcp_progress_token(const json_t *message);
/* Tells that much of it is done. */
json_t *tn_mcp_progress(const json_t *token, int64_t done, const char *what);

#endif
