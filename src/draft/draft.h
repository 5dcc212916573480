/* draft/draft.h - drafts for one session: guesses of what the model will say next, to be verified in one
 * forward (sd.npu 4.3, 4.4).
 *
 *   text      the session's tokens, with the one just drawn at the end     tn_draft_push, tn_draft_truncate
 *   store     other texts answers may copy from                            tn_draft_learn
 *   drafters  lookup (n-gram), sam (suffix automata over text and store), calibrated (what the model itself
 *             predicted at places of the text), extend (rejected drafts kept for later), and two from outside
 *             (a draft model, the model's own layer that guesses further)
 *   plan      all proposals merged into one tree, cut to what pays         proposals.h
 *
 * In every step the session pushes the drawn token, plans, verifies the tree, pushes what was accepted, and
 * reports time and rejects. */
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
    TN_DRAFT_WHERE_ANY = 64, /* with MTP: where the model has such a layer */
    TN_DRAFT_ALL = TN_DRAFT_SAM | TN_DRAFT_CALIBRATED | TN_DRAFT_EXTEND | TN_DRAFT_MTP | TN_DRAFT_WHERE_ANY
};
enum { TN_DRAFT_VOCAB = 2048 }; /* distinct tokens of a text that calibration looks at; later ones are not */

/* Reads a list of drafters: "none", "all", "auto" (all), or, separated by commas, some of lookup, sam,
 * calibrated, extend, mtp and, last, model:FILE. *model points into text or is NULL. TERN_E_INVALID names what is
 * wrong. */
tern_status tn_draft_parse(const char *text, uint32_t *drafters, const char **model, tern_error *err);

/* Opens drafts for texts of at most n_ctx tokens from a vocabulary of n_vocab. */
tern_status tn_draft_open(tn_ctx *ctx, int32_t n_vocab, int32_t n_ctx, tn_draft **out, tern_error *err);
void tn_draft_close(tn_draft **d);
size_t tn_draft_bytes(const tn_draft *d);

/* Lets the text grow by one token. Proposals made at its end are judged by it. */
tern_status tn_draft_push(tn_draft *d, int32_t token, tern_error *err);
/* Forgets all but the first n tokens. What calibration knows of those stays. */
tern_status tn_draft_truncate(tn_draft *d, int32_t n, tern_error *err);
/* Makes the text tokens[0..n) and keeps what is the same. */
tern_status tn_draft_sync(tn_draft *d, const int32_t *tokens, int32_t n, tern_error *err);

/* Adds another text to draft from; it is kept until the end. */
tern_status tn_draft_learn(tn_draft *d, const int32_t *tokens, size_t n, tern_error *err);

/* Calibration begins here. This returns the distinct tokens of the text, at most TN_DRAFT_VOCAB. */
const int32_t *tn_draft_vocabulary(const tn_draft *d, int32_t *n);
/* Takes logits [n_vocabulary] of those tokens at a position of the text: what the model expects after it. */
void tn_draft_successors(tn_draft *d, int32_t pos, const float *logits, int32_t n_vocabulary);
/* Takes logits [tree->n][vocabulary] of the rows of a forward. The text has not grown by its root yet. */
void tn_draft_verified(tn_draft *d, const tn_tree *tree, const float *logits);

/* The first gives what is known from forwards as numbers to keep: their number, at most TN_DRAFT_RECALLED;
 * out may be NULL. The second takes them back, beside what is known already. They may come from anywhere, so
 * what makes no sense is left out. */
enum { TN_DRAFT_RECALLED = 2048 * 9 };
size_t tn_draft_recalled(const tn_draft *d, int32_t *out);
void tn_draft_recall(tn_draft *d, const int32_t *in, size_t n);

/* A drafter from outside adds its proposals to the tree of the text's last token. */
typedef void (*tn_draft_outside)(void *user, tn_proposals *p, const int32_t *text, int32_t n);
/* drafter: TN_DRAFT_MODEL or TN_DRAFT_MTP. confidence, in [0,1]: the class of such a proposal is by it. */
int tn_draft_outside_class(uint32_t drafter, float confidence);
void tn_draft_set_outside(tn_draft *d, uint32_t drafter, tn_draft_outside propose, void *user);

/* Drafts that were verified, and those of them that became text, of these drafters: of each draft the one whose word
 * counted most. */
void tn_draft_counts(const tn_draft *d, uint32_t drafters, uint64_t *n_verified, uint64_t *n_accepted);

/* Plans the tree to verify, rooted at the last token of the text. out->n == 1 means that nothing is worth
 * drafting. The same forward has n_beside rows of other texts: then a row more must pay for less. */
void tn_draft_plan(tn_draft *d, uint32_t drafters, int32_t max_rows, int32_t n_beside, bool eager,
                   tn_tree *out);
/* Reports that a forward of n rows took so long. */
void tn_draft_timed(tn_draft *d, int32_t n_rows, int64_t ns);
/* Steps that verified nothing because of what forwards of several rows take here. */
uint64_t tn_draft_refused(const tn_draft *d);
/* Gives times known beforehand, relative to a forward of one row: those of n classes. With fixed they stand
 * instead of what will be measured, else they are what it begins with. */
void tn_draft_give_costs(tn_draft *d, const float *rows, const float *relative, int n, bool fixed);
int tn_draft_costs(const tn_draft *d, float *rows, float *relative); /* as measured, at most TN_PROP_COSTS */
/* Reports that the text left the tree after row `last`, with logits [tree->n][n_vocab] of its rows. What the
 * model agreed with below the rejection is kept for later drafts. */
void tn_draft_rejected(tn_draft *d, const tn_tree *tree, int32_t last, const float *logits);

#endif
