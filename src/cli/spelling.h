/* cli/spelling.h - the word that somebody meant who wrote one that is not known. */
#ifndef TN_CLI_SPELLING_H
#define TN_CLI_SPELLING_H

#include <stddef.h>

enum { SPELLING_MAX = 32 }; /* bytes of a word; longer ones are like none */

typedef struct spelling {
    const char *word;         /* as it was written */
    char meant[SPELLING_MAX]; /* the nearest known word; "": none is near */
    size_t n_changes;         /* letters that differ; of a word that is taken next, fewer must */
} spelling;

/* Begins with no known word. Up to two letters may differ, in words of three to five letters one, in shorter ones none;
 * dashes in front do not count. */
void cli_spelling_begin(spelling *s, const char *word);
/* Takes a known word of n bytes where it is nearer than those before. */
void cli_spelling_try(spelling *s, const char *known, size_t n);

#endif
