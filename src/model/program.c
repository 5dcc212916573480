#include "model/program.h"

#include "base/status.h"
#include "model/recipes.h"

#include <assert.h>
#include <math.h>
#include <string.h>

tn_buffer tn_role_buffer(tn_role r) {
    switch (r) {
    case TN_W_Q: return TN_BUF_Q;
    case TN_W_K: return TN_BUF_K;
    case TN_W_V: return TN_BUF_V;
    case TN_W_CONV_IN: return TN_BUF_BCX;
    case TN_W_ATT_GATE: return TN_BUF_ATT_GATE;
    case TN_W_DELTA_Q: return TN_BUF_DELTA_Q;
    case TN_W_DELTA_K: return TN_BUF_DELTA_K;
    case TN_W_DELTA_V: return TN_BUF_DELTA_V;
    case TN_W_DELTA_GATE: return TN_BUF_DELTA_GATE;
    case TN_W_DELTA_DECAY: return TN_BUF_DELTA_DECAY;
    case TN_W_DELTA_RATE: return TN_BUF_DELTA_RATE;
    case TN_W_KDA_F_A: return TN_BUF_KDA_F;
    case TN_W_KDA_G_A: return TN_BUF_KDA_G;
    case TN_W_CONV_OUT:
    case TN_W_DELTA_OUT: return TN_BUF_BRANCH;
    case TN_W_GATE: return TN_BUF_GATE;
    case TN_W_UP: return TN_BUF_UP;
    case TN_W_Q_A: return TN_BUF_Q_A;
    case TN_W_LATENT_Q: return TN_BUF_LATENT_Q;
    case TN_W_KV_A: return TN_BUF_KV_A;
    case TN_W_O:
    case TN_W_DOWN: return TN_BUF_BRANCH;
    case TN_W_GATE_EXPS: return TN_BUF_EXPERT_GATE;
    case TN_W_UP_EXPS: return TN_BUF_EXPERT_UP;
    case TN_W_DOWN_EXPS: return TN_BUF_GIVEN;
    case TN_W_PLE_IN: return TN_BUF_LAYER_IN;
    case TN_W_PLE_GATE: return TN_BUF_LAYER_GATE;
    case TN_W_PLE_OUT: return TN_BUF_BRANCH;
    case TN_W_LAUREL_IN: return TN_BUF_LAUREL;
    case TN_W_ALTUP_IN_1: return TN_BUF_STREAM_1;
    case TN_W_ALTUP_IN_2: return TN_BUF_STREAM_2;
    case TN_W_ALTUP_IN_3: return TN_BUF_STREAM_3;
    case TN_W_LAUREL_OUT:
    case TN_W_ALTUP_OUT_1:
    case TN_W_ALTUP_OUT_2:
    case TN_W_ALTUP_OUT_3: return TN_BUF_BRANCH;
    case TN_W_OUT:
    case TN_W_EMBD: return TN_BUF_LOGITS;
    default: assert(!"not a linear"); return TN_BUF_X;
    }
}

/* ---- from recipes to ops --------------------------------------------------------------------------- */

static tn_role bias_of(tn_role linear) {
    for (int i = 0; i < TN_N_LAYER_LINEARS; i++)
        if (tn_layer_linears[i].role == linear) return tn_layer_linears[i].bias;
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++)
        if (tn_expert_linears[i].role == linear) return tn_expert_linears[i].bias;
    return TN_W_OUT_B;
}

static bool has_role(const tn_hparams *h, int32_t layer, tn_role role) {
    switch (role) {
    case TN_W_GATE:
    case TN_W_GATE_EXPS: return h->gated;
    case TN_W_SINKS: return h->sinks;
    case TN_W_ATT_GATE: return h->attn_gate;
    case TN_W_ATTN_SUB_NORM:
    case TN_W_FFN_SUB_NORM: return h->sub_norms;
    case TN_W_DELTA_RATE:
    case TN_W_DELTA_NORM: return tn_delta_has(&h->delta, role);
    case TN_W_K:
    case TN_W_V: return tn_layer_may_have(h, layer, role);
    case TN_W_K_NORM: return h->qk_norm && tn_layer_may_have(h, layer, role);
    case TN_W_Q_NORM: return h->qk_norm;
    case TN_W_Q_A:
    case TN_W_LATENT_Q:
    case TN_W_Q_A_NORM: return tn_layer_may_have(h, layer, role);
    case TN_W_ATTN_POST_NORM:
    case TN_W_FFN_POST_NORM: return h->post_norms;
    case TN_W_OUT_NORM:
    case TN_W_OUT_NORM_B: return !h->norms_after;
    case TN_W_ATTN_NORM:
    case TN_W_ATTN_NORM_B: return !h->no_pre_norms && !(h->first_norm_none && !layer);
    case TN_W_FFN_NORM:
    case TN_W_FFN_NORM_B: return !h->no_pre_norms;
    case TN_W_Q_NORM_B: return h->qk_norm && h->qk_norm_biased;
    case TN_W_K_NORM_B: return h->qk_norm && h->qk_norm_biased && tn_layer_may_have(h, layer, role);
    case TN_W_EMBD_NORM_B: return !h->embd_norm_bare;
    default: return role != 0;
    }
}

