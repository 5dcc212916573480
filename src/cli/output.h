/* cli/output.h - what commands print, whole or not at all. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "base/json.h"
#include "base/outfile.h"

/* Takes j, a value of base/json.h's builders, and prints it on standard output with a newline after it.
 * Returns EXIT_OK. When there was no memory for it (j is NULL then) it returns EXIT_FAILED with a message,
 * and prints nothing. */
int cli_emit_json(json_t *j, size_t flags);

/* All of the output is out, or the exit status says that it is not: an earlier write may have failed where
 * the last one did not. */
int cli_written(int rc);

/* Shows a name or a line from outside on one line: control characters, newlines too, and marks of
 * direction stand as \\xNN. It returns one of the thread's four buffers in turn; what does not fit is cut. */
const char *cli_shown(const char *text);
/* The same, and characters that nobody sees stand so too: for what somebody is asked to allow. */
const char *cli_shown_exactly(const char *text);
/* Prints text of a model. A terminal gets nothing harmful (cli/harmful.h) but newline and tab; a file or a
 * pipe gets the text as it is. */
void cli_put_answer(const char *text, size_t n);

/* This is a file that a command writes as a stream, with base/outfile.h's promises. */
typedef struct output_file {
    tn_ctx ctx;
    tn_outfile *file;
    FILE *stream;
    const char *path;
} output_file;

bool cli_output_open(output_file *f, const char *path,
                     const tn_outkind *kind); /* false: a message was printed */
int cli_output_close(output_file *f);         /* EXIT_OK: the file has its name; else a message was printed */

#endif
