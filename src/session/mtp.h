/* session/mtp.h - drafts by the model's own layer that guesses one token further (model/next.h), or by a head:
 * a layer of EAGLE-3; an assistant (model/assistant.h), which has no rows of its own and reads the session's
 * keys and values; or a drafter of DFlash (model/dflash.h), which drafts several tokens at once (mtp_block.c).
 *
 *   text      every token that becomes text is noted, with its state after the layers        tn_mtp_note
 *   rows      row i of the layer has two neighbours: the state of one token and the embedding of the next. Of
 *             a prompt's rows only keys and values are computed, which costs a projection and these two
 *   drafts    the row of the drawn token, then rows of guesses; the true rows overwrite them
 *
 * The layer's text begins where it was first noted: after a loaded state it knows less, and drafts all the
 * same. A copied one brings its keys and values. A wrong guess costs time, never text. */
#ifndef TN_SESSION_MTP_H
#define TN_SESSION_MTP_H

#include "draft/proposals.h"
#include "session/evaluator.h"

typedef struct tn_mtp tn_mtp;

/* For a session of an engine whose model has such a layer (TN_DRAFT_MTP), or that has a head (TN_DRAFT_HEAD);
 * evaluator and state are the session's. */
tern_status tn_mtp_open(tern_engine *e, uint32_t drafter, tn_evaluator *evaluator, const tn_state *state,
                        int32_t n_ctx, tn_mtp **out, tern_error *err);
void tn_mtp_close(tn_mtp **m);
/* Notes that the session's text ends with this token at position pos. x: its residual after the last
 * layer; for a head of EAGLE-3 or DFlash its row of TAPS. */
void tn_mtp_note(tn_mtp *m, int32_t pos, int32_t token, const float *x);
/* dst's text becomes the first n tokens of src's, with what is known of it. src NULL: nothing is known of them. */
void tn_mtp_copy(tn_mtp *dst, const tn_mtp *src, int32_t n);
/* A tn_draft_outside: proposes the successors of text[n - 1], which is drawn but not evaluated. */
void tn_mtp_propose(void *m, tn_proposals *p, const int32_t *text, int32_t n);
/* For tests: the logits of the layer's guess after `token`, float[n_vocab], of a head those of the tokens
 * that it knows. At depth 0 the token follows the noted text, at higher depths the token of the previous
 * call; a block is computed whole at depth 0. NULL: the state before it is unknown. */
const float *tn_mtp_logits(tn_mtp *m, int32_t token, int32_t depth);
/* For measurements: decides as if a guess cost this many steps of one row, instead of measuring. */
void tn_mtp_give_cost(tn_mtp *m, float steps);
int64_t tn_mtp_note_ns(const tn_mtp *m); /* time spent in keeping up */
uint64_t tn_mtp_n_guesses(const tn_mtp *m);

#endif
