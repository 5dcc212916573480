#include "model/keys.h"

#include <string.h>

typedef bool trait(const tn_arch *a);
static bool nobody(const tn_arch *a) { return !a; }
static bool only(const tn_arch *a) { return !a; } /* nobody reads it, and not even 0 is neutral */
static bool bidirectional(const tn_arch *a) { return a->bidirectional; }
static bool causal(const tn_arch *a) { return !a->bidirectional; }
static bool positions(const tn_arch *a) { return a->positions; }
static bool granite(const tn_arch *a) { return a->scales == TN_SCALES_GRANITE; }
static bool minicpm(const tn_arch *a) { return a->scales == TN_SCALES_MINICPM; }
static bool experts(const tn_arch *a) { return a->experts; }
static bool beside(const tn_arch *a) { return a->experts_beside; }
static bool shared(const tn_arch *a) { return a->shared_expert; }
static bool sigmoid(const tn_arch *a) { return a->experts_sigmoid; }
static bool dense_first(const tn_arch *a) { return a->dense_first; }
static bool conv(const tn_arch *a) { return a->conv; }
static bool recurs(const tn_arch *a) { return a->delta; }
static bool mamba_alone(const tn_arch *a) { return a->mamba && !a->mamba_beside; }
static bool mamba_beside(const tn_arch *a) { return a->mamba_beside; }
static bool layers_differ(const tn_arch *a) { return a->window_heads; }
static bool streams(const tn_arch *a) { return a->streams; }
static bool some_without_rope(const tn_arch *a) { return a->no_rope_pattern > 0; }
static bool windows(const tn_arch *a) { return a->window; }
static bool temperature(const tn_arch *a) { return a->temperature || a->chunked; }
static bool hunyuan(const tn_arch *a) { return a->qk_norm_last || a->qk_norm_said || a->fused_in_order; }
static bool layer_norms(const tn_arch *a) { return a->norm == TN_NORM_LAYER; }
static bool norm_eps(const tn_arch *a) { return a->conv || a->single || a->norm == TN_NORM_LAYER; }
static bool own_words(const tn_arch *a) { return a->hf_layers; } /* as GPT-2's configurations have them */
static bool cohere(const tn_arch *a) { return a->scales == TN_SCALES_COHERE; }
static bool sections(const tn_arch *a) { return a->delta || a->sections; }
static bool may_be_parallel(const tn_arch *a) { return a->may_be_parallel; }
static bool experts_biased(const tn_arch *a) { return a->experts_biased; }
static bool grouped(const tn_arch *a) { return a->experts_sigmoid || a->experts_said; }
static bool ling3(const tn_arch *a) { return a->kda_bounded; }
static bool bailing(const tn_arch *a) { return a->kda_bounded || (a->experts_sigmoid && a->fused_in_order); }
static bool single(const tn_arch *a) { return a->single; }
static bool latent(const tn_arch *a) { return a->latent; }
static bool experts_said(const tn_arch *a) { return a->experts_said; }
static bool mixer(const tn_arch *a) { return a->experts_mixer > 0; }
static bool not_mixer(const tn_arch *a) { return !mixer(a); }
static bool minimax(const tn_arch *a) { return a->qk_norm_whole && a->experts_sigmoid; }
static bool alone(const tn_arch *a) { return a->alone && a->mamba; }
static bool wkv(const tn_arch *a) { return a->wkv; }
static bool kda(const tn_arch *a) { return a->kda; }
static bool wkv_alone(const tn_arch *a) { return a->wkv && a->alone; }
static bool chunked(const tn_arch *a) { return a->chunked; }
static bool sub_norms(const tn_arch *a) { return a->sub_norms; }
static bool reads_layers(const tn_arch *a) { return a->head && !a->assistant; }
static bool dflash(const tn_arch *a) { return a->dflash; }
static bool assistant(const tn_arch *a) { return a->assistant; }
static bool modern(const tn_arch *a) { return a->modern; }
static bool experts_flat(const tn_arch *a) { return a->experts_flat; }
static bool alibi(const tn_arch *a) { return a->alibi > 0; }
static bool encodes(const tn_arch *a) { return a->encoder; }
static bool shared_counted(const tn_arch *a) { return a->shared_expert && a->shared_ungated; }

/* Each key, and which architectures read it (NULL: all). Where it is not read, a value other than 0, false, null
 * and `none` asks for maths that the model would not get. */
