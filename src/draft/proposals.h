/* draft/proposals.h - the proposals of all drafters for one step, merged into one tree: their
 * probabilities, and which are worth verifying.
 *
 * Every proposal has a class (drafter and strength of its evidence). A class's acceptance rate is updated
 * whenever the text continues after a proposal, verified or not, so it is learned even without trying. A
 * node's probability is the product of the rates along its path; the sum over the chosen nodes is the
 * expected number of accepted draft tokens. So the best tree of n nodes is the n likeliest nodes, and the
 * best n maximises (1 + sum) / cost(n rows). */
#ifndef TN_DRAFT_PROPOSALS_H
#define TN_DRAFT_PROPOSALS_H

#include "model/tree.h"

#include <stdbool.h>

enum { TN_PROP_MAX = 192, TN_PROP_CLASSES = 160, TN_PROP_EVIDENCE = 3, TN_PROP_COSTS = 9 };

typedef struct tn_prop {
    int32_t token;
    int16_t parent, child, sibling, depth; /* child: the first; -1 = none */
    uint8_t classes[TN_PROP_EVIDENCE], n_classes;
    uint8_t by; /* of nodes chosen for verification: the class whose rate decided */
    float p;    /* of the path from the root */
} tn_prop;

typedef struct tn_proposals {
    int32_t n; /* node 0 is the root */
    tn_prop node[TN_PROP_MAX];
    float tried[TN_PROP_CLASSES], accepted[TN_PROP_CLASSES]; /* decaying counts, initialised with a guess */
    uint64_t n_verified[TN_PROP_CLASSES],
        n_accepted[TN_PROP_CLASSES]; /* verified because of the class's rate; accepted of those */
    int32_t at;                      /* current node of the text in this tree, -1 once it has left it */
    /* The nodes chosen for verification, their promise, and running sums of promised and kept tokens, because
     * products of rates are not exact. */
    bool chosen[TN_PROP_MAX];
    float promised, kept, sum_promised, sum_kept;
    /* Times of forwards in classes of neighbouring numbers of rows. floor_ns is the quick end of recent
     * measurements, so that cold caches and other programs do not count. relative is against one row: from
     * the floors while they are fresh, else the previous value. */
    struct {
        float rows, floor_ns, relative;
        int32_t n, last; /* number of measurements, and the step of the last one */
        bool known;      /* relative is measured, not guessed */
    } cost[TN_PROP_COSTS];
    int32_t n_steps;
    /* Steps whose drafts would have paid but for the measured times: in all; since times were last tried
     * again; how often they were. probing: the next forward of several rows tries them. */
    uint64_t n_refused;
    int32_t n_waited, n_probed;
    bool probing;
    bool cost_given; /* times are given; measured ones are ignored */
    /* Relative time of every number of rows from the classes above, valid while is_filled. */
    float cost_of[TN_TREE_MAX + 1];
    bool is_filled;
    /* The previous step: its time in units of one row, and its tokens; 0: none yet. spent: the time of
     * outside drafters in this step; n_rows: the rows verified in it. */
    float last_cost, last_tokens, spent;
    int32_t n_rows;
    int32_t most_rows; /* that may be verified, the root's among them; 0: TN_TREE_MAX */
    /* Proposes continuations of a node that an outside drafter proposed; may be NULL. */
    void (*behind)(void *user, struct tn_proposals *p, int32_t node);
    void *behind_user;
} tn_proposals;

/* Sets the initial guess of a class's acceptance rate. */
void tn_prop_guess(tn_proposals *p, int class_, float rate);
float tn_prop_rate(const tn_proposals *p, int class_);

/* Begins an empty tree under this token, the new end of the text. */
void tn_prop_begin(tn_proposals *p, int32_t root);
/* Proposes `token` after node `parent`. A repeated proposal is one node with both pieces of evidence. Returns
 * -1 when there is no room. */
int32_t tn_prop_add(tn_proposals *p, int32_t parent, int32_t token, int class_);
/* Reports the next token of the text, and counts it for every proposal made at this place. */
void tn_prop_judge(tn_proposals *p, int32_t token);
/* Reports the time of a forward of n rows. */
void tn_prop_timed(tn_proposals *p, int32_t n_rows, int64_t ns);

int tn_prop_cost_class(int32_t n_rows); /* its class in cost */
/* Returns the probability below which a node cannot pay, whatever else is in the tree. */
float tn_prop_worth(tn_proposals *p);
/* The time of a forward of one row, derived from the fewest rows measured; 0: none yet. */
float tn_prop_step_ns(tn_proposals *p);
/* Steps of one row saved by verifying drafts that promise this many tokens, at this cost per token without
 * drafts, less the cost of a further row after n_rows others. */
float tn_prop_gain(tn_proposals *p, float tokens, float price, int32_t n_rows);

/* Chooses the tree to verify: at most max_rows rows with its root, beside n_beside rows of other texts. If
 * eager, as many nodes as fit; otherwise only those that pay.
 *
 * If only the measured times make every draft too expensive, a tree of at most four rows is verified after 32
 * such steps, then 64, then 128 and so on: they may date from a busy moment, and without verification nothing
 * new is measured. They are dropped if those rows take less than half of the time that they say. */
void tn_prop_choose(tn_proposals *p, int32_t max_rows, int32_t n_beside, bool eager, tn_tree *out);

#endif
