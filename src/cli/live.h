/* cli/live.h - what depends on the terminal: the line of standard error that is written over while something
 * goes on, and where the lines of a help text end. */
#ifndef TN_CLI_LIVE_H
#define TN_CLI_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Whether standard error is a terminal that can do so; TERM=dumb says that it cannot. */
bool cli_live(void);
/* Writes over the line, with as much of the text as the terminal is wide: a line that went on below could not
 * be cleared. */
void cli_live_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_live_clear(void);

/* Bytes of a text, in UTF-8, that take at most so many columns. */
size_t cli_live_fit(const char *text, int columns);

/* Columns of the terminal; 80 where it does not say, and 0 where the file is no terminal. */
int cli_columns(int fd);
/* Prints a text and a newline from column `margin` on, where its other lines begin too. Lines end between
 * words; with too few columns for that the text is one line. */
void cli_print_wrapped(FILE *f, const char *text, int margin, int columns);

#endif
