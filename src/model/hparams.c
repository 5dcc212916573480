#include "model/hparams.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

int32_t tn_n_attending(const tn_hparams *h) {
    int32_t n = 0;
    for (int32_t layer = 0; layer < h->n_layers; layer++)
        n += tn_layer_attends(h, layer) && tn_layer_kv(h, layer) == layer;
    return n;
}

bool tn_only_attends(const tn_hparams *h) {
    bool only = true;
    for (int32_t layer = 0; layer < h->n_layers; layer++)
        only = only && h->layer_kind[layer] == TN_LAYER_ATTENDS;
    return only;
}

int32_t tn_layer_kv(const tn_hparams *h, int32_t layer) {
    int32_t own = h->n_layers - h->n_kv_shared, from = layer;
    if (layer < own) return layer;
    bool windowed = tn_layer_window(h, layer) > 0;
    for (from = own - 1; from >= 0; from--)
        if (tn_layer_attends(h, from) && (tn_layer_window(h, from) > 0) == windowed) break;
    /* tn_arch_finish has seen that there is one; -1 of an assistant, whose are another model's */
    return from;
}

const char *tn_layers_wrong(const tn_hparams *h) {
    int32_t d = h->window_d_head ? h->window_d_head : h->d_head;
    if (h->window_kv_heads && h->n_heads % h->window_kv_heads) return "KV heads of layers with a window";
    if (h->alibi > 0 && (!h->bidirectional || h->n_kv_heads != h->n_heads))
        return "scores that fall by distance, of heads that share keys or look back alone";
    const int32_t rank = h->latent.rank, panel = 32;
    if (tn_latent(h) ? h->d_head != rank + h->n_rot || h->n_kv_heads != 1 || rank % panel || rank > 1024 ||
                           h->latent.d_value < 1 || h->latent.d_value % panel || h->latent.d_nope < 4 ||
                           h->latent.d_nope % 4 || h->latent.d_nope > 1024 || h->window || h->sinks ||
                           h->qk_norm || h->bidirectional || h->n_kv_shared
                     : h->latent.q_rank || h->latent.d_nope || h->latent.d_value || h->d_head > 512)
        return "sizes of latent attention (multiples of 32, of 4 for keys)";
    if (d % 4 || h->window_rot % 2 || tn_local_rot(h) > d) return "head size of layers with a window";
    const int64_t pairs = (int64_t)h->rope_axes[0] + h->rope_axes[1] + h->rope_axes[2];
    if (pairs && (2 * pairs != h->n_rot || !tn_has_axes(h) || h->local_rope)) return "axes of rope";
    if (h->n_deepstack < 0 || h->n_deepstack > TN_MAX_DEEPSTACK || h->n_deepstack > h->n_layers ||
        (h->n_deepstack && (h->n_ple || h->n_streams || h->parallel_block)))
        return "layers that add to rows of pictures";
    if ((int64_t)h->n_ple * h->n_layers > 1 << 20) return "embeddings for every layer";
    for (int32_t l = h->n_layers - h->n_kv_shared; l < h->n_layers && !tn_is_assistant(h); l++)
        if (tn_layer_kv(h, l) < 0)
            return "layers that share keys and values: none before them is of their kind";
    return NULL;
}

static bool is_windowed(const tn_hparams *h, int32_t layer) {
    return layer >= 0 && layer < h->n_layers && tn_layer_window(h, layer) > 0;
}

int32_t tn_layer_d_head(const tn_hparams *h, int32_t layer) {
    return h->window_d_head && is_windowed(h, layer) ? h->window_d_head : h->d_head;
}

int32_t tn_layer_kv_heads(const tn_hparams *h, int32_t layer) {
    return h->window_kv_heads && is_windowed(h, layer) ? h->window_kv_heads : h->n_kv_heads;
}

bool tn_layer_may_be_sparse(const tn_hparams *h, int32_t layer) {
    bool differ = h->window_d_head || h->window_kv_heads || h->n_kv_shared || h->window_chunks;
    return tn_layer_attends(h, layer) && !tn_latent(h) && !(differ && is_windowed(h, layer));
}

int32_t tn_n_sparse(const tn_hparams *h) {
    int32_t n = 0;
    for (int32_t layer = 0; layer < h->n_layers; layer++) n += tn_layer_may_be_sparse(h, layer);
    return n;
}

int32_t tn_first_sparse(const tn_hparams *h) {
    for (int32_t layer = 0; layer < h->n_layers; layer++)
        if (tn_layer_may_be_sparse(h, layer)) return layer;
    return -1;
}

bool tn_experts_groups_ok(const tn_hparams *h) {
    const int32_t n = h->experts_groups, used = h->experts_groups_used;
    if (!n) return !used;
    return n > 1 && used > 0 && used < n && h->n_experts % n == 0 && h->n_experts / n > 1 &&
           h->n_experts_used <= h->n_experts / n * used;
}