static tn_role role_or_none(const tn_hparams *h, int32_t layer, tn_role role) {
    return has_role(h, layer, role) ? role : TN_W_N_ROLES;
}

static tn_site_ops linears_of(const tn_hparams *h, int32_t layer, const tn_recipe *r) {
    tn_site_ops o = {0};
    for (int i = 0; r->linears[i]; i++) {
        if (!has_role(h, layer, r->linears[i])) continue;
        tn_role role = r->linears[i] == TN_W_OUT && h->tied ? TN_W_EMBD : r->linears[i];
        int64_t n, k;
        tn_role_shape(h, layer, role, &n, &k);
        o.roles[o.n_ops] = role;
        o.biases[o.n_ops] = bias_of(r->linears[i]);
        o.n[o.n_ops++] = (int32_t)n;
        o.n_total += (int32_t)n;
        o.k = (int32_t)k;
    }
    if (tn_site_of_experts(r->site)) o.n_experts = h->n_experts, o.n_used = h->n_experts_used;
    return o;
}

int32_t tn_buffer_width(const tn_hparams *h, int32_t layer, tn_buffer b) {
    switch (b) {
    case TN_BUF_Q:
    case TN_BUF_ATT: return h->n_heads * tn_layer_d_head(h, layer);
    case TN_BUF_ATT_GATE: return h->n_heads * (tn_latent(h) ? 1 : tn_layer_d_head(h, layer));
    case TN_BUF_K:
    case TN_BUF_V: return tn_layer_kv_heads(h, layer) * tn_layer_d_head(h, layer);
    case TN_BUF_GATE:
    case TN_BUF_UP: return tn_layer_ff(h, layer);
    case TN_BUF_X: return tn_residual_width(h);
    case TN_BUF_LAUREL: return h->laurel_rank;
    case TN_BUF_LAYERS: return h->n_layers * h->n_ple;
    case TN_BUF_LAYER_IN:
    case TN_BUF_LAYER_GATE: return h->n_ple;
    case TN_BUF_BCX: return 3 * h->n_embd;
    case TN_BUF_DELTA_Q:
    case TN_BUF_DELTA_K: return h->delta.n_key_heads * h->delta.d_key;
    case TN_BUF_DELTA_V:
    case TN_BUF_DELTA_GATE:
    case TN_BUF_DELTA: return h->delta.n_heads * h->delta.d_value;
    case TN_BUF_V_FIRST:
    case TN_BUF_V_SHARE: return h->delta.n_heads * h->delta.d_value;
    case TN_BUF_KDA_F:
    case TN_BUF_KDA_G: return h->delta.d_key;
    case TN_BUF_DELTA_DECAY: return h->delta.n_heads * (tn_delta_by_key(&h->delta) ? h->delta.d_key : 1);
    case TN_BUF_DELTA_RATE: return h->delta.n_heads * (h->delta.wkv ? h->delta.d_key : 1);
    case TN_BUF_DELTA_MIXED: return tn_delta_mixed(&h->delta);
    case TN_BUF_ROUTE: return h->n_experts;
    case TN_BUF_CHOSEN: return 3 * h->n_experts_used + 1;
    case TN_BUF_EXPERT_GATE:
    case TN_BUF_EXPERT_UP: return h->n_experts_used * h->n_ff_exp;
    case TN_BUF_GIVEN: return h->n_experts_used * h->n_embd;
    case TN_BUF_LOGITS: return tn_is_head(h) ? h->head.n_vocab : h->n_vocab;
    case TN_BUF_Q_A: return h->latent.q_rank;
    case TN_BUF_LATENT_Q: return h->n_heads * (h->latent.d_nope + h->n_rot);
    case TN_BUF_KV_A: return h->latent.rank + h->n_rot;
    case TN_BUF_HEADS: return h->n_heads * h->latent.d_value;
    case TN_BUF_PAIR: return 2 * h->n_embd;
    default: return h->n_embd;
    }
}

static uint64_t bit(int i) { return UINT64_C(1) << i; }
_Static_assert(TN_N_BUFFERS <= 64, "a bit for every buffer");

