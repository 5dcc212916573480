/* draft/proposals.h - what all drafters propose for one step, merged into one tree; how likely each proposal
 * is, learned from what the model made of earlier ones; and which of them are worth verifying.
 *
 * Every proposal carries a class (drafter and strength of its evidence). A class's acceptance rate is counted
 * whenever the text goes on after a proposal, whether it was verified or not. So trying nothing still
 * teaches. The probability of a node is the product along its path. The sum over the chosen nodes is the
 * expected number of draft tokens accepted. So the best tree of n nodes is the n likeliest nodes, and the
 * best n is where (1 + sum) / cost(n rows) is largest. */
#ifndef TN_DRAFT_PROPOSALS_H
#define TN_DRAFT_PROPOSALS_H

#include "model/tree.h"

#include <stdbool.h>

enum { TN_PROP_MAX = 192, TN_PROP_CLASSES = 160, TN_PROP_EVIDENCE = 3, TN_PROP_COSTS = 9 };

typedef struct tn_prop {
    int32_t token;
    int16_t parent, child, sibling, depth; /* child: the first; -1 = none */
    uint8_t classes[TN_PROP_EVIDENCE], n_classes;
    uint8_t by; /* of those chosen for verification: the class whose rate counted */
    float p;    /* of the path from the root */
} tn_prop;

typedef struct tn_proposals {
    int32_t n; /* node 0 is the root */
    tn_prop node[TN_PROP_MAX];
    float tried[TN_PROP_CLASSES], accepted[TN_PROP_CLASSES]; /* decaying counts, begun with a guess */
    uint64_t n_verified[TN_PROP_CLASSES],
        n_accepted[TN_PROP_CLASSES]; /* chosen by the class's word, and right */
    int32_t at;                      /* where the text is in this tree, or -1 when it left it */
    /* These are the nodes chosen for verification, what they promised, and running sums of promised and kept,
     * because products of rates are not exact. */
    bool chosen[TN_PROP_MAX];
    float promised, kept, sum_promised, sum_kept;
    /* These are times of forwards by number of rows, in classes of neighbouring numbers. floor_ns is the
     * quick end of what was measured lately, so that cold caches and other programs do not count. relative is
     * against one row, from the floors while they are fresh, else from before. */
    struct {
        float rows, floor_ns, relative;
        int32_t n, last; /* measured how often, and in which step last */
        bool known;      /* relative is more than a guess */
    } cost[TN_PROP_COSTS];
    int32_t n_steps;
    /* Steps whose drafts would have paid but for what was measured: all, those since times were last forgotten,
     * and how often that was. */
    uint64_t n_refused;
    int32_t n_waited, n_forgotten;
    bool cost_given; /* known beforehand: what is measured does not count */
    /* The relative time of every number of rows by what is known above, while is_filled. */
    float cost_of[TN_TREE_MAX + 1];
    bool is_filled;
    /* The step before this one: what it took, in steps of one row, and the tokens that it gave; 0: there is none.
     * spent is what drafters from outside take of this one, n_rows what is verified in it. */
    float last_cost, last_tokens, spent;
    int32_t n_rows;
    /* Proposes what comes after a node that a drafter from outside has proposed; NULL: nobody does. */
    void (*behind)(void *user, struct tn_proposals *p, int32_t node);
    void *behind_user;
} tn_proposals;

/* Sets the first guess of a class's acceptance rate. */
void tn_prop_guess(tn_proposals *p, int class_, float rate);
float tn_prop_rate(const tn_proposals *p, int class_);

/* Begins an empty tree under this token, which the text now ends with. */
void tn_prop_begin(tn_proposals *p, int32_t root);
/* Proposes `token` after node `parent`. The same proposal made twice is one node with both pieces of
 * evidence. Returns -1 when there is no room. */
int32_t tn_prop_add(tn_proposals *p, int32_t parent, int32_t token, int class_);
/* Reports that the text goes on with this token, and counts it for every proposal made at this place. */
void tn_prop_judge(tn_proposals *p, int32_t token);
/* Reports that a forward of n rows took so long. */
void tn_prop_timed(tn_proposals *p, int32_t n_rows, int64_t ns);

int tn_prop_cost_class(int32_t n_rows); /* its class in cost */
/* Returns a bound: a node less likely than this cannot pay, whatever else is in the tree. */
float tn_prop_worth(tn_proposals *p);
/* The time of a forward of one row, by the fewest rows that were measured; 0: nothing was yet. */
float tn_prop_step_ns(tn_proposals *p);
/* What verifying drafts saves, in steps of one row, that promise so many tokens of which each takes so much without
 * them: less what a row takes that comes after n_rows others. */
float tn_prop_gain(tn_proposals *p, float tokens, float price, int32_t n_rows);

/* Chooses the tree to verify, at most max_rows rows with its root, beside n_beside rows of other texts. An
 * eager one has as many nodes as fit, else only what pays. Where it is measured times that speak against every
 * draft, they are forgotten after 8 such steps, 16 more, 32 more and so on: they may be of a moment when the
 * machine was busy, and who verifies nothing measures nothing. */
void tn_prop_choose(tn_proposals *p, int32_t max_rows, int32_t n_beside, bool eager, tn_tree *out);

#endif
