#include "cli/common_words.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A piece of a word: what is not ASCII belongs to words too. */
static bool of_word(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 128; }

/* Where the last line with a word begins. */
static const char *last_line(const char *text) {
    const char *begin = text, *last = text;
    for (const char *p = text; *p; p++) {
        if (*p == '\n') begin = p + 1;
        else if (of_word(*p)) last = begin;
    }
    return last;
}

typedef struct word {
    const char *at;
    size_t n;
} word;

static int word_order(const void *x, const void *y) {
    const word *a = x, *b = y;
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        const int d = tolower((unsigned char)a->at[i]) - tolower((unsigned char)b->at[i]);
        if (d) return d;
    }
    return (a->n > b->n) - (a->n < b->n);
}

/* Sorted words of the last line; NULL: no memory. */
static word *words_of(const char *text, size_t *n) {
    const char *line = last_line(text);
    word *all = malloc((strlen(line) / 2 + 1) * sizeof *all);
    *n = 0;
    for (const char *p = line; all && *p && *p != '\n';) {
        if (!of_word(*p)) {
            p++;
            continue;
        }
        const char *begin = p;
        while (of_word(*p)) p++;
        all[(*n)++] = (word){begin, (size_t)(p - begin)};
    }
    if (all) qsort(all, *n, sizeof *all, word_order);
    return all;
}

double cli_common_words(const char *a, const char *b) {
    size_t n_a, n_b, common = 0;
    word *of_a = words_of(a, &n_a), *of_b = words_of(b, &n_b);
    for (size_t i = 0, j = 0; of_a && of_b && i < n_a && j < n_b;) {
        const int d = word_order(&of_a[i], &of_b[j]);
        common += d == 0;
        i += d <= 0;
        j += d >= 0;
    }
    free(of_a);
    free(of_b);
    return n_a + n_b ? 2.0 * (double)common / (double)(n_a + n_b) : 1;
}
