/* server/scores.h - log-probabilities of a prompt's tokens, and the lists in which completions of OpenAI's API tell
 * those of a text's tokens:
 *
 *   tokens  token_logprobs  top_logprobs  text_offset      one entry a token, in each
 *
 * A token's log-probability is that of drawing it after all tokens before it. Before the first there are none: its
 * entries are null. Offsets are in characters of the text that is told: where a token begins, or, for one that begins
 * within a character, where that does. The likeliest tokens have the token itself with them. */
#ifndef TN_SERVER_SCORES_H
#define TN_SERVER_SCORES_H

#include "base/json.h"
#include "tern.h"

#include <stdint.h>

typedef struct tn_scores {
    int32_t n_top;
    float *logprob;     /* [n_ids], of a prompt's tokens from the second on */
    int32_t *top;       /* [n_ids][n_top], the likeliest first; -1: there are no more */
    float *top_logprob; /* the same */
} tn_scores;

tern_status tn_scores_open(tn_scores *x, size_t n_ids, int32_t n_top, tern_error *err);
/* Token i is `token`, and was read after these logits. */
void tn_scores_put(tn_scores *x, size_t i, int32_t token, const float *logits, size_t n_vocab);
void tn_scores_close(tn_scores *x);

/* So many characters, and the bytes of one that is not whole. What is no UTF-8 counts as tn_json_string tells it. */
typedef struct tn_place {
    size_t n_chars;
    uint8_t part[4];
    int n_part;
} tn_place;

void tn_place_pass(tn_place *p, const char *text, size_t n);

typedef struct tn_score_lists {
    json_t *tokens, *logprobs, *tops, *offsets;
} tn_score_lists;

void tn_score_lists_begin(tn_score_lists *x);
/* Tokens of a prompt that is told as this text. A control token that the text does not have, or a blank that it has not in
 * front, takes none of it. */
void tn_score_lists_prompt(tn_score_lists *x, const tn_scores *scores, const tern_engine *e,
                           const int32_t *ids, size_t n_ids, const char *text, size_t n_text, tn_place *at);
/* A token of an answer as tn_said_logprob or, with drawn, tn_said_prob tells it (server/sink.h). */
void tn_score_lists_token(tn_score_lists *x, const tern_engine *e, const json_t *token, bool drawn,
                          tn_place *at);
/* The lists as one object; NULL: no memory. */
json_t *tn_score_lists_end(tn_score_lists *x);

#endif