static void specialise_delta(const tn_hparams *h, tn_op *o) {
    uint64_t gates = bit(TN_BUF_DELTA_DECAY) | bit(TN_BUF_DELTA_RATE);
    o->delta.net = h->delta;
    o->delta.len = h->conv_len;
    if (o->kind == TN_OP_DELTA_NORM) {
        o->reads |= bit(TN_BUF_DELTA_GATE);
        return;
    }
    if (o->kind == TN_OP_DELTA_GATES) {
        o->reads |= h->delta.mamba ? 0 : gates;
        o->writes |= gates;
        return;
    }
    if (h->delta.wkv) { /* all of it lies in one buffer */
        o->state_reads = o->state_writes = (uint32_t)bit(TN_STATE_DELTA);
        o->positional = true;
        return;
    }
    /* DELTA remembers for DELTA_MIX too, when nobody reads what the text left any more */
    o->reads |= bit(TN_BUF_DELTA_Q) | bit(TN_BUF_DELTA_K) | bit(TN_BUF_DELTA_V);
    if (o->kind == TN_OP_DELTA_MIX && h->delta.kda) o->reads |= gates;
    if (o->kind == TN_OP_DELTA) {
        o->reads |= h->delta.kda ? 0 : gates;
        o->state_writes = (uint32_t)bit(TN_STATE_DELTA);
    }
    o->state_reads = (uint32_t)bit(TN_STATE_DELTA);
    o->positional = true;
}

/* RWKV-7. */
static void specialise_low(const tn_hparams *h, tn_op *o) {
    const tn_low_pair pairs[TN_LOW_PAIRS] = {
        {TN_W_LERP_W, TN_W_LOW_W_1, TN_W_LOW_W_2, TN_W_LOW_W_B, TN_LOW_TANH, h->low.decay,
         TN_BUF_DELTA_DECAY},
        {TN_W_LERP_A, TN_W_LOW_A_1, TN_W_LOW_A_2, TN_W_LOW_A_B, TN_LOW_PLAIN, h->low.rate, TN_BUF_DELTA_RATE},
        {TN_W_LERP_G, TN_W_LOW_G_1, TN_W_LOW_G_2, TN_W_N_ROLES, TN_LOW_SIGMOID, h->low.gate,
         TN_BUF_DELTA_GATE},
        {TN_W_LERP_V, TN_W_LOW_V_1, TN_W_LOW_V_2, TN_W_LOW_V_B, TN_LOW_PLAIN, h->low.value, TN_BUF_V_SHARE}};
    o->reads |= bit(TN_BUF_SHIFT);
    o->writes = bit(TN_BUF_DELTA_MIXED); /* where it mixes rows */
    o->low.values = h->delta.n_heads * h->delta.d_value;
    o->low.mixed = tn_delta_mixed(&h->delta);
    for (int i = 0; i < TN_LOW_PAIRS; i++) {
        if (!tn_layer_may_have(h, o->layer, pairs[i].first)) continue;
        o->low.pairs[o->low.n++] = pairs[i];
        o->writes |= bit(pairs[i].out);
    }
}

static bool is_wkv(tn_op_kind k) { return k >= TN_OP_SHIFT && k <= TN_OP_WKV_NORM; }

static void specialise_wkv(const tn_hparams *h, const tn_recipe *r, tn_op *o) {
    const bool gated = h->low.gate > 0;
    if (o->kind == TN_OP_SHIFT) {
        o->state_reads = o->state_writes = (uint32_t)bit(TN_STATE_CONV);
        o->positional = true;
        o->shift_first = r->stream * h->n_embd;
        return;
    }
    if (o->kind == TN_OP_LERP) {
        o->reads |= bit(TN_BUF_SHIFT);
        return;
    }
    if (o->kind == TN_OP_LOW) {
        specialise_low(h, o);
        return;
    }
    o->delta.net = h->delta;
    o->delta.gated = gated;
    if (o->kind == TN_OP_WKV_NORM) {
        o->reads |= bit(TN_BUF_DELTA_MIXED) | (gated ? bit(TN_BUF_DELTA_GATE) : 0);
        return;
    }
    o->reads |= bit(TN_BUF_DELTA_K) | bit(TN_BUF_DELTA_V) | bit(TN_BUF_DELTA_DECAY) | bit(TN_BUF_DELTA_RATE);
    o->writes |= bit(TN_BUF_DELTA_RATE); /* in place */
    if (o->layer) o->reads |= bit(TN_BUF_V_FIRST) | bit(TN_BUF_V_SHARE), o->writes |= bit(TN_BUF_V_SHARE);
    else o->writes |= bit(TN_BUF_V_FIRST);
}