bool tn_wkv_ok(const tn_hparams *h) {
    const tn_delta_net *n = &h->delta;
    if (n->kda && (n->wkv || n->mamba || n->tiled || n->n_heads != n->n_key_heads || n->d_key != n->d_value ||
                   n->d_key > 256))
        return false;
    if (n->deepest != 0 && !(n->kda && n->deepest > 0 && n->deepest <= TN_MAX_DEEPEST)) return false;
    if (!n->wkv) return !h->low.decay && !h->low.rate && !h->low.value && !h->low.gate && !h->shift_ffn;
    return h->n_embd <= TN_MAX_WKV && n->n_heads > 0 && n->n_key_heads == n->n_heads &&
           n->d_key == n->d_value && (int64_t)n->n_heads * n->d_value == h->n_embd && h->conv_len == 2 &&
           h->low.decay > 0 && h->low.decay <= TN_MAX_LOW && h->low.rate > 0 && h->low.rate <= TN_MAX_LOW &&
           h->low.value > 0 && h->low.value <= TN_MAX_LOW && h->low.gate >= 0 && h->low.gate <= TN_MAX_LOW &&
           !n->mamba && !n->tiled && !(h->shift_ffn && (h->gated || h->n_experts)) && !h->post_norms;
}

bool tn_layer_v_is_k(const tn_hparams *h, int32_t layer) { return h->v_is_k && !is_windowed(h, layer); }

int32_t tn_layer_ff(const tn_hparams *h, int32_t layer) {
    if (h->n_ff_dense && layer >= 0 && layer < h->n_layers && !tn_layer_has_experts(h, layer))
        return h->n_ff_dense;
    return h->n_ff_shared && layer >= h->n_layers - h->n_kv_shared && layer < h->n_layers ? h->n_ff_shared
                                                                                          : h->n_ff;
}

int32_t tn_layer_window(const tn_hparams *h, int32_t layer) {
    const int32_t without = h->window_rest ? 0 : h->window_pattern - 1;
    bool windowed = h->window_pattern <= 1 || layer % h->window_pattern != without;
    return h->window > 0 && windowed ? h->window : 0;
}

bool tn_layer_has_rope(const tn_hparams *h, int32_t layer) {
    int32_t p = h->no_rope_pattern;
    return h->n_rot > 0 && !(p && layer % p == p - 1);
}

bool tn_layer_rope_is_local(const tn_hparams *h, int32_t layer) {
    return h->local_rope && tn_layer_window(h, layer) > 0;
}

static bool text_has(const tn_hparams *h, tn_role r) {
    switch (r) {
    case TN_W_EMBD_TYPE: return h->embd_type;
    case TN_W_POSITIONS: return h->n_positions > 0;
    case TN_W_DENSE_1:
    case TN_W_DENSE_2: return h->n_between > 0;
    case TN_W_SCORE_IN:
    case TN_W_SCORE_IN_B: return h->score_layer;
    case TN_W_SCORE:
    case TN_W_SCORE_B: return h->n_scores > 0;
    case TN_W_SCORE_NORM: return h->score_norm;
    case TN_W_EMBD_NORM_B: return h->embd_norm && !h->embd_norm_bare;
    default: return h->embd_norm;
    }
}

/* The first layer has no share of its own values. */
static bool wkv_has(const tn_hparams *h, int32_t layer, tn_role r) {
    switch (r) {
    case TN_W_LOW_V_B:
    case TN_W_LOW_V_1:
    case TN_W_LOW_V_2: return layer > 0;
    case TN_W_LERP_G:
    case TN_W_LOW_G_1:
    case TN_W_LOW_G_2: return h->low.gate > 0;
    case TN_W_LERP_FFN: return h->shift_ffn;
    case TN_W_WKV_NORM_B: return !h->delta.no_norm;
    default: return true;
    }
}

