/* quant/heads.h - what sparse attention needs to know of a model's heads (shadowAttn 3.2, 3.3), measured on a corpus. */
#ifndef TN_QUANT_HEADS_H
#define TN_QUANT_HEADS_H

#include "model/forward.h"

typedef struct tn_head_profile {
    tn_ctx *ctx;
    int32_t n_layers, n_heads;
    float *scale_q, *scale_k; /* [n_layers] mean over heads and windows of max |q| / 127 and max |k| / 127, after rope */
    float *weight;            /* [n_layers][n_heads] importance of a head, clamp(headImp * layerImp) over its mean; all 1 where it was not measured */
} tn_head_profile;

/* Windows of at most `window` tokens. importance: also evaluate the first window once without each head and once without each layer's
 * attention (equations 1 and 2): n_layers * (n_heads + 1) forwards. Progress "heads". */
tern_status tn_head_profile_measure(const tn_model *m, const tn_kernels *kern, tn_pool *pool, const int32_t *ids, size_t n_tok, int32_t window,
                                    bool importance, tn_head_profile *out, tern_error *err);
void tn_head_profile_close(tn_head_profile *p); /* NULL-safe members; may be zero */

#endif
