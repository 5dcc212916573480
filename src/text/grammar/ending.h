/* text/grammar/ending.h - the shortest way to end a text from its current place.
 *
 * Every node of a program has a cost: the bytes of the shortest text to the end of its rule. A place in a
 * text costs as much as its cheapest configuration, including what the frames below still require. The ending
 * is given as the fewest tokens that spell it. */
#ifndef TN_TEXT_GRAMMAR_ENDING_H
#define TN_TEXT_GRAMMAR_ENDING_H

#include "tern.h"

typedef struct tn_ending tn_ending;

void tn_ending_close(tn_ending **e); /* NULL-safe */
void tn_ending_forget(tn_ending *e); /* another text begins; NULL-safe */

#endif