bool tn_layer_may_have(const tn_hparams *h, int32_t layer, tn_role r) {
    bool inside = layer >= 0 && layer < h->n_layers + h->n_next;
    if (tn_is_head(h) && tn_role_of_next(r))
        return !layer && (r == TN_W_NEXT_PROJ || (r == TN_W_NEXT_H_NORM && !tn_is_assistant(h)));
    if (r == TN_W_NEXT_BACK) return !layer && tn_is_assistant(h);
    if (tn_role_of_next(r)) return inside && layer == h->n_layers;
    if (r == TN_W_HEAD_IN_NORM) return inside && h->head.norm_in;
    bool attends = !inside || tn_layer_attends(h, layer), recurs = inside && tn_layer_recurs(h, layer);
    bool own_kv = !inside || layer == h->n_layers || !attends || tn_layer_kv(h, layer) == layer;
    if (tn_role_of_beside(r)) return inside && tn_layer_has_experts(h, layer) && h->experts_beside;
    if (tn_role_of_streams(r)) {
        bool first = r >= TN_W_ALTUP_IN_1 && r <= TN_W_ALTUP_IN_3, last = r >= TN_W_ALTUP_OUT_1;
        return inside && h->n_streams && (!first || layer == 0) && (!last || layer == h->n_layers - 1);
    }
    if (tn_role_of_ple(r)) return h->n_ple > 0 && inside == (r != TN_W_PLE_EMBD);
    if (tn_role_of_mamba(r)) return recurs && h->delta.mamba;
    if (tn_role_of_text(r))
        return inside && layer == (r < TN_W_DENSE_1 ? 0 : h->n_layers - 1) && text_has(h, r);
    if (tn_role_of_delta(r)) return recurs && tn_delta_has(&h->delta, r);
    if (tn_role_of_kda(r))
        return recurs && h->delta.kda && (tn_role_of_kda_conv(r) || !tn_delta_at_once(&h->delta));
    if (tn_role_of_wkv(r)) return recurs && h->delta.wkv && wkv_has(h, layer, r);
    if (tn_role_of_latent(r))
        return attends && tn_latent(h) && (h->latent.q_rank || (r != TN_W_Q_A && r != TN_W_Q_A_NORM));
    switch (r) {
    case TN_W_ATTN_NORM:
    case TN_W_ATTN_NORM_B:
        return !inside || (h->layer_kind[layer] != TN_LAYER_FEEDS && !(h->first_norm_none && !layer));
    case TN_W_FFN_NORM:
    case TN_W_FFN_NORM_B: return !inside || tn_layer_feeds(h, layer);
    case TN_W_CONV_IN:
    case TN_W_CONV:
    case TN_W_CONV_OUT: return inside && h->layer_kind[layer] == TN_LAYER_CONVOLVES;
    case TN_W_O:
    case TN_W_O_B: return attends;
    case TN_W_Q:
    case TN_W_Q_B:
    case TN_W_Q_NORM: return attends && !tn_latent(h);
    case TN_W_V:
    case TN_W_V_B: return attends && !tn_latent(h) && own_kv && !(inside && tn_layer_v_is_k(h, layer));
    case TN_W_K:
    case TN_W_K_B:
    case TN_W_K_NORM: return attends && own_kv && !tn_latent(h);
    case TN_W_LAYER_SCALE: return inside && h->layer_scale;
    case TN_W_ATTN_SUB_NORM:
    case TN_W_FFN_SUB_NORM: return inside && h->sub_norms;
    case TN_W_Q_NORM_B:
    case TN_W_K_NORM_B: return attends && h->qk_norm && h->qk_norm_biased;
    case TN_W_ATTN_NORM_2:
    case TN_W_ATTN_NORM_2_B: return inside && h->attn_norm_twice;
    case TN_W_EXPERTS_OUT_B: return inside && tn_layer_has_experts(h, layer) && h->experts_out_bias;
    case TN_W_ATTN_POST_NORM_B:
    case TN_W_FFN_POST_NORM_B: return h->norms_after;
    case TN_W_ATT_GATE: return attends && h->attn_gate;
    case TN_W_GATE:
    case TN_W_UP:
    case TN_W_DOWN:
    case TN_W_GATE_B:
    case TN_W_UP_B:
    case TN_W_DOWN_B: return !inside || tn_layer_has_ffn(h, layer);
    case TN_W_GATE_EXPS:
    case TN_W_GATE_EXPS_B: return inside && h->gated && tn_layer_has_experts(h, layer);
    case TN_W_ROUTER:
    case TN_W_ROUTER_B:
    case TN_W_UP_EXPS:
    case TN_W_DOWN_EXPS:
    case TN_W_UP_EXPS_B:
    case TN_W_DOWN_EXPS_B: return inside && tn_layer_has_experts(h, layer);
    case TN_W_SHARED_GATE: return inside && tn_layer_has_experts(h, layer) && h->shared_gate;
    case TN_W_EXPERTS_BIAS: return inside && tn_layer_has_experts(h, layer) && h->experts_bias;
    default: return true;
    }
}

