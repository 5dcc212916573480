/* cli/common_words.h - how far two answers agree. */
#ifndef TN_CLI_COMMON_WORDS_H
#define TN_CLI_COMMON_WORDS_H

/* Share of common words of two texts' last lines: their F1, 0..1. Words are runs of letters and digits, without regard to
 * their case in ASCII; two lines without words share 1. */
double cli_common_words(const char *a, const char *b);

#endif