static void specialise_experts(const tn_hparams *h, tn_op *o) {
    if (o->kind == TN_OP_ROUTE) o->writes |= bit(TN_BUF_ROUTE);
    if (o->kind == TN_OP_GATHER) o->reads |= bit(TN_BUF_CHOSEN), o->writes |= bit(TN_BUF_CHOSEN);
    if (o->kind == TN_OP_EXPERT_GATE && h->gated) o->reads |= bit(TN_BUF_EXPERT_GATE);
    o->experts.gated = h->gated;
    o->experts.groups = h->experts_groups;
    o->experts.groups_used = h->experts_groups_used;
    if (o->kind == TN_OP_EXPERT_SUM) o->reads |= bit(TN_BUF_CHOSEN) | (h->shared_expert ? bit(o->out) : 0);
    o->experts.n = h->n_experts;
    o->experts.used = h->n_experts_used;
    o->experts.n_ff = h->n_ff_exp;
    o->experts.sigmoid = h->experts_sigmoid;
    o->experts.bias = h->experts_bias;
    o->experts.scale = h->experts_scale;
    o->experts.before = h->experts_before;
    o->experts.mixer = h->experts_mixer;
    o->experts.beside = h->experts_beside;
    o->experts.shared = h->shared_expert;
    o->experts.shared_gate = h->shared_gate;
    o->experts.n_embd = h->n_embd;
    o->experts.norm = h->experts_norm;
    o->experts.act = h->act;
    o->experts.limit = h->swiglu_limit;
    o->experts.most = h->gated ? h->experts_most[o->layer] : 0;
    if (o->kind == TN_OP_EXPERT_GATE && o->experts.most > 0) o->writes |= bit(TN_BUF_EXPERT_GATE);
    o->experts.out_bias = h->experts_out_bias;
}

static void specialise_rope(const tn_hparams *h, tn_op *o) {
    bool own = tn_layer_kv(h, o->layer) == o->layer;
    o->rope.v_is_k = own && tn_layer_v_is_k(h, o->layer);
    o->rope.v_norm = own && h->v_norm;
    o->reads = o->writes = bit(TN_BUF_Q);
    if (own) {
        o->reads |= bit(TN_BUF_K) | (o->rope.v_is_k ? 0 : bit(TN_BUF_V));
        o->writes |= bit(TN_BUF_K) | (o->rope.v_is_k || o->rope.v_norm ? bit(TN_BUF_V) : 0);
        o->state_writes = (uint32_t)bit(TN_STATE_KV);
    }
    o->positional = true;
    o->rope.q_norm = role_or_none(h, o->layer, TN_W_Q_NORM);
    o->rope.k_norm = role_or_none(h, o->layer, TN_W_K_NORM);
    o->rope.q_bias = role_or_none(h, o->layer, TN_W_Q_NORM_B);
    o->rope.k_bias = role_or_none(h, o->layer, TN_W_K_NORM_B);
    o->rope.n_heads = h->n_heads;
    o->rope.n_kv_heads = own ? tn_layer_kv_heads(h, o->layer) : 0;
    o->rope.d_head = tn_layer_d_head(h, o->layer);
    o->rope.table = tn_layer_rope_is_local(h, o->layer);
    o->rope.n_rot = !tn_layer_has_rope(h, o->layer) ? 0 : o->rope.table ? tn_local_rot(h) : h->n_rot;
    o->rope.whole = h->qk_norm_whole;
    o->rope.behind = h->qk_norm_last;
    o->rope.plain = h->qk_norm_plain && o->rope.n_rot > 0;
    o->rope.temp_scale = h->temp_no_rope && o->rope.n_rot > 0 ? 0 : h->temp_scale;
    o->rope.temp_every = h->temp_every;
    o->rope.temp_from = h->temp_no_rope;
}

static void specialise_latent(const tn_hparams *h, tn_op *o) {
    o->reads |= bit(TN_BUF_LATENT_Q);
    o->writes |= bit(TN_BUF_LATENT_Q) | bit(TN_BUF_Q);
    o->state_writes = (uint32_t)bit(TN_STATE_KV);
    o->positional = true;
    o->latent.n_heads = h->n_heads;
    o->latent.rank = h->latent.rank;
    o->latent.d_nope = h->latent.d_nope;
    o->latent.n_rot = h->n_rot;
    o->latent.rotates = tn_layer_has_rope(h, o->layer);
    o->latent.temp_scale = h->temp_scale;
    o->latent.temp_every = h->temp_every;
}

/* Queries into latents, which leaves what LATENT has put beside them; values of what heads give. */
static void specialise_heads(const tn_hparams *h, tn_op *o) {
    const bool up = o->weight == TN_W_K_UP, kda = tn_role_of_kda(o->weight);
    o->heads.role = o->weight;
    o->weight = TN_W_N_ROLES; /* it is no vector */
    if (kda) {                /* all heads read the same values */
        o->heads.n_heads = h->delta.n_heads;
        o->heads.k = o->heads.n = o->heads.out_stride = h->delta.d_key;
        return;
    }
    o->reads |= up ? bit(o->out) : 0;
    o->heads.n_heads = h->n_heads;
    o->heads.k = up ? h->latent.d_nope : h->latent.rank;
    o->heads.n = up ? h->latent.rank : h->latent.d_value;
    o->heads.in_stride = up ? h->latent.d_nope + h->n_rot : h->d_head;
    o->heads.out_stride = up ? h->d_head : h->latent.d_value;
}