const tn_role tn_layer_vectors[TN_N_LAYER_VECTORS] = {
    TN_W_ATTN_NORM,       TN_W_ATTN_NORM_B,
    TN_W_ATTN_POST_NORM,  TN_W_FFN_NORM,
    TN_W_FFN_NORM_B,      TN_W_FFN_POST_NORM,
    TN_W_Q_NORM,          TN_W_K_NORM,
    TN_W_SINKS,           TN_W_CONV,
    TN_W_DELTA_CONV,      TN_W_DELTA_A,
    TN_W_DELTA_DT,        TN_W_DELTA_NORM,
    TN_W_SHARED_GATE,     TN_W_EXPERTS_BIAS,
    TN_W_MAMBA_CONV_B,    TN_W_MAMBA_D,
    TN_W_PLE_NORM,        TN_W_PLE_POST_NORM,
    TN_W_LAYER_SCALE,     TN_W_NEXT_E_NORM,
    TN_W_NEXT_H_NORM,     TN_W_NEXT_OUT_NORM,
    TN_W_ALTUP_NORM,      TN_W_ALTUP_ROUTER,
    TN_W_ALTUP_PREDICT,   TN_W_ALTUP_CORRECT,
    TN_W_ALTUP_SCALE,     TN_W_LAUREL_NORM,
    TN_W_ROUTER_NORM,     TN_W_EXPERTS_SCALE,
    TN_W_EXPERTS_NORM,    TN_W_EXPERTS_POST_NORM,
    TN_W_FFN_OWN_NORM,    TN_W_ATTN_POST_NORM_B,
    TN_W_FFN_POST_NORM_B, TN_W_EMBD_NORM,
    TN_W_EMBD_NORM_B,     TN_W_EMBD_TYPE,
    TN_W_POSITIONS,       TN_W_DENSE_1,
    TN_W_DENSE_2,         TN_W_SCORE_IN,
    TN_W_SCORE_IN_B,      TN_W_SCORE,
    TN_W_SCORE_B,         TN_W_Q_A_NORM,
    TN_W_KV_A_NORM,       TN_W_ATTN_SUB_NORM,
    TN_W_FFN_SUB_NORM,    TN_W_HEAD_IN_NORM,
    TN_W_LERP_R,          TN_W_LERP_W,
    TN_W_LERP_K,          TN_W_LERP_V,
    TN_W_LERP_A,          TN_W_LERP_G,
    TN_W_LERP_FFN,        TN_W_LOW_W_B,
    TN_W_LOW_A_B,         TN_W_LOW_V_B,
    TN_W_WKV_KK,          TN_W_WKV_KA,
    TN_W_WKV_RK,          TN_W_WKV_NORM_B,
    TN_W_KDA_CONV_Q,      TN_W_KDA_CONV_K,
    TN_W_KDA_CONV_V,      TN_W_SCORE_NORM,
    TN_W_Q_NORM_B,        TN_W_K_NORM_B,
    TN_W_ATTN_NORM_2,     TN_W_ATTN_NORM_2_B,
    TN_W_EXPERTS_OUT_B,
};

const struct tn_layer_linear tn_layer_linears[TN_N_LAYER_LINEARS] = {
    {TN_W_Q, TN_W_Q_B},
    {TN_W_K, TN_W_K_B},
    {TN_W_V, TN_W_V_B},
    {TN_W_O, TN_W_O_B},
    {TN_W_GATE, TN_W_GATE_B},
    {TN_W_UP, TN_W_UP_B},
    {TN_W_DOWN, TN_W_DOWN_B},
    {TN_W_CONV_IN, TN_W_N_ROLES},
    {TN_W_CONV_OUT, TN_W_N_ROLES},
    {TN_W_ATT_GATE, TN_W_N_ROLES},
    {TN_W_DELTA_Q, TN_W_N_ROLES},
    {TN_W_DELTA_K, TN_W_N_ROLES},
    {TN_W_DELTA_V, TN_W_N_ROLES},
    {TN_W_DELTA_GATE, TN_W_N_ROLES},
    {TN_W_DELTA_DECAY, TN_W_N_ROLES},
    {TN_W_DELTA_RATE, TN_W_N_ROLES},
    {TN_W_DELTA_OUT, TN_W_N_ROLES},
    {TN_W_PLE_IN, TN_W_N_ROLES},
    {TN_W_PLE_GATE, TN_W_N_ROLES},
    {TN_W_PLE_OUT, TN_W_N_ROLES},
    {TN_W_NEXT_PROJ, TN_W_N_ROLES},
    {TN_W_LAUREL_IN, TN_W_N_ROLES},
    {TN_W_LAUREL_OUT, TN_W_N_ROLES},
    {TN_W_ALTUP_IN_1, TN_W_N_ROLES},
    {TN_W_ALTUP_IN_2, TN_W_N_ROLES},
    {TN_W_ALTUP_IN_3, TN_W_N_ROLES},
    {TN_W_ALTUP_OUT_1, TN_W_N_ROLES},
    {TN_W_ALTUP_OUT_2, TN_W_N_ROLES},
    {TN_W_ALTUP_OUT_3, TN_W_N_ROLES},
    {TN_W_Q_A, TN_W_N_ROLES},
    {TN_W_LATENT_Q, TN_W_N_ROLES},
    {TN_W_KV_A, TN_W_N_ROLES},
    {TN_W_K_UP, TN_W_N_ROLES},
    {TN_W_V_UP, TN_W_N_ROLES},
    {TN_W_LOW_W_1, TN_W_N_ROLES},
    {TN_W_LOW_W_2, TN_W_N_ROLES},
    {TN_W_LOW_A_1, TN_W_N_ROLES},
    {TN_W_LOW_A_2, TN_W_N_ROLES},
    {TN_W_LOW_V_1, TN_W_N_ROLES},
    {TN_W_LOW_V_2, TN_W_N_ROLES},
    {TN_W_LOW_G_1, TN_W_N_ROLES},
    {TN_W_LOW_G_2, TN_W_N_ROLES},
    {TN_W_KDA_F_A, TN_W_N_ROLES},
    {TN_W_KDA_F_B, TN_W_N_ROLES},
    {TN_W_KDA_G_A, TN_W_N_ROLES},
    {TN_W_KDA_G_B, TN_W_N_ROLES},
    {TN_W_NEXT_BACK, TN_W_N_ROLES},
};

