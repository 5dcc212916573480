#include "model/hparams.h"

#include <assert.h>

int32_t tn_n_attending(const tn_hparams *h) {
    int32_t n = 0;
    for (int32_t layer = 0; layer < h->n_layers; layer++) n += tn_layer_attends(h, layer);
    return n;
}

int32_t tn_layer_window(const tn_hparams *h, int32_t layer) {
    bool windowed = h->window_pattern <= 1 || layer % h->window_pattern != h->window_pattern - 1;
    return h->window > 0 && windowed ? h->window : 0;
}

bool tn_layer_has_rope(const tn_hparams *h, int32_t layer) {
    int32_t p = h->no_rope_pattern;
    return h->n_rot > 0 && !(p && layer % p == p - 1);
}

bool tn_layer_rope_is_local(const tn_hparams *h, int32_t layer) {
    return h->local_rope && tn_layer_window(h, layer) > 0;
}

bool tn_layer_may_have(const tn_hparams *h, int32_t layer, tn_role r) {
    bool conv = layer >= 0 && layer < h->n_layers && h->layer_kind[layer] == TN_LAYER_CONVOLVES;
    switch (r) {
    case TN_W_CONV_IN:
    case TN_W_CONV:
    case TN_W_CONV_OUT: return conv;
    case TN_W_Q:
    case TN_W_K:
    case TN_W_V:
    case TN_W_O:
    case TN_W_Q_B:
    case TN_W_K_B:
    case TN_W_V_B:
    case TN_W_O_B:
    case TN_W_Q_NORM:
    case TN_W_K_NORM: return !conv;
    default: return true;
    }
}

const tn_role tn_layer_vectors[TN_N_LAYER_VECTORS] = {
    TN_W_ATTN_NORM,     TN_W_ATTN_NORM_B, TN_W_ATTN_POST_NORM, TN_W_FFN_NORM, TN_W_FFN_NORM_B,
    TN_W_FFN_POST_NORM, TN_W_Q_NORM,      TN_W_K_NORM,         TN_W_SINKS,    TN_W_CONV,
};

const struct tn_layer_linear tn_layer_linears[TN_N_LAYER_LINEARS] = {
    {TN_W_Q, TN_W_Q_B},       {TN_W_K, TN_W_K_B},           {TN_W_V, TN_W_V_B},
    {TN_W_O, TN_W_O_B},       {TN_W_GATE, TN_W_GATE_B},     {TN_W_UP, TN_W_UP_B},
    {TN_W_DOWN, TN_W_DOWN_B}, {TN_W_CONV_IN, TN_W_N_ROLES}, {TN_W_CONV_OUT, TN_W_N_ROLES},
};

const struct tn_layer_linear tn_expert_linears[TN_N_EXPERT_LINEARS] = {
    {TN_W_GATE_EXPS, TN_W_GATE_EXPS_B}, {TN_W_UP_EXPS, TN_W_UP_EXPS_B}, {TN_W_DOWN_EXPS, TN_W_DOWN_EXPS_B}};

const char *tn_role_name(tn_role r) {
    static const char *const names[TN_W_N_ROLES] = {
        [TN_W_EMBD] = "token_embd",
        [TN_W_OUT_NORM] = "output_norm",
        [TN_W_OUT_NORM_B] = "output_norm bias",
        [TN_W_OUT] = "output",
        [TN_W_OUT_B] = "output bias",
        [TN_W_ATTN_NORM] = "attn_norm",
        [TN_W_ATTN_NORM_B] = "attn_norm bias",
        [TN_W_Q] = "attn_q",
        [TN_W_K] = "attn_k",
        [TN_W_V] = "attn_v",
        [TN_W_O] = "attn_output",
        [TN_W_Q_B] = "attn_q bias",
        [TN_W_K_B] = "attn_k bias",
        [TN_W_V_B] = "attn_v bias",
        [TN_W_O_B] = "attn_output bias",
        [TN_W_Q_NORM] = "attn_q_norm",
        [TN_W_K_NORM] = "attn_k_norm",
        [TN_W_ATTN_POST_NORM] = "attn_post_norm",
        [TN_W_FFN_NORM] = "ffn_norm",
        [TN_W_FFN_NORM_B] = "ffn_norm bias",
        [TN_W_GATE] = "ffn_gate",
        [TN_W_UP] = "ffn_up",
        [TN_W_DOWN] = "ffn_down",
        [TN_W_GATE_B] = "ffn_gate bias",
        [TN_W_UP_B] = "ffn_up bias",
        [TN_W_DOWN_B] = "ffn_down bias",
        [TN_W_FFN_POST_NORM] = "ffn_post_norm",
        [TN_W_SINKS] = "attn_sinks",
        [TN_W_ROUTER] = "router",
        [TN_W_ROUTER_B] = "router bias",
        [TN_W_GATE_EXPS] = "experts' gate",
        [TN_W_UP_EXPS] = "experts' up",
        [TN_W_DOWN_EXPS] = "experts' down",
        [TN_W_GATE_EXPS_B] = "experts' gate bias",
        [TN_W_UP_EXPS_B] = "experts' up bias",
        [TN_W_DOWN_EXPS_B] = "experts' down bias",
        [TN_W_CONV_IN] = "conv_in",
        [TN_W_CONV] = "conv",
        [TN_W_CONV_OUT] = "conv_out",
    };
    return names[r];
}

