/* text/grammar/grammar_impl.h - the inside of a grammar, for the files that follow its text. */
#ifndef TN_TEXT_GRAMMAR_GRAMMAR_IMPL_H
#define TN_TEXT_GRAMMAR_GRAMMAR_IMPL_H

#include "text/grammar/ending.h"
#include "text/grammar/grammar.h"
#include "text/grammar/local.h"

/* The place that a text has reached. */
typedef struct tn_gplace {
    uint32_t state;
    size_t matched; /* bytes of `after` */
    bool is_free;
    uint32_t space_left; /* bytes of white space that may still be skipped */
    bool fresh;          /* the text may still begin with `unless` */
    size_t n_mark;       /* bytes of `unless` that it has; all of them: it is free to its end */
} tn_gplace;

struct tn_grammar {
    tn_ctx *ctx;
    tn_gmachine m;
    char *schema, *later; /* the schema, if finished texts are checked, and for which keywords */
    const tn_gvocab *v;
    size_t n_words; /* of a mask */
    uint32_t start;
    tn_gplace at;
    uint32_t *way; /* [max_depth + 1] states along a branch of the tree */
    tn_glocals locals;
    uint64_t *mask; /* where masks are made */
    size_t n_masks;
    uint64_t n_computed, n_asked;
    tn_ending *ending; /* NULL until a limit is told */
    /* free text in front */
    char *after;
    size_t n_after, *fall; /* Knuth-Morris-Pratt */
    const char *unless;    /* borrowed, or NULL */
    size_t n_unless;
    bool one_mark;   /* a token of the vocabulary is all of it */
    uint32_t *cross; /* tokens that can hold an end of `after` and more after it */
    size_t n_cross, cap_cross;
};

/* Follows n bytes from a place. Returns false if the grammar does not allow them; *at is then undefined. */
bool tn_grammar_follow(tn_grammar *g, tn_gplace *at, const char *p, size_t n);

#endif