const struct tn_layer_linear tn_expert_linears[TN_N_EXPERT_LINEARS] = {
    {TN_W_GATE_EXPS, TN_W_GATE_EXPS_B}, {TN_W_UP_EXPS, TN_W_UP_EXPS_B}, {TN_W_DOWN_EXPS, TN_W_DOWN_EXPS_B}};

static const char *const role_names[TN_W_N_ROLES] = {
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
    [TN_W_ATT_GATE] = "attn_gate",
    [TN_W_DELTA_Q] = "delta_q",
    [TN_W_DELTA_K] = "delta_k",
    [TN_W_DELTA_V] = "delta_v",
    [TN_W_DELTA_GATE] = "delta_gate",
    [TN_W_DELTA_DECAY] = "delta_decay",
    [TN_W_DELTA_RATE] = "delta_rate",
    [TN_W_DELTA_OUT] = "delta_out",
    [TN_W_DELTA_CONV] = "delta_conv",
    [TN_W_DELTA_A] = "delta_a",
    [TN_W_DELTA_DT] = "delta_decay bias",
    [TN_W_DELTA_NORM] = "delta_norm",
    [TN_W_SHARED_GATE] = "shared expert's gate",
    [TN_W_EXPERTS_BIAS] = "experts' bias",
    [TN_W_MAMBA_CONV_B] = "delta_conv bias",
    [TN_W_MAMBA_D] = "delta_d",
    [TN_W_PLE_EMBD] = "embeddings of the layers",
    [TN_W_PLE_IN] = "layer_in",
    [TN_W_PLE_NORM] = "layer_in norm",
    [TN_W_PLE_GATE] = "layer_gate",
    [TN_W_PLE_OUT] = "layer_out",
    [TN_W_PLE_POST_NORM] = "layer_out norm",
    [TN_W_LAYER_SCALE] = "layer scale",
    [TN_W_NEXT_E_NORM] = "nextn_enorm",
    [TN_W_NEXT_H_NORM] = "nextn_hnorm",
    [TN_W_NEXT_PROJ] = "nextn_eh_proj",
    [TN_W_NEXT_OUT_NORM] = "nextn_head_norm",
    [TN_W_ALTUP_NORM] = "altup_router norm",
    [TN_W_ALTUP_ROUTER] = "altup_router",
    [TN_W_ALTUP_PREDICT] = "altup_predict",
    [TN_W_ALTUP_CORRECT] = "altup_correct",
    [TN_W_ALTUP_SCALE] = "altup_correct scale",
    [TN_W_LAUREL_IN] = "laurel_l",
    [TN_W_LAUREL_OUT] = "laurel_r",
    [TN_W_LAUREL_NORM] = "laurel norm",
    [TN_W_ALTUP_IN_1] = "altup_in 1",
    [TN_W_ALTUP_IN_2] = "altup_in 2",
    [TN_W_ALTUP_IN_3] = "altup_in 3",
    [TN_W_ALTUP_OUT_1] = "altup_out 1",
    [TN_W_ALTUP_OUT_2] = "altup_out 2",
    [TN_W_ALTUP_OUT_3] = "altup_out 3",
    [TN_W_ROUTER_NORM] = "router norm",
    [TN_W_EXPERTS_SCALE] = "experts' scale",
    [TN_W_EXPERTS_NORM] = "experts' norm",
    [TN_W_EXPERTS_POST_NORM] = "experts' post_norm",
    [TN_W_FFN_OWN_NORM] = "ffn_own_norm",
    [TN_W_ATTN_POST_NORM_B] = "attn_post_norm bias",
    [TN_W_FFN_POST_NORM_B] = "ffn_post_norm bias",
    [TN_W_EMBD_NORM] = "token_embd_norm",
    [TN_W_EMBD_NORM_B] = "token_embd_norm bias",
    [TN_W_EMBD_TYPE] = "token_types",
    [TN_W_POSITIONS] = "position_embd",
    [TN_W_DENSE_1] = "dense_2",
    [TN_W_DENSE_2] = "dense_3",
    [TN_W_SCORE_IN] = "cls",
    [TN_W_SCORE_IN_B] = "cls bias",
    [TN_W_SCORE] = "cls.output",
    [TN_W_SCORE_B] = "cls.output bias",
    [TN_W_Q_A] = "attn_q_a",
    [TN_W_Q_A_NORM] = "attn_q_a norm",
    [TN_W_LATENT_Q] = "attn_q_b",
    [TN_W_KV_A] = "attn_kv_a",
    [TN_W_KV_A_NORM] = "attn_kv_a norm",
    [TN_W_K_UP] = "attn_k_b",
    [TN_W_V_UP] = "attn_v_b",
    [TN_W_ATTN_SUB_NORM] = "attn_sub_norm",
    [TN_W_FFN_SUB_NORM] = "ffn_sub_norm",
    [TN_W_HEAD_IN_NORM] = "enc.output_norm",
    [TN_W_LERP_R] = "lerp_r",
    [TN_W_LERP_W] = "lerp_w",
    [TN_W_LERP_K] = "lerp_k",
    [TN_W_LERP_V] = "lerp_v",
    [TN_W_LERP_A] = "lerp_a",
    [TN_W_LERP_G] = "lerp_g",
    [TN_W_LERP_FFN] = "lerp_ffn",
    [TN_W_LOW_W_B] = "decay bias",
    [TN_W_LOW_A_B] = "rate bias",
    [TN_W_LOW_V_B] = "value share bias",
    [TN_W_WKV_KK] = "wkv_k_k",
    [TN_W_WKV_KA] = "wkv_k_a",
    [TN_W_WKV_RK] = "wkv_r_k",
    [TN_W_WKV_NORM_B] = "delta_norm bias",
    [TN_W_LOW_W_1] = "decay_1",
    [TN_W_LOW_W_2] = "decay_2",
    [TN_W_LOW_A_1] = "rate_1",
    [TN_W_LOW_A_2] = "rate_2",
    [TN_W_LOW_V_1] = "value_share_1",
    [TN_W_LOW_V_2] = "value_share_2",
    [TN_W_LOW_G_1] = "gate_1",
    [TN_W_LOW_G_2] = "gate_2",
    [TN_W_KDA_CONV_Q] = "delta_conv_q",
    [TN_W_KDA_CONV_K] = "delta_conv_k",
    [TN_W_KDA_CONV_V] = "delta_conv_v",
    [TN_W_KDA_F_A] = "delta_decay_a",
    [TN_W_KDA_F_B] = "delta_decay_b",
    [TN_W_KDA_G_A] = "delta_gate_a",
    [TN_W_KDA_G_B] = "delta_gate_b",
    [TN_W_NEXT_BACK] = "nextn_post_projection",
    [TN_W_SCORE_NORM] = "cls.norm",
    [TN_W_Q_NORM_B] = "attn_q_norm bias",
    [TN_W_K_NORM_B] = "attn_k_norm bias",
    [TN_W_ATTN_NORM_2] = "attn_norm_2",
    [TN_W_ATTN_NORM_2_B] = "attn_norm_2 bias",
    [TN_W_EXPERTS_OUT_B] = "experts' output bias",
};

