/* model/arch_rows.h - what rows of arch_table.c have in common. */
#ifndef TN_MODEL_ARCH_ROWS_H
#define TN_MODEL_ARCH_ROWS_H

/* Norms in front of and after both blocks, by their names in folders. */
#define HF_NORMS_AROUND                                                                                      \
    [TN_W_ATTN_POST_NORM] = "post_attention_layernorm.weight",                                               \
    [TN_W_FFN_NORM] = "pre_feedforward_layernorm.weight",                                                    \
    [TN_W_FFN_POST_NORM] = "post_feedforward_layernorm.weight"

/* A shared expert's block. */
#define GGUF_SHARED                                                                                          \
    [TN_W_GATE] = "ffn_gate_shexp.weight", [TN_W_UP] = "ffn_up_shexp.weight",                                \
    [TN_W_DOWN] = "ffn_down_shexp.weight"
#define HF_SHARED(where)                                                                                     \
    [TN_W_GATE] = where "gate_proj.weight", [TN_W_UP] = where "up_proj.weight",                              \
    [TN_W_DOWN] = where "down_proj.weight"

/* What Gemma 3n and all of Gemma 4 have in common. */
#define LIKE_GEMMA4                                                                                          \
    .act = TN_ACT_GELU_TANH, .gated = true, .post_norms = true, .qk_norm = true, .v_norm = true,             \
    .scale_embd = true, .attn_scale = 1, .logit_soft_cap = 30, .window = true, .window_any = true,           \
    .window_heads = true, .local_rope = true, .local_base = 10000, .shared_kv = true, .ple = true

/* Layers of one block: a state space, attention without rope, or a block without gates. */
#define LIKE_NEMOTRON_H                                                                                      \
    .act = TN_ACT_RELU2, .delta = true, .mamba = true, .single = true, .no_rope_pattern = 1,                 \
    .hf_layers = "backbone.layers."
#define GGUF_NEMOTRON_H                                                                                      \
    [TN_W_FFN_NORM] = "attn_norm.weight", [TN_W_DELTA_Q] = "ssm_in.weight",                                  \
    [TN_W_DELTA_K] = "ssm_in.weight", [TN_W_DELTA_V] = "ssm_in.weight", [TN_W_DELTA_GATE] = "ssm_in.weight", \
    [TN_W_DELTA_DECAY] = "ssm_in.weight"
#define HF_NEMOTRON_H                                                                                        \
    [TN_W_EMBD] = "backbone.embeddings.weight", [TN_W_OUT_NORM] = "backbone.norm_f.weight",                  \
    [TN_W_ATTN_NORM] = "norm.weight", [TN_W_FFN_NORM] = "norm.weight", [TN_W_Q] = "mixer.q_proj.weight",     \
    [TN_W_K] = "mixer.k_proj.weight", [TN_W_V] = "mixer.v_proj.weight", [TN_W_O] = "mixer.o_proj.weight",    \
    [TN_W_DELTA_Q] = "mixer.in_proj.weight", [TN_W_DELTA_K] = "mixer.in_proj.weight",                        \
    [TN_W_DELTA_V] = "mixer.in_proj.weight", [TN_W_DELTA_GATE] = "mixer.in_proj.weight",                     \
    [TN_W_DELTA_DECAY] = "mixer.in_proj.weight", [TN_W_DELTA_OUT] = "mixer.out_proj.weight",                 \
    [TN_W_DELTA_CONV] = "mixer.conv1d.weight", [TN_W_DELTA_A] = "mixer.A_log",                               \
    [TN_W_DELTA_DT] = "mixer.dt_bias", [TN_W_DELTA_NORM] = "mixer.norm.weight",                              \
    [TN_W_MAMBA_CONV_B] = "mixer.conv1d.bias", [TN_W_MAMBA_D] = "mixer.D"

/* RWKV-7. */
#define LIKE_RWKV7                                                                                           \
    .norm = TN_NORM_LAYER, .act = TN_ACT_RELU2, .norm_biases = true, .delta = true, .wkv = true,             \
    .shift_ffn = true, .alone = true, .no_rope_pattern = 1
#define GGUF_WKV                                                                                             \
    [TN_W_DELTA_Q] = "time_mix_receptance.weight", [TN_W_DELTA_K] = "time_mix_key.weight",                   \
    [TN_W_DELTA_V] = "time_mix_value.weight", [TN_W_DELTA_OUT] = "time_mix_output.weight",                   \
    [TN_W_DELTA_NORM] = "time_mix_ln.weight"
#define HF_RWKV7                                                                                             \
    [TN_W_EMBD] = "model.embeddings.weight", [TN_W_EMBD_NORM] = "model.layers.0.pre_norm.weight",            \
    [TN_W_EMBD_NORM_B] = "model.layers.0.pre_norm.bias", [TN_W_ATTN_NORM] = "attn_norm.weight",              \
    [TN_W_ATTN_NORM_B] = "attn_norm.bias", [TN_W_FFN_NORM] = "ffn_norm.weight",                              \
    [TN_W_FFN_NORM_B] = "ffn_norm.bias", [TN_W_DELTA_Q] = "attn.r_proj.weight",                              \
    [TN_W_DELTA_K] = "attn.k_proj.weight", [TN_W_DELTA_V] = "attn.v_proj.weight",                            \
    [TN_W_DELTA_OUT] = "attn.o_proj.weight", [TN_W_DELTA_NORM] = "attn.g_norm.weight",                       \
    [TN_W_UP] = "ffn.key.weight", [TN_W_DOWN] = "ffn.value.weight"