static const struct {
    const char *hf, *gguf;
    trait *read_by;
    double none;
} keys[] = {
    {"num_hidden_layers", "block_count", NULL, 0},
    {"num_layers", NULL, own_words, 0},
    {"hidden_size", "embedding_length", NULL, 0},
    {"intermediate_size", "feed_forward_length", NULL, 0},
    {"num_attention_heads", "attention.head_count", NULL, 0},
    {"num_key_value_heads", "attention.head_count_kv", NULL, 0},
    {"head_dim", "attention.key_length", NULL, 0},
    {NULL, "attention.value_length", NULL, 0},
    {"vocab_size", "vocab_size", NULL, 0},
    {"max_position_embeddings", "context_length", NULL, 0},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", NULL, 0},
    {"layer_norm_eps", "attention.layer_norm_epsilon", NULL, 0},
    {"norm_eps", NULL, norm_eps, 0},
    {"norm_epsilon", NULL, layer_norms, 0},
    {"layer_norm_epsilon", NULL, own_words, 0},
    {"hidden_act", NULL, NULL, 0},
    {NULL, "hidden_act", sub_norms, 0},
    {NULL, "hidden_activation", modern, 0},
    {"quantization_config", NULL, NULL, 0}, /* tn_packing_hf and tn_arch_ternary_hf look at them */
    {"quantization", NULL, NULL, 0},
    {"hidden_activation", NULL, NULL, 0},
    {"activation_function", NULL, NULL, 0},
    {"tie_word_embeddings", NULL, NULL, 0},
    {"tie_embedding", NULL, conv, 0},
    {"mtp_num_hidden_layers", "nextn_predict_layers", NULL, 0},
    /* of heads: folders' own are read apart */
    {NULL, "target_layers", reads_layers, 0},
    {NULL, "target_hidden_size", tn_arch_is_eagle, 0},
    {NULL, "norm_before_residual", tn_arch_is_eagle, 0},
    {NULL, "norm_before_fc", tn_arch_is_eagle, 0},
    {NULL, "embedding_length_out", assistant, 0},
    {NULL, "block_size", dflash, 0},
    {"num_nextn_predict_layers", NULL, NULL, 0}, /* as the one above; their tensors tell */
    /* attention */
    {"query_pre_attn_scalar", "attention.scale", NULL, 0},
    {"attn_logit_softcapping", "attn_logit_softcapping", NULL, 0},
    {"final_logit_softcapping", "final_logit_softcapping", NULL, 0},
    {"sliding_window", "attention.sliding_window", NULL, 0}, /* without windows: see use_sliding_window */
    {"sliding_window_pattern", "attention.sliding_window_pattern", windows, 0},
    {"_sliding_window_pattern", NULL, windows, 0},
    {"layer_switch", NULL, windows, 0}, /* as the one above */
    {"use_sliding_window", NULL, NULL, 0},
    {"max_window_layers", NULL, NULL, 0},
    {"layer_types", NULL, NULL, 0},
    {"no_rope_layers", NULL, some_without_rope, 0},
    {"no_rope_layer_interval", NULL, some_without_rope, 0},
    {NULL, "attention.causal", bidirectional, 1}, /* gguf_text looks at it */
    {NULL, "attention.causal", only, 1},
    {NULL, "pooling_type", NULL, 0},
    {NULL, "classifier.output_labels", NULL, 0}, /* gguf_text looks at them */
    {NULL, "dense_2_feat_in", NULL, 0},          /* their tensors tell */
    {NULL, "dense_2_feat_out", NULL, 0},
    {NULL, "dense_3_feat_in", NULL, 0},
    {NULL, "dense_3_feat_out", NULL, 0},
    {"position_embedding_type", NULL, positions, 0},
    {"pad_token_id", NULL, NULL, 0},
    {"classifier_pooling", NULL, modern, 0}, /* parse_score looks at these two */
    {"classifier_activation", NULL, modern, 0},
    {"moe_every_n_layers", "moe_every_n_layers", experts_flat, 0},
    {"ffn_div", NULL, only, 1},
    {"lora_adaptations", NULL, encodes, 0}, /* of tasks: without one none is used */
    {"task_instructions", NULL, encodes, 0},
    {"matryoshka_dimensions", NULL, encodes, 0},
    {"clip_qkv", "attention.clamp_kqv", nobody, 0},
    {"alibi", "attention.max_alibi_bias", nobody, 0},
    {NULL, "attention.output_scale", nobody, 1},
    {NULL, "attention.temperature_scale", temperature, 0},
    {"use_parallel_residual", "use_parallel_residual", may_be_parallel, 0}, /* in GGUF the norms tell */
    {"use_parallel_block", NULL, cohere, 0},
    {"use_gated_activation", NULL, only, 1},
    {"use_rmsnorm", NULL, only, 1},
    {"scale_attn_weights", NULL, only, 1},
    {"qk_layernorm", NULL, nobody, 0},
    {"use_qk_norm", NULL, hunyuan, 0},
    {"use_qk_norm", NULL, minimax, 0}, /* with the two below: minimax_ok looks at them */
    {"use_routing_bias", NULL, minimax, 0},
    {"attn_type_list", NULL, minimax, 0},
    {"layernorm_full_attention_beta", NULL, only, 1},
    {"layernorm_linear_attention_beta", NULL, only, 1},
    {"layernorm_mlp_beta", NULL, only, 1},
    {"mlp_intermediate_size", NULL, minimax, 0}, /* of a block that no layer has */
    {"mtp_transformer_layers", NULL, minimax, 0},
    {"num_mtp_modules", NULL, minimax, 0},
    {"use_mtp", NULL, minimax, 0},
    {"use_cla", NULL, nobody, 0},
    {"use_bidirectional_attention", NULL, bidirectional, 0},
    {"is_decoder", NULL, causal, 0}, /* BERT's layers then look back alone */
    {"use_rotary_pos_emb", NULL, only, 1},
    {"use_pos_enc", NULL, only, 1},
    {"full_attn_mod", NULL, only, 1}, /* Phi-4-mini says these two, and its code reads neither */
    {"interpolate_factor", NULL, only, 1},
    {"block_use_swiglu", NULL, only, 1},
    /* rope */
    {"rope_theta", "rope.freq_base", NULL, 0},
    {"rope.rope_theta", NULL, NULL, 0},
    {"rope_local_base_freq", "rope.freq_base_swa", NULL, 0},
    {"partial_rotary_factor", NULL, NULL, 0},
    {"rope.partial_rotary_factor", NULL, NULL, 0},
    {"rope_pct", NULL, NULL, 0},
    {"rotary_pct", NULL, NULL, 0},
    {"rotary_scaling_factor", NULL, only, 1},
    {NULL, "rope.dimension_count", NULL, 0},
    {NULL, "rope.dimension_count_swa", NULL, 0},
    {"rope_scaling", NULL, NULL, 0},
    {"rope_parameters", NULL, NULL, 0},
    {"rope.rope_type", "rope.scaling.type", NULL, 0},
    {"rope.type", NULL, NULL, 0},
    {"rope.factor", "rope.scaling.factor", NULL, 0},
    {"rope.low_freq_factor", NULL, NULL, 0},
    {"rope.high_freq_factor", NULL, NULL, 0},
    {"rope.original_max_position_embeddings", "rope.scaling.original_context_length", NULL, 0},
    {"original_max_position_embeddings", NULL, NULL, 0},
    {"rope.short_factor", NULL, NULL, 0},
    {"rope.long_factor", NULL, NULL, 0},
    {"rope.attention_factor", "rope.scaling.attn_factor", NULL, 0},
    {"rope.beta_fast", "rope.scaling.yarn_beta_fast", NULL, 0},
    {"rope.beta_slow", "rope.scaling.yarn_beta_slow", NULL, 0},
    {"rope.mscale", NULL, NULL, 0},
    {"rope.mscale_all_dim", "rope.scaling.yarn_log_multiplier", NULL, 0},
    {NULL, "rope.scaling.yarn_attn_factor", NULL, 0},
    {"rope.truncate", NULL, NULL, 0},
    {"rotary_dim", NULL, minimax, 0},
    {"rope.short_mscale", NULL, mixer, 0},
    {"rope.long_mscale", NULL, mixer, 0},
    {"rope.max_position_embeddings", NULL, latent, 0}, /* said beside rope too */
    {NULL, "rope.scaling.yarn_ext_factor", NULL, 0},
    {"rope.alpha", NULL, NULL, 0},
    {"rope.llama_4_scaling_beta", NULL, NULL, 0}, /* parse_rope refuses it where it is not read */
    {"rope.mrope_section", "rope.dimension_sections", sections, 0},
    {NULL, "n_deepstack_layers", sections, 0},
    {"rope.mrope_interleaved", NULL, sections, 0},
    {"rope.full_attention", NULL, NULL, 0},
    {"rope.sliding_attention", NULL, NULL, 0},
    {"position_embedding_type", NULL, mamba_alone, 0},
    {NULL, "rope.scaling.finetuned", NULL, 0},
    {NULL, "rope.scale_linear", nobody, 1},
    /* scales */
    {"embedding_multiplier", "embedding_scale", granite, 1},
    {"residual_multiplier", "residual_scale", granite, 1},
    {"attention_multiplier", NULL, granite, 0},
    {"logits_scaling", "logit_scale", granite, 1},
    {"logit_scale", "logit_scale", cohere, 1},
    {"scale_emb", "embedding_scale", minicpm, 1},
    {"scale_depth", "residual_scale", minicpm, 0},
    {"dim_model_base", "logit_scale", minicpm, 0},
    {"embedding_multiplier", NULL, mamba_beside, 1},
    {"lm_head_multiplier", NULL, mamba_beside, 1},
    {"key_multiplier", NULL, mamba_beside, 1},
    {"attention_in_multiplier", NULL, mamba_beside, 1},
    {"attention_out_multiplier", NULL, mamba_beside, 1},
    {"ssm_in_multiplier", NULL, mamba_beside, 1},
    {"ssm_out_multiplier", NULL, mamba_beside, 1},
    {"ssm_multipliers", NULL, mamba_beside, 1},
    {"mlp_multipliers", NULL, mamba_beside, 1},
    /* experts */
    {"num_experts", "expert_count", experts, 1},
    {"num_local_experts", NULL, experts, 1},
    {"n_routed_experts", NULL, experts, 1},
    {"moe_num_experts", NULL, experts, 1},
    {"moe_topk", NULL, experts, 1},
    {"moe_k", NULL, experts, 1},
    {"num_experts_per_tok", "expert_used_count", NULL, 0}, /* these say nothing without experts */
    {"top_k_experts", NULL, NULL, 0},
    {"moe_intermediate_size", "expert_feed_forward_length", NULL, 0},
    {"shared_expert_intermediate_size", NULL, NULL, 0},
    {NULL, "expert_shared_feed_forward_length", shared, 0},
    {"shared_intermediate_size", NULL, mamba_alone, 0},
    {"n_shared_experts", "expert_shared_count", shared_counted, 0},
    {"moe_num_shared_experts", NULL, shared_counted, 0},
    {"num_shared_expert", NULL, shared_counted, 0},
    {"num_dense_layers", "leading_dense_block_count", dense_first, 0},
    {"first_k_dense_replace", NULL, dense_first, 0},
    {"moe_layer_start_index", NULL, dense_first, 0},
    {"moe_layer_end_index", NULL, experts, 0},
    {"moe_layer_interval", "interleave_moe_layer_step", experts, 1},
    {"moe_use_aux_free", NULL, experts_biased, 0},
    {"routed_scaling_factor", "expert_weights_scale", NULL, 1},
    {"use_expert_bias", NULL, sigmoid, 0},
    {"norm_topk_prob", "expert_weights_norm", not_mixer, 0},
    {NULL, "expert_gating_func", experts, 0},
    {"n_group", "expert_group_count", grouped, 1},
    {"topk_group", "expert_group_used_count", grouped, 1},
    {"moe_layer_freq", NULL, only, 1},
    {"decoder_sparse_step", NULL, NULL, 1},
    {"moe_shared_expert_intermediate_size", NULL, single, 0},
    {"moe_shared_expert_intermediate_size", NULL, bailing,
     0}, /* of the experts' size: parse_shared counts them */
    {"num_shared_experts", NULL, bailing, 0},
    {"moe_router_enable_expert_bias", NULL, bailing, 0},
    {"hybrid_override_pattern", NULL, single, 0},
    {"layers_block_type", NULL, single, 0},
    {"mamba_num_heads", NULL, single, 0},
    {"mamba_head_dim", NULL, single, 0},
    {"ssm_state_size", NULL, single, 0},
    {"conv_kernel", NULL, single, 0},
    {"n_groups", NULL, single, 0},
    {"expand", NULL, single, 0},
    {"chunk_size", NULL, single, 0},
    {"use_conv_bias", NULL, single, 0},
    {"time_step_limit", NULL, single, 0},
    {"state_size", NULL, alone, 0},
    {"attention_chunk_size", NULL, chunked, 0},
    {"attn_scale", NULL, chunked, 0},
    {"attn_temperature_tuning", NULL, chunked, 0},
    {"floor_scale", NULL, chunked, 0},
    {"use_qk_norm", NULL, chunked, 0},
    {"intermediate_size_mlp", NULL, chunked, 0},
    {"interleave_moe_layer_step", NULL, chunked, 0},
    {"moe_layers", NULL, chunked, 0},
    {"residual_in_fp32", NULL, alone, 0},
    {"rms_norm", NULL, only, 1},
    /* latent attention */
    {"q_lora_rank", "attention.q_lora_rank", latent, 0},
    {"kv_lora_rank", "attention.kv_lora_rank", latent, 0},
    {"qk_nope_head_dim", "attention.key_length_mla", latent, 0},
    {"qk_rope_head_dim", NULL, latent, 0},
    {"qk_head_dim", NULL, latent, 0}, /* the sum of the two above */
    {"v_head_dim", "attention.value_length_mla", latent, 0},
    {"rope_interleave", NULL, only, 1},
    {"mlp_only_layers", NULL, nobody, 0},
    {"enable_moe_block", NULL, beside, 0},
    /* convolutions, delta nets, state spaces */
    {"conv_L_cache", "shortconv.l_cache", conv, 0},
    {"conv_bias", NULL, conv, 0},
    {"block_ff_dim", NULL, conv, 0},
    {"block_auto_adjust_ff_dim", NULL, conv, 0},
    {"block_ffn_dim_multiplier", NULL, conv, 0},
    {"block_multiple_of", NULL, conv, 0},
    {"full_attention_interval", "full_attention_interval", recurs, 0},
    {"attn_output_gate", NULL, recurs, 0},
    {"linear_conv_kernel_dim", "ssm.conv_kernel", recurs, 0},
    {"linear_num_value_heads", "ssm.time_step_rank", recurs, 0},
    {"linear_num_key_heads", "ssm.group_count", recurs, 0},
    {"linear_key_head_dim", "ssm.state_size", recurs, 0},
    {"linear_value_head_dim", NULL, recurs, 0},
    {"mamba_d_conv", "ssm.conv_kernel", recurs, 0},
    {"mamba_n_heads", "ssm.time_step_rank", recurs, 0},
    {"mamba_n_groups", "ssm.group_count", recurs, 0},
    {"mamba_d_state", "ssm.state_size", recurs, 0},
    {"mamba_d_head", NULL, recurs, 0},
    {NULL, "ssm.inner_size", recurs, 0},
    {"mamba_expand", NULL, recurs, 0},
    {"mamba_proj_bias", NULL, recurs, 0},
    {"mamba_conv_bias", NULL, recurs, 0},
    {"mamba_d_ssm", NULL, mamba_beside, 0},
    {"mamba_rms_norm", NULL, mamba_beside, 0},
    {"mamba_norm_before_gate", NULL, mamba_beside, 0},
    {"mamba_use_mlp", NULL, mamba_beside, 0},
    {"projectors_bias", NULL, mamba_beside, 0},
    {"attn_layer_indices", NULL, mamba_beside, 0},
    {"time_step_limit", NULL, mamba_beside, 0},
    /* RWKV-7; tn_arch_wkv_hf and gguf_wkv look at all of them */
    {"decay_low_rank_dim", "attention.decay_lora_rank", wkv, 0},
    {"a_low_rank_dim", "attention.iclr_lora_rank", wkv, 0},
    {"v_low_rank_dim", "attention.value_residual_mix_lora_rank", wkv, 0},
    {"gate_low_rank_dim", "attention.gate_lora_rank", wkv, 0},
    {NULL, "wkv.head_size", wkv, 0},
    {NULL, "token_shift_count", wkv, 0},
    /* Kimi's delta attention; tn_arch_kda_hf looks at these */
    {"linear_attn_config", NULL, tn_arch_is_kimi, 0},
    {NULL, "kda.head_dim", kda, 0},
    {"mla_use_nope", NULL, tn_arch_is_kimi, 0},
    {"moe_renormalize", NULL, tn_arch_is_kimi, 0},
    {"moe_router_activation_func", NULL, tn_arch_is_kimi, 0},
    {"num_experts_per_token", NULL, tn_arch_is_kimi, 0},
    {"num_expert_group", NULL, tn_arch_is_kimi, 0},
    {"use_grouped_topk", NULL, tn_arch_is_kimi, 0}, /* of more groups than one: num_expert_group */
    {"num_shared_experts", NULL, tn_arch_is_kimi, 0},
    /* Ling 3; tn_arch_ling_hf and gguf_kda look at these */
    {"layer_group_size", NULL, ling3, 0},
    {"short_conv_kernel_size", NULL, ling3, 0},
    {"no_kda_lora", NULL, ling3, 0},
    {"kda_safe_gate", "kda.safe_gate", ling3, 0},
    {"kda_lower_bound", "kda.gate_lower_bound", ling3, 0},
    {"gated_attention_proj_granularity_type", NULL, ling3, 0},
    {"use_qk_norm", NULL, ling3,
     0}, /* of the memory, which always has it; these two are read by no published code */
    {"linear_silu", NULL, ling3, 0},
    {"rotary_dim", NULL, ling3, 0}, /* qk_rope_head_dim counts */
    {"mtp_use_kda", NULL, ling3, 0},
    {"group_norm_size", NULL, only, 1},
    {"expert_swiglu_limit_list", "swiglu_clamp_exp", ling3, 0},
    {"share_expert_swiglu_limit_list", "swiglu_clamp_shexp", ling3, 0},
    {"hidden_ratio", NULL, wkv_alone, 0},
    {"norm_first", NULL, wkv_alone, 0},
    {"norm_bias", NULL, wkv_alone, 0},
    {"value_dim", NULL, wkv_alone, 0},
    {"fuse_norm", NULL, wkv_alone, 0}, /* how other programs compute the same */
    {"fuse_cross_entropy", NULL, wkv_alone, 0},
    {"fuse_linear_cross_entropy", NULL, wkv_alone, 0},
    {"use_l2warp", NULL, wkv_alone, 0},
    /* layers that differ, and streams */
    {"global_head_dim", NULL, layers_differ, 0},
    {"num_global_key_value_heads", NULL, layers_differ, 0},
    {NULL, "attention.key_length_swa", layers_differ, 0},
    {NULL, "attention.value_length_swa", layers_differ, 0},
    {"attention_k_eq_v", NULL, layers_differ, 0},
    {"num_kv_shared_layers", "attention.shared_kv_layers", layers_differ, 0},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input", layers_differ, 0},
    {"vocab_size_per_layer_input", NULL, layers_differ, 0},
    {"use_double_wide_mlp", NULL, layers_differ, 0},
    {"altup_num_inputs", "altup.num_inputs", streams, 1},
    {"altup_active_idx", "altup.active_idx", streams, 0},
    {"altup_correct_scale", NULL, streams, 1},
    {"laurel_rank", NULL, streams, 0},
    {"activation_sparsity_pattern", "activation_sparsity_scale", streams, 0},
};