const char *tn_role_name(tn_role r) { return role_names[r]; }

static void shape_of_latent(const tn_hparams *h, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    const int64_t heads = h->n_heads, rank = h->latent.rank, q_rank = h->latent.q_rank;
    *n_rows = 1;
    *n_cols = h->n_embd;
    switch (r) {
    case TN_W_Q_A: *n_rows = q_rank; break;
    case TN_W_Q_A_NORM: *n_cols = q_rank; break;
    case TN_W_LATENT_Q:
        *n_rows = heads * (h->latent.d_nope + h->n_rot);
        *n_cols = q_rank ? q_rank : h->n_embd;
        break;
    case TN_W_KV_A: *n_rows = rank + h->n_rot; break;
    case TN_W_KV_A_NORM: *n_cols = rank; break;
    case TN_W_K_UP: *n_rows = heads * rank, *n_cols = h->latent.d_nope; break;
    default: *n_rows = heads * h->latent.d_value, *n_cols = rank; break;
    }
}

/* Where a head's tensors are not a model's. */
static void shape_of_head(const tn_hparams *h, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    if (tn_is_assistant(h)) {
        if (r == TN_W_NEXT_PROJ) *n_cols = 2 * (int64_t)h->head.n_target;
        return;
    }
    if (r == TN_W_NEXT_PROJ) *n_cols = (int64_t)h->head.n_from * h->head.n_target;
    if (tn_is_dflash(h)) return;
    if (r == TN_W_OUT) *n_rows = h->head.n_vocab;
    if (r == TN_W_Q || r == TN_W_K || r == TN_W_V) *n_cols = 2 * (int64_t)h->n_embd;
}

static void shape_of_kda(const tn_hparams *h, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    const int64_t values = (int64_t)h->delta.n_heads * h->delta.d_value;
    const bool out = r == TN_W_KDA_F_B || r == TN_W_KDA_G_B, taps = tn_role_of_kda_conv(r);
    *n_rows = taps ? h->conv_len : out ? values : h->delta.d_key;
    *n_cols = taps ? values : out ? h->delta.d_key : h->n_embd;
}

