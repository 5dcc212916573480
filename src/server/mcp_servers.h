/* server/mcp_servers.h - the tools of all servers of the Model Context Protocol that the user named: what a model is told of
 * them, which of them may be called without asking, and the calls.
 *
 * A tool has two names. The user's is SERVER.TOOL; the model's is the tool's own where no other tool has it and OpenAI's
 * API would take it, else SERVER_TOOL. Nothing of a server is believed: what it says of its tools goes to the model and to
 * the user as text, and what a call gives goes to the model as the content of a message.
 *
 * Any thread may ask; calls to one server go one after another. */
#ifndef TN_SERVER_MCP_SERVERS_H
#define TN_SERVER_MCP_SERVERS_H

#include "base/json.h"

enum {
    TN_MCP_SERVERS = 16,
    TN_MCP_TOOLS = 512,     /* of all of them */
    TN_MCP_ROUNDS = 16,     /* times that one question may lead to calls */
    TN_MCP_CALLS = 16,      /* calls of one round */
    TN_MCP_TEXT = 32 << 10, /* bytes of a result */
    TN_MCP_USER_NAME = 64 + 1 + 128 + 1,
    TN_MCP_KEPT_NAME = TN_MCP_USER_NAME + 1 + 16
};

typedef struct tn_mcp_servers tn_mcp_servers;

/* given: "NAME=COMMAND" each; allowed: "NAME.TOOL" or "NAME.*" each; both end with NULL. Programs begin here, while there is
 * one thread. kept: by a process of their own (base/child.h), for one that will be allowed to start none. TERN_E_INVALID
 * says which of them is wrong. */
tern_status tn_mcp_servers_start(const char *const *given, const char *const *allowed, bool kept,
                                 tn_mcp_servers **out, tern_error *err);
/* Lists the tools of each, until stop(user), which may be NULL. One that fails is told of and has none. */
void tn_mcp_servers_open(tn_mcp_servers *s, void (*tell)(void *user, const char *line),
                         bool (*stop)(void *user), void *user);
/* From now on one that has ended is started again by the next call of one of its tools, as tn_mcp_client_revives has it. */
void tn_mcp_servers_revive(tn_mcp_servers *s, void (*tell)(void *user, const char *line), void *user);
void tn_mcp_servers_close(tn_mcp_servers **s);

/* [{name: the model's, server, tool, title, description, inputSchema, allowed}]; NULL: no memory. fresh: servers whose tools
 * changed are asked again, which may take a while: nothing is to be locked meanwhile, and stop(user), which may be NULL, ends
 * it with the tools of before. s may be NULL. */
json_t *tn_mcp_servers_list(tn_mcp_servers *s, bool fresh, bool (*stop)(void *user), void *user);
/* From now on nobody waits for such a list: the process ends. */
void tn_mcp_servers_hurry(tn_mcp_servers *s);
/* Of such a list, the tools as OpenAI's API has them; NULL: no memory. */
json_t *tn_mcp_servers_tools(const json_t *list);
/* The entry that the model means, borrowed; NULL: there is none. */
const json_t *tn_mcp_servers_find(const json_t *list, const char *model_name);
/* SERVER.TOOL of an entry. */
void tn_mcp_user_name(const json_t *entry, char out[TN_MCP_USER_NAME]);

/* SERVER.TOOL and a hash of the server's command: what is kept of an answer, so that it holds for no other program that
 * gets the server's name later. */
void tn_mcp_servers_kept_name(const tn_mcp_servers *s, const json_t *entry, char out[TN_MCP_KEPT_NAME]);

/* Lets exactly this tool be called without asking, until the program ends. */
bool tn_mcp_servers_allow(tn_mcp_servers *s, const json_t *entry);
bool tn_mcp_servers_allows(tn_mcp_servers *s, const json_t *entry);

/* Calls it. *text, the caller's, is what the model is told: the result, or why there is none. *failed says that it is no
 * result. Only no memory, and what stop says (TERN_E_CANCELLED), are failures. */
tern_status tn_mcp_servers_call(tn_mcp_servers *s, const json_t *entry, const char *arguments,
                                bool (*stop)(void *user), void *user, char **text, bool *failed,
                                tern_error *err);

/* What the model is told of a call that was not made. */
#define TN_MCP_REFUSED "The user did not allow this call. Go on without it."
#define TN_MCP_UNKNOWN "There is no tool of this name."
#define TN_MCP_ENOUGH "No more calls can be made for this question. Answer with what is known."

#endif
