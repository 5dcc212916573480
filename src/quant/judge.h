/* quant/judge.h - a packed model's loss on text that was used for no decision. Two copies of the text pass
 * every layer: one in floats, one as the device will compute it, with the layer's rounded weights and its
 * inputs in 8 bits. At the end their predictions are compared. */
#ifndef TN_QUANT_JUDGE_H
#define TN_QUANT_JUDGE_H

#include "quant/corpus.h"
#include "quant/pack.h"
#include "quant/recipe.h"

/* Held-out text, kind by kind, each in whole windows. */
typedef struct tn_held {
    const int32_t *ids;
    int32_t n[TN_N_WORDS]; /* tokens of each kind */
    int32_t window;        /* of all; windows are independent */
} tn_held;

typedef struct tn_judge {
    const tn_recipe *r; /* borrowed, like what it names */
    tn_held held;       /* its ids are the first copy's */
    tn_corpus c;        /* both copies, the float one first */
    int32_t n_tok;      /* of a copy */
    int32_t *ids;
} tn_judge;

typedef struct tn_loss {
    double kl, stderr_; /* nats a token: KL of the packed model's predictions from the float model's */
    double nll_diff;    /* of the tokens that follow */
    int32_t n_tok;      /* number of predictions compared; 0: no text of this kind */
} tn_loss;

/* For every kind of text. */
typedef struct tn_losses {
    tn_loss of[TN_N_WORDS];
} tn_losses;

/* The kind that loses most. */
tn_words tn_losses_worst(const tn_losses *l);

/* embedding_bits: of every row of the embedding, each weight rounded by itself. (If it is also the output
 * layer, the package's rows differ slightly: its inputs are not known yet.) */
tern_status tn_judge_open(tn_judge *j, const tn_recipe *r, tn_model *m, const tn_held *held,
                          const uint8_t *embedding_bits, tern_error *err);
void tn_judge_close(tn_judge *j); /* may be zero */

/* Passes both copies through a loaded layer. made: its sites. */
tern_status tn_judge_layer(tn_judge *j, int layer, const tn_recipe_site *made, tern_error *err);
/* After the last layer, through the output layer. */
tern_status tn_judge_end(tn_judge *j, const tn_recipe_site *made, tn_losses *out, tern_error *err);

#endif
