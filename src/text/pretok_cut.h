/* text/pretok_cut.h - cuts a text at the matches of the pre-tokeniser's patterns. Only for text/. */
#ifndef TN_TEXT_PRETOK_CUT_H
#define TN_TEXT_PRETOK_CUT_H

#include "text/pretok.h"

typedef struct tn_pretok_cut {
    size_t n_stages;
    const bool *grouped; /* [n_stages]: matches are runs of digits, cut in threes */
    /* The next match of the stage's pattern in text[0..n) at or after `from`; *a = SIZE_MAX: there is
     * none. */
    tern_status (*next)(void *self, size_t stage, const char *text, size_t n, size_t from, size_t *a,
                        size_t *b);
    void *self;
    tn_piece_fn fn;
    void *user;
    tern_error *err;
} tn_pretok_cut;

/* Gives out the pieces of text[0..n). Invalid UTF-8 is a piece by itself, so patterns only see valid UTF-8.
 */
tern_status tn_pretok_cut_all(const tn_pretok_cut *c, const char *text, size_t n);

#endif
