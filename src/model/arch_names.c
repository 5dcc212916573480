/* What the files call the tensors. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

/* Of the model, or of all its layers together. */
static bool is_whole_name(tn_role r, const char *name, const char *prefix) {
    return tn_role_of_model(r) || r == TN_W_HEAD_IN_NORM || r == TN_W_NEXT_BACK ||
           (r >= TN_W_ALTUP_IN_1 && r <= TN_W_ALTUP_OUT_3) || tn_role_of_text(r) ||
           !strncmp(name, prefix, strlen(prefix));
}

/* The projections of a delta net as tensors of their own (Qwen3.5). */
static const char *hf_delta_apart(tn_role role) {
    switch (role) {
    case TN_W_DELTA_Q:
    case TN_W_DELTA_K:
    case TN_W_DELTA_V: return "linear_attn.in_proj_qkv.weight";
    case TN_W_DELTA_GATE: return "linear_attn.in_proj_z.weight";
    case TN_W_DELTA_DECAY: return "linear_attn.in_proj_a.weight";
    case TN_W_DELTA_RATE: return "linear_attn.in_proj_b.weight";
    default: return NULL;
    }
}

static const char *const hf_names[TN_W_N_ROLES] = {
    [TN_W_EMBD] = "model.embed_tokens.weight",
    [TN_W_OUT_NORM] = "model.norm.weight",
    [TN_W_OUT_NORM_B] = "model.norm.bias",
    [TN_W_OUT] = "lm_head.weight",
    [TN_W_OUT_B] = "lm_head.bias",
    [TN_W_ATTN_NORM] = "input_layernorm.weight",
    [TN_W_ATTN_NORM_B] = "input_layernorm.bias",
    [TN_W_Q] = "self_attn.q_proj.weight",
    [TN_W_K] = "self_attn.k_proj.weight",
    [TN_W_V] = "self_attn.v_proj.weight",
    [TN_W_O] = "self_attn.o_proj.weight",
    [TN_W_Q_B] = "self_attn.q_proj.bias",
    [TN_W_K_B] = "self_attn.k_proj.bias",
    [TN_W_V_B] = "self_attn.v_proj.bias",
    [TN_W_O_B] = "self_attn.o_proj.bias",
    [TN_W_Q_NORM] = "self_attn.q_norm.weight",
    [TN_W_K_NORM] = "self_attn.k_norm.weight",
    [TN_W_FFN_NORM] = "post_attention_layernorm.weight",
    [TN_W_FFN_NORM_B] = "post_attention_layernorm.bias",
    [TN_W_GATE] = "mlp.gate_proj.weight",
    [TN_W_UP] = "mlp.up_proj.weight",
    [TN_W_DOWN] = "mlp.down_proj.weight",
    [TN_W_GATE_B] = "mlp.gate_proj.bias",
    [TN_W_UP_B] = "mlp.up_proj.bias",
    [TN_W_DOWN_B] = "mlp.down_proj.bias",
    [TN_W_ROUTER] = "mlp.gate.weight",
    [TN_W_GATE_EXPS] = "mlp.experts.0.gate_proj.weight",
    [TN_W_UP_EXPS] = "mlp.experts.0.up_proj.weight",
    [TN_W_DOWN_EXPS] = "mlp.experts.0.down_proj.weight",
    [TN_W_CONV_IN] = "conv.in_proj.weight",
    [TN_W_CONV] = "conv.conv.weight",
    [TN_W_CONV_OUT] = "conv.out_proj.weight",
    [TN_W_ATT_GATE] = "self_attn.q_proj.weight",
    [TN_W_DELTA_Q] = "linear_attn.in_proj_qkvz.weight",
    [TN_W_DELTA_K] = "linear_attn.in_proj_qkvz.weight",
    [TN_W_DELTA_V] = "linear_attn.in_proj_qkvz.weight",
    [TN_W_DELTA_GATE] = "linear_attn.in_proj_qkvz.weight",
    [TN_W_DELTA_DECAY] = "linear_attn.in_proj_ba.weight",
    [TN_W_DELTA_RATE] = "linear_attn.in_proj_ba.weight",
    [TN_W_DELTA_OUT] = "linear_attn.out_proj.weight",
    [TN_W_DELTA_CONV] = "linear_attn.conv1d.weight",
    [TN_W_DELTA_A] = "linear_attn.A_log",
    [TN_W_DELTA_DT] = "linear_attn.dt_bias",
    [TN_W_DELTA_NORM] = "linear_attn.norm.weight",
    [TN_W_SHARED_GATE] = "mlp.shared_expert_gate.weight",
    [TN_W_MAMBA_CONV_B] = "mamba.conv1d.bias",
    [TN_W_MAMBA_D] = "mamba.D",
    [TN_W_PLE_EMBD] = "model.embed_tokens_per_layer.weight",
    [TN_W_PLE_IN] = "model.per_layer_model_projection.weight",
    [TN_W_PLE_NORM] = "model.per_layer_projection_norm.weight",
    [TN_W_PLE_GATE] = "per_layer_input_gate.weight",
    [TN_W_PLE_OUT] = "per_layer_projection.weight",
    [TN_W_PLE_POST_NORM] = "post_per_layer_input_norm.weight",
    [TN_W_LAYER_SCALE] = "layer_scalar",
    [TN_W_NEXT_E_NORM] = "mtp.pre_fc_norm_embedding.weight",
    [TN_W_NEXT_H_NORM] = "mtp.pre_fc_norm_hidden.weight",
    [TN_W_NEXT_PROJ] = "mtp.fc.weight",
    [TN_W_NEXT_OUT_NORM] = "mtp.norm.weight",
    [TN_W_ALTUP_NORM] = "altup.router_norm.weight",
    [TN_W_ALTUP_ROUTER] = "altup.modality_router.weight",
    [TN_W_ALTUP_PREDICT] = "altup.prediction_coefs.weight",
    [TN_W_ALTUP_CORRECT] = "altup.correction_coefs.weight",
    [TN_W_ALTUP_SCALE] = "altup.correct_output_scale",
    [TN_W_LAUREL_IN] = "laurel.linear_left.weight",
    [TN_W_LAUREL_OUT] = "laurel.linear_right.weight",
    [TN_W_LAUREL_NORM] = "laurel.post_laurel_norm.weight",
    [TN_W_ALTUP_IN_1] = "model.altup_projections.0.weight",
    [TN_W_ALTUP_IN_2] = "model.altup_projections.1.weight",
    [TN_W_ALTUP_IN_3] = "model.altup_projections.2.weight",
    [TN_W_ALTUP_OUT_1] = "model.altup_unembed_projections.0.weight",
    [TN_W_ALTUP_OUT_2] = "model.altup_unembed_projections.1.weight",
    [TN_W_ALTUP_OUT_3] = "model.altup_unembed_projections.2.weight",
    [TN_W_ROUTER_NORM] = "router.scale",
    [TN_W_EXPERTS_SCALE] = "router.per_expert_scale",
    [TN_W_EXPERTS_NORM] = "pre_feedforward_layernorm_2.weight",
    [TN_W_EXPERTS_POST_NORM] = "post_feedforward_layernorm_2.weight",
    [TN_W_FFN_OWN_NORM] = "post_feedforward_layernorm_1.weight",
    [TN_W_Q_A] = "self_attn.q_a_proj.weight",
    [TN_W_Q_A_NORM] = "self_attn.q_a_layernorm.weight",
    [TN_W_LATENT_Q] = "self_attn.q_b_proj.weight",
    [TN_W_KV_A] = "self_attn.kv_a_proj_with_mqa.weight",
    [TN_W_KV_A_NORM] = "self_attn.kv_a_layernorm.weight",
    [TN_W_K_UP] = "self_attn.kv_b_proj.weight",
    [TN_W_V_UP] = "self_attn.kv_b_proj.weight",
    [TN_W_ATTN_SUB_NORM] = "self_attn.attn_sub_norm.weight",
    [TN_W_FFN_SUB_NORM] = "mlp.ffn_sub_norm.weight",
    [TN_W_LERP_R] = "attn.x_r",
    [TN_W_LERP_W] = "attn.x_w",
    [TN_W_LERP_K] = "attn.x_k",
    [TN_W_LERP_V] = "attn.x_v",
    [TN_W_LERP_A] = "attn.x_a",
    [TN_W_LERP_G] = "attn.x_g",
    [TN_W_LERP_FFN] = "ffn.x_k",
    [TN_W_WKV_NORM_B] = "attn.g_norm.bias",
    [TN_W_WKV_KK] = "attn.k_k",
    [TN_W_WKV_KA] = "attn.k_a",
    [TN_W_WKV_RK] = "attn.r_k",
    [TN_W_LOW_W_B] = "attn.w_lora.lora.2.bias",
    [TN_W_LOW_A_B] = "attn.a_lora.lora.2.bias",
    [TN_W_LOW_V_B] = "attn.v_lora.lora.2.bias",
    [TN_W_LOW_W_1] = "attn.w_lora.lora.0.weight",
    [TN_W_LOW_W_2] = "attn.w_lora.lora.2.weight",
    [TN_W_LOW_A_1] = "attn.a_lora.lora.0.weight",
    [TN_W_LOW_A_2] = "attn.a_lora.lora.2.weight",
    [TN_W_LOW_V_1] = "attn.v_lora.lora.0.weight",
    [TN_W_LOW_V_2] = "attn.v_lora.lora.2.weight",
    [TN_W_LOW_G_1] = "attn.g_lora.lora.0.weight",
    [TN_W_LOW_G_2] = "attn.g_lora.lora.2.weight",
    [TN_W_KDA_CONV_Q] = "self_attn.q_conv1d.weight",
    [TN_W_KDA_CONV_K] = "self_attn.k_conv1d.weight",
    [TN_W_KDA_CONV_V] = "self_attn.v_conv1d.weight",
    [TN_W_KDA_F_A] = "self_attn.f_a_proj.weight",
    [TN_W_KDA_F_B] = "self_attn.f_b_proj.weight",
    [TN_W_KDA_G_A] = "self_attn.g_a_proj.weight",
    [TN_W_KDA_G_B] = "self_attn.g_b_proj.weight",
    [TN_W_NEXT_BACK] = "post_projection.weight",
    [TN_W_SCORE] = "score.weight",
};

