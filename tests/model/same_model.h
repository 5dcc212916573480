/* Do two files hold the same model? Hyperparameters field by field, frequencies, every tensor. */
#ifndef TN_TESTS_SAME_MODEL_H
#define TN_TESTS_SAME_MODEL_H

#include "model/source.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What does not turn may be said by a divisor of 1e30. */
static inline bool tn_near(float x, float y) { return fabsf(x - y) <= 1e-6f * fabsf(x) + 1e-25f; }

static inline void same_layers(const char *name, const tn_hparams *h, const tn_hparams *g) {
    for (int32_t l = 0; l < h->n_layers + h->n_next; l++) {
#define SAME(what, x, y)                                                                                     \
    if ((x) != (y)) fail_msg("%s: " what " of layer %d is %d and %d", name, l, (int)(x), (int)(y))
        SAME("kind", h->layer_kind[l], g->layer_kind[l]);
        int32_t w = tn_layer_window(h, l), v = tn_layer_window(g, l);
        if (w >= h->ctx_train) w = 0; /* a longer one hides nothing, and GGUF files may leave it out */
        if (v >= g->ctx_train) v = 0;
        SAME("window", w, v);
        SAME("rope", tn_layer_has_rope(h, l), tn_layer_has_rope(g, l));
        SAME("local rope", tn_layer_rope_is_local(h, l), tn_layer_rope_is_local(g, l));
        SAME("KV heads", tn_layer_kv_heads(h, l), tn_layer_kv_heads(g, l));
        SAME("head size", tn_layer_d_head(h, l), tn_layer_d_head(g, l));
        SAME("feed-forward size", tn_layer_ff(h, l), tn_layer_ff(g, l));
        SAME("experts", tn_layer_has_experts(h, l), tn_layer_has_experts(g, l));
#undef SAME
    }
}

static inline void same_hparams(const char *name, const tn_hparams *h, const tn_hparams *g) {
#define SAME(field)                                                                                          \
    if (h->field != g->field)                                                                                \
    fail_msg("%s: " #field " is %g and %g", name, (double)h->field, (double)g->field)
    SAME(n_layers);
    SAME(n_next);
    SAME(n_embd);
    SAME(n_heads);
    SAME(n_ff);
    SAME(n_vocab);
    if (g->ctx_train < 1 << 18) SAME(ctx_train); /* else what the converter writes for all of a family */
    bool turns = false;
    for (int32_t l = 0; l < h->n_layers; l++) turns |= tn_layer_has_rope(h, l);
    if (turns) SAME(n_rot); /* else files say what they like */
    SAME(tied);
    SAME(rope_orig_ctx);
    SAME(act);
    SAME(norm);
    SAME(gated);
    SAME(qk_norm);
    SAME(qk_norm_whole);
    SAME(temp_every);
    SAME(n_experts);
    SAME(n_experts_used);
    SAME(n_ff_exp);
    SAME(n_dense);
    SAME(experts_norm);
    SAME(experts_sigmoid);
    SAME(experts_bias);
    SAME(experts_groups);
    SAME(experts_groups_used);
    SAME(shared_expert);
    SAME(shared_gate);
    SAME(conv_len);
    SAME(attn_gate);
    SAME(n_kv_shared);
    SAME(v_norm);
    SAME(v_is_k);
    SAME(layer_scale);
    SAME(n_ple);
    SAME(bidirectional);
    SAME(latent.rank);
    SAME(latent.q_rank);
    SAME(latent.d_nope);
    SAME(latent.d_value);
    SAME(delta.n_heads);
    SAME(delta.n_key_heads);
    SAME(delta.d_key);
    SAME(delta.d_value);
    SAME(rope_axes[0]);
    SAME(rope_axes[1]);
    SAME(rope_axes[2]);
#undef SAME
#define NEAR(field)                                                                                          \
    if (!tn_near(h->field, g->field))                                                                        \
    fail_msg("%s: " #field " is %.9g and %.9g", name, (double)h->field, (double)g->field)
    NEAR(norm_eps);
    NEAR(embd_scale);
    NEAR(attn_scale);
    NEAR(residual_scale);
    NEAR(logit_scale);
    NEAR(attn_soft_cap);
    NEAR(logit_soft_cap);
    NEAR(experts_scale);
    NEAR(swiglu_limit);
    NEAR(temp_scale);
    NEAR(rope_mscale);
    for (int k = 0; turns && k < h->n_rot / 2; k++) { /* the factors of GGUF are rounded to float */
        NEAR(inv_freq[k]);
        NEAR(inv_freq_long[k]);
    }
    if (h->local_rope && g->local_rope)
        for (int k = 0; k < tn_local_rot(h) / 2; k++) NEAR(inv_freq_local[k]);
#undef NEAR
    same_layers(name, h, g);
}

static inline float *read_role(const tn_source *s, int layer, tn_role role, int64_t *n) {
    int64_t rows, cols;
    tn_role_shape(tn_source_hparams(s), layer, role, &rows, &cols);
    *n = rows * cols;
    float *v = malloc((size_t)*n * sizeof *v); /* exact: writes beyond it are seen by ASan */
    assert_non_null(v);
    tern_error err = {0};
    if (tn_source_read(s, layer, role, 0, rows, v, &err) != TERN_OK) fail_msg("%s", err.message);
    return v;
}

/* off: by how much of itself a value may differ. Heads of delta nets may lie in another order (tiled). */
static inline void same_weights(const char *name, const tn_source *a, const tn_source *b, float off) {
    const tn_hparams *h = tn_source_hparams(a);
    for (int layer = -1; layer < h->n_layers + h->n_next; layer++) {
        for (int r = 0; r < TN_W_N_ROLES; r++) {
            if (tn_role_of_model((tn_role)r) != (layer < 0)) continue;
            if (tn_source_has(a, layer, (tn_role)r) != tn_source_has(b, layer, (tn_role)r))
                fail_msg("%s: one file has %s of layer %d, the other has not", name, tn_role_name((tn_role)r),
                         layer);
            if (!tn_source_has(a, layer, (tn_role)r)) continue;
            if ((r == TN_W_Q || r == TN_W_K) && !tn_layer_has_rope(h, layer))
                continue; /* pairs in any order */
            if (tn_role_of_delta((tn_role)r) && h->delta.tiled != tn_source_hparams(b)->delta.tiled) continue;
            int64_t n;
            float *x = read_role(a, layer, (tn_role)r, &n), *y = read_role(b, layer, (tn_role)r, &n);
            for (int64_t k = 0; k < n; k++) {
                if (!(fabsf(x[k] - y[k]) <= off * fabsf(x[k])))
                    fail_msg("%s: %s of layer %d differs at %lld: %a and %a", name, tn_role_name((tn_role)r),
                             layer, (long long)k, (double)x[k], (double)y[k]);
            }
            free(x);
            free(y);
        }
    }
}

#endif