static void specialise_mix(const tn_hparams *h, tn_op *o) {
    o->reads |= bit(TN_BUF_LAYER_IN) | bit(TN_BUF_LAYERS);
    o->writes |= bit(TN_BUF_LAYER_IN); /* its norm works in place */
    o->mix.n = h->n_ple;
    o->mix.first = o->layer * h->n_ple;
    o->mix.n_all = h->n_layers * h->n_ple;
    o->mix.in_scale = (float)(1 / sqrt((double)h->n_embd));
    o->mix.act = h->act;
}

/* Ops of several streams. */
static bool specialise_streams(const tn_hparams *h, const tn_recipe *r, tn_op *o) {
    switch (r->kind) {
    case TN_OP_GATE_SPARSE: o->deviations = h->sparse_deviations; return o->layer < h->n_sparse;
    case TN_OP_NORM_ADD: o->writes |= bit(o->in); return true;
    case TN_OP_STREAMS: o->reads |= bit(TN_BUF_STREAM_2) | bit(TN_BUF_STREAM_3) | bit(TN_BUF_X); return true;
    case TN_OP_ALTUP_PREDICT: o->writes |= bit(o->in); return true;
    case TN_OP_ALTUP_CORRECT:
        o->reads |= bit(o->out);
        o->writes |= bit(o->in) | bit(TN_BUF_NORMED); /* which the scores are computed from */
        return true;
    case TN_OP_ALTUP_ADD:
        o->reads |= bit(o->out);
        o->writes |= bit(o->in);
        return true;
    case TN_OP_ALTUP_MERGE:
        o->reads |= bit(TN_BUF_X) | (r->stream > 1 ? bit(o->out) : 0);
        o->writes |= r->stream == TN_STREAMS - 1 ? bit(TN_BUF_X) : 0;
        o->stream = r->stream;
        return true;
    default: return true;
    }
}

static void specialise_residual(const tn_hparams *h, tn_op *o) {
    o->reads |= bit(o->out);
    o->scale = h->residual_scale;
    o->after = h->norms_after && o->weight != TN_W_N_ROLES;
    if (o->after)
        o->bias = o->weight == TN_W_ATTN_POST_NORM ? TN_W_ATTN_POST_NORM_B
                  : o->weight == TN_W_ATTN_NORM_2  ? TN_W_ATTN_NORM_2_B
                                                   : TN_W_FFN_POST_NORM_B;
    else if (o->weight != TN_W_N_ROLES) o->writes |= bit(o->in); /* its norm works in place */
}

static void specialise_pair(const tn_hparams *h, tn_op *o) {
    o->reads |= bit(TN_BUF_X);
    o->keeps = !h->head.norm_residual;
    o->writes |= o->keeps ? 0 : bit(TN_BUF_X);
}

/* Of a block that feeds forward, or of attention. */
static bool specialise_gate(const tn_hparams *h, tn_op *o) {
    if (o->kind == TN_OP_ATTN_GATE) {
        o->reads |= bit(TN_BUF_ATT_GATE);
        o->gate_each = tn_latent(h) ? h->latent.d_value : 1;
        return h->attn_gate;
    }
    o->gate.act = h->act;
    o->gate.gated = h->gated;
    o->gate.most = h->gated ? h->shared_most[o->layer] : 0;
    if (h->gated) o->reads |= bit(TN_BUF_GATE);
    if (o->gate.most > 0) o->writes |= bit(TN_BUF_GATE);
    return true;
}

