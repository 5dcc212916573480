/* measure/eval.h - accuracy of a model on a data file, the same for every scheme and mechanism.
 *
 *   ppl      plain text, cut into windows of n_ctx tokens; every token but a window's first is scored, or
 *            (protocol llama.cpp) those of the second half of each full window
 *   lambada  jsonl {context, continuation}: right when every token of the continuation is the greedy choice
 *   choice   jsonl {query, choices, gold}, {context_options, continuation, gold}, or HellaSwag text (6 lines
 *            an item): right when the gold ending has the highest log-probability per byte; by_sum counts the
 *            items where it has the highest log-probability of all its tokens together
 *   exact    jsonl {prompt, answer} (prompt may hold special tokens): right when greedy decoding gives
 *            exactly the answer and then ends; checked in one pass, since greedy text equals the answer iff
 *            each token is the argmax
 *
 * With attention_decode the tokens of answers are decoded one by one; else, and for ppl, texts are scored as
 * prompts. */
#ifndef TN_MEASURE_EVAL_H
#define TN_MEASURE_EVAL_H

#include "session/stats.h"

typedef struct tn_eval_options {
    const char *task;
    const char *data; /* file */
    int32_t n_ctx;    /* window of ppl, and room for items; 0: min(512 for ppl, else 4096, the model's) */
    int64_t limit;    /* items at most, or windows for ppl; 0 = all */
    void (*progress)(void *user, int64_t done, int64_t total, double value);
    /* accuracy tasks: every item, in order; by_sum: choice only, else as right. May be NULL */
    void (*on_item)(void *user, bool right, bool by_sum);
    void *user;
    const char *protocol; /* ppl: "windows" (default, also NULL) or "llama.cpp" */
    tern_engine *source;  /* ppl: predictions are compared with this model's; NULL: with nobody's */
    tern_engine *against; /* a second model over the same tokens or items: paired differences; may be NULL */
} tn_eval_options;

/* An estimate is a mean with its standard error. */
typedef struct tn_estimate {
    double value, stderr_;
} tn_estimate;

tn_estimate tn_eval_estimate(const double *x, size_t n);
/* Returns how probable a difference so many standard errors from zero is by chance, two-sided. */
double tn_eval_p(tn_estimate difference);

/* A loss is what a model's predictions lose against the source's, token by token over the same text
 * (nats). */
typedef struct tn_eval_loss {
    tn_estimate nll_diff; /* of the text's tokens, less the source's */
    tn_estimate kl;       /* from the source's distribution to the model's */
    double kl_p99, kl_max;
    tn_estimate same_top; /* share of the positions where both find the same token most probable */
} tn_eval_loss;

typedef struct tn_eval_result {
    bool is_ppl;
    int64_t n_items;   /* or tokens scored */
    int64_t n_skipped; /* items that do not fit the context */
    double value;      /* perplexity, or accuracy in [0,1] */
    double stderr_;    /* standard error of value */
    tn_stats stats;    /* of the session that evaluated */
    double perplexity; /* of the answers' tokens, for the accuracy tasks; 0 where it has no meaning */
    double by_sum;     /* accuracy by the log-probability of whole endings; value, where there are none */
    bool has_source, has_against;
    double source_value;             /* perplexity of the source */
    double against_value;            /* perplexity or accuracy of the second model */
    tn_eval_loss loss, against_loss; /* against the source */
    tn_estimate paired;    /* model less second model: negative log-likelihood of a token, or accuracy */
    tn_estimate paired_kl; /* the same of the KL divergence from the source */
} tn_eval_result;

tern_status tn_eval(tern_engine *e, const tn_eval_options *o, tn_eval_result *out, tern_error *err);

#endif