/* The names of a row are those of a shared expert, which this layer has not: its block is dense. */
static bool is_dense(const tn_arch *a, const tn_hparams *h, int layer, tn_role role) {
    return a->dense_first && a->shared_expert && layer >= 0 && layer < h->n_layers &&
           !tn_layer_has_experts(h, layer) && (role == TN_W_GATE || role == TN_W_UP || role == TN_W_DOWN);
}

const char *tn_arch_hf_layers(const tn_arch *a) { return a->hf_layers ? a->hf_layers : "model.layers."; }

bool tn_arch_hf_name(const tn_arch *a, const tn_hparams *h, int layer, tn_role role, char *buf, size_t cap) {
    bool own = a->hf_names[role] && !is_dense(a, h, layer, role);
    const char *name = own ? a->hf_names[role] : hf_names[role];
    if (!name) return false;
    char dense[64];
    if (a->hf_dense && is_dense(a, h, layer, role)) { /* in place of "mlp." */
        snprintf(dense, sizeof dense, "%s%s", a->hf_dense, hf_names[role] + strlen("mlp."));
        name = dense;
    }
    if (a->delta_apart && hf_delta_apart(role)) name = hf_delta_apart(role);
    if (role == TN_W_LATENT_Q && !h->latent.q_rank)
        name = a->hf_names[TN_W_Q] ? a->hf_names[TN_W_Q] : hf_names[TN_W_Q];
    if (tn_arch_is_eagle(a) && !is_whole_name(role, name, "fc."))
        snprintf(buf, cap, "%s%s", tn_arch_hf_layers(a), name);
    else if (is_whole_name(role, name, "model.") || tn_role_of_next(role)) snprintf(buf, cap, "%s", name);
    else snprintf(buf, cap, "%s%d.%s", tn_arch_hf_layers(a), layer, name);
    return true;
}

