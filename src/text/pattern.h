/* text/pattern.h - one regular expression: PCRE2's (pattern_pcre2.c), or our own in a minimal build (pattern_lean.c).
 * A pattern is immutable and shared by threads; a search belongs to one. */
#ifndef TN_TEXT_PATTERN_H
#define TN_TEXT_PATTERN_H

#include "base/ctx.h"

typedef struct tn_pattern tn_pattern;
typedef struct tn_search tn_search;

/* number: what errors call it. TERN_E_UNSUPPORTED: not a regular expression, or one that this build does not know. */
tern_status tn_pattern_open(tn_ctx *ctx, const char *text, size_t number, tn_pattern **out, tern_error *err);
void tn_pattern_close(tn_pattern **p);

/* For texts of up to n_max bytes. Borrows p. */
tern_status tn_search_open(const tn_pattern *p, size_t n_max, tn_search **out, tern_error *err);
void tn_search_close(tn_search **s);

/* The first match in text[0..n), valid UTF-8, at or behind `from`. TERN_E_LIMIT: it backtracks beyond reason. */
tern_status tn_search_next(tn_search *s, const char *text, size_t n, size_t from, size_t *begin, size_t *end,
                           bool *found, tern_error *err);

#endif
