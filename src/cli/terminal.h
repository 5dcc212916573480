/* cli/terminal.h - messages that a person types or pastes: a line editor with a history (libedit) on a
 * terminal, lines elsewhere.
 *
 * Text between two lines of """ is one message, and a line that ends in a backslash goes on. On a terminal
 * pasted text of several lines is one message too (bracketed paste). The history is private: a file of mode 0600. */
#ifndef TN_CLI_TERMINAL_H
#define TN_CLI_TERMINAL_H

#include "tern.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct terminal terminal;

typedef enum terminal_event {
    TERMINAL_TEXT,  /* a message; empty ones are not given */
    TERMINAL_CLEAR, /* Ctrl-C: what was typed is gone */
    TERMINAL_END,   /* Ctrl-D, end of input */
    TERMINAL_FAILED /* a line was lost: no memory for it, or input that cannot be read; errno says which */
} terminal_event;

/* Opens a terminal. Returns NULL when there is no memory or no line editor. history is a file, or NULL for none that
 * lasts. */
terminal *cli_terminal_open(const char *history, tern_error *err);
void cli_terminal_close(terminal **t);
bool cli_terminal_is_interactive(const terminal *t);

/* Reads a message. *text is zero-terminated and stays until the next call. */
terminal_event cli_terminal_read(terminal *t, const char **text);

/* Prints a question, and reads the line that answers it; what was typed before is dropped. It is no message, and no history
 * has it. false: Ctrl-C came, or the end of input, or nobody types. */
bool cli_terminal_ask(terminal *t, const char *question, char *line, size_t cap);

/* Begins the next message with this, to be changed. false: nobody types, or there is no memory. */
bool cli_terminal_suggest(terminal *t, const char *text);
/* Takes what was typed since it was opened, or since this was called last, out of the history and its file. */
void cli_terminal_forget(terminal *t);

#endif