static const char *const gguf_names[TN_W_N_ROLES] = {
    [TN_W_EMBD] = "token_embd.weight",
    [TN_W_OUT_NORM] = "output_norm.weight",
    [TN_W_OUT_NORM_B] = "output_norm.bias",
    [TN_W_OUT] = "output.weight",
    [TN_W_OUT_B] = "output.bias",
    [TN_W_ATTN_NORM] = "attn_norm.weight",
    [TN_W_ATTN_NORM_B] = "attn_norm.bias",
    [TN_W_Q] = "attn_q.weight",
    [TN_W_K] = "attn_k.weight",
    [TN_W_V] = "attn_v.weight",
    [TN_W_O] = "attn_output.weight",
    [TN_W_Q_B] = "attn_q.bias",
    [TN_W_K_B] = "attn_k.bias",
    [TN_W_V_B] = "attn_v.bias",
    [TN_W_O_B] = "attn_output.bias",
    [TN_W_Q_NORM] = "attn_q_norm.weight",
    [TN_W_K_NORM] = "attn_k_norm.weight",
    [TN_W_ATTN_POST_NORM] = "post_attention_norm.weight",
    [TN_W_FFN_NORM] = "ffn_norm.weight",
    [TN_W_FFN_NORM_B] = "ffn_norm.bias",
    [TN_W_GATE] = "ffn_gate.weight",
    [TN_W_UP] = "ffn_up.weight",
    [TN_W_DOWN] = "ffn_down.weight",
    [TN_W_GATE_B] = "ffn_gate.bias",
    [TN_W_UP_B] = "ffn_up.bias",
    [TN_W_DOWN_B] = "ffn_down.bias",
    [TN_W_FFN_POST_NORM] = "post_ffw_norm.weight",
    [TN_W_SINKS] = "attn_sinks.weight",
    [TN_W_ROUTER] = "ffn_gate_inp.weight",
    [TN_W_ROUTER_B] = "ffn_gate_inp.bias",
    [TN_W_GATE_EXPS] = "ffn_gate_exps.weight",
    [TN_W_UP_EXPS] = "ffn_up_exps.weight",
    [TN_W_DOWN_EXPS] = "ffn_down_exps.weight",
    [TN_W_GATE_EXPS_B] = "ffn_gate_exps.bias",
    [TN_W_UP_EXPS_B] = "ffn_up_exps.bias",
    [TN_W_DOWN_EXPS_B] = "ffn_down_exps.bias",
    [TN_W_CONV_IN] = "shortconv.in_proj.weight",
    [TN_W_CONV] = "shortconv.conv.weight",
    [TN_W_CONV_OUT] = "shortconv.out_proj.weight",
    [TN_W_ATT_GATE] = "attn_q.weight",
    [TN_W_DELTA_Q] = "attn_qkv.weight",
    [TN_W_DELTA_K] = "attn_qkv.weight",
    [TN_W_DELTA_V] = "attn_qkv.weight",
    [TN_W_DELTA_GATE] = "attn_gate.weight",
    [TN_W_DELTA_DECAY] = "ssm_alpha.weight",
    [TN_W_DELTA_RATE] = "ssm_beta.weight",
    [TN_W_DELTA_OUT] = "ssm_out.weight",
    [TN_W_DELTA_CONV] = "ssm_conv1d.weight",
    [TN_W_DELTA_A] = "ssm_a",
    [TN_W_DELTA_DT] = "ssm_dt.bias",
    [TN_W_DELTA_NORM] = "ssm_norm.weight",
    [TN_W_SHARED_GATE] = "ffn_gate_inp_shexp.weight",
    [TN_W_EXPERTS_BIAS] = "exp_probs_b.bias",
    [TN_W_MAMBA_CONV_B] = "ssm_conv1d.bias",
    [TN_W_MAMBA_D] = "ssm_d",
    [TN_W_PLE_EMBD] = "per_layer_token_embd.weight",
    [TN_W_PLE_IN] = "per_layer_model_proj.weight",
    [TN_W_PLE_NORM] = "per_layer_proj_norm.weight",
    [TN_W_PLE_GATE] = "inp_gate.weight",
    [TN_W_PLE_OUT] = "proj.weight",
    [TN_W_PLE_POST_NORM] = "post_norm.weight",
    [TN_W_LAYER_SCALE] = "layer_output_scale.weight",
    [TN_W_NEXT_E_NORM] = "nextn.enorm.weight",
    [TN_W_NEXT_H_NORM] = "nextn.hnorm.weight",
    [TN_W_NEXT_PROJ] = "nextn.eh_proj.weight",
    [TN_W_NEXT_OUT_NORM] = "nextn.shared_head_norm.weight",
    [TN_W_ALTUP_NORM] = "altup_router_norm.weight",
    [TN_W_ALTUP_ROUTER] = "altup_router.weight",
    [TN_W_ALTUP_PREDICT] = "altup_predict_coef.weight",
    [TN_W_ALTUP_CORRECT] = "altup_correct_coef.weight",
    [TN_W_ALTUP_SCALE] = "altup_correct_scale.weight",
    [TN_W_LAUREL_IN] = "laurel_l.weight",
    [TN_W_LAUREL_OUT] = "laurel_r.weight",
    [TN_W_LAUREL_NORM] = "laurel_post_norm.weight",
    [TN_W_ALTUP_IN_1] = "altup_proj.weight", /* the three as one */
    [TN_W_ALTUP_IN_2] = "altup_proj.weight",
    [TN_W_ALTUP_IN_3] = "altup_proj.weight",
    [TN_W_ALTUP_OUT_1] = "altup_unembd_proj.weight",
    [TN_W_ALTUP_OUT_2] = "altup_unembd_proj.weight",
    [TN_W_ALTUP_OUT_3] = "altup_unembd_proj.weight",
    [TN_W_ROUTER_NORM] = "ffn_gate_inp.scale",
    [TN_W_EXPERTS_SCALE] = "ffn_down_exps.scale",
    [TN_W_EXPERTS_NORM] = "pre_ffw_norm_2.weight",
    [TN_W_EXPERTS_POST_NORM] = "post_ffw_norm_2.weight",
    [TN_W_FFN_OWN_NORM] = "post_ffw_norm_1.weight",
    [TN_W_ATTN_POST_NORM_B] = "attn_output_norm.bias",
    [TN_W_FFN_POST_NORM_B] = "layer_output_norm.bias",
    [TN_W_EMBD_NORM] = "token_embd_norm.weight",
    [TN_W_EMBD_NORM_B] = "token_embd_norm.bias",
    [TN_W_EMBD_TYPE] = "token_types.weight",
    [TN_W_POSITIONS] = "position_embd.weight",
    [TN_W_DENSE_1] = "dense_2.weight",
    [TN_W_DENSE_2] = "dense_3.weight",
    [TN_W_SCORE_IN] = "cls.weight",
    [TN_W_SCORE_IN_B] = "cls.bias",
    [TN_W_SCORE] = "cls.output.weight",
    [TN_W_SCORE_B] = "cls.output.bias",
    [TN_W_Q_A] = "attn_q_a.weight",
    [TN_W_Q_A_NORM] = "attn_q_a_norm.weight",
    [TN_W_LATENT_Q] = "attn_q_b.weight",
    [TN_W_KV_A] = "attn_kv_a_mqa.weight",
    [TN_W_KV_A_NORM] = "attn_kv_a_norm.weight",
    [TN_W_K_UP] = "attn_k_b.weight",
    [TN_W_V_UP] = "attn_v_b.weight",
    [TN_W_ATTN_SUB_NORM] = "attn_sub_norm.weight",
    [TN_W_FFN_SUB_NORM] = "ffn_sub_norm.weight",
    [TN_W_LERP_R] = "time_mix_lerp_fused.weight", /* the six as one */
    [TN_W_LERP_W] = "time_mix_lerp_fused.weight",
    [TN_W_LERP_K] = "time_mix_lerp_fused.weight",
    [TN_W_LERP_V] = "time_mix_lerp_fused.weight",
    [TN_W_LERP_A] = "time_mix_lerp_fused.weight",
    [TN_W_LERP_G] = "time_mix_lerp_fused.weight",
    [TN_W_LERP_FFN] = "channel_mix_lerp_k.weight",
    [TN_W_WKV_NORM_B] = "time_mix_ln.bias",
    [TN_W_LOW_W_B] = "time_mix_w0.weight",
    [TN_W_LOW_A_B] = "time_mix_a0.weight",
    [TN_W_LOW_V_B] = "time_mix_v0.weight",
    [TN_W_WKV_KK] = "time_mix_k_k.weight",
    [TN_W_WKV_KA] = "time_mix_k_a.weight",
    [TN_W_WKV_RK] = "time_mix_r_k.weight",
    [TN_W_LOW_W_1] = "time_mix_w1.weight",
    [TN_W_LOW_W_2] = "time_mix_w2.weight",
    [TN_W_LOW_A_1] = "time_mix_a1.weight",
    [TN_W_LOW_A_2] = "time_mix_a2.weight",
    [TN_W_LOW_V_1] = "time_mix_v1.weight",
    [TN_W_LOW_V_2] = "time_mix_v2.weight",
    [TN_W_LOW_G_1] = "time_mix_g1.weight",
    [TN_W_LOW_G_2] = "time_mix_g2.weight",
    [TN_W_KDA_CONV_Q] = "ssm_conv1d_q.weight",
    [TN_W_KDA_CONV_K] = "ssm_conv1d_k.weight",
    [TN_W_KDA_CONV_V] = "ssm_conv1d_v.weight",
    [TN_W_KDA_F_A] = "ssm_f_a.weight",
    [TN_W_KDA_F_B] = "ssm_f_b.weight",
    [TN_W_KDA_G_A] = "ssm_g_a.weight",
    [TN_W_KDA_G_B] = "ssm_g_b.weight",
    [TN_W_NEXT_BACK] = "nextn.post_projection.weight",
    [TN_W_SCORE_NORM] = "cls.norm.weight",
    [TN_W_Q_NORM_B] = "attn_q_norm.bias",
    [TN_W_K_NORM_B] = "attn_k_norm.bias",
    [TN_W_ATTN_NORM_2] = "attn_norm_2.weight",
    [TN_W_ATTN_NORM_2_B] = "attn_norm_2.bias",
    [TN_W_EXPERTS_OUT_B] = "ffn_exps_out.bias", /* which no file has */
};

