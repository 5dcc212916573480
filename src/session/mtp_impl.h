/* session/mtp_impl.h - what drafts of one token after the other (mtp.c) and of blocks (mtp_block.c) share. */
#ifndef TN_SESSION_MTP_IMPL_H
#define TN_SESSION_MTP_IMPL_H

#include "model/assistant.h"
#include "model/dflash.h"
#include "model/next.h"
#include "session/mtp.h"

enum { TN_MTP_DEPTH = 8, TN_MTP_TRY_FIRST = 32, TN_MTP_TRY_LAST = 256, TN_MTP_COLD = 4 };
/* Saving that drafts must promise, relative to their cost: both are estimates. And how much the shortest time
 * grows with every longer one. */
static const float TN_MTP_MARGIN = 1.2f, TN_MTP_STEP_RISE = 1.01f;
/* Probability of a right guess: its initial value, and the weight of an observation. */
static const float TN_MTP_LIKELY = 0.6f, TN_MTP_LIKELY_SHARE = 0.05f;

struct tn_mtp {
    tn_ctx *ctx;
    tern_engine *e;
    const tn_model *layer; /* the model's own, or the head's */
    const int32_t *ids;    /* tokens of the logits; NULL: all */
    size_t n_logits, raw;  /* values of what a token's state comes of */
    uint32_t drafter;
    tn_evaluator *evaluator;
    bool assists;           /* the head is an assistant: then there are no rows, no keys and no values */
    tn_assistant assistant; /* in place of text */
    bool blocks;            /* the head drafts blocks (DFlash): a token's row needs no other token */
    tn_dflash dflash;       /* in place of text */
    tn_next_text text;
    int32_t first, end; /* noted positions of the session's text: first .. end - 1 */
    /* number of the last rows of first .. end - 2 (of blocks end - 1) that wait for their keys and values */
    int32_t n_waiting;
    int32_t
        guessed; /* token of the row after the text if its keys and values are already computed; -1: none */
    bool knows;  /* the state after position end - 1 is known; else it is zeros */
    /* [TN_TREE_MAX + 1] of the waiting rows; after them the state of position end - 1. A head's states wait
     * as the `raw` values that it joins; joined is their place then, else NULL. Of an assistant: one
     * embedding, and what the model's last layer left at position end - 1, before the norm. Of blocks: their
     * rows' embeddings; what waiting tokens are kept of. */
    float *embeddings, *states, *joined;
    float *out;       /* [n_embd] state of a guess; of blocks of every row */
    float *logits;    /* of a guess; of blocks of every draft */
    float step_ns;    /* time of a guess: the quick end of the measurements, as for steps (proposals.h) */
    float given_cost; /* cost of a guess in steps; 0: derived from step_ns */
    /* Probability that a first guess is right, and one after a guess: running means. */
    float likely[2];
    /* Of blocks: probability that a draft is right where those in front of it are, by its depth, and how
     * often that was seen; the time of so many rows, as step_ns, 0: not known; blocks so far. */
    float rate[TN_TREE_MAX], block_ns[TN_TREE_MAX + 1];
    int32_t n_seen[TN_TREE_MAX], n_blocks;
    /* Recent price of a token, and tokens that followed right guesses for free: see learn. */
    float sum_price, sum_steps, tail;
    int32_t n_path, text_end; /* the previous step's guesses, and the length of the text they followed */
    int32_t path[TN_TREE_MAX];
    int32_t n_skipped, try_after; /* steps without a guess, and the number of them before the next try */
    uint64_t n_guesses;
    int64_t note_ns;
};

/* Values of an embedding, and of the state for a guess further. */
size_t tn_mtp_width(const tn_mtp *m);
/* The token's embedding as the drafter reads it. */
void tn_mtp_embed(const tn_mtp *m, int32_t token, float *out);
/* Learns from the previous step, and forgets its guesses. */
void tn_mtp_learn(tn_mtp *m, const tn_proposals *p, const int32_t *text, int32_t n);
bool tn_mtp_is_timed(const tn_mtp *m, tn_proposals *p);
/* Where drafts do not pay: is it time to try some? */
bool tn_mtp_try(tn_mtp *m, tn_proposals *p);

/* Of blocks: the token at position end becomes text. */
void tn_mtp_block_note(tn_mtp *m, const float *taps);
void tn_mtp_block_flush(tn_mtp *m);
void tn_mtp_block_copy(tn_mtp *dst, const tn_mtp *src, int32_t n);
/* The logits of n_rows - 1 drafts after this token, in m->logits. False: nothing of the text is known, or
 * there is no room. */
bool tn_mtp_block_logits(tn_mtp *m, int32_t token, int32_t n_rows);
void tn_mtp_block_propose(tn_mtp *m, tn_proposals *p, const int32_t *text, int32_t n);

#endif