/* Keys that say nothing of what is computed: of the file itself, of training, of other programs, of tokens (the
 * tokenizer's own files count), of pictures; and biases, which their tensors tell. */
static const char *const idle_hf[] = {"architectures",
                                      "auto_map",
                                      "model_type",
                                      "torch_dtype",
                                      "dtype",
                                      "transformers_version",
                                      "use_cache",
                                      "initializer_range",
                                      "initializer_factor",
                                      "init_method",
                                      "init_std",
                                      "attention_dropout",
                                      "hidden_dropout",
                                      "hidden_dropout_prob",
                                      "attention_probs_dropout_prob",
                                      "embd_pdrop",
                                      "resid_pdrop",
                                      "attn_pdrop",
                                      "residual_dropout",
                                      "embedding_dropout",
                                      "classifier_dropout",
                                      "summary_first_dropout",
                                      "dropout",
                                      "layerdrop",
                                      "pretraining_tp",
                                      "output_router_logits",
                                      "router_aux_loss_coef",
                                      "router_z_loss_coef",
                                      "router_jitter_noise",
                                      "input_jitter_noise",
                                      "lm_head_bias",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "return_dict",
                                      "gradient_checkpointing",
                                      "use_flash_attn",
                                      "flash_attn",
                                      "attn_implementation",
                                      "cache_implementation",
                                      "tokenizer_class",
                                      "task_specific_params",
                                      "problem_type",
                                      "id2label",
                                      "num_labels",
                                      "label2id",
                                      "chunk_size_feed_forward",
                                      "torchscript",
                                      "use_bfloat16",
                                      "unsloth_version",
                                      "unsloth_fixed",
                                      "language",
                                      "license",
                                      "base_model_name_or_path",
                                      "attention_bias",
                                      "mlp_bias",
                                      "use_bias",
                                      "qkv_bias",
                                      "num_logits_to_keep",
                                      "logits_to_keep",
                                      "mup_denominator",
                                      "mamba_chunk_size",
                                      "mamba_ssm_dtype",
                                      "time_step_min",
                                      "time_step_max",
                                      "time_step_floor",
                                      "time_step_rank",
                                      "adjusted_ff_dim",
                                      "altup_coef_clip",
                                      "altup_lr_multiplier",
                                      "block_dim",
                                      "block_mlp_init_scale",
                                      "block_norm_eps",
                                      "block_out_init_scale",
                                      "block_use_xavier_init",
                                      "conv_dim",
                                      "conv_dim_out",
                                      "conv_use_xavier_init",
                                      "full_attn_idxs",
                                      "num_heads",
                                      "theta",
                                      "mtp_use_dedicated_embeddings",
                                      "cla_share_factor",
                                      "attention_head_dim",
                                      "class_num",
                                      "num_media_embeds",
                                      "dense_list",
                                      "org_vocab_size",
                                      "max_sequence_length",
                                      "seq_length",
                                      "use_mrope",
                                      "norm_min",
                                      "moe_norm_min",
                                      "moe_capacity",
                                      "moe_gate",
                                      "moe_multimodal_paired_experts",
                                      "model_max_length",
                                      "embed_dropout",
                                      "bias",
                                      "use_qkv_bias",
                                      "attention_out_bias",
                                      "attention_softmax_in_fp32",
                                      "scale_attention_softmax_in_fp32",
                                      "use_embedding_sharing",
                                      "use_parallel_embedding",
                                      "use_mixed_mlp_moe",
                                      "moe_drop_tokens",
                                      "moe_random_routing_dropped_token",
                                      "vision_config",
                                      "audio_config",
                                      "mm_tokens_per_image",
                                      "head_dtype",
                                      "type_vocab_size", /* its first row is read, whichever there are */
                                      "directionality",
                                      "pooler_fc_size",
                                      "pooler_num_attention_heads",
                                      "pooler_num_fc_layers",
                                      "pooler_size_per_head",
                                      "pooler_type",
                                      "output_past",
                                      "max_length", /* of generation, which older folders say here */
                                      "num_beams",
                                      "num_beam_groups",
                                      "num_return_sequences",
                                      "temperature",
                                      "top_k",
                                      "top_p",
                                      "typical_p",
                                      "repetition_penalty",
                                      "length_penalty",
                                      "is_llama_config", /* of SmolVLM's text, as it was trained */
                                      "neftune_noise_alpha",
                                      "perceiver_config", /* use_resampler tells whether there is one */
                                      "pixel_shuffle_factor",
                                      "transformers.js_config",
                                      "sbert_ce_default_activation_function",
                                      "sentence_transformers",
                                      "aux_loss_alpha",
                                      "seq_aux",
                                      "ep_size",
                                      "pad_head_dim_size",
                                      "rescale_prenorm_residual",
                                      "use_mamba_kernels",
                                      "mamba_ssm_cache_dtype",
                                      "mamba_dt_rank",
                                      "mtp_layers_block_type",
                                      "output_dropout",
                                      "mtp_loss_scaling_factor",
                                      "embedding_init_std",
                                      "mlp_dropout",
                                      "decoder_bias",
                                      "deterministic_flash_attn",
                                      "reference_compile",
                                      "repad_logits_with_grad",
                                      "sparse_prediction",
                                      "sparse_pred_ignore_index",
                                      "initializer_cutoff_factor",
                                      "classifier_bias",
                                      "qkv_proj_bias",
                                      "mlp_fc1_bias",
                                      "mlp_fc2_bias",
                                      "moe_resid_pdrop",
                                      "moe_impl",
                                      "dense_seq_output",
                                      "fused_bias_fc",
                                      "fused_dropout_add_ln",
                                      "use_xentropy",
                                      "pad_vocab_size_multiple",
                                      "summary_activation",
                                      "summary_proj_to_labels",
                                      "summary_type",
                                      "summary_use_proj",
                                      "lora_alpha",
                                      "lora_dropout_p",
                                      "lora_main_params_trainable",
                                      "lora_rank",
                                      "load_trained_adapters"};