bool tn_arch_gguf_name(const tn_arch *a, const tn_hparams *h, int layer, tn_role role, char *buf,
                       size_t cap) {
    bool own = a->gguf_names[role] && !is_dense(a, h, layer, role);
    const char *name = own ? a->gguf_names[role] : gguf_names[role];
    if (role == TN_W_LATENT_Q && !h->latent.q_rank) name = gguf_names[TN_W_Q];
    if (h->score_tanh && (role == TN_W_SCORE || role == TN_W_SCORE_B))
        name = gguf_names[role == TN_W_SCORE ? TN_W_SCORE_IN : TN_W_SCORE_IN_B];
    const char *const whole = a->assistant ? "nextn." : a->head ? "fc." : "per_layer_";
    if (is_whole_name(role, name, whole) || (a->dflash && tn_role_of_next(role)))
        snprintf(buf, cap, "%s", name);
    else snprintf(buf, cap, "blk.%d.%s", layer, name);
    return true;
}

void tn_arch_hf_next(char *name, size_t cap) {
    char tail[160];
    int at = 0;
    if (sscanf(name, "model.layers.%*d.%n", &at) != 0 || !at) return;
    snprintf(tail, sizeof tail, "%s", name + at);
    snprintf(name, cap, "mtp.layers.0.%s", tail);
}
