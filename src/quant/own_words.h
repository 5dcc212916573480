/* quant/own_words.h - calibration text that the model writes itself: a Chinese model writes Chinese, a
 * code model writes code, and nobody has to find text like what the model will read.
 *
 * Several streams run together. Half of them begin like the model's texts and continue freely. The other
 * half, if there is a chat template, plays both sides of conversations: the model writes a question
 * between the template's marks, and then the answer. A finished text is followed by a new one until the
 * stream has a window's tokens. Tokens are drawn from the whole distribution (temperature 1). The same
 * model gives the same text. */
#ifndef TN_QUANT_OWN_WORDS_H
#define TN_QUANT_OWN_WORDS_H

#include "model/model.h"

typedef struct tn_own_words_args {
    tn_ctx *ctx;
    tn_pool *pool;
    const tn_kernels *kern;
    const tn_model *m;                             /* loaded */
    const tn_tokenizer *t;                         /* the model's; m has none if an outline took it */
    int32_t n_streams;                             /* a multiple of 2 */
    int32_t window;                                /* tokens of a stream */
    bool (*progress)(void *user, double fraction); /* false: stop */
    void *user;
} tn_own_words_args;

typedef struct tn_own_words {
    tn_ctx *ctx;
    int32_t *ids;          /* [n_free + n_chat], stream by stream, the free ones first */
    size_t n_free, n_chat; /* tokens; n_chat: 0 without a chat template */
} tn_own_words;

/* TERN_E_CANCELLED when progress said so. */
tern_status tn_own_words_write(const tn_own_words_args *a, tn_own_words *out, tern_error *err);
void tn_own_words_free(tn_own_words *w); /* may be zero */

/* The model's mean surprise per token of a given text of n_ids tokens, nats. */
tern_status tn_own_words_surprise(const tn_own_words_args *a, const int32_t *ids, size_t n_ids, double *nats,
                                  tern_error *err);

#endif
