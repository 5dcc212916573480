/* text/grammar/local.h - what a node allows whatever lies under its rule.
 *
 * Where a place allows most bytes (inside a string) a mask is most of the tree of tokens. So for such a node
 * the tree is walked once, over the hole (machine.h). Tokens that stay inside the rule hold under every
 * frame. Where the rule ends, at an escape, the frame decides. So the tokens that end there are kept, and the
 * branches that go on from there, by their first byte.
 *
 * Over a loop's body everything has its round: how many rounds were begun since. Tokens of at most so many
 * rounds are what a counted string still has room for. */
#ifndef TN_TEXT_GRAMMAR_LOCAL_H
#define TN_TEXT_GRAMMAR_LOCAL_H

#include "text/grammar/machine.h"
#include "text/grammar/vocab.h"

typedef struct tn_gescape {
    uint32_t at, round; /* node of the tree */
} tn_gescape;

typedef struct tn_glocal {
    uint32_t node, loop; /* loop: whose body runs below the node, + 1, or 0 */
    uint64_t *all;       /* tokens that stay inside, in whatever round */
    uint32_t *by_round;  /* their ids, those of few rounds first */
    uint32_t *n_upto;    /* [n_rounds]: so many of them begin at most r rounds */
    size_t n, n_rounds;
    tn_gescape *ends; /* tokens that end at an escape */
    size_t n_ends;
    tn_gescape *branches;    /* nodes that follow an escape, by the class of their byte */
    uint32_t branch_at[257]; /* [class]: the first of a class */
} tn_glocal;

/* A piece is a walk of one subtree of the root from one state. Nodes that differ in their first byte only
 * share most of them. */
typedef struct tn_gpiece {
    uint32_t state, at; /* behind the first byte; its node */
    size_t first_id, n_ids, first_esc, n_esc;
} tn_gpiece;

typedef struct tn_glocals {
    tn_ctx *ctx;
    const tn_gvocab *v;
    size_t n_words; /* of a mask */
    uint32_t *way;  /* [max_depth + 1] states along a branch of the tree */
    tn_glocal *v_local;
    size_t n_local, cap_local;
    tn_gpiece *pieces;
    size_t n_pieces, cap_pieces;
    uint32_t *ids, *rounds; /* of the pieces */
    size_t n_ids, cap_ids, cap_rounds;
    tn_gescape *esc;
    size_t n_esc, cap_esc;
} tn_glocals;

/* Opens them and borrows v. n_words is the number of 64-bit words of a mask. */
tern_status tn_glocals_open(tn_glocals *l, tn_ctx *ctx, const tn_gvocab *v, size_t n_words, tern_error *err);
void tn_glocals_close(tn_glocals *l);
/* Notes that the machine's states have other numbers now. */
void tn_glocals_renumbered(tn_glocals *l);
/* Returns what is known of a node over the body of a loop (+ 1; 0: any frame), and makes it when there is
 * none. Returns NULL when there is no memory; m->st says so. */
const tn_glocal *tn_glocals_get(tn_glocals *l, tn_gmachine *m, uint32_t node, uint32_t loop);

#endif
