/* session/constrain.h - a grammar between the logits and the sampler (text/grammar). A session keeps the
 * grammar of its last call, with the computed masks, for the next one. The tree of the vocabulary belongs to
 * the engine; the first call that needs it makes it. */
#ifndef TN_SESSION_CONSTRAIN_H
#define TN_SESSION_CONSTRAIN_H

#include "tern.h"
#include "text/grammar/grammar.h"

typedef struct tn_constraint {
    char *text; /* of the kept grammar, or NULL */
    bool schema;
    tn_grammar *grammar;
    tern_grammar *lent; /* the caller's own, while the running generate uses it; NULL: none */
    tn_grammar *in_use; /* one of both */
    bool active;        /* in the running generate */
    /* Borrowed: an answer that begins with this keeps to no grammar (tn_grammar_unless); NULL: none. */
    const char *unless;
    const char *begun; /* Borrowed: text of the prompt with which the answer begins; NULL: none. */
    size_t n_begun;
    float *shaped; /* [n_vocab] */
} tn_constraint;

/* Compiles the grammar of the options for e's vocabulary; NULL: they name none, or one that tn_constraint_use
 * refuses. Any thread may call it, so that running answers need not wait. checked: the caller checks the
 * finished text by tn_schema_fits where tn_grammar_later says so; otherwise such a schema is refused. */
tern_status tn_constraint_compile(struct tern_engine *e, const tern_generate_options *o, bool checked,
                                  tn_grammar **out, tern_error *err);
/* Gives the session a grammar for a call with these options, unless it already has the same one. Takes g. */
void tn_constraint_give(tern_session *s, const tern_generate_options *o, tn_grammar **g);

/* Tells whether the prompt ends with this text, apart from white space. Templates of thinking models leave a
 * thought open. */
bool tn_prompt_ends_with(const tn_tokenizer *t, const int32_t *ids, size_t n_ids, const char *open);

/* Begins a constraint for this call's text. c->active is false when the options ask for none. */
tern_status tn_constraint_use(tern_session *s, const tern_generate_options *o, tern_error *err);
/* The answer has ended: a grammar of the caller's is free again. */
void tn_constraint_release(tern_session *s);
void tn_constraint_close(tern_session *s);

/* Tells whether the text is complete, so that nothing may follow. */
bool tn_constraint_done(const tn_constraint *c);
/* Makes *logits a copy in which forbidden tokens are at -infinity. */
tern_status tn_constraint_shape(tn_constraint *c, const float **logits, size_t n_vocab, tern_error *err);
/* Takes the drawn token, which is not an end. `left` tokens may follow it. If the text could not be completed
 * within those, it is closed: *token is replaced (-1: it ends here) and *closing becomes true. */
tern_status tn_constraint_took(tn_constraint *c, int32_t *token, int32_t left, bool *closing,
                               tern_error *err);

#endif
