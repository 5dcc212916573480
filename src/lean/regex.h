/* lean/regex.h - the regular expressions by which tokenizers cut text, for builds that bring no PCRE2
 * (TERN_MINIMAL).
 *
 * A pattern means what it means to PCRE2 with UTF and UCP, leftmost match, first alternative that fits.
 * Known are: characters, escapes, sets with ranges, \p{..} of general categories and Han, \s \d \w and
 * their opposites, the dot, groups, (?i: ), look-ahead, ^ $ \b \B \A \z, and the greedy and possessive
 * quantifiers. Everything else (look-behind, back references, lazy quantifiers, unbounded repetition of
 * what may be empty...) is refused when the pattern is compiled: nothing is matched otherwise than PCRE2
 * would. */
#ifndef TN_LEAN_REGEX_H
#define TN_LEAN_REGEX_H

#include "base/ctx.h"

typedef struct tn_regex tn_regex;

/* What searches in one text share: their memory, and the steps that all of them may still take together,
 * so that a text's cost is bounded by its length, whatever the patterns. */
typedef struct tn_regex_search {
    tn_ctx *ctx;
    void *entries;
    size_t n, cap;
    uint64_t steps_left;
} tn_regex_search;

void tn_regex_search_init(tn_regex_search *search, size_t n_bytes);
void tn_regex_search_close(tn_regex_search *search);

/* TERN_E_UNSUPPORTED with the offset of what is not known; TERN_E_LIMIT: the pattern is too large. */
tern_status tn_regex_open(tn_ctx *ctx, const char *pattern, tn_regex **out, tern_error *err);
void tn_regex_close(tn_regex **r);

/* The first match in text[0..n), valid UTF-8, that begins at `from` (a character's first byte) or later.
 * *found false: there is none. TERN_E_LIMIT: the steps are spent; TERN_E_MEMORY. */
tern_status tn_regex_find(const tn_regex *r, tn_regex_search *search, const char *text, size_t n, size_t from,
                          size_t *begin, size_t *end, bool *found, tern_error *err);

#endif
