/* store/words.h - words of scripts without spaces between words: Chinese, Japanese, Korean, Thai, Lao,
 * Khmer, Burmese.
 *
 * FTS5 would take a whole sentence for one word, and nothing in it would be found. So every character of
 * such a run begins a piece here: of two characters in East Asian scripts, of three letters (marks left
 * out) in the others. Pieces overlap, so every word of that length or longer can be found, without a
 * dictionary. A text without such scripts is unchanged, byte for byte. */
#ifndef TN_STORE_WORDS_H
#define TN_STORE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum tn_words_for {
    TN_WORDS_INDEX, /* also the shorter pieces at the end of a run, which a prefix search finds */
    TN_WORDS_QUERY  /* whole pieces, or the run if it is shorter than a piece */
} tn_words_for;

/* The text with spaces around its pieces, zero-terminated; the caller frees it with free. NULL: no memory. */
char *tn_words_spread(const char *text, size_t n, tn_words_for use, size_t *n_out);
/* For a word of tn_words_spread: whether it belongs to a run, and whether it is shorter than a piece. */
bool tn_words_is_piece(const char *word, bool *is_short);

#endif
