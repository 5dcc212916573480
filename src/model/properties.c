#include "model/properties.h"

#include "kernels/kv_cells.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const char tn_layer_letters[TN_N_LAYER_KINDS + 1] = "acdbf";

#define AT(field) offsetof(tn_hparams, field)
#define ALWAYS(section, type, key, field, min, max)                                                          \
    { section, key, TN_PROPERTY_##type, AT(field), true, NAN, min, max, false }
/* Between min and max, both excluded. */
#define WITHIN(section, type, key, field, min, max)                                                          \
    { section, key, TN_PROPERTY_##type, AT(field), true, NAN, min, max, true }
#define CAP(key, field)                                                                                      \
    { "operators", key, TN_PROPERTY_FLOAT, AT(field), true, 0, 0, 1e6, true }
/* Most architectures do not have these. */
#define EXTRA(type, key, field, none, min, max)                                                              \
    { "operators", key, TN_PROPERTY_##type, AT(field), false, none, min, max, false }
#define FLAG(key, field) EXTRA(BOOL, key, field, 0, 0, 1)

static const tn_property properties[] = {
    ALWAYS("hparams", INT, "n_layers", n_layers, 1, TN_MAX_LAYERS),
    ALWAYS("hparams", INT, "n_embd", n_embd, 1, 1 << 16),
    ALWAYS("hparams", INT, "n_heads", n_heads, 1, 1 << 12),
    ALWAYS("hparams", INT, "n_kv_heads", n_kv_heads, 1, 1 << 12),
    ALWAYS("hparams", INT, "d_head", d_head, 1, TN_MAX_HEAD),
    ALWAYS("hparams", INT, "n_ff", n_ff, 1, TN_MAX_FF),
    ALWAYS("hparams", INT, "n_vocab", n_vocab, 1, 1 << 24),
    ALWAYS("hparams", INT, "ctx_train", ctx_train, 1, 1 << 24),
    ALWAYS("operators", INT, "norm", norm, TN_NORM_RMS, TN_NORM_LAYER),
    WITHIN("operators", FLOAT, "norm_eps", norm_eps, 0, 1),
    ALWAYS("operators", INT, "act", act, TN_ACT_SILU, TN_ACT_RELU2),
    ALWAYS("operators", BOOL, "gated", gated, 0, 1),
    ALWAYS("operators", BOOL, "parallel_block", parallel_block, 0, 1),
    ALWAYS("operators", BOOL, "post_norms", post_norms, 0, 1),
    ALWAYS("operators", BOOL, "qk_norm", qk_norm, 0, 1),
    ALWAYS("operators", BOOL, "tied", tied, 0, 1),
    WITHIN("operators", FLOAT, "embd_scale", embd_scale, 0, 1e6),
    WITHIN("operators", FLOAT, "attn_scale", attn_scale, 0, 1e6),
    CAP("attn_soft_cap", attn_soft_cap),
    CAP("logit_soft_cap", logit_soft_cap),
    ALWAYS("operators", INT, "window", window, 0, INT32_MAX),
    ALWAYS("operators", INT, "window_pattern", window_pattern, 0, TN_MAX_LAYERS),
    FLAG("no_pre_norms", no_pre_norms),
    FLAG("qk_norm_whole", qk_norm_whole),
    FLAG("qk_norm_last", qk_norm_last),
    EXTRA(FLOAT, "residual_scale", residual_scale, 1, 1e-6, 1e6),
    EXTRA(FLOAT, "logit_scale", logit_scale, 1, 1e-6, 1e6),
    EXTRA(FLOAT, "temp_scale", temp_scale, 0, 0, 100),
    EXTRA(INT, "temp_every", temp_every, 0, 0, INT32_MAX),
    EXTRA(INT, "no_rope_pattern", no_rope_pattern, 0, 0, TN_MAX_LAYERS),
    FLAG("local_rope", local_rope),
    FLAG("attn_gate", attn_gate),
    EXTRA(INT, "conv_len", conv_len, 0, 0, TN_MAX_CONV),
    EXTRA(INT, "delta_heads", delta.n_heads, 0, 0, 1 << 12),
    EXTRA(INT, "delta_key_heads", delta.n_key_heads, 0, 0, 1 << 12),
    EXTRA(INT, "delta_d_key", delta.d_key, 0, 0, TN_MAX_DELTA),
    EXTRA(INT, "delta_d_value", delta.d_value, 0, 0, 1 << 12),
    FLAG("delta_tiled", delta.tiled),
    FLAG("delta_mamba", delta.mamba),
    FLAG("sinks", sinks),
    EXTRA(INT, "experts", n_experts, 0, 0, TN_MAX_EXPERTS),
    EXTRA(INT, "experts_used", n_experts_used, 0, 0, TN_MAX_EXPERTS),
    EXTRA(INT, "experts_ff", n_ff_exp, 0, 0, 1 << 18),
    EXTRA(INT, "experts_behind", n_dense, 0, 0, TN_MAX_LAYERS),
    EXTRA(INT, "ff_before_experts", n_ff_dense, 0, 0, 1 << 18),
    FLAG("experts_norm", experts_norm),
    FLAG("experts_sigmoid", experts_sigmoid),
    FLAG("experts_bias", experts_bias),
    EXTRA(FLOAT, "experts_scale", experts_scale, 1, 1e-6, 1e6),
    FLAG("shared_expert", shared_expert),
    FLAG("shared_gate", shared_gate),
    EXTRA(FLOAT, "swiglu_limit", swiglu_limit, 0, 0, 1e6),
    EXTRA(NUMBERS, "experts_most", experts_most, 0, 0, TN_MAX_LIMIT),
    EXTRA(NUMBERS, "shared_most", shared_most, 0, 0, TN_MAX_LIMIT),
    EXTRA(INT, "window_d_head", window_d_head, 0, 0, 512),
    EXTRA(INT, "window_kv_heads", window_kv_heads, 0, 0, 1 << 12),
    EXTRA(INT, "window_rot", window_rot, 0, 0, TN_MAX_ROT),
    EXTRA(INT, "kv_shared", n_kv_shared, 0, 0, TN_MAX_LAYERS),
    EXTRA(INT, "ff_shared", n_ff_shared, 0, 0, 1 << 18),
    FLAG("v_norm", v_norm),
    FLAG("v_is_k", v_is_k),
    FLAG("layer_scale", layer_scale),
    EXTRA(INT, "layer_embedding", n_ple, 0, 0, 1 << 12),
    FLAG("delta_no_norm", delta.no_norm),
    FLAG("delta_norm_first", delta.norm_first),
    {"operators", "layer_kinds", TN_PROPERTY_KINDS, AT(layer_kind), false, 0, 0, 0, false},
    FLAG("experts_beside", experts_beside),
    EXTRA(INT, "streams", n_streams, 0, 0, TN_STREAMS),
    EXTRA(INT, "laurel_rank", laurel_rank, 0, 0, 1 << 14),
    EXTRA(INT, "sparse_layers", n_sparse, 0, 0, TN_MAX_LAYERS),
    EXTRA(FLOAT, "sparse_deviations", sparse_deviations, 0, 0, 100),
    FLAG("bidirectional", bidirectional),
    FLAG("norms_after", norms_after),
    FLAG("embd_norm", embd_norm),
    FLAG("embd_type", embd_type),
    EXTRA(INT, "positions", n_positions, 0, 0, 1 << 20),
    EXTRA(INT, "pooling", pooling, TN_POOL_UNSAID, TN_POOL_UNSAID, TN_N_POOLINGS - 1),
    EXTRA(INT, "dense_after", n_between, 0, 0, 1 << 16),
    EXTRA(INT, "scores", n_scores, 0, 0, 1 << 10),
    FLAG("score_layer", score_layer),
    FLAG("score_gelu", score_gelu),
    FLAG("score_norm", score_norm),
    FLAG("score_mean", score_mean),
    FLAG("score_tanh", score_tanh),
    FLAG("window_rest", window_rest),
    FLAG("first_norm_none", first_norm_none),
    FLAG("embd_norm_bare", embd_norm_bare),
    EXTRA(FLOAT, "alibi", alibi, 0, 0, 64),
    FLAG("qk_norm_biased", qk_norm_biased),
    FLAG("attn_norm_twice", attn_norm_twice),
    FLAG("experts_out_bias", experts_out_bias),
    EXTRA(INT, "experts_groups", experts_groups, 0, 0, TN_MAX_EXPERTS),
    EXTRA(INT, "experts_groups_used", experts_groups_used, 0, 0, TN_MAX_EXPERTS),
    FLAG("single_blocks", single),
    FLAG("sub_norms", sub_norms),
    FLAG("delta_wkv", delta.wkv),
    FLAG("delta_kda", delta.kda),
    EXTRA(FLOAT, "delta_deepest", delta.deepest, 0, 0, TN_MAX_DEEPEST),
    EXTRA(INT, "low_decay", low.decay, 0, 0, TN_MAX_LOW),
    EXTRA(INT, "low_rate", low.rate, 0, 0, TN_MAX_LOW),
    EXTRA(INT, "low_value", low.value, 0, 0, TN_MAX_LOW),
    EXTRA(INT, "low_gate", low.gate, 0, 0, TN_MAX_LOW),
    FLAG("shift_ffn", shift_ffn),
    FLAG("window_chunks", window_chunks),
    FLAG("temp_no_rope", temp_no_rope),
    FLAG("qk_norm_plain", qk_norm_plain),
    FLAG("experts_before", experts_before),
    EXTRA(INT, "experts_every", experts_every, 0, 0, TN_MAX_LAYERS),
    EXTRA(FLOAT, "experts_mixer", experts_mixer, 0, 0, 1),
    EXTRA(INT, "latent_rank", latent.rank, 0, 0, 1024),
    EXTRA(INT, "latent_q_rank", latent.q_rank, 0, 0, 1 << 14),
    EXTRA(INT, "latent_key", latent.d_nope, 0, 0, 1024),
    EXTRA(INT, "latent_value", latent.d_value, 0, 0, 1024),
    EXTRA(INT, "rope_time", rope_axes[0], 0, 0, TN_MAX_ROT / 2),
    EXTRA(INT, "rope_down", rope_axes[1], 0, 0, TN_MAX_ROT / 2),
    EXTRA(INT, "rope_across", rope_axes[2], 0, 0, TN_MAX_ROT / 2),
    FLAG("rope_interleaved", rope_interleaved),
    EXTRA(INT, "deepstack", n_deepstack, 0, 0, TN_MAX_DEEPSTACK),
    ALWAYS("rope", INT, "n_rot", n_rot, 0, TN_MAX_ROT),
    WITHIN("rope", DOUBLE, "rope_base", rope_base, 1, 1e12),
    ALWAYS("rope", INT, "rope_orig_ctx", rope_orig_ctx, 0, INT32_MAX),
    WITHIN("rope", FLOAT, "rope_mscale", rope_mscale, 0, 1e3),
};

const tn_property *tn_properties(size_t *n) {
    *n = sizeof properties / sizeof properties[0];
    return properties;
}

bool tn_property_ok(const tn_property *p, double v) {
    if (p->type == TN_PROPERTY_INT && v != rint(v)) return false;
    if (p->type == TN_PROPERTY_FLOAT) v = (double)(float)v;
    if (p->open) return (v > p->min || (v == 0 && p->none == 0)) && v < p->max;
    return v >= p->min && v <= p->max;
}

double tn_property_get(const tn_property *p, const tn_hparams *h) {
    const char *at = (const char *)h + p->at;
    int32_t i;
    float f;
    double d;
    switch (p->type) {
    case TN_PROPERTY_INT: return memcpy(&i, at, sizeof i), i;
    case TN_PROPERTY_BOOL: return *(const bool *)at;
    case TN_PROPERTY_FLOAT: return memcpy(&f, at, sizeof f), (double)f;
    case TN_PROPERTY_DOUBLE: return memcpy(&d, at, sizeof d), d;
    case TN_PROPERTY_KINDS:
    case TN_PROPERTY_NUMBERS: break;
    }
    assert(false);
    return 0;
}

void tn_property_set(const tn_property *p, tn_hparams *h, double v) {
    char *at = (char *)h + p->at;
    switch (p->type) {
    case TN_PROPERTY_INT: memcpy(at, &(int32_t){(int32_t)v}, sizeof(int32_t)); break;
    case TN_PROPERTY_BOOL: *(bool *)at = v != 0; break;
    case TN_PROPERTY_FLOAT: memcpy(at, &(float){(float)v}, sizeof(float)); break;
    case TN_PROPERTY_DOUBLE: memcpy(at, &v, sizeof v); break;
    case TN_PROPERTY_KINDS:
    case TN_PROPERTY_NUMBERS: assert(false);
    }
}
