/* cli/mcp_args.h - the servers of tools that the user names, for chat and serve. */
#ifndef TN_CLI_MCP_ARGS_H
#define TN_CLI_MCP_ARGS_H

#include "cli/args.h"
#include "server/mcp_servers.h"

/* given, may: arg_list. */
#define MCP_ARGS(given, may)                                                                                 \
    {"mcp",                                                                                                  \
     0,                                                                                                      \
     "NAME=COMMAND",                                                                                         \
     ARG_LIST,                                                                                               \
     &(given),                                                                                               \
     0,                                                                                                      \
     0,                                                                                                      \
     "let the model call tools of an MCP server: COMMAND is started, and talks on its standard input and "   \
     "output; you are asked before each call; may be repeated"},                                             \
    {                                                                                                        \
        "mcp-allow", 0, "NAME.TOOL", ARG_LIST, &(may), 0, 0,                                                 \
            "call this tool without asking (NAME.*: all tools of NAME); may be repeated"                     \
    }

/* Their programs begin, while there is one thread; kept: server/mcp_servers.h. Returns -1 to go on, or an exit status; *out may be NULL: nothing was
 * named. */
int cli_mcp_start(const command *cmd, const arg_list *given, const arg_list *may, bool kept,
                  tn_mcp_servers **out);
/* For tn_mcp_servers_open and _revive: what is wrong with a server is a line on standard error. */
void cli_mcp_tell(void *user, const char *line);

#endif