/* Kimi's delta attention, whose products have attention's names; latent attention without rope beside it. */
#define LIKE_KIMI_LINEAR                                                                                     \
    .act = TN_ACT_SILU, .gated = true, .latent = true, .delta = true, .kda = true, .no_rope_pattern = 1,     \
    .experts = true, .experts_norm = true, .experts_sigmoid = true, .experts_biased = true,                  \
    .shared_expert = true, .shared_ungated = true, .dense_first = true
#define GGUF_KDA                                                                                             \
    [TN_W_DELTA_Q] = "attn_q.weight", [TN_W_DELTA_K] = "attn_k.weight", [TN_W_DELTA_V] = "attn_v.weight",    \
    [TN_W_DELTA_OUT] = "attn_output.weight"
#define HF_KDA                                                                                               \
    [TN_W_DELTA_Q] = "self_attn.q_proj.weight", [TN_W_DELTA_K] = "self_attn.k_proj.weight",                  \
    [TN_W_DELTA_V] = "self_attn.v_proj.weight", [TN_W_DELTA_OUT] = "self_attn.o_proj.weight",                \
    [TN_W_DELTA_RATE] = "self_attn.b_proj.weight", [TN_W_DELTA_A] = "self_attn.A_log",                       \
    [TN_W_DELTA_DT] = "self_attn.dt_bias", [TN_W_DELTA_NORM] = "self_attn.o_norm.weight"

/* Ling 3: latent attention whose heads are gated, and the same memory with other names. */
#define LIKE_LING3                                                                                           \
    WITH_LATENTS, .attn_gate = true, .delta = true, .kda = true, .kda_bounded = true, .experts_norm = true,  \
                  .experts_sigmoid = true, .experts_biased = true, .next_by_number = true
#define GGUF_LING3                                                                                           \
    [TN_W_DELTA_GATE] = "ssm_g_a.weight", [TN_W_DELTA_DECAY] = "ssm_f_a.weight",                             \
    [TN_W_ATT_GATE] = "attn_gate.weight"
#define HF_LING3                                                                                             \
    [TN_W_EMBD] = "model.word_embeddings.weight", [TN_W_EXPERTS_BIAS] = "mlp.gate.expert_bias",              \
    [TN_W_Q] = "attention.q_proj.weight", [TN_W_Q_A] = "attention.q_a_proj.weight",                          \
    [TN_W_Q_A_NORM] = "attention.q_a_layernorm.weight", [TN_W_LATENT_Q] = "attention.q_b_proj.weight",       \
    [TN_W_KV_A] = "attention.kv_a_proj_with_mqa.weight",                                                     \
    [TN_W_KV_A_NORM] = "attention.kv_a_layernorm.weight", [TN_W_K_UP] = "attention.kv_b_proj.weight",        \
    [TN_W_V_UP] = "attention.kv_b_proj.weight", [TN_W_ATT_GATE] = "attention.g_proj.weight",                 \
    [TN_W_O] = "attention.dense.weight", [TN_W_DELTA_Q] = "attention.q_proj.weight",                         \
    [TN_W_DELTA_K] = "attention.k_proj.weight", [TN_W_DELTA_V] = "attention.v_proj.weight",                  \
    [TN_W_DELTA_GATE] = "attention.g_proj.weight", [TN_W_DELTA_DECAY] = "attention.f_proj.weight",           \
    [TN_W_DELTA_RATE] = "attention.b_proj.weight", [TN_W_DELTA_OUT] = "attention.o_proj.weight",             \
    [TN_W_DELTA_A] = "attention.A_log", [TN_W_DELTA_DT] = "attention.dt_bias",                               \
    [TN_W_DELTA_NORM] = "attention.o_norm.weight", [TN_W_KDA_CONV_Q] = "attention.q_conv1d.weight",          \
    [TN_W_KDA_CONV_K] = "attention.k_conv1d.weight", [TN_W_KDA_CONV_V] = "attention.v_conv1d.weight"

/* Experts by the names of Mixtral's folders. */
#define MIXTRAL_EXPERTS                                                                                      \
    [TN_W_ROUTER] = "block_sparse_moe.gate.weight",                                                          \
    [TN_W_GATE_EXPS] = "block_sparse_moe.experts.0.w1.weight",                                               \
    [TN_W_UP_EXPS] = "block_sparse_moe.experts.0.w3.weight",                                                 \
    [TN_W_DOWN_EXPS] = "block_sparse_moe.experts.0.w2.weight"

/* Latent attention, and experts after a dense layer or more. */
#define WITH_LATENTS                                                                                         \
    .act = TN_ACT_SILU, .gated = true, .latent = true, .gguf_permuted = true, .hf_permuted = true,           \
    .experts = true, .shared_expert = true, .shared_ungated = true, .dense_first = true
#define LIKE_DEEPSEEK                                                                                        \
    WITH_LATENTS, .experts_said = true, .gguf_names = {GGUF_SHARED},                                         \
                  .hf_names = {HF_SHARED("mlp.shared_experts."), [TN_W_EXPERTS_BIAS] =                       \
                                                                     "mlp.gate.e_score_correction_bias"}

/* The state spaces of hybrids. */
#define HF_MAMBA                                                                                             \
    [TN_W_DELTA_Q] = "mamba.in_proj.weight", [TN_W_DELTA_K] = "mamba.in_proj.weight",                        \
    [TN_W_DELTA_V] = "mamba.in_proj.weight", [TN_W_DELTA_GATE] = "mamba.in_proj.weight",                     \
    [TN_W_DELTA_DECAY] = "mamba.in_proj.weight", [TN_W_DELTA_OUT] = "mamba.out_proj.weight",                 \
    [TN_W_DELTA_CONV] = "mamba.conv1d.weight", [TN_W_DELTA_A] = "mamba.A_log",                               \
    [TN_W_DELTA_DT] = "mamba.dt_bias", [TN_W_DELTA_NORM] = "mamba.norm.weight"

#endif