/* What is particular to the kind. Returns false where the model has no such op. */
static bool specialise(const tn_hparams *h, const tn_recipe *r, tn_op *o) {
    switch (r->kind) {
    case TN_OP_EMBED:
        o->reads = 0; /* but the tokens */
        o->scale = h->embd_scale;
        return true;
    case TN_OP_LINEARS:
        o->lane = TN_LANE_NPU;
        o->site = r->site;
        o->linears = linears_of(h, o->layer, r);
        o->out = tn_role_buffer(o->linears.roles[0]);
        o->writes = 0;
        for (int32_t i = 0; i < o->linears.n_ops; i++) o->writes |= bit(tn_role_buffer(o->linears.roles[i]));
        if (r->site == TN_SITE_EXPERTS) /* rows are gathered where later the results lie */
            o->writes |= bit(TN_BUF_GIVEN);
        if (o->linears.n_experts) o->reads |= bit(TN_BUF_CHOSEN);
        return true;
    case TN_OP_ROPE: specialise_rope(h, o); return true;
    case TN_OP_ATTEND:
        o->state_reads = (uint32_t)bit(TN_STATE_KV);
        o->positional = true;
        o->attend.n_heads = h->n_heads;
        o->attend.n_kv_heads = tn_layer_kv_heads(h, o->layer);
        o->attend.d_head = tn_layer_d_head(h, o->layer);
        o->attend.window = tn_layer_window(h, o->layer);
        o->attend.sinks = role_or_none(h, o->layer, TN_W_SINKS);
        o->attend.both = h->bidirectional;
        o->attend.chunks = h->window_chunks;
        o->attend.v_normed = h->v_norm;
        return true;
    case TN_OP_CONV_GATE: o->conv.n_embd = h->n_embd; return true;
    case TN_OP_CONV:
        o->state_reads = o->state_writes = (uint32_t)bit(TN_STATE_CONV);
        o->positional = true;
        o->conv.n_embd = h->n_embd;
        o->conv.len = h->conv_len;
        return true;
    case TN_OP_ROUTE:
    case TN_OP_GATHER:
    case TN_OP_EXPERT_GATE:
    case TN_OP_EXPERT_SUM: specialise_experts(h, o); return true;
    case TN_OP_DELTA_GATES:
    case TN_OP_DELTA_MIX:
    case TN_OP_DELTA:
    case TN_OP_DELTA_NORM: specialise_delta(h, o); return true;
    case TN_OP_ATTN_GATE:
    case TN_OP_GATE: return specialise_gate(h, o);
    case TN_OP_EMBED_LAYERS:
        o->reads = 0;
        o->scale = (float)sqrt((double)h->n_ple);
        return true;
    case TN_OP_LAYER_MIX: specialise_mix(h, o); return true;
    case TN_OP_LATENT: specialise_latent(h, o); return true;
    case TN_OP_HEADS: specialise_heads(h, o); return true;
    case TN_OP_RESIDUAL: specialise_residual(h, o); return true;
    case TN_OP_NORM:
        if (o->weight == TN_W_N_ROLES) o->kind = TN_OP_COPY;
        return o->kind == TN_OP_NORM || o->in != o->out;
    case TN_OP_COPY: o->stream = r->stream; return true;
    case TN_OP_EMBED_ADD:
        o->add.type = h->embd_type;
        o->positional = o->add.positions = h->n_positions > 0;
        return h->embd_type || h->n_positions;
    case TN_OP_SCALE:
        o->scale = (float)sqrt(0.5); /* where the layer has no number: the mean of two, as large as one */
        return true;
    case TN_OP_PAIR: specialise_pair(h, o); return true;
    case TN_OP_CAP:
        o->logits.scale = h->logit_scale;
        o->logits.cap = h->logit_soft_cap;
        return h->logit_soft_cap > 0 || h->logit_scale != 1;
    default: return is_wkv(r->kind) ? specialise_wkv(h, r, o), true : specialise_streams(h, r, o);
    }
}

static bool expand(const tn_hparams *h, int32_t layer, const tn_recipe *r, tn_op *o) {
    *o = (tn_op){.kind = r->kind,
                 .name = r->name,
                 .beside = r->beside,
                 .lane = TN_LANE_CPU,
                 .layer = layer,
                 .in = r->in,
                 .out = r->out,
                 .reads = bit(r->in),
                 .writes = bit(r->out),
                 .site = TN_NO_SITE,
                 .feeds = TN_NO_SITE,
                 .weight = role_or_none(h, layer, r->weight),
                 .bias = role_or_none(h, layer, r->bias)};
    if (!specialise(h, r, o)) return false;
    o->width = tn_buffer_width(h, layer, o->out);
    o->in_width = r->kind == TN_OP_EMBED ? h->n_embd : tn_buffer_width(h, layer, o->in);
    return true;
}

/* ---- the program ------------------------------------------------------------------------------------ */

/* The linears of op i read what the last writer of their input left: it quantises for them. */
static void feed(tn_program *p, int32_t i) {
    int32_t at = i;
    while (!(p->ops[--at].writes & bit(p->ops[i].in))) assert(at > 0);
    p->ops[at].feeds = p->ops[i].site;
}

static void fill(tn_program *p, const tn_hparams *h) {
    for (int32_t layer = -1; layer <= p->n_layers; layer++) {
        tn_recipes list[TN_MAX_PARTS];
        tn_recipes_of(h, layer, list);
        p->first[layer + 1] = p->n_ops;
        for (int k = 0; k < TN_MAX_PARTS; k++)
            for (int32_t i = 0; i < list[k].n; i++)
                p->n_ops += expand(h, layer, &list[k].at[i], &p->ops[p->n_ops]);
    }
    p->first[p->n_layers + 2] = p->n_ops;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const tn_op *o = &p->ops[i];
        for (int b = 0; b < TN_N_BUFFERS; b++) {
            int32_t width = (o->reads | o->writes) & bit(b) ? tn_buffer_width(h, o->layer, (tn_buffer)b) : 0;
            if (width > p->width[b]) p->width[b] = width;
        }
        if (o->kind != TN_OP_LINEARS) continue;
        feed(p, i);
        /* in order of the kinds within a layer, as packages hold them */
        int32_t at = p->n_sites++;
        for (; at && p->sites[at - 1].layer == o->layer && p->sites[at - 1].kind > o->site; at--)
            p->sites[at] = p->sites[at - 1];
        p->sites[at] = (tn_program_site){.kind = o->site, .layer = o->layer, .op = i};
    }
    for (int32_t i = 0; i < (p->n_layers + 1) * TN_N_SITES; i++) p->site_at[i] = -1;
    for (int32_t i = 0; i < p->n_sites; i++)
        p->site_at[p->sites[i].layer * TN_N_SITES + (int32_t)p->sites[i].kind] = i;
}

