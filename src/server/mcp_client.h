/* server/mcp_client.h - one server of the Model Context Protocol that the user named, from the client's side: a program,
 * JSON-RPC 2.0 on its standard input and output, a message a line.
 *
 *   start   the program begins (base/child.h)
 *   open    a thread begins to listen, hands are shaken, and the tools are listed
 *   call    one at a time: a tool's result, or why there is none
 *   close   the program is told to end
 *
 * Whatever the program says is text from outside. It may end, hang, write what is no JSON, or more than anybody wants to
 * read: each is an error of the call, and the next call tells what became of it. A ping is answered; what else it asks of
 * its client (sampling, roots, elicitation) is refused by the protocol's error. */
#ifndef TN_SERVER_MCP_CLIENT_H
#define TN_SERVER_MCP_CLIENT_H

#include "base/child.h"
#include "base/json.h"

enum {
    TN_MCP_LINE = 8 << 20,     /* bytes of a message */
    TN_MCP_UNASKED = 64 << 20, /* bytes that a server may say while nobody asks */
    TN_MCP_LISTED = 128,       /* tools of a server */
    TN_MCP_STARTS = 5,      /* times that a server is started again without a reply to a call between them */
    TN_MCP_WAIT_MS = 120000 /* for a reply, or that a call says that it goes on */
};

typedef struct tn_mcp_client tn_mcp_client;

/* Both are for the time while there is one thread: the program begins, and nobody listens yet. Where there is a keeper it is
 * its number i and is started by it; the keeper outlives the client. */
tern_status tn_mcp_client_start(const char *name, const char *command, tn_keeper *keeper, size_t i,
                                tn_mcp_client **out, tern_error *err);
/* The same without a program: what it says is given to tn_mcp_client_hear. */
tern_status tn_mcp_client_new(const char *name, tn_mcp_client **out, tern_error *err);
void tn_mcp_client_close(tn_mcp_client **c);

const char *tn_mcp_client_name(const tn_mcp_client *c);
/* Waits until the server has told its tools, or stop(user), which may be NULL. Where it fails the client has none, and every
 * call says why. */
tern_status tn_mcp_client_open(tn_mcp_client *c, int64_t wait_ms, bool (*stop)(void *user), void *user,
                               tern_error *err);
/* [{name, title, description, inputSchema}], of which title and description may be null; a reference of the caller's.
 * Where the server said that they changed they are listed again, within wait_ms in all and until stop(user), unless wait_ms
 * is 0 or a call goes on. */
json_t *tn_mcp_client_tools(tn_mcp_client *c, int64_t wait_ms, bool (*stop)(void *user), void *user);
/* Did the server list more than TN_MCP_LISTED tools? The others are left out. */
bool tn_mcp_client_has_more(tn_mcp_client *c);
/* From now on a program that has ended is started again by the next call, TN_MCP_STARTS times in a row at most; that, and
 * that it will not be any more, is said by tell, which may be NULL, from any thread. */
void tn_mcp_client_revives(tn_mcp_client *c, void (*tell)(void *user, const char *line), void *user);
/* Calls a tool. It takes arguments. *result: what the server returned, the caller's. It waits until stop(user), which
 * may be NULL, and tells the server that nobody waits any more; TERN_E_CANCELLED then. stop also ends the waiting for the
 * calls of others, and for a program that starts again. It must not ask this client. */
tern_status tn_mcp_client_call(tn_mcp_client *c, const char *tool, json_t *arguments, int64_t wait_ms,
                               bool (*stop)(void *user), void *user, json_t **result, tern_error *err);

/* ---- the protocol, without a program -------------------------------------------------------------------- */

/* Bytes that the server said, in any pieces. */
void tn_mcp_client_hear(tn_mcp_client *c, const char *p, size_t n);
/* Puts a question, whose number is returned (0: no memory), and takes its reply: 1 it is there, -1 it is an error or cannot
 * be read, 0 not yet. It takes params. */
int64_t tn_mcp_client_ask(tn_mcp_client *c, const char *method, json_t *params);
int tn_mcp_client_reply(tn_mcp_client *c, json_t **result, tern_error *err);
/* What would go to the server, zero-terminated; it is emptied. The caller's, to be freed with free; NULL: nothing. */
char *tn_mcp_client_told(tn_mcp_client *c);

/* What a tool's result says, as text: parts of text as lines, of others what they are; at most `most` bytes, the end of a
 * longer one is cut and that is said. The caller's, to be freed with free. *failed: the tool says so of itself. */
tern_status tn_mcp_result_text(const json_t *result, size_t most, char **text, bool *failed, tern_error *err);
/* The tools of a reply of server `name` to tools/list, those that can be used, appended to *list: one more than
 * TN_MCP_LISTED at most. */
tern_status tn_mcp_read_tools(const char *name, const json_t *reply, json_t **list, tern_error *err);

#endif
