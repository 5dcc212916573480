#include "cli/spelling.h"

#include <stdbool.h>
#include <string.h>

/* How many letters are to be changed, added, left out or swapped with the next to make b, of n bytes, of a. */
static size_t distance(const char *a, const char *b, size_t n) {
    size_t rows[3][SPELLING_MAX], *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t k = 0; k <= n; k++) row[k] = k;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t *const oldest = before;
        before = last;
        last = row;
        row = oldest;
        row[0] = i;
        for (size_t k = 1; k <= n; k++) {
            row[k] = last[k - 1] + (a[i - 1] != b[k - 1]);
            if (last[k] + 1 < row[k]) row[k] = last[k] + 1;
            if (row[k - 1] + 1 < row[k]) row[k] = row[k - 1] + 1;
            const bool swapped = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
            if (swapped && before[k - 2] + 1 < row[k]) row[k] = before[k - 2] + 1;
        }
    }
    return row[n];
}

void cli_spelling_begin(spelling *s, const char *word) {
    const size_t n = strlen(word), letters = n - strspn(word, "-");
    s->word = word;
    s->meant[0] = 0;
    s->n_changes = n >= SPELLING_MAX || letters < 3 ? 0 : letters > 5 ? 3 : 2;
}

void cli_spelling_try(spelling *s, const char *known, size_t n) {
    if (!s->n_changes || n >= sizeof s->meant) return;
    size_t d = distance(s->word, known, n);
    if (d >= s->n_changes) return;
    s->n_changes = d;
    memcpy(s->meant, known, n);
    s->meant[n] = 0;
}
