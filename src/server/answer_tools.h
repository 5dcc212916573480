/* server/answer_tools.h - the calls of tools in an answer of the page.
 *
 * An answer with tools has steps before its last words: [{content, thinking, calls: [{id, name, server, tool, arguments,
 * state, result}]}]. The state of a call is "asked" (nobody has decided yet), "running", "done", "failed" (the tool says so,
 * or there is no such tool) or "refused". Whoever looks at the page decides each call, unless its name is allowed: by the
 * server's own list, or for this conversation.
 *
 * The answer's thread opens, steps and runs; any thread decides. The lock is that of whoever has the answer. */
#ifndef TN_SERVER_ANSWER_TOOLS_H
#define TN_SERVER_ANSWER_TOOLS_H

#include "base/bytes.h"
#include "server/mcp_servers.h"

#include <pthread.h>

typedef struct tn_tool_use {
    tn_mcp_servers *servers; /* borrowed; NULL: the answer has none, and nothing below is set */
    pthread_mutex_t *mu;     /* borrowed, as the other two are */
    pthread_cond_t *changed;
    const bool *stop; /* guarded by mu: nobody wants the answer any more */
    json_t *list;     /* of tn_mcp_servers_list, as it was when the answer began */
    json_t *tools;    /* the same for the model */
    int rounds;
    /* guarded by mu */
    json_t *steps;
    json_t *allowed;  /* [tn_mcp_servers_kept_name] for this conversation */
    uint64_t version; /* of the steps */
} tn_tool_use;

/* allowed may be NULL. It waits for nobody: who wants tools that changed lists them before, with nothing locked. */
tern_status tn_tool_use_open(tn_tool_use *u, tn_mcp_servers *servers, const json_t *allowed,
                             pthread_mutex_t *mu, pthread_cond_t *changed, const bool *stop, tern_error *err);
void tn_tool_use_close(tn_tool_use *u);

/* What the answer said so far becomes a step, and its calls are asked for. With mu. false: no memory. */
bool tn_tool_use_step(tn_tool_use *u, const tn_bytes *content, const tn_bytes *thinking, const json_t *calls);
/* Waits for what is decided of the last step's calls, and makes those that may be. keep(user) is told when there is
 * something to keep. TERN_E_CANCELLED: stop. */
tern_status tn_tool_use_run(tn_tool_use *u, void (*keep)(void *user), void *user, tern_error *err);

typedef enum tn_decision { TN_CALL_ONCE, TN_CALL_ALWAYS, TN_CALL_NEVER } tn_decision;
/* With mu. false: nobody asks for this call. name gets what the conversation keeps of "always". */
bool tn_tool_use_decide(tn_tool_use *u, const char *call, tn_decision d, char name[TN_MCP_KEPT_NAME]);

/* Appends the messages of steps, as OpenAI's API has them. Steps may come from a file: what is no step is left out. */
void tn_tool_messages(const json_t *steps, json_t **list);

#endif
