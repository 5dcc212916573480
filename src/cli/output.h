/* cli/output.h - what commands print, whole or not at all. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "base/json.h"

/* Takes j, a value of base/json.h's builders, and prints it on standard output with a newline behind it.
 * EXIT_OK; or EXIT_FAILED with a message when there was no memory for it (j is NULL then): nothing is
 * printed. */
int emit_json(json_t *j, size_t flags);

#endif