static const char *const idle_gguf[] = {"tensor_data_layout", "file_type", "attention.temperature_length"};

/* Words that say nothing new. */
static const struct {
    const char *key, *word;
    trait *of;
} idle_words[] = {
    {"use_bidirectional_attention", "vision", layers_differ}, /* text has no pictures */
    {"position_embedding_type", "rope", NULL},
    {"position_embedding_type", "absolute", modern}, /* rope all the same */
    {"position_embedding_type", "sans_pos", modern},
    {"feed_forward_type", "geglu", alibi},
    {"emb_pooler", "mean", encodes},
    {"norm_type", "rms", NULL},
    {"norm_type", "layer_norm", layer_norms},
    {"mlp_type", "default", NULL},
    {"attn_mode", "chunk", wkv},
    {"attn_mode", "fused_recurrent", wkv},
    {"position_embedding_type", "rope_gptj", cohere},
    {"order_of_interleaved_layers", "local_attn_first", windows},
    {"normalization_function", "rmsnorm", NULL},
    {"pool_type", "last", NULL},
    {"mlp_hidden_act", "relu2", single},
    {"score_function", "sigmoid", bailing},
    {"router_dtype", "fp32", bailing},
    {"router_type", "topN", bailing},
    {"mamba_hidden_act", "silu", single},
    {"scoring_func", "sigmoid", minimax},
    {"scoring_func", "sigmoid", ling3},
    {"topk_method", "noaux_tc", ling3},
    {"qk_norm_type", "per_layer", minimax},
    {"shared_moe_mode", "sigmoid", minimax},
    {"topk_method", "greedy", experts_said},
    {"topk_method", "group_limited_greedy", experts_said}, /* of more groups than one: n_group */
    {"topk_method", "noaux_tc", experts_said},
    {"scoring_func", "softmax", experts_said},
    {"scoring_func", "sigmoid", experts_said}};

