/* server/prompts.h - the tokens of a prompt that is no conversation, and what shapes the draw of each token of
 * an answer besides the sampler: penalties of what the answer has, and biases of tokens. */
#ifndef TN_SERVER_PROMPTS_H
#define TN_SERVER_PROMPTS_H

#include "server/sink.h"

/* The tokens of r->prompt into s->ids, s->n_ids; with r->suffix what models that fill in are given. */
tern_status tn_prompt_ids(const tn_request *r, tn_said *s, tern_error *err);
/* Whether the model fills in: its vocabulary has the marks. */
bool tn_fills_in(const tern_engine *e);
/* The tokens of a text that goes on from another one: no mark and no blank comes in front. */
tern_status tn_text_ids(const tern_engine *e, const char *text, size_t n_bytes, int32_t *ids, size_t cap,
                        size_t *n_ids, tern_error *err);
/* The text of tokens, with that of control tokens. *text is the caller's, to be freed with free. */
tern_status tn_ids_text(const tern_engine *e, const int32_t *ids, size_t n, char **text, size_t *n_bytes,
                        tern_error *err);

typedef struct tn_shaping {
    float presence, frequency;
    uint32_t *times; /* [n_vocab] of each token in the answer; NULL: no penalties */
    int32_t *token;  /* [n_bias] */
    float *bias;
    size_t n_bias, cap;
} tn_shaping;

/* Reads the penalties and `logit_bias`: {TOKEN: BIAS} or [[TOKEN, BIAS]], where a token is a number, or a text
 * all of whose tokens are meant, and a bias of false keeps it out. */
tern_status tn_shaping_open(tn_shaping *x, const tn_request *r, const tern_engine *e, tern_error *err);
void tn_shaping_close(tn_shaping *x);
bool tn_shaping_any(const tn_shaping *x);
void tn_shaping_apply(const tn_shaping *x, float *logits, size_t n_vocab);
void tn_shaping_took(tn_shaping *x, int32_t token);

#endif
