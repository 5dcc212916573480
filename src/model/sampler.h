/* model/sampler.h - from logits to a token. Filters in the order llama.cpp users know:
 * repetition penalty, top-k, top-p, min-p, temperature, draw. The draw is llama.cpp's, random numbers included: a
 * seed gives the text that it gives there, as far as the logits are equal. */
#ifndef TN_MODEL_SAMPLER_H
#define TN_MODEL_SAMPLER_H

#include "base/ctx.h"
#include "base/mt19937.h"

typedef struct tn_candidate {
    int32_t id;
    float logit; /* after penalty and temperature */
    double p;    /* normalised over the candidates kept */
} tn_candidate;

typedef struct tn_sampler {
    tn_ctx *ctx;
    tern_sampling p;
    tn_mt19937 rng;
    size_t n_vocab;
    tn_candidate *cand; /* [n_vocab] */
    uint8_t *seen;      /* [n_vocab] scratch of the penalty, all zero between calls */
    float *penalised;   /* [n_vocab] logits with the penalty; NULL: there is none */
    size_t n_drawn;     /* of cand, from which the last token was drawn; 0: it was the likeliest */
} tn_sampler;

tern_status tn_sampler_open(tn_ctx *ctx, const tern_sampling *p, size_t n_vocab, tn_sampler *out,
                            tern_error *err);
void tn_sampler_close(tn_sampler *s);

/* The distribution the next token is drawn from: candidates sorted by falling probability in s->cand, their
 * number returned (1 when greedy). Ties go to the smaller id. history: tokens so far, the penalty looks at
 * the last repeat_last_n. NaN logits count as -infinity. */
size_t tn_sampler_distribution(tn_sampler *s, const float *logits, const int32_t *history, size_t n_history);
/* Draw one token from that distribution. */
int32_t tn_sampler_draw(tn_sampler *s, const float *logits, const int32_t *history, size_t n_history);
/* log softmax(logits)[id], before any filter. */
float tn_logprob(const float *logits, size_t n_vocab, int32_t id);
int32_t tn_argmax(const float *logits,
                  size_t n_vocab); /* smallest id among equals; 0 when nothing is above -infinity */
/* The k likeliest tokens above -infinity, best first, smaller ids first among equals; returns their number.
 */
int tn_top_logits(const float *logits, size_t n_vocab, int k, int32_t *ids, float *best);
/* The same, k >= 0, with the logarithms of their probabilities before any filter. */
int tn_top_logprobs(const float *logits, size_t n_vocab, int k, int32_t *ids, float *logprobs);

#endif
