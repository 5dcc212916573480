#include "cli/spelling.h"

#include <string.h>

/* How many letters are to be changed, added or left out to make b, of n bytes, of a. */
static size_t distance(const char *a, const char *b, size_t n) {
    size_t row[SPELLING_MAX];
    for (size_t k = 0; k <= n; k++) row[k] = k;
    for (; *a; a++) {
        size_t diagonal = row[0]++;
        for (size_t k = 1; k <= n; k++) {
            size_t same = diagonal + (*a != b[k - 1]),
                   least = row[k] < row[k - 1] ? row[k] + 1 : row[k - 1] + 1;
            diagonal = row[k];
            row[k] = same < least ? same : least;
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