void tn_role_shape(const tn_hparams *h, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    int64_t e = h->n_embd, q = (int64_t)h->n_heads * h->d_head, kv = (int64_t)h->n_kv_heads * h->d_head,
            f = h->n_ff, v = h->n_vocab, x = h->n_experts;
    *n_rows = 1;
    switch (r) {
    case TN_W_EMBD:
    case TN_W_OUT:
        *n_rows = v;
        *n_cols = e;
        return;
    case TN_W_Q:
        *n_rows = q;
        *n_cols = e;
        return;
    case TN_W_K:
    case TN_W_V:
        *n_rows = kv;
        *n_cols = e;
        return;
    case TN_W_O:
        *n_rows = e;
        *n_cols = q;
        return;
    case TN_W_GATE:
    case TN_W_UP:
        *n_rows = f;
        *n_cols = e;
        return;
    case TN_W_DOWN:
        *n_rows = e;
        *n_cols = f;
        return;
    case TN_W_ROUTER:
        *n_rows = x;
        *n_cols = e;
        return;
    case TN_W_GATE_EXPS:
    case TN_W_UP_EXPS:
        *n_rows = x * f;
        *n_cols = e;
        return;
    case TN_W_DOWN_EXPS:
        *n_rows = x * e;
        *n_cols = f;
        return;
    case TN_W_CONV_IN:
        *n_rows = 3 * e;
        *n_cols = e;
        return;
    case TN_W_CONV:
        *n_rows = e;
        *n_cols = h->conv_len;
        return;
    case TN_W_CONV_OUT:
        *n_rows = e;
        *n_cols = e;
        return;
    case TN_W_SINKS: *n_cols = h->n_heads; return;
    case TN_W_ROUTER_B: *n_cols = x; return;
    case TN_W_GATE_EXPS_B:
    case TN_W_UP_EXPS_B: *n_cols = x * f; return;
    case TN_W_DOWN_EXPS_B: *n_cols = x * e; return;
    case TN_W_OUT_B: *n_cols = v; return;
    case TN_W_Q_B: *n_cols = q; return;
    case TN_W_K_B:
    case TN_W_V_B: *n_cols = kv; return;
    case TN_W_Q_NORM: *n_cols = h->qk_norm_whole ? q : h->d_head; return;
    case TN_W_K_NORM: *n_cols = h->qk_norm_whole ? kv : h->d_head; return;
    case TN_W_GATE_B:
    case TN_W_UP_B: *n_cols = f; return;
    case TN_W_OUT_NORM:
    case TN_W_OUT_NORM_B:
    case TN_W_ATTN_NORM:
    case TN_W_ATTN_NORM_B:
    case TN_W_O_B:
    case TN_W_ATTN_POST_NORM:
    case TN_W_FFN_NORM:
    case TN_W_FFN_NORM_B:
    case TN_W_DOWN_B:
    case TN_W_FFN_POST_NORM: *n_cols = e; return;
    case TN_W_N_ROLES: break;
    }
    assert(!"no such role");
    *n_cols = 0;
}
