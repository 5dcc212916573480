/* quant/heads.h - data about a model's heads for sparse attention (shadowAttn 3.2, 3.3), measured on a
 * corpus. */
#ifndef TN_QUANT_HEADS_H
#define TN_QUANT_HEADS_H

#include "base/outfile.h"
#include "model/forward.h"

typedef struct tn_head_profile {
    tn_ctx *ctx;
    int32_t n_layers, n_heads;
    float *scale_q,
        *scale_k; /* [n_layers] mean over heads and windows of max |q| / 127 and max |k| / 127, after rope */
    /* number of values that the scales are means of */
    const tn_hparams *h;
    size_t n_tok;
    size_t *seen;       /* [n_layers] tokens */
    int32_t *n_windows; /* [n_layers] */
    float *weight;      /* [n_layers][n_heads] importance of a head, clamp(headImp * layerImp) over its mean;
                      all 1 where it was not measured */
} tn_head_profile;

/* All heads get the same importance; scales are to be observed. n_tok: tokens of the corpus that count for
 * the scales (0: all). */
tern_status tn_head_profile_open(tn_ctx *ctx, const tn_hparams *h, size_t n_tok, tn_head_profile *out,
                                 tern_error *err);
/* For tn_calibrate_layer: user is the profile. Windows come in order. */
void tn_head_profile_observe(void *user, int layer, const float *q, const float *k, int32_t n_rows);
/* Evaluates the n tokens without each layer's attention, and without each head (equations 1 and 2), with a
 * float model from that layer on, in parts of the window. Later parts are skipped for a head that, by two
 * standard errors of its loss so far, is beyond a clamp or known well enough; for one whose loss half of
 * the window cannot distinguish from zero; and for all heads of a layer without loss. Progress "heads".
 *
 * journal: NULL, or a file that gets every result as soon as it is known. If it exists for this model (the
 * same loss with all heads) and these tokens, its results are not measured again; any other file is logged
 * and replaced. The caller removes the journal. */
tern_status tn_head_profile_importance(tn_head_profile *p, const tn_model *m, const tn_kernels *kern,
                                       tn_pool *pool, const int32_t *ids, int32_t n, const char *journal,
                                       tern_error *err);
void tn_head_profile_close(tn_head_profile *p); /* NULL-safe members; may be zero */

/* The journal's kind: no other file of that name is overwritten or removed. */
extern const tn_outkind tn_heads_journal_kind;

#endif
