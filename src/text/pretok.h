/* text/pretok.h - cuts text into the pieces that byte pair merging must not cross.
 * A splitter is a list of regular expressions applied in order; a match and the text between matches
 * are pieces of their own. Immutable after open and shared by threads; a run owns its match data. */
#ifndef TN_TEXT_PRETOK_H
#define TN_TEXT_PRETOK_H

#include "base/ctx.h"

#define TN_PRETOK_MAX 16

typedef struct tn_pretok tn_pretok;

tern_status tn_pretok_open(tn_ctx *ctx, const char *const *patterns, size_t n, tn_pretok **out,
                           tern_error *err);
void tn_pretok_close(tn_pretok **p);

/* A family of byte-level tokenizers: its patterns, and the defaults for files that only name it. */
typedef struct tn_pretok_family {
    const char *name;            /* as GGUF has it */
    const char *const *patterns; /* NULL-terminated */
    bool ignore_merges, add_bos, nfc, end_twice;
} tn_pretok_family;

/* Returns NULL for an unknown name. */
const tn_pretok_family *tn_pretok_named(const char *name);

/* Some families group the digits of a number in threes from its end, by a look-ahead over the rest of the run
 * at every group. That is quadratic in the run's length. So such a pattern only matches runs, and the groups
 * are counted. */
typedef struct tn_pretok_grouping {
    const char *pattern, *run; /* used instead: a character class, repeated possessively */
    bool edge;                 /* only for runs that end at the edge of a word */
} tn_pretok_grouping;
/* Returns NULL for any other pattern. */
const tn_pretok_grouping *tn_pretok_grouped(const char *pattern);
/* The bytes of the first group of a run of n bytes of UTF-8. */
size_t tn_pretok_first_group(const char *run, size_t n);
/* The bytes of the first three characters, or n. */
size_t tn_pretok_three(const char *run, size_t n);

typedef tern_status (*tn_piece_fn)(void *user, const char *piece, size_t n);

/* Calls fn for every piece of text[0..n) in order. Together the pieces are the whole text, even where it is
 * not UTF-8. Stops at the first failure. Fails with TERN_E_LIMIT if the patterns take more than a few million
 * steps plus 16 for each byte. */
tern_status tn_pretok_run(const tn_pretok *p, const char *text, size_t n, tn_piece_fn fn, void *user,
                          tern_error *err);
/* The same with another first window than 512 bytes, which changes no piece. For tests. */
tern_status tn_pretok_run_windows(const tn_pretok *p, const char *text, size_t n, size_t window,
                                  tn_piece_fn fn, void *user, tern_error *err);

#endif
