/* draft/draft.h - drafts for one session: guesses of the model's next tokens, to be verified in one forward
 * (sd.npu 4.3, 4.4).
 *
 *   text      the session's tokens, ending with the one just drawn         tn_draft_push, tn_draft_truncate
 *   store     other texts that answers may copy from                       tn_draft_learn
 *   drafters  lookup (n-gram), sam (suffix automata over text and store), calibrated (what the model itself
 *             predicted at places of the text), extend (rejected drafts kept for later), and three from outside
 *             (a draft model, the model's own layer that guesses one token further, a head)
 *   plan      all proposals merged into one tree, pruned to what pays         proposals.h
 *
 * In every step the session pushes the drawn token, plans, verifies the tree, pushes the accepted tokens,
 * and reports the time and the rejected drafts. */
#ifndef TN_DRAFT_DRAFT_H
#define TN_DRAFT_DRAFT_H

#include "draft/proposals.h"
#include "draft/sam.h"

typedef struct tn_draft tn_draft;

enum {
    TN_DRAFT_LOOKUP = 1,
    TN_DRAFT_SAM = 2,
    TN_DRAFT_CALIBRATED = 4,
    TN_DRAFT_EXTEND = 8,
    TN_DRAFT_MODEL = 16,
    TN_DRAFT_MTP = 32,
    TN_DRAFT_HEAD = 64,
    TN_DRAFT_WHERE_ANY = 128, /* with MTP and HEAD: where there is one */
    TN_DRAFT_ALL = TN_DRAFT_SAM | TN_DRAFT_CALIBRATED | TN_DRAFT_EXTEND | TN_DRAFT_MTP | TN_DRAFT_HEAD |
                   TN_DRAFT_WHERE_ANY
};
enum {
    TN_DRAFT_VOCAB = 2048
}; /* distinct tokens of a text that calibration covers; later ones are left
                                   out */

/* Reads a list of drafters: "none", "all", "auto" (all), or, separated by commas, some of lookup, sam,
 * calibrated, extend, mtp, head and, last, model:FILE. *model points into text or is NULL. TERN_E_INVALID names
 * what is wrong. */
tern_status tn_draft_parse(const char *text, uint32_t *drafters, const char **model, tern_error *err);

/* Opens drafts for texts of at most n_ctx tokens from a vocabulary of n_vocab. */
tern_status tn_draft_open(tn_ctx *ctx, int32_t n_vocab, int32_t n_ctx, tn_draft **out, tern_error *err);
void tn_draft_close(tn_draft **d);
size_t tn_draft_bytes(const tn_draft *d);

/* Appends one token to the text; an id beyond the vocabulary, a row of a picture, is one and the same to drafts.
 * Proposals made at the old end are judged by it. */
tern_status tn_draft_push(tn_draft *d, int32_t id, tern_error *err);
/* Drops all but the first n tokens. Calibration keeps its data on those. */
tern_status tn_draft_truncate(tn_draft *d, int32_t n, tern_error *err);
/* Replaces the text by tokens[0..n), reusing the common beginning. */
tern_status tn_draft_sync(tn_draft *d, const int32_t *tokens, int32_t n, tern_error *err);

/* Adds another text to draft from, for as long as d is open. */
tern_status tn_draft_learn(tn_draft *d, const int32_t *tokens, size_t n, tern_error *err);

/* Begins calibration: returns the distinct tokens of the text, at most TN_DRAFT_VOCAB. */
const int32_t *tn_draft_vocabulary(const tn_draft *d, int32_t *n);
/* Takes the logits [n_vocabulary] of those tokens at a position of the text, which predict the next token. */
void tn_draft_successors(tn_draft *d, int32_t pos, const float *logits, int32_t n_vocabulary);
/* Takes logits [tree->n][vocabulary] of a forward's rows. The tree's root is not in the text yet. */
void tn_draft_verified(tn_draft *d, const tn_tree *tree, const float *logits);

/* The first exports what was learned from forwards, as at most TN_DRAFT_RECALLED numbers, and returns
 * their number; out may be NULL. The second adds such numbers to what is known. They are untrusted:
 * senseless ones are ignored. */
enum { TN_DRAFT_RECALLED = 2048 * 9 };
size_t tn_draft_recalled(const tn_draft *d, int32_t *out);
void tn_draft_recall(tn_draft *d, const int32_t *in, size_t n);

/* An outside drafter adds its proposals to the tree of the text's last token. */
typedef void (*tn_draft_outside)(void *user, tn_proposals *p, const int32_t *text, int32_t n);
/* drafter: TN_DRAFT_MODEL, TN_DRAFT_MTP or TN_DRAFT_HEAD. confidence, in [0,1], chooses the class of the proposal. */
int tn_draft_outside_class(uint32_t drafter, float confidence);
void tn_draft_set_outside(tn_draft *d, uint32_t drafter, tn_draft_outside propose, void *user);

/* Numbers of verified and of accepted drafts of these drafters. A draft counts for the drafter whose rate
 * decided. */
void tn_draft_counts(const tn_draft *d, uint32_t drafters, uint64_t *n_verified, uint64_t *n_accepted);

/* Plans the tree to verify, rooted at the last token of the text. out->n == 1 means that no draft pays.
 * n_beside rows of other texts share the forward, which changes the cost of a further row. */
void tn_draft_plan(tn_draft *d, uint32_t drafters, int32_t max_rows, int32_t n_beside, bool eager,
                   tn_tree *out);
/* Reports the time of a forward of n rows. */
void tn_draft_timed(tn_draft *d, int32_t n_rows, int64_t ns);
/* Number of steps without verification because forwards of several rows are slow here. */
uint64_t tn_draft_refused(const tn_draft *d);
/* Gives known times of n classes, relative to a forward of one row. With fixed they replace measured times;
 * else they are the initial values. */
void tn_draft_give_costs(tn_draft *d, const float *rows, const float *relative, int n, bool fixed);
int tn_draft_costs(const tn_draft *d, float *rows, float *relative); /* as measured, at most TN_PROP_COSTS */
/* Reports that the text left the tree after row `last`, with logits [tree->n][n_vocab] of its rows. What the
 * model agreed with after the rejection is kept for later drafts. */
void tn_draft_rejected(tn_draft *d, const tn_tree *tree, int32_t last, const float *logits);

#endif
