/* text/grammar/grammar.h - answers that keep to a grammar: which tokens may come next.
 *
 *   tn_grammar_open_gbnf / _schema   text -> rules -> program (expr.h, program.h)
 *   tn_grammar_bind                  to a vocabulary (vocab.h), then for every token:
 *   tn_grammar_mask                  a bit per token: text that can still become a text of the grammar
 *   tn_grammar_take                  the token drawn
 *
 * A grammar has one place in one text; it belongs to one thread at a time. Masks are kept by state, so that a
 * place that comes again costs a look-up. Grammars speak of code points and tokens are bytes: a token may
 * begin or end inside a character. */
#ifndef TN_TEXT_GRAMMAR_GRAMMAR_H
#define TN_TEXT_GRAMMAR_GRAMMAR_H

#include "text/grammar/vocab.h"

typedef struct tn_grammar tn_grammar;

enum { TN_GRAMMAR_TEXT_MAX = 1 << 20 }; /* bytes of a grammar or schema */

/* Reads llama.cpp's GBNF; the text is the rule "root". Errors name the line. */
tern_status tn_grammar_open_gbnf(tn_ctx *ctx, const char *text, size_t n_bytes, tn_grammar **out,
                                 tern_error *err);
/* Reads JSON Schema (draft 2020-12, and what older drafts call otherwise where it is the same). Texts are the
 * valid instances as JSON: properties in the order of the schema, then those that are required only, then
 * others; bounded white space; what an instance may be is what the schema says. A keyword that cannot be held
 * is refused by name. */
tern_status tn_grammar_open_schema(tn_ctx *ctx, const char *json, size_t n_bytes, tn_grammar **out,
                                   tern_error *err);
void tn_grammar_close(tn_grammar **g);

/* Binds the grammar to v, which it borrows: v must outlive the grammar or the next bind. */
tern_status tn_grammar_bind(tn_grammar *g, const tn_gvocab *v, tern_error *err);

/* Begins anew. With `after` the text is free until `after` has come, and white space after it too; no token
 * may end the text before that. With NULL the grammar begins at once. */
tern_status tn_grammar_begin(tn_grammar *g, const char *after, tern_error *err);
/* mask[id / 64] >> id % 64 & 1 tells that token id may come next, for v->n_vocab bits. It is valid until the
 * next call. End tokens are among them where the grammar can end. It fails when none may: then the vocabulary
 * lacks what the grammar wants. */
tern_status tn_grammar_mask(tn_grammar *g, const uint64_t **mask, tern_error *err);
/* Takes a token. Returns false when the grammar does not allow it here; the grammar stays where it is
 * then. */
bool tn_grammar_take(tn_grammar *g, int32_t id);
/* Takes a token where at most `left` may follow it. Where the text could not end within those, *forced becomes
 * true and *id the next token of the shortest ending instead, or -1 where the text ends here. A text whose
 * shortest form is longer from the beginning is left as it is. A token that is not allowed, or no memory, is an
 * error. */
tern_status tn_grammar_take_within(tn_grammar *g, int32_t *id, size_t left, bool *forced, tern_error *err);
bool tn_grammar_can_end(const tn_grammar *g);
bool tn_grammar_must_end(const tn_grammar *g); /* it can, and nothing may follow */

/* Tells whether a whole text is accepted, whatever the place in another. */
bool tn_grammar_accepts(tn_grammar *g, const char *text, size_t n_bytes);
/* Tells whether it can still be followed: where memory was missing in it once, or it was too ambiguous, it cannot. */
bool tn_grammar_is_whole(const tn_grammar *g);
/* The keywords of the schema, with commas, that are not held wholly while a text is made; NULL: there are none. Then
 * tn_schema_fits tells whether a finished text is an instance. */
const char *tn_grammar_later(const tn_grammar *g);
/* Tells whether a text is a valid instance of a schema. It is false also where that cannot be told. */
bool tn_schema_fits(tn_ctx *ctx, const char *schema, size_t n_schema, const char *text, size_t n_bytes);
/* These tell what the work was: states known, masks kept, times masks were computed, bytes of masks. */
typedef struct tn_grammar_stats {
    size_t n_states, n_masks;
    uint64_t n_computed, n_asked;
} tn_grammar_stats;
tn_grammar_stats tn_grammar_get_stats(const tn_grammar *g);

#endif
