/* text/grammar/local.h - what a node allows whatever frames lie below its rule.
 *
 * Where most bytes are allowed (inside a string), a mask covers most of the tree of tokens. So for such a
 * node the tree is walked once, over the hole (machine.h). Tokens that stay inside the rule are allowed under
 * every frame. Where the rule ends, at an escape, the frame decides; the tokens that end there are kept, and
 * the branches that continue, by their first byte.
 *
 * Over a loop's body everything has a round: how many rounds were begun since. A counted string has room for
 * the tokens of at most so many rounds.
 *
 * Most characters of a string lead from a state to itself, or, over a loop's body, to the same state a round
 * later. A subtree of only such characters is not walked: its tokens are a range of the vocabulary
 * (tn_gbulk), and its rounds are its number of characters. */
#ifndef TN_TEXT_GRAMMAR_LOCAL_H
#define TN_TEXT_GRAMMAR_LOCAL_H

#include "text/grammar/machine.h"
#include "text/grammar/vocab.h"

typedef struct tn_gescape {
    uint32_t at, round; /* node of the tree */
} tn_gescape;

/* All nodes [first, past) have the state of one node above them, or the state inside a character; with
 * `shift` a round later for every complete character. A token with c complete characters is in round base +
 * c. An escape is possible where the last character is complete. */
typedef struct tn_gbulk {
    uint32_t first, past, first_id, past_id;
    int32_t base, escape_base;
    bool escapes, shift;
} tn_gbulk;

/* The nodes whose byte is of one class and that follow an escape. */
typedef struct tn_gbranches {
    tn_gescape *v;
    size_t n, cap;
    bool known;
} tn_gbranches;

/* Ids ordered by round: the first upto[r] have at most r rounds. */
typedef struct tn_grounds {
    uint32_t *ids, *upto; /* [n_rounds] */
    size_t n, n_rounds;
} tn_grounds;

typedef struct tn_glocal {
    uint32_t node, loop; /* loop: whose body runs below the node, + 1, or 0 */
    uint64_t *all;       /* tokens that stay inside, in whatever round */
    tn_grounds inside;   /* the same over a loop, else empty */
    tn_grounds ends;     /* tokens that end at an escape */
    tn_gescape *esc;     /* the escapes, ascending, but for those of bulks */
    size_t n_esc;
    tn_gbulk *bulks; /* ascending */
    size_t n_bulks;
    tn_gbranches *branches; /* [n_classes], each made on first use */
} tn_glocal;

/* A piece is a walk of one subtree of the root from one state. Nodes that differ only in their first byte
 * share most pieces. */
typedef struct tn_gpiece {
    uint32_t state, at; /* after the first byte; its node */
    size_t first_id, n_ids, first_esc, n_esc, first_bulk, n_bulks;
} tn_gpiece;

/* For a state: the groups of bytes (vocab.h) that all lead back to it, or to the same state a round later; of
 * non-ASCII bytes, whole characters. */
typedef struct tn_guniform {
    uint32_t still, shifted;
    bool known;
} tn_guniform;

typedef struct tn_glocals {
    tn_ctx *ctx;
    const tn_gvocab *v;
    size_t n_words; /* of a mask */
    uint32_t *way;  /* [max_depth + 1] states along a branch of the tree */
    tn_glocal *v_local;
    size_t n_local, cap_local, n_classes;
    tn_guniform *uniform; /* [n_uniform] by state */
    size_t n_uniform, cap_uniform;
    uint32_t computed[16]; /* states whose `uniform` was found by looking at every byte */
    size_t n_computed;
    tn_gpiece *pieces;
    size_t n_pieces, cap_pieces;
    uint32_t *ids, *rounds; /* of the pieces */
    size_t n_ids, cap_ids, cap_rounds;
    tn_gescape *esc;
    size_t n_esc, cap_esc;
    tn_gbulk *bulks;
    size_t n_bulks, cap_bulks;
} tn_glocals;

/* Opens them and borrows v. n_words is the number of 64-bit words of a mask. */
tern_status tn_glocals_open(tn_glocals *l, tn_ctx *ctx, const tn_gvocab *v, size_t n_words, tern_error *err);
void tn_glocals_close(tn_glocals *l);
/* Notes that the machine's states have been renumbered. */
void tn_glocals_renumbered(tn_glocals *l);
/* Returns the entry of a node over the body of a loop (+ 1; 0: any frame), made on first use. Returns NULL
 * without memory and sets m->st. */
tn_glocal *tn_glocals_get(tn_glocals *l, tn_gmachine *m, uint32_t node, uint32_t loop);
/* Returns the branches of a class, or NULL as above. */
const tn_gbranches *tn_glocal_branches(const tn_glocals *l, tn_gmachine *m, tn_glocal *x,
                                       uint32_t byte_class);

#endif
