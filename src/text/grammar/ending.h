/* text/grammar/ending.h - the shortest way to end a text from where it is.
 *
 * Every node of a program has a cost: the bytes of the shortest text to the end of its rule. A place in a text
 * costs the cheapest of its configurations, with what the frames below still ask for. The ending is told as the
 * fewest tokens that spell it. */
#ifndef TN_TEXT_GRAMMAR_ENDING_H
#define TN_TEXT_GRAMMAR_ENDING_H

#include "tern.h"

typedef struct tn_ending tn_ending;

void tn_ending_close(tn_ending **e); /* NULL-safe */
void tn_ending_forget(tn_ending *e); /* another text begins; NULL-safe */

#endif
