/* text/grammar/grammar.h - answers that follow a grammar: which tokens may come next.
 *
 *   tn_grammar_open_gbnf / _schema   text -> rules -> program (expr.h, program.h)
 *   tn_grammar_bind                  to a vocabulary (vocab.h), then for every token:
 *   tn_grammar_mask                  a bit per token: text that can still become a text of the grammar
 *   tn_grammar_take                  the token drawn
 *
 * A grammar has one place in one text; it belongs to one thread at a time. Masks are kept by state: a place
 * that recurs costs one look-up. Grammars speak of code points and tokens are bytes: a token may begin or end
 * inside a character. */
#ifndef TN_TEXT_GRAMMAR_GRAMMAR_H
#define TN_TEXT_GRAMMAR_GRAMMAR_H

#include "text/grammar/vocab.h"

typedef struct tn_grammar tn_grammar;

enum { TN_GRAMMAR_TEXT_MAX = 1 << 20 }; /* bytes of a grammar or schema */

/* Reads llama.cpp's GBNF; the text is the rule "root". Errors name the line. */
tern_status tn_grammar_open_gbnf(tn_ctx *ctx, const char *text, size_t n_bytes, tn_grammar **out,
                                 tern_error *err);
/* Reads JSON Schema (draft 2020-12, and what older drafts call otherwise where it is the same). Its texts are
 * the valid instances as JSON: properties in the order of the schema, then those that are only required, then
 * others, with bounded white space. A keyword that cannot be enforced is refused by name. */
tern_status tn_grammar_open_schema(tn_ctx *ctx, const char *json, size_t n_bytes, tn_grammar **out,
                                   tern_error *err);
void tn_grammar_close(tn_grammar **g);

/* Binds the grammar to v, which it borrows: v must outlive the grammar or the next bind. */
tern_status tn_grammar_bind(tn_grammar *g, const tn_gvocab *v, tern_error *err);

/* Starts a new text. With `after` the text is free up to and including `after` and the white space that
 * follows, and no token may end the text before that. With NULL the grammar applies at once. */
tern_status tn_grammar_begin(tn_grammar *g, const char *after, tern_error *err);
/* From the next begin on, a text that begins with `mark`, where the grammar would begin, is free to its end. NULL: none.
 * Returns false where the grammar itself can begin with the mark's first byte: then nothing changes. */
bool tn_grammar_unless(tn_grammar *g, const char *mark);
/* Moves on over text that stands in front of what comes. Returns false where no text begins so, and stays where it is. */
bool tn_grammar_pass(tn_grammar *g, const char *text, size_t n_bytes);
/* Whether one of its texts begins so. Independent of the current place. */
bool tn_grammar_begins(tn_grammar *g, const char *text, size_t n_bytes);
/* mask[id / 64] >> id % 64 & 1 tells that token id may come next, for v->n_vocab bits. Valid until the next
 * call. End tokens are included where the grammar can end. Fails if no token is allowed: the vocabulary then
 * lacks what the grammar requires. */
tern_status tn_grammar_mask(tn_grammar *g, const uint64_t **mask, tern_error *err);
/* Takes a token. Returns false if the grammar does not allow it here, and then stays where it is. */
bool tn_grammar_take(tn_grammar *g, int32_t id);
/* Takes a token when at most `left` more may follow. If the text could not end within those, *forced becomes
 * true and *id the next token of the shortest ending, or -1 if the text ends here. A text whose shortest form
 * is too long from the start is not forced. A token that is not allowed, or no memory, is an error. */
tern_status tn_grammar_take_within(tn_grammar *g, int32_t *id, size_t left, bool *forced, tern_error *err);
bool tn_grammar_can_end(const tn_grammar *g);
bool tn_grammar_must_end(const tn_grammar *g); /* it can end, and nothing may follow */

/* Whether a whole text is accepted. Independent of the current place. */
bool tn_grammar_accepts(tn_grammar *g, const char *text, size_t n_bytes);
/* Whether the text can still be followed. It cannot after memory ran out or the text became too ambiguous. */
bool tn_grammar_is_whole(const tn_grammar *g);
/* The schema's keywords, with commas, that are not fully enforced while a text is made; NULL: none. If there
 * are any, tn_schema_fits checks the finished text. */
const char *tn_grammar_later(const tn_grammar *g);
/* Whether a text is a valid instance of a schema. False, too, if that cannot be decided. */
bool tn_schema_fits(tn_ctx *ctx, const char *schema, size_t n_schema, const char *text, size_t n_bytes);
/* States known, masks kept, number of masks computed, bytes of masks. */
typedef struct tn_grammar_stats {
    size_t n_states, n_masks;
    uint64_t n_computed, n_asked;
} tn_grammar_stats;
tn_grammar_stats tn_grammar_get_stats(const tn_grammar *g);

#endif
