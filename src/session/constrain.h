/* session/constrain.h - a grammar between the logits and the sampler (text/grammar).
 *
 * A session keeps the grammar of its last call, with the masks it has computed, for the next one. The tree
 * of the vocabulary belongs to the engine and is made by the first call that needs it. */
#ifndef TN_SESSION_CONSTRAIN_H
#define TN_SESSION_CONSTRAIN_H

#include "tern.h"
#include "text/grammar/grammar.h"

typedef struct tn_constraint {
    char *text; /* of the grammar kept, or NULL */
    bool schema;
    tn_grammar *grammar;
    tern_grammar *lent; /* the caller's own, while the running generate uses it; NULL: none */
    tn_grammar *in_use; /* one of both */
    bool active;        /* in the running generate */
    float *shaped;      /* [n_vocab] */
} tn_constraint;

/* The grammar that the options ask for, compiled for e's vocabulary; NULL: they ask for none, or for what
 * tn_constraint_use refuses. By any thread, so that those who answer need not wait for it. checked: the caller checks
 * the finished text by tn_schema_fits where tn_grammar_later says so; otherwise such a schema is refused. */
tern_status tn_constraint_compile(struct tern_engine *e, const tern_generate_options *o, bool checked,
                                  tn_grammar **out, tern_error *err);
/* The session keeps it for a call with these options, if it has none of this text. It takes the grammar. */
void tn_constraint_give(tern_session *s, const tern_generate_options *o, tn_grammar **g);

/* Tells whether the prompt ends with this text, and white space. Templates of thinking models leave an opened
 * thought. */
bool tn_prompt_ends_with(const tn_tokenizer *t, const int32_t *ids, size_t n_ids, const char *open);

/* Takes what the options ask of this call's text, which begins at its start. With nothing asked c->active is
 * false. */
tern_status tn_constraint_use(tern_session *s, const tern_generate_options *o, tern_error *err);
/* The answer has ended: a grammar of the caller's is free again. */
void tn_constraint_release(tern_session *s);
void tn_constraint_close(tern_session *s);

/* Tells whether the text is complete, so that nothing may follow. */
bool tn_constraint_done(const tn_constraint *c);
/* Makes *logits a copy in which tokens that may not come are at -infinity. */
tern_status tn_constraint_shape(tn_constraint *c, const float **logits, size_t n_vocab, tern_error *err);
/* Takes the token drawn, which is no end. `left` may follow it: a text that could not be ended within those
 * is closed, with another token in *token (-1: it ends here) and true in *closing. */
tern_status tn_constraint_took(tn_constraint *c, int32_t *token, int32_t left, bool *closing,
                               tern_error *err);

#endif