static bool ends_in(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

bool tn_key_listed(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, list[i])) return true;
    return false;
}

/* Is the key read? Else *none is its neutral value, and *strict tells that 0 is not one too. */
static bool is_read(const tn_arch *a, const char *key, bool hf, double *none, bool *strict) {
    *none = 0, *strict = false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *name = hf ? keys[i].hf : keys[i].gguf;
        if (!name || strcmp(name, key)) continue;
        if (!keys[i].read_by || keys[i].read_by(a)) return true;
        *none = keys[i].none;
        *strict = keys[i].read_by == only;
    }
    return false;
}

bool tn_key_ok_gguf(const tn_arch *a, const char *key, const double *value) {
    double none;
    bool strict;
    if (is_read(a, key, false, &none, &strict) ||
        tn_key_listed(key, idle_gguf, sizeof idle_gguf / sizeof *idle_gguf))
        return true;
    return value && (*value == none || (*value == 0 && !strict));
}

static bool is_idle(const char *key) {
    return key[0] == '_' || ends_in(key, "_token_id") || ends_in(key, "_token_ids") ||
           ends_in(key, "_token_index") || tn_key_listed(key, idle_hf, sizeof idle_hf / sizeof *idle_hf);
}

static bool says_nothing(const json_t *v) {
    const char *word = json_string_value(v);
    return json_is_null(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) || (word && !*word);
}

bool tn_key_idle_hf(const char *key, const json_t *v) {
    return is_idle(key) || says_nothing(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == 0);
}

bool tn_key_ok_hf(const tn_arch *a, const char *key, const json_t *v) {
    double none;
    bool strict;
    if (is_read(a, key, true, &none, &strict) || is_idle(key)) return true;
    const char *word = json_string_value(v);
    for (size_t i = 0; word && i < sizeof idle_words / sizeof *idle_words; i++)
        if (!strcmp(key, idle_words[i].key) && !strcmp(word, idle_words[i].word) &&
            (!idle_words[i].of || idle_words[i].of(a)))
            return true;
    if (says_nothing(v)) return true;
    double n = json_is_true(v) ? 1 : json_number_value(v);
    return (json_is_number(v) || json_is_boolean(v)) && (n == none || (n == 0 && !strict));
}
