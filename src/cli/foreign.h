/* cli/foreign.h - spellings of llama.cpp and Ollama, for people who have them in their fingers: each is taken
 * with one line that says what it means here, or what tern does instead. */
#ifndef TN_CLI_FOREIGN_H
#define TN_CLI_FOREIGN_H

#include "cli/spelling.h"

#include <stdbool.h>

typedef struct foreign_option {
    const char *names; /* "-ngl --gpu-layers" */
    int values; /* 0: a flag; 1: one follows; 2: one may follow, of on, off, auto and numbers; -1: refused */
    const char *instead; /* tern's option that takes the value, "--kv"; NULL: there is none */
    const char *says;    /* what it means here */
} foreign_option;

/* Finds the option that the first n bytes spell; NULL: it is none of these. */
const foreign_option *cli_foreign_find(const char *arg, size_t n);
/* Tries all long spellings for what an unknown option meant. */
void cli_foreign_try(spelling *s);
/* Whether the word may be the value of an option whose value is optional. */
bool cli_foreign_value(const char *word);
/* The value as tern calls it: "q8_0" of a cache is "int8". */
const char *cli_foreign_word(const foreign_option *f, const char *value);

#endif