tern_status tn_program_make(tn_ctx *ctx, const tn_hparams *h, tn_program *out, tern_error *err) {
    *out = (tn_program){.ctx = ctx, .n_layers = h->n_layers};
    size_t n = (size_t)h->n_layers + 2;
    out->ops = tn_alloc(ctx, TN_MEM_OTHER, n * TN_MAX_LAYER_OPS, sizeof *out->ops);
    out->first = tn_alloc(ctx, TN_MEM_OTHER, n + 1, sizeof *out->first);
    out->sites = tn_alloc(ctx, TN_MEM_OTHER, n * TN_N_SITES, sizeof *out->sites);
    out->site_at = tn_alloc(ctx, TN_MEM_OTHER, n * TN_N_SITES, sizeof *out->site_at);
    if (!out->ops || !out->first || !out->sites || !out->site_at) {
        tn_program_free(out);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the program of %d layers", h->n_layers);
    }
    fill(out, h);
    return TERN_OK;
}

tern_status tn_program_tap(tn_program *p, const tn_hparams *h, const int32_t *layers, int32_t n,
                           tern_error *err) {
    assert(n > 0 && n <= TN_MAX_TAPS);
    tn_op *more = tn_realloc(p->ctx, TN_MEM_OTHER, p->ops, (size_t)(p->n_ops + n), sizeof *more);
    TN_FAIL_IF(!more, err, TERN_E_MEMORY, "no memory for the program of %d layers", p->n_layers);
    p->ops = more;
    p->width[TN_BUF_TAPS] = n * h->n_embd;
    for (int32_t i = 0; i < n; i++) {
        const int32_t at = p->first[layers[i] + 1];
        memmove(&p->ops[at + 1], &p->ops[at], (size_t)(p->n_ops++ - at) * sizeof *p->ops);
        p->ops[at] = (tn_op){.kind = TN_OP_TAP,
                             .name = "tap",
                             .lane = TN_LANE_CPU,
                             .layer = layers[i],
                             .in = TN_BUF_X,
                             .out = TN_BUF_TAPS,
                             .reads = bit(TN_BUF_X),
                             .writes = bit(TN_BUF_TAPS),
                             .site = TN_NO_SITE,
                             .feeds = TN_NO_SITE,
                             .weight = TN_W_N_ROLES,
                             .bias = TN_W_N_ROLES,
                             .width = p->width[TN_BUF_TAPS],
                             .in_width = tn_buffer_width(h, layers[i], TN_BUF_X),
                             .stream = i};
        for (int32_t l = layers[i] + 2; l < p->n_layers + 3; l++) p->first[l]++;
        for (int32_t s = 0; s < p->n_sites; s++) p->sites[s].op += p->sites[s].op >= at;
    }
    return TERN_OK;
}

void tn_program_free(tn_program *p) {
    if (!p->ctx) return;
    tn_free(p->ctx, p->ops);
    tn_free(p->ctx, p->first);
    tn_free(p->ctx, p->sites);
    tn_free(p->ctx, p->site_at);
    *p = (tn_program){0};
}

int32_t tn_program_layer_sites(const tn_program *p, int32_t layer, int32_t *first) {
    int32_t n = 0;
    *first = 0;
    for (int32_t i = 0; i < p->n_sites; i++) {
        if (tn_program_site_layer(p, i) != layer) continue;
        if (!n) *first = i;
        n++;
    }
    return n;
}

const tn_op *tn_program_source(const tn_program *p, int32_t site) {
    const tn_op *o = &p->ops[p->sites[site].op];
    uint64_t in = bit(o->in);
    do o--;
    while (!(o->writes & in));
    return o;
}

bool tn_program_divides_alone(const tn_program *p, int32_t site) {
    const tn_op *from = tn_program_source(p, site);
    return (from->kind == TN_OP_COPY && from->in == TN_BUF_HEADS) || from->kind == TN_OP_DELTA_NORM ||
           from->kind == TN_OP_CONV || from->kind == TN_OP_NORM_ADD || from->kind == TN_OP_LERP ||
           from->kind == TN_OP_WKV_NORM || (from->kind == TN_OP_ATTEND && from->attend.v_normed) ||
           tn_site_of_ple(p->sites[site].kind) || tn_site_of_streams(p->sites[site].kind);
}