static void shape_of_wkv(const tn_hparams *h, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    const int64_t values = (int64_t)h->delta.n_heads * h->delta.d_value;
    const int32_t ranks[] = {h->low.decay, h->low.rate, h->low.value, h->low.gate};
    *n_rows = 1;
    *n_cols = r <= TN_W_LERP_FFN ? h->n_embd : values;
    if (!tn_role_of_low(r)) return;
    const int32_t i = (int32_t)(r - TN_W_LOW_W_1);
    *n_rows = i % 2 ? values : ranks[i / 2];
    *n_cols = i % 2 ? ranks[i / 2] : h->n_embd;
}

/* Of several residual streams, of experts beside a dense block, of what makes a text and its vector, and of heads. */
static void shape_of_few(const tn_hparams *h, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    int64_t e = h->n_embd, n = h->n_streams, rank = h->laurel_rank;
    if (tn_is_head(h) && r < TN_W_ROUTER_NORM) {
        shape_of_head(h, r, n_rows, n_cols);
        return;
    }
    *n_rows = *n_cols = e;
    if (tn_role_of_latent(r)) {
        shape_of_latent(h, r, n_rows, n_cols);
        return;
    }
    if (tn_role_of_kda(r)) {
        shape_of_kda(h, r, n_rows, n_cols);
        return;
    }
    if (tn_role_of_wkv(r)) {
        shape_of_wkv(h, r, n_rows, n_cols);
        return;
    }
    switch (r) {
    case TN_W_ALTUP_NORM:
    case TN_W_ALTUP_SCALE:
    case TN_W_LAUREL_NORM:
    case TN_W_ROUTER_NORM:
    case TN_W_EXPERTS_NORM:
    case TN_W_EXPERTS_POST_NORM:
    case TN_W_FFN_OWN_NORM: *n_rows = 1; break;
    case TN_W_EXPERTS_SCALE: *n_rows = 1, *n_cols = h->n_experts; break;
    case TN_W_ATTN_SUB_NORM: *n_rows = 1, *n_cols = (int64_t)h->n_heads * h->d_head; break;
    case TN_W_FFN_SUB_NORM: *n_rows = 1, *n_cols = h->n_ff; break;
    case TN_W_HEAD_IN_NORM: *n_rows = 1, *n_cols = (int64_t)h->head.n_from * h->head.n_target; break;
    case TN_W_NEXT_BACK: *n_rows = h->head.n_target; break;
    case TN_W_POSITIONS: *n_rows = h->n_positions; break;
    case TN_W_DENSE_1: *n_rows = h->n_between; break;
    case TN_W_DENSE_2: *n_cols = h->n_between; break;
    case TN_W_SCORE: *n_rows = h->n_scores; break;
    case TN_W_SCORE_B: *n_rows = 1, *n_cols = h->n_scores; break;
    case TN_W_ATTN_POST_NORM_B:
    case TN_W_FFN_POST_NORM_B:
    case TN_W_EMBD_NORM:
    case TN_W_EMBD_NORM_B:
    case TN_W_EMBD_TYPE:
    case TN_W_SCORE_NORM:
    case TN_W_ATTN_NORM_2:
    case TN_W_ATTN_NORM_2_B:
    case TN_W_EXPERTS_OUT_B:
    case TN_W_SCORE_IN_B: *n_rows = 1; break;
    case TN_W_Q_NORM_B: *n_rows = 1, *n_cols = (int64_t)h->n_heads * h->d_head; break;
    case TN_W_K_NORM_B: *n_rows = 1, *n_cols = (int64_t)h->n_kv_heads * h->d_head; break;
    case TN_W_ALTUP_ROUTER: *n_rows = n; break;
    case TN_W_ALTUP_PREDICT: *n_rows = n * n, *n_cols = n; break;
    case TN_W_ALTUP_CORRECT: *n_rows = *n_cols = n; break;
    case TN_W_LAUREL_IN: *n_rows = rank; break;
    case TN_W_LAUREL_OUT: *n_cols = rank; break;
    default: break; /* from stream to stream, and in front of scores */
    }
}

