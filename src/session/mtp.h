/* session/mtp.h - drafts by the model's own layer that guesses one token further (model/next.h).
 *
 *   text      every token that becomes text is noted with what the layers left behind it      tn_mtp_note
 *   rows      row i of the layer is of two neighbours: the state after one, the token of the other; of a prompt's
 *             rows only keys and values are computed, which is a projection more than those
 *   drafts    the row of the token just drawn, then rows of what was guessed; these are overwritten by the true ones
 *
 * The layer's text begins where it was first told of one: after a loaded or copied state it knows less, and drafts all the
 * same. What it gets wrong costs time, never text. */
#ifndef TN_SESSION_MTP_H
#define TN_SESSION_MTP_H

#include "draft/proposals.h"
#include "session/evaluator.h"

typedef struct tn_mtp tn_mtp;

/* For a session of the engine, whose model has such a layer; evaluator: the session's. */
tern_status tn_mtp_open(tern_engine *e, tn_evaluator *evaluator, int32_t n_ctx, bool rope_long, tn_mtp **out,
                        tern_error *err);
void tn_mtp_close(tn_mtp **m);
/* The session's text has this token at position pos now, and none after it. x: the residual after its last layer. */
void tn_mtp_note(tn_mtp *m, int32_t pos, int32_t token, const float *x);
/* A tn_draft_outside: proposes what follows text[n - 1], which is drawn and not evaluated. */
void tn_mtp_propose(void *m, tn_proposals *p, const int32_t *text, int32_t n);
/* The logits of what the layer guesses after `token`, float[n_vocab], for tests: depth 0, where it follows the noted text;
 * one more, where it follows the token of the call before. NULL: the state in front of it is not known. */
const float *tn_mtp_logits(tn_mtp *m, int32_t token, int32_t depth);
/* For measurements: decides as if a guess took so many steps of one row, not by what is timed. */
void tn_mtp_give_cost(tn_mtp *m, float steps);
int64_t tn_mtp_note_ns(const tn_mtp *m); /* time spent in keeping up */
uint64_t tn_mtp_n_guesses(const tn_mtp *m);

#endif
