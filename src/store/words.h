/* store/words.h - words of scripts that write none of their borders: Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese.
 *
 * FTS5 takes a whole sentence of them for one word, so nothing in it is found. Here every character of such a
 * run begins a piece: of two characters in East Asian scripts, of three letters (marks left out) in the
 * others. Pieces overlap, so each word of that length or longer is among them wherever it stands, without a
 * dictionary. A text without such scripts comes out as it went in, byte by byte. */
#ifndef TN_STORE_WORDS_H
#define TN_STORE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum tn_words_for {
    TN_WORDS_INDEX, /* also the shorter pieces at the end of a run, which a prefix finds */
    TN_WORDS_QUERY  /* whole pieces, or the run where it is shorter than one */
} tn_words_for;

/* The text with spaces around its pieces, zero-terminated; the caller frees it with free. NULL: no memory. */
char *tn_words_spread(const char *text, size_t n, tn_words_for use, size_t *n_out);
/* How long a piece is where c begins or goes on a run, in characters; 0: an ordinary character. */
int tn_words_piece(int c);
/* A word of tn_words_spread's: whether it is of a run, and whether it is shorter than a piece. */
bool tn_words_is_piece(const char *word, bool *is_short);

#endif