void tn_role_shape(const tn_hparams *h, int32_t layer, tn_role r, int64_t *n_rows, int64_t *n_cols) {
    int64_t d = tn_layer_d_head(h, layer), e = h->n_embd, q = h->n_heads * d,
            kv = tn_layer_kv_heads(h, layer) * d, f = tn_layer_ff(h, layer), ple = h->n_ple, v = h->n_vocab,
            x = h->n_experts, fx = h->n_ff_exp, taps = h->conv_len, dh = h->delta.n_heads,
            dk = (int64_t)h->delta.n_key_heads * h->delta.d_key, dv = dh * h->delta.d_value;
    const struct {
        int64_t rows, cols;
    } shapes[TN_W_N_ROLES] = {
        [TN_W_EMBD] = {v, e},
        [TN_W_OUT_NORM] = {1, e},
        [TN_W_OUT_NORM_B] = {1, e},
        [TN_W_OUT] = {v, e},
        [TN_W_OUT_B] = {1, v},
        [TN_W_ATTN_NORM] = {1, e},
        [TN_W_ATTN_NORM_B] = {1, e},
        [TN_W_Q] = {q, e},
        [TN_W_K] = {kv, e},
        [TN_W_V] = {kv, e},
        [TN_W_O] = {e, tn_latent(h) ? (int64_t)h->n_heads * h->latent.d_value : q},
        [TN_W_Q_B] = {1, q},
        [TN_W_K_B] = {1, kv},
        [TN_W_V_B] = {1, kv},
        [TN_W_O_B] = {1, e},
        [TN_W_Q_NORM] = {1, h->qk_norm_whole ? q : d},
        [TN_W_K_NORM] = {1, h->qk_norm_whole ? kv : d},
        [TN_W_ATTN_POST_NORM] = {1, e},
        [TN_W_FFN_NORM] = {1, e},
        [TN_W_FFN_NORM_B] = {1, e},
        [TN_W_GATE] = {f, e},
        [TN_W_UP] = {f, e},
        [TN_W_DOWN] = {e, f},
        [TN_W_GATE_B] = {1, f},
        [TN_W_UP_B] = {1, f},
        [TN_W_DOWN_B] = {1, e},
        [TN_W_FFN_POST_NORM] = {1, e},
        [TN_W_SINKS] = {1, h->n_heads},
        [TN_W_ROUTER] = {x, e},
        [TN_W_ROUTER_B] = {1, x},
        [TN_W_GATE_EXPS] = {x * fx, e},
        [TN_W_UP_EXPS] = {x * fx, e},
        [TN_W_DOWN_EXPS] = {x * e, fx},
        [TN_W_GATE_EXPS_B] = {1, x * fx},
        [TN_W_UP_EXPS_B] = {1, x * fx},
        [TN_W_DOWN_EXPS_B] = {1, x * e},
        [TN_W_CONV_IN] = {3 * e, e},
        [TN_W_CONV] = {taps, e},
        [TN_W_CONV_OUT] = {e, e},
        [TN_W_ATT_GATE] = {tn_latent(h) ? h->n_heads : q, e},
        [TN_W_DELTA_Q] = {dk, e},
        [TN_W_DELTA_K] = {dk, e},
        [TN_W_DELTA_V] = {dv, e},
        [TN_W_DELTA_GATE] = {dv, e},
        [TN_W_DELTA_DECAY] = {tn_delta_at_once(&h->delta) ? dk : dh, e},
        [TN_W_DELTA_RATE] = {dh, e},
        [TN_W_DELTA_OUT] = {e, dv},
        [TN_W_DELTA_CONV] = {taps, 2 * dk + dv},
        [TN_W_DELTA_A] = {1, dh},
        [TN_W_DELTA_DT] = {1, h->delta.kda ? dv : dh},
        [TN_W_DELTA_NORM] = {1, h->delta.mamba || h->delta.wkv ? dv : h->delta.d_value},
        [TN_W_SHARED_GATE] = {1, e},
        [TN_W_EXPERTS_BIAS] = {1, x},
        [TN_W_MAMBA_CONV_B] = {1, 2 * dk + dv},
        [TN_W_MAMBA_D] = {1, dh},
        [TN_W_PLE_EMBD] = {v, h->n_layers * ple},
        [TN_W_PLE_IN] = {ple, e},
        [TN_W_PLE_NORM] = {1, ple},
        [TN_W_PLE_GATE] = {ple, e},
        [TN_W_PLE_OUT] = {e, ple},
        [TN_W_PLE_POST_NORM] = {1, e},
        [TN_W_LAYER_SCALE] = {1, 1},
        [TN_W_NEXT_E_NORM] = {1, e},
        [TN_W_NEXT_H_NORM] = {1, e},
        [TN_W_NEXT_PROJ] = {e, 2 * e},
        [TN_W_NEXT_OUT_NORM] = {1, e},
    };
    assert(r < TN_W_N_ROLES);
    *n_rows = shapes[r].rows;
    *n_cols = shapes[r].cols;
    if (tn_is_head(h) || tn_role_of_streams(r) || r >= TN_W_ROUTER_NORM) shape_of_few(h, r, n_rows, n_cols);
}

uint64_t tn_hparams_identity(const tn_hparams *h) {
    tn_hparams all;
    memcpy(&all, h, sizeof all); /* with what lies between the fields */
    memset(all.name, 0, sizeof all.name);
    all.n_next = 0;
    return XXH64(&all, sizeof all, 0);
}

bool tn_pictures_see_themselves(const tn_hparams *h) {
    return !strcmp(h->arch, "gemma3") || (!strcmp(h->arch, "gemma4") && !h->n_ple);
}
