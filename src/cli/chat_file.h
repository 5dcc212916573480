/* cli/chat_file.h - a conversation as text, which /save writes and /load reads: "ROLE: TEXT" a message.
 * Lines after a message's first are indented by a tab, so that no text becomes another's. */
#ifndef TN_CLI_CHAT_FILE_H
#define TN_CLI_CHAT_FILE_H

#include <stdio.h>

void cli_chat_file_write(FILE *f, const char *role, const char *content);
/* Gives the next message's text, which ends where no tab follows a new line, and moves *text after it. It
 * changes the bytes there. *role is one of system, user, assistant. NULL: no message begins here. */
char *cli_chat_file_next(char **text, const char **role);

#endif
