/* cli/suggest.h - small models that a machine of so much memory runs well. */
#ifndef TN_CLI_SUGGEST_H
#define TN_CLI_SUGGEST_H

#include <stddef.h>
#include <stdint.h>

/* Writes at most three names for tern pull, the largest first, each with its size, on lines of their own. Three
 * quarters of the memory stay for other programs. Returns how many there are; 0: too little memory for any. */
int cli_suggest(uint64_t memory_bytes, char *out, size_t cap);
/* The same of this machine, on standard error; nothing where its memory is not known or too small. */
void cli_suggest_here(void);

#endif
