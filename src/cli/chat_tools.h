/* cli/chat_tools.h - tools of servers that the user named (server/mcp_servers.h) in a conversation in a terminal.
 *
 *   start    their programs begin, while there is one thread
 *   open     they tell their tools, and the model's template must know how calls are written
 *   begin    of every question: what tools there are now
 *   listen   of every answer: its calls are heard, its text goes on to the screen
 *   run      the calls that it made, each allowed by name or by the user, become messages; the answer goes on from there
 *
 * A call that nobody allowed is refused, and the model is told so. */
#ifndef TN_CLI_CHAT_TOOLS_H
#define TN_CLI_CHAT_TOOLS_H

#include "cli/chat_talk.h"
#include "server/mcp_servers.h"

/* Takes servers. -1 to go on, or an exit status. */
int cli_chat_tools_open(chat *c, tn_mcp_servers *servers);
void cli_chat_tools_close(chat *c);

bool cli_chat_tools_begin(chat *c);
/* The prompt of messages, the system's and those from `from` on, malloc'ed; NULL: why was printed. */
int32_t *cli_chat_tools_ids(const chat *c, size_t from, size_t *n_ids);
/* What a template is told of a conversation with tools; messages and tools are the caller's. */
tern_status cli_chat_tools_texts(const chat *c, const json_t *list, char **messages, char **tools,
                                 tern_error *err);
json_t *cli_chat_message(const chat *c, size_t i, json_t *content); /* takes content */
tern_status cli_chat_tools_listen(chat *c, const int32_t *ids, size_t n_ids, tern_generate_options *g,
                                  tern_error *err);
/* The answer has ended. false: no memory. */
bool cli_chat_tools_heard(chat *c);
/* Whether it made calls. */
bool cli_chat_tools_called(const chat *c);
/* Runs them and pushes what became of them. round: how often that happened for this question. false: Ctrl-C, or why was
 * printed. */
bool cli_chat_tools_run(chat *c, int round);
/* The prompt after that; results are cut where there is no room for them. NULL: why was printed. */
int32_t *cli_chat_tools_go_on(chat *c, size_t *n_ids);
void cli_chat_tools_print(chat *c); /* for /tools */
/* Prompts are made without the tools meanwhile. */
void cli_chat_tools_leave_out(chat *c, bool out);
/* A prompt has so many tokens with the tools, and without them, where it fits. Says so and returns true where there are
 * tools. */
bool cli_chat_tools_are_blamed(const chat *c, size_t n_with, size_t n_without);

#endif