bool tn_program_divides(const tn_program *p, int32_t site) {
    const tn_op *from = tn_program_source(p, site), *last = &p->ops[p->sites[site].op];
    bool others = tn_site_of_experts(p->sites[site].kind) || tn_program_divides_alone(p, site);
    if (from->kind == TN_OP_EXPERT_GATE) /* what is clamped is not linear, nor what no gate multiplies */
        return from->experts.limit > 0 || from->experts.most > 0 || !from->experts.gated;
    if (from->kind == TN_OP_GATE && from->gate.most > 0) return true;
    for (const tn_op *o = from + 1; o < last; o++) others = others || o->kind == TN_OP_ROUTE;
    return others;
}

tn_role tn_program_absorber(const tn_program *p, int32_t site) {
    if (p->sites[site].kind == TN_SITE_LM_HEAD) return TN_W_N_ROLES; /* its norm is kept as it is */
    if (tn_program_divides(p, site)) return TN_W_N_ROLES;
    const tn_op *from = tn_program_source(p, site);
    switch (from->kind) {
    case TN_OP_NORM: return from->weight;
    case TN_OP_ATTEND:
    case TN_OP_ATTN_GATE: return TN_W_V;
    case TN_OP_GATE: return from->gate.gated ? TN_W_UP : TN_W_N_ROLES;
    case TN_OP_EXPERT_GATE: return TN_W_UP_EXPS; /* those of a clamped gate are divided */
    default: return TN_W_N_ROLES;
    }
}

static bool op_uses(const tn_op *o, tn_role role) {
    if (o->weight == role || o->bias == role) return true;
    if (o->kind == TN_OP_ROPE)
        return o->rope.q_norm == role || o->rope.k_norm == role || o->rope.q_bias == role ||
               o->rope.k_bias == role;
    if (o->kind == TN_OP_EXPERT_SUM && o->experts.out_bias && role == TN_W_EXPERTS_OUT_B) return true;
    if (o->kind == TN_OP_ATTEND && o->attend.sinks == role) return true;
    if (o->kind == TN_OP_HEADS && o->heads.role == role) return true;
    if (o->kind == TN_OP_ROUTE)
        return role == TN_W_ROUTER || role == TN_W_ROUTER_B ||
               (role == TN_W_SHARED_GATE && o->experts.shared_gate) ||
               (role == TN_W_EXPERTS_BIAS && o->experts.bias) ||
               (role == TN_W_EXPERTS_SCALE && o->experts.beside);
    for (int32_t i = 0; o->kind == TN_OP_LOW && i < o->low.n; i++) {
        const tn_low_pair *p = &o->low.pairs[i];
        if (role == p->lerp || role == p->first || role == p->second || role == p->bias) return true;
    }
    if (o->kind == TN_OP_WKV_MIX) return role == TN_W_WKV_KK || role == TN_W_WKV_KA;
    if (o->kind == TN_OP_WKV_NORM)
        return role == TN_W_WKV_RK || (role == TN_W_WKV_NORM_B && !o->delta.net.no_norm);
    if (o->kind == TN_OP_DELTA_GATES) return role == TN_W_DELTA_A || role == TN_W_DELTA_DT;
    if (o->kind == TN_OP_DELTA_MIX)
        return (role == TN_W_DELTA_CONV && !o->delta.net.kda) ||
               (tn_role_of_kda_conv(role) && o->delta.net.kda) ||
               (role == TN_W_MAMBA_CONV_B && o->delta.net.mamba);
    if (o->kind == TN_OP_DELTA) return role == TN_W_MAMBA_D && o->delta.net.mamba;
    if (o->kind == TN_OP_ALTUP_PREDICT)
        return role == TN_W_ALTUP_NORM || role == TN_W_ALTUP_ROUTER || role == TN_W_ALTUP_PREDICT;
    if (o->kind == TN_OP_PAIR && role == TN_W_NEXT_H_NORM) return true;
    if (o->kind == TN_OP_EMBED_ADD)
        return (role == TN_W_EMBD_TYPE && o->add.type) || (role == TN_W_POSITIONS && o->add.positions);
    if (o->kind == TN_OP_ALTUP_CORRECT) return role == TN_W_ALTUP_CORRECT || role == TN_W_ALTUP_SCALE;
    for (int32_t i = 0; o->kind == TN_OP_LINEARS && i < o->linears.n_ops; i++)
        if (o->linears.roles[i] == role || o->linears.biases[i] == role) return true;
    return false;
}

bool tn_program_uses(const tn_program *p, int32_t layer, tn_role role) {
    int32_t n;
    const tn_op *o = tn_program_layer(p, layer < 0 ? p->n_layers : layer, &n);
    for (int32_t i = 0; i < n; i++)
        if (op_uses(&o[i], role)) return true;
    return layer < 0 && (role == TN_W_EMBD || (role == TN_W_PLE_EMBD && p->width[TN_BUF_LAYERS]));
}
