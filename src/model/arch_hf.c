/* Hyperparameters from a config.json. */
#include "model/arch_config.h"
#include "model/arch_impl.h"

#include "base/status.h"
#include "kernels/kv_cells.h"
#include "model/keys.h"
#include "model/packed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tern_status parse_act(tn_config *c, const tn_arch *a, tn_hparams *h) {
    const char *s = json_string_value(json_object_get(c->o, "hidden_activation"));
    if (!s) s = json_string_value(json_object_get(c->o, "hidden_act"));
    if (!s) s = json_string_value(json_object_get(c->o, "activation_function"));
    if (!s && a->sub_norms) h->act = TN_ACT_RELU2;
    if (!s) return TERN_OK;
    static const struct {
        const char *name;
        tn_act act;
    } acts[] = {{"silu", TN_ACT_SILU},
                {"swish", TN_ACT_SILU},
                {"gelu_pytorch_tanh", TN_ACT_GELU_TANH},
                {"gelu_new", TN_ACT_GELU_TANH},
                {"gelu_fast", TN_ACT_GELU_TANH},
                {"gelu", TN_ACT_GELU_ERF},
                {"relu", TN_ACT_RELU},
                {"relu2", TN_ACT_RELU2},
                {"sqrelu", TN_ACT_RELU2}};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (strcmp(s, acts[i].name)) continue;
        h->act = acts[i].act;
        if (!strcmp(a->name, "gemma") && h->act == TN_ACT_GELU_ERF)
            h->act = TN_ACT_GELU_TANH; /* Gemma 1 configs say gelu and mean tanh */
        return TERN_OK;
    }
    return tn_fail(c->err, TERN_E_UNSUPPORTED, "%s: activation '%.40s' is unknown", c->file, s);
}

tern_status tn_arch_ternary_hf(const tn_arch *a, const json_t *o, const char *file, bool *ternary,
                               tern_error *err) {
    const json_t *q = json_object_get(o, "quantization_config"), *v;
    const char *key;
    *ternary = false;
    if (!a->sub_norms || !q || json_is_null(q)) return TERN_OK;
    const char *mode = json_string_value(json_object_get(q, "quantization_mode"));
    TN_FAIL_IF(!mode || strcmp(mode, "online"), err, TERN_E_UNSUPPORTED,
               "%s: its weights are packed ('quantization_mode' is '%.40s'), which is not read: take the "
               "folder that "
               "holds them in BF16, or a GGUF file",
               file, mode ? mode : "offline");
    json_object_foreach((json_t *)(uintptr_t)q, key, v) {
        const char *word = json_string_value(v);
        bool idle = !strcmp(key, "quantization_mode") || !strcmp(key, "modules_to_not_convert") ||
                    (word && !strcmp(key, "quant_method") && !strcmp(word, "bitnet")) ||
                    (word && !strcmp(key, "linear_class") && !strcmp(word, "autobitlinear"));
        TN_FAIL_IF(!idle && !json_is_null(v) && !json_is_false(v), err, TERN_E_UNSUPPORTED,
                   "%s: '%.40s' of 'quantization_config' is not supported", file, key);
    }
    *ternary = true;
    return TERN_OK;
}

/* ---- layers that differ ---------------------------------------------------------------------------- */

/* Words for every layer: "full_attention" and "sliding_attention" as the model's period of windows has
 * them. */
static tern_status check_layer_types(tn_config *c, const tn_arch *a, const tn_hparams *h) {
    if (a->conv || a->delta) return TERN_OK; /* read by parse_conv and parse_delta */
    const json_t *types = json_object_get(c->o, "layer_types");
    TN_FAIL_IF(json_is_array(types) && (int32_t)json_array_size(types) != h->n_layers, c->err, TERN_E_FORMAT,
               "%s: 'layer_types' has %zu layers, the model %d", c->file, json_array_size(types),
               h->n_layers);
    for (int32_t i = 0; json_is_array(types) && i < h->n_layers; i++) {
        const char *t = json_string_value(json_array_get(types, (size_t)i));
        bool sliding = t && !strcmp(t, a->chunked ? "chunked_attention" : "sliding_attention"),
             full = t && !strcmp(t, "full_attention");
        TN_FAIL_IF(!sliding && !full, c->err, TERN_E_UNSUPPORTED,
                   "%s: layer %d is of type '%.40s', which is not supported", c->file, i, t ? t : "?");
        TN_FAIL_IF(sliding != (tn_layer_window(h, i) > 0), c->err, TERN_E_UNSUPPORTED,
                   "%s: 'layer_types' says '%s' of layer %d, which is not the pattern of this architecture",
                   c->file, t, i);
    }
    return TERN_OK;
}

/* The period: a number, or letters of which the last alone is G ("LLLG"). */
static tern_status parse_windows(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->window) return TERN_OK;
    if (a->chunked) {
        const json_t *heats = json_object_get(c->o, "attn_temperature_tuning"),
                     *norm = json_object_get(c->o, "use_qk_norm");
        h->window = tn_config_whole(c, "attention_chunk_size", false, 8192);
        h->temp_scale = (float)tn_config_number(c, c->o, "attn_scale", false, (double)h->temp_scale);
        h->temp_every = tn_config_whole(c, "floor_scale", false, h->temp_every);
        if (json_is_false(heats) || (json_is_number(heats) && json_number_value(heats) == 0))
            h->temp_scale = 0;
        h->qk_norm_plain = !json_is_false(norm);
        TN_FAIL_IF(c->st == TERN_OK && h->window < 1, c->err, TERN_E_FORMAT,
                   "%s: 'attention_chunk_size' is %d", c->file, h->window);
        return c->st;
    }
    h->window = tn_config_whole(c, "sliding_window", false, 0);
    const char *key = json_object_get(c->o, "_sliding_window_pattern") ? "_sliding_window_pattern"
                                                                       : "sliding_window_pattern";
    const char *letters = json_string_value(json_object_get(c->o, key));
    if (letters) {
        size_t n = strspn(letters, "L");
        TN_FAIL_IF(!n || n > 100 || strcmp(letters + n, "G"), c->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is '%.40s', want L and then one G", c->file, key, letters);
        h->window_pattern = (int32_t)n + 1;
    } else if (a->window_any) { /* up to the first layer without one; check_layer_types sees to the rest */
        const json_t *types = json_object_get(c->o, "layer_types");
        size_t n = 0, all = json_array_size(types);
        TN_FAIL_IF(!all && h->n_layers % a->window_pattern, c->err, TERN_E_FORMAT,
                   "%s: 'layer_types' is missing", c->file);
        if (!all) n = (size_t)a->window_pattern - 1;
        for (; n + 1 < all && n + 1 < TN_MAX_LAYERS; n++) {
            const char *t = json_string_value(json_array_get(types, n));
            if (t && !strcmp(t, "full_attention")) break;
        }
        h->window_pattern = (int32_t)n + 1;
    } else if (a->window_pattern) {
        h->window_pattern = tn_config_whole(c, key, false, a->window_pattern);
        TN_FAIL_IF(h->window_pattern < 2, c->err, TERN_E_FORMAT, "%s: '%s' is %d", c->file, key,
                   h->window_pattern);
    }
    return c->st;
}

/* 1 for every layer with rope: the last of every period has none. */
static tern_status parse_no_rope(tn_config *c, tn_hparams *h) {
    const json_t *layers = json_object_get(c->o, "no_rope_layers");
    int32_t period = tn_config_whole(c, "no_rope_layer_interval", false, h->no_rope_pattern);
    if (h->no_rope_pattern < 2) return c->st; /* in all, or in none; others: refused by check_keys */
    TN_FAIL_IF(period < 2, c->err, TERN_E_FORMAT, "%s: 'no_rope_layer_interval' is %d", c->file, period);
    h->no_rope_pattern = period;
    TN_FAIL_IF(json_is_array(layers) && (int32_t)json_array_size(layers) != h->n_layers, c->err,
               TERN_E_FORMAT, "%s: 'no_rope_layers' has %zu layers, the model %d", c->file,
               json_array_size(layers), h->n_layers);
    for (int32_t i = 0; json_is_array(layers) && i < h->n_layers; i++) {
        bool rope = json_integer_value(json_array_get(layers, (size_t)i)) != 0;
        TN_FAIL_IF(rope != ((i + 1) % period != 0), c->err, TERN_E_UNSUPPORTED,
                   "%s: 'no_rope_layers' is no period of %d: layer %d", c->file, period, i);
    }
    return c->st;
}

/* Gemma 4: heads of layers with a window and of the others; layers that share keys and values, or have
 * embeddings. */
static tern_status parse_layers(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->window_heads) return TERN_OK;
    int32_t window_d = h->d_head, n_all = tn_config_whole(c, "num_global_key_value_heads", false, 0);
    h->d_head = tn_config_whole(c, "global_head_dim", false, window_d);
    h->window_d_head = window_d != h->d_head && h->window ? window_d : 0;
    h->v_is_k = tn_config_is(c, "attention_k_eq_v");
    TN_FAIL_IF(n_all && n_all != h->n_kv_heads && !h->v_is_k, c->err, TERN_E_UNSUPPORTED,
               "%s: 'num_global_key_value_heads' without 'attention_k_eq_v' is not supported", c->file);
    if (n_all && n_all != h->n_kv_heads) {
        h->window_kv_heads = h->n_kv_heads;
        h->n_kv_heads = n_all;
    }
    h->n_kv_shared = tn_config_whole(c, "num_kv_shared_layers", false, 0);
    h->n_ple = tn_config_whole(c, "hidden_size_per_layer_input", false, 0);
    const bool wide = tn_config_is(c, "use_double_wide_mlp");
    TN_FAIL_IF(wide && a->assistant, c->err, TERN_E_UNSUPPORTED,
               "%s: 'use_double_wide_mlp' is not supported for model type %s", c->file, a->hf);
    if (wide && h->n_kv_shared > 0 && h->n_ff < 1 << 18) h->n_ff_shared = 2 * h->n_ff;
    h->layer_scale = !a->streams;
    TN_TRY(c->st);
    TN_FAIL_IF(h->n_kv_shared < 0 || h->n_kv_shared > h->n_layers - !a->assistant, c->err, TERN_E_FORMAT,
               "%s: 'num_kv_shared_layers' is %d of %d layers", c->file, h->n_kv_shared, h->n_layers);
    return TERN_OK;
}

/* Attention of latents: what a position keeps, and what heads make of it. */
static tern_status parse_latent(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->latent) return TERN_OK;
    int32_t rank = tn_config_whole(c, "kv_lora_rank", true, 0),
            rot = tn_config_whole(c, "qk_rope_head_dim", true, 0),
            nope = tn_config_whole(c, "qk_nope_head_dim", true, 0);
    h->latent.q_rank = tn_config_whole(c, "q_lora_rank", false, 0);
    h->latent.d_value = tn_config_whole(c, "v_head_dim", false, h->n_heads > 0 ? h->n_embd / h->n_heads : 0);
    TN_TRY(c->st);
    TN_FAIL_IF(rank < 1 || rank > 1024 || rot < 2 || rot > TN_MAX_HEAD - rank || nope < 1 || nope > 1024,
               c->err, TERN_E_FORMAT, "%s: latents of %d values, %d rotated, for keys of %d more", c->file,
               rank, rot, nope);
    h->latent.rank = rank;
    h->latent.d_nope = nope;
    h->n_rot = rot;
    h->n_kv_heads = 1;
    h->d_head = rank + rot;
    if (h->attn_scale == 0) h->attn_scale = (float)(1 / sqrt((double)(nope + rot)));
    return TERN_OK;
}

/* ---- several residual streams ---------------------------------------------------------------------- */

/* How many deviations above the mean of a normal distribution a share p of it ends. */
static double deviations_of(double p) {
    double low = 0, high = 40;
    for (int i = 0; i < 80; i++) {
        double x = (low + high) / 2;
        if (0.5 * erfc(-x / sqrt(2)) < p) low = x;
        else high = x;
    }
    return low;
}

/* Shares of the gates that are cut, layer by layer: the same in the first ones, 0 in the others. */
static tern_status parse_sparse(tn_config *c, tn_hparams *h) {
    const json_t *shares = json_object_get(c->o, "activation_sparsity_pattern");
    TN_FAIL_IF(!json_is_array(shares) || (int32_t)json_array_size(shares) != h->n_layers, c->err,
               TERN_E_FORMAT, "%s: 'activation_sparsity_pattern' has %zu layers, the model %d", c->file,
               json_array_size(shares), h->n_layers);
    double first = json_number_value(json_array_get(shares, 0));
    TN_FAIL_IF(first != 0 && !(first > 0.5 && first < 1), c->err, TERN_E_UNSUPPORTED,
               "%s: 'activation_sparsity_pattern' begins with %g, want 0, or more than 0.5 and less than 1",
               c->file, first);
    for (int32_t i = 0; i < h->n_layers; i++) {
        const json_t *v = json_array_get(shares, (size_t)i);
        bool sparse = json_number_value(v) != 0;
        TN_FAIL_IF(!json_is_number(v) || (sparse && (h->n_sparse < i || json_number_value(v) != first)),
                   c->err, TERN_E_UNSUPPORTED,
                   "%s: 'activation_sparsity_pattern' is not one number in the first layers and 0 in the "
                   "others: layer %d",
                   c->file, i);
        if (sparse) h->n_sparse = i + 1;
    }
    if (h->n_sparse) h->sparse_deviations = (float)deviations_of(first);
    return TERN_OK;
}

/* Gemma 3n. Its vocabulary goes on after the text's with rows that stand for pictures and sounds. */
static tern_status parse_streams(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->streams) return TERN_OK;
    h->n_streams = tn_config_whole(c, "altup_num_inputs", true, 0);
    h->laurel_rank = tn_config_whole(c, "laurel_rank", true, 0);
    int32_t active = tn_config_whole(c, "altup_active_idx", false, 0),
            n_text = tn_config_whole(c, "vocab_size_per_layer_input", false, h->n_vocab);
    TN_TRY(c->st);
    TN_FAIL_IF(active, c->err, TERN_E_UNSUPPORTED,
               "%s: 'altup_active_idx' is %d, want 0: layers work on the first stream", c->file, active);
    TN_FAIL_IF(json_is_false(json_object_get(c->o, "altup_correct_scale")), c->err, TERN_E_UNSUPPORTED,
               "%s: 'altup_correct_scale' is false, which is not supported", c->file);
    TN_FAIL_IF(n_text < 1 || n_text > h->n_vocab, c->err, TERN_E_FORMAT,
               "%s: 'vocab_size_per_layer_input' is %d, the vocabulary %d", c->file, n_text, h->n_vocab);
    h->n_vocab_rest = h->n_vocab - n_text;
    h->n_vocab = n_text;
    return parse_sparse(c, h);
}

/* ---- scales ---------------------------------------------------------------------------------------- */

static void parse_scales(tn_config *c, const tn_arch *a, tn_hparams *h) {
    const json_t *o = c->o;
    if (a->scales == TN_SCALES_GRANITE) {
        h->embd_scale = (float)tn_config_number(c, o, "embedding_multiplier", false, 1);
        h->residual_scale = (float)tn_config_number(c, o, "residual_multiplier", false, 1);
        h->attn_scale = (float)tn_config_number(c, o, "attention_multiplier", false, 0);
        h->logit_scale = (float)(1 / tn_config_number(c, o, "logits_scaling", false, 1));
    } else if (a->scales == TN_SCALES_COHERE) {
        h->logit_scale = (float)tn_config_number(c, o, "logit_scale", false, 0.0625);
    } else if (a->scales == TN_SCALES_MINICPM) {
        h->embd_scale = (float)tn_config_number(c, o, "scale_emb", false, 1);
        double depth = tn_config_number(c, o, "scale_depth", false, 0);
        if (depth != 0) h->residual_scale = (float)(depth / sqrt((double)h->n_layers));
        h->logit_scale = (float)(tn_config_number(c, o, "dim_model_base", false, h->n_embd) / h->n_embd);
    }
}

/* The shared expert's size: said, or so many of the others'. */
static void parse_shared(tn_config *c, const tn_arch *a, tn_hparams *h) {
    static const char *const counts[] = {"n_shared_experts", "moe_num_shared_experts", "num_shared_expert",
                                         "num_shared_experts", NULL};
    int32_t dense = h->n_ff, n = tn_config_first_whole(c, counts, false, 0);
    if (a->experts_before) { /* which is as large as the others */
        const int32_t every = tn_config_whole(c, "interleave_moe_layer_step", false, 1);
        h->experts_every = every > 1 ? every : 0;
        if (h->experts_every) h->n_ff_dense = tn_config_whole(c, "intermediate_size_mlp", true, 0);
        if (h->n_ff_dense == h->n_ff) h->n_ff_dense = 0;
        return;
    }
    if (a->mamba)
        h->n_ff = tn_config_whole(
            c, a->single ? "moe_shared_expert_intermediate_size" : "shared_intermediate_size", true, h->n_ff);
    else if (n > 0 && n <= 1 << 10 && h->n_ff_exp > 0 && h->n_ff_exp <= 1 << 18) {
        const int32_t each =
            a->kda_bounded ? tn_config_whole(c, "moe_shared_expert_intermediate_size", false, h->n_ff_exp)
                           : h->n_ff_exp;
        h->n_ff = each > 0 && each <= 1 << 18 ? n * each : -1;
    } else h->n_ff = tn_config_whole(c, "shared_expert_intermediate_size", true, h->n_ff);
    if (a->dense_first && dense != h->n_ff) h->n_ff_dense = dense;
}

static void parse_experts(tn_config *c, const tn_arch *a, tn_hparams *h) {
    static const char *const counts[] = {"num_experts", "n_routed_experts", "moe_num_experts",
                                         "num_local_experts", NULL},
                             *const used[] = {"num_experts_per_tok", "moe_topk", "moe_k",
                                              "num_experts_per_token", NULL},
                             *const firsts[] = {"num_dense_layers", "first_k_dense_replace",
                                                "moe_layer_start_index", NULL},
                             *const steps[] = {"decoder_sparse_step", "moe_layer_interval", NULL};
    if (!a->experts) return;
    h->n_experts = (int32_t)tn_config_first(c, counts, 0);
    h->n_experts_used = a->experts_beside ? tn_config_whole(c, "top_k_experts", true, 1)
                                          : tn_config_first_whole(c, used, true, 1);
    h->n_ff_exp = tn_config_same(c, "moe_intermediate_size", a->experts_beside, h->n_ff);
    if (a->shared_expert) parse_shared(c, a, h);
    else if (!a->dense_first && !a->experts_beside) h->n_ff = h->n_ff_exp;
    if (a->dense_first) h->n_dense = tn_config_first_whole(c, firsts, false, 0);
    if (a->experts_flat) h->experts_every = tn_config_whole(c, "moe_every_n_layers", true, 0);
    if (!h->n_dense && !h->experts_every) h->n_ff_dense = 0;
    if (a->experts_mixer > 0)
        h->experts_mixer =
            2 * (float)tn_config_number(c, c->o, "router_jitter_noise", false, (double)a->experts_mixer / 2);
    h->experts_scale = (float)tn_config_number(c, c->o, "routed_scaling_factor", false, 1);
    int32_t groups = tn_config_whole(c, tn_arch_is_kimi(a) ? "num_expert_group" : "n_group", false, 1),
            of = tn_config_whole(c, "topk_group", false, 1);
    if (groups > 1) h->experts_groups = groups, h->experts_groups_used = of;
    h->experts_bias = a->experts_biased || (a->experts_sigmoid && tn_config_is(c, "use_expert_bias"));
    const char *scores = json_string_value(json_object_get(c->o, "scoring_func"));
    if (a->experts_said && scores) h->experts_sigmoid = !strcmp(scores, "sigmoid");
    const json_t *norm = json_object_get(c->o, "norm_topk_prob");
    if (json_is_boolean(norm)) h->experts_norm = json_is_true(norm);
    int32_t last = tn_config_whole(c, "moe_layer_end_index", false, -1);
    if ((tn_config_first(c, steps, 1) != 1 || (last != -1 && last != h->n_layers - 1)) && c->st == TERN_OK)
        c->st = tn_fail(c->err, TERN_E_UNSUPPORTED,
                        "%s: experts in some layers only ('decoder_sparse_step', 'moe_layer_interval', "
                        "'moe_layer_end_index') are not supported",
                        c->file);
}

/* Which layers attend and which are of the other kind, by their words in 'layer_types'. Without these all but every
 * so many-th layer are of the other kind; every 0: the words must be there. */
static tern_status parse_layer_kinds(tn_config *c, tn_hparams *h, const char *other, const char *attends,
                                     tn_layer_kind kind, int32_t every) {
    const json_t *types = json_object_get(c->o, "layer_types");
    bool said = json_is_array(types) || !every, any = false;
    TN_FAIL_IF(said && (int32_t)json_array_size(types) != h->n_layers, c->err, TERN_E_FORMAT,
               "%s: 'layer_types' has %zu layers, the model %d", c->file, json_array_size(types),
               h->n_layers);
    for (int32_t i = 0; i < h->n_layers; i++) {
        const char *t = said              ? json_string_value(json_array_get(types, (size_t)i))
                        : (i + 1) % every ? other
                                          : attends;
        bool is_other = t && !strcmp(t, other);
        h->layer_kind[i] = (uint8_t)(is_other ? kind : TN_LAYER_ATTENDS);
        any = any || !is_other;
        TN_FAIL_IF(!is_other && !(t && !strcmp(t, attends)), c->err, TERN_E_UNSUPPORTED,
                   "%s: layer %d is of type '%.40s', which is not supported", c->file, i, t ? t : "?");
    }
    TN_FAIL_IF(!any, c->err, TERN_E_UNSUPPORTED, "%s: no layer attends", c->file);
    return TERN_OK;
}

/* Granite 4: layers of Mamba 2 and of attention, which may be without rope. */
static tern_status parse_mamba(tn_config *c, tn_hparams *h) {
    const char *rope = json_string_value(json_object_get(c->o, "position_embedding_type"));
    int32_t groups = tn_config_whole(c, "mamba_n_groups", true, 0);
    h->conv_len = tn_config_whole(c, "mamba_d_conv", true, 0);
    h->delta = (tn_delta_net){.n_heads = tn_config_whole(c, "mamba_n_heads", true, 0),
                              .n_key_heads = groups,
                              .d_key = tn_config_whole(c, "mamba_d_state", true, 0),
                              .d_value = tn_config_whole(c, "mamba_d_head", true, 0),
                              .mamba = true};
    if (!h->n_experts) h->n_ff = tn_config_whole(c, "shared_intermediate_size", true, 0);
    if (!rope || strcmp(rope, "rope")) h->no_rope_pattern = 1;
    TN_TRY(c->st);
    TN_FAIL_IF(
        groups != 1, c->err, TERN_E_UNSUPPORTED,
        "%s: 'mamba_n_groups' is %d, and norms over several groups differ between the folders' and the GGUF "
        "files' reading; want 1",
        c->file, groups);
    TN_FAIL_IF(tn_config_is(c, "mamba_proj_bias") || !tn_config_is(c, "mamba_conv_bias"), c->err,
               TERN_E_UNSUPPORTED, "%s: want 'mamba_conv_bias' true and 'mamba_proj_bias' false", c->file);
    return parse_layer_kinds(c, h, "mamba", "attention", TN_LAYER_DELTA, 0);
}

/* What would be another model: said by keys that are true, or false. */
static tern_status check_mamba_beside(tn_config *c) {
    static const struct {
        const char *key;
        bool want, said; /* where it is left out */
    } flags[] = {{"attention_bias", false, false},  {"mlp_bias", false, false},
                 {"projectors_bias", false, false}, {"mamba_proj_bias", false, false},
                 {"mamba_conv_bias", true, true},   {"mamba_use_mlp", true, true}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const json_t *v = json_object_get(c->o, flags[i].key);
        bool is = !v || json_is_null(v) ? flags[i].said : json_is_true(v);
        TN_FAIL_IF(is != flags[i].want, c->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is not %s, which is not supported", c->file, flags[i].key,
                   flags[i].want ? "true" : "false");
    }
    const char *act = json_string_value(json_object_get(c->o, "hidden_act"));
    TN_FAIL_IF(act && strcmp(act, "silu") && strcmp(act, "swish"), c->err, TERN_E_UNSUPPORTED,
               "%s: activation '%.40s' is not supported for this model type", c->file, act);
    const json_t *some = json_object_get(c->o, "attn_layer_indices"),
                 *steps = json_object_get(c->o, "time_step_limit");
    TN_FAIL_IF(some && !json_is_null(some), c->err, TERN_E_UNSUPPORTED,
               "%s: 'attn_layer_indices' is not supported: all layers attend", c->file);
    double least = json_number_value(json_array_get(steps, 0));
    TN_FAIL_IF(least > 0 || json_is_number(json_array_get(steps, 1)), c->err, TERN_E_UNSUPPORTED,
               "%s: 'time_step_limit' is not supported", c->file);
    return TERN_OK;
}

/* Falcon-H1: attention and a state space in every layer. */
static tern_status parse_mamba_beside(tn_config *c, tn_hparams *h) {
    const json_t *each = json_object_get(c->o, "mamba_d_head"),
                 *first = json_object_get(c->o, "mamba_norm_before_gate");
    int32_t heads = tn_config_whole(c, "mamba_n_heads", true, 0),
            expand = tn_config_whole(c, "mamba_expand", false, 2),
            inner = tn_config_whole(c, "mamba_d_ssm", false, 0);
    bool norm = tn_config_is(c, "mamba_rms_norm"),
         said = each && !json_is_null(each) && !json_is_string(each);
    TN_TRY(c->st);
    TN_TRY(check_mamba_beside(c));
    if (!inner && expand > 0 && h->n_embd > 0 && h->n_embd <= 1 << 16 && expand <= 1 << 10)
        inner = expand * h->n_embd;
    int32_t d_value = said ? tn_config_whole(c, "mamba_d_head", true, 0) : heads > 0 ? inner / heads : 0;
    TN_TRY(c->st);
    TN_FAIL_IF(heads < 1 || (int64_t)heads * d_value != inner, c->err, TERN_E_FORMAT,
               "%s: %d values of a state space for %d heads of %d", c->file, inner, heads, d_value);
    h->conv_len = tn_config_whole(c, "mamba_d_conv", true, 0);
    h->delta = (tn_delta_net){.n_heads = heads,
                              .n_key_heads = tn_config_whole(c, "mamba_n_groups", true, 0),
                              .d_key = tn_config_whole(c, "mamba_d_state", true, 0),
                              .d_value = d_value,
                              .mamba = true,
                              .no_norm = !norm,
                              .norm_first = norm && !json_is_false(first)};
    h->embd_scale = (float)tn_config_number(c, c->o, "embedding_multiplier", false, 1);
    h->logit_scale = (float)tn_config_number(c, c->o, "lm_head_multiplier", false, 1);
    for (int32_t i = 0; i < h->n_layers; i++) h->layer_kind[i] = TN_LAYER_BOTH;
    return c->st;
}

/* n numbers of a list, or 1 each where there is none. */
static void list_of(tn_config *c, const char *key, size_t n, double *out) {
    const json_t *v = json_object_get(c->o, key);
    bool none = !v || json_is_null(v);
    if (!none && json_array_size(v) != n && c->st == TERN_OK)
        c->st = tn_fail(c->err, TERN_E_FORMAT, "%s: '%s' are %zu numbers, want %zu", c->file, key,
                        json_array_size(v), n);
    for (size_t i = 0; i < n; i++) out[i] = none ? 1 : json_number_value(json_array_get(v, i));
}

tern_status tn_arch_multipliers_hf(const tn_arch *a, const json_t *o, const char *file,
                                   float by[TN_W_N_ROLES], tern_error *err) {
    tn_config c = {.o = o, .file = file, .err = err};
    memset(by, 0, TN_W_N_ROLES * sizeof *by);
    if (!a->mamba_beside) return TERN_OK;
    double in = tn_config_number(&c, o, "attention_in_multiplier", false, 1), mlp[2], ssm[5],
           ssm_in = tn_config_number(&c, o, "ssm_in_multiplier", false, 1);
    list_of(&c, "mlp_multipliers", 2, mlp);
    list_of(&c, "ssm_multipliers", 5, ssm); /* gate, values, keys, queries, steps */
    const struct {
        tn_role role;
        double by;
    } all[] = {{TN_W_Q, in},
               {TN_W_K, in * tn_config_number(&c, o, "key_multiplier", false, 1)},
               {TN_W_V, in},
               {TN_W_O, tn_config_number(&c, o, "attention_out_multiplier", false, 1)},
               {TN_W_GATE, mlp[0]},
               {TN_W_DOWN, mlp[1]},
               {TN_W_DELTA_GATE, ssm_in * ssm[0]},
               {TN_W_DELTA_V, ssm_in * ssm[1]},
               {TN_W_DELTA_K, ssm_in * ssm[2]},
               {TN_W_DELTA_Q, ssm_in * ssm[3]},
               {TN_W_DELTA_DECAY, ssm_in * ssm[4]},
               {TN_W_DELTA_OUT, tn_config_number(&c, o, "ssm_out_multiplier", false, 1)}};
    TN_TRY(c.st);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        TN_FAIL_IF(!(all[i].by > 1e-6 && all[i].by < 1e6), err, TERN_E_FORMAT,
                   "%s: the configuration multiplies %s by %g; want a positive number", file,
                   tn_role_name(all[i].role), all[i].by);
        by[all[i].role] = all[i].by == 1 ? 0 : (float)all[i].by;
    }
    return TERN_OK;
}

/* Qwen3-Next: "linear_attention" is what its configurations call a gated delta net. */
static tern_status parse_delta(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->delta) return TERN_OK;
    if (a->kda) return (a->kda_bounded ? tn_arch_ling_hf : tn_arch_kda_hf)(c->o, c->file, h, c->err);
    if (a->wkv) return tn_arch_wkv_hf(c->o, c->file, h, c->err);
    if (a->alone) return tn_arch_alone_hf(c->o, c->file, h, c->err);
    if (a->single) return tn_arch_single_hf(c->o, c->file, h, c->err);
    if (a->mamba) return a->mamba_beside ? parse_mamba_beside(c, h) : parse_mamba(c, h);
    h->conv_len = tn_config_whole(c, "linear_conv_kernel_dim", true, 0);
    h->delta = (tn_delta_net){.n_heads = tn_config_whole(c, "linear_num_value_heads", true, 0),
                              .n_key_heads = tn_config_whole(c, "linear_num_key_heads", true, 0),
                              .d_key = tn_config_whole(c, "linear_key_head_dim", true, 0),
                              .d_value = tn_config_whole(c, "linear_value_head_dim", true, 0)};
    int32_t every = tn_config_whole(c, "full_attention_interval", false, 4);
    TN_TRY(c->st);
    TN_FAIL_IF(every < 1, c->err, TERN_E_FORMAT, "%s: 'full_attention_interval' is %d", c->file, every);
    TN_TRY(parse_layer_kinds(c, h, "linear_attention", "full_attention", TN_LAYER_DELTA, every));
    const json_t *gate = json_object_get(c->o, "attn_output_gate");
    TN_FAIL_IF(gate && !json_is_true(gate), c->err, TERN_E_UNSUPPORTED,
               "%s: 'attn_output_gate' is not true, which is not supported for model type %s", c->file,
               a->hf);
    return TERN_OK;
}

/* The first folders of LFM2 have the numbers of the layers that attend. */
static tern_status parse_attending(tn_config *c, tn_hparams *h, const json_t *numbers) {
    size_t i;
    json_t *v;
    for (int32_t l = 0; l < h->n_layers; l++) h->layer_kind[l] = TN_LAYER_CONVOLVES;
    json_array_foreach(numbers, i, v) {
        const json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;
        TN_FAIL_IF(l < 0 || l >= h->n_layers, c->err, TERN_E_FORMAT,
                   "%s: 'full_attn_idxs' has something else than numbers of the %d layers", c->file,
                   h->n_layers);
        h->layer_kind[l] = TN_LAYER_ATTENDS;
    }
    TN_FAIL_IF(!json_array_size(numbers), c->err, TERN_E_UNSUPPORTED, "%s: no layer attends", c->file);
    return TERN_OK;
}

/* LFM2: which layers convolve, and the size of its feed-forward blocks, which the configuration says
 * before it is adjusted. */
static tern_status parse_conv(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->conv) return TERN_OK;
    const json_t *numbers = json_object_get(c->o, "full_attn_idxs");
    if (json_is_array(numbers) && !json_object_get(c->o, "layer_types"))
        TN_TRY(parse_attending(c, h, numbers));
    else TN_TRY(parse_layer_kinds(c, h, "conv", "full_attention", TN_LAYER_CONVOLVES, 0));
    h->conv_len = tn_config_whole(c, "conv_L_cache", true, 0);
    h->norm_eps = (float)tn_config_number(c, c->o, "norm_eps", false, (double)h->norm_eps);
    const json_t *tied = json_object_get(c->o, "tie_embedding");
    if (json_is_boolean(tied)) h->tied = json_is_true(tied);
    TN_FAIL_IF(tn_config_is(c, "conv_bias"), c->err, TERN_E_UNSUPPORTED, "%s: 'conv_bias' is not supported",
               c->file);
    h->n_ff = tn_config_whole(c, "block_ff_dim", false, h->n_ff);
    if (tn_config_is(c, "block_auto_adjust_ff_dim")) {
        double ff =
                   floor(2.0 * h->n_ff / 3) * tn_config_number(c, c->o, "block_ffn_dim_multiplier", false, 1),
               of = tn_config_whole(c, "block_multiple_of", false, 256);
        TN_FAIL_IF(!(of >= 1 && ff >= 1 && ff < 1e9), c->err, TERN_E_FORMAT,
                   "%s: a feed-forward size of %g in multiples of %g", c->file, ff, of);
        h->n_ff = (int32_t)(of * floor((floor(ff) + of - 1) / of));
    }
    return c->st;
}

/* Learned positions; in folders of RoBERTa's kind the text begins after the one that stands for padding. */
static tern_status parse_positions(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (!a->positions) return TERN_OK;
    const char *type = json_string_value(json_object_get(c->o, "position_embedding_type"));
    TN_FAIL_IF(type && strcmp(type, "absolute"), c->err, TERN_E_UNSUPPORTED,
               "%s: 'position_embedding_type' is '%.40s', which is not supported", c->file, type);
    if (a->positions_padded) h->positions_from = tn_config_whole(c, "pad_token_id", false, 1) + 1;
    TN_TRY(c->st);
    TN_FAIL_IF(h->positions_from < 0 || h->positions_from >= h->ctx_train, c->err, TERN_E_FORMAT,
               "%s: %d positions, of which the text has those from %d on", c->file, h->ctx_train,
               h->positions_from);
    h->ctx_train -= h->positions_from;
    h->n_positions = h->ctx_train;
    return TERN_OK;
}

/* What a reranker of ModernBERT's form makes of a text's rows; others' is fixed. */
static tern_status parse_score(tn_config *c, const tn_arch *a, tn_hparams *h) {
    const char *by = json_string_value(json_object_get(c->o, "classifier_pooling")),
               *act = json_string_value(json_object_get(c->o, "classifier_activation")),
               *class = json_string_value(json_array_get(json_object_get(c->o, "architectures"), 0));
    if (!a->modern) return TERN_OK;
    const bool scores = class && strstr(class, "ForSequenceClassification");
    TN_FAIL_IF(scores && act && strcmp(act, "gelu"), c->err, TERN_E_UNSUPPORTED,
               "%s: 'classifier_activation' is '%.40s', which is not supported: gelu is", c->file, act);
    TN_FAIL_IF(scores && by && strcmp(by, "mean") && strcmp(by, "cls"), c->err, TERN_E_UNSUPPORTED,
               "%s: 'classifier_pooling' is '%.40s', which is not supported: cls and mean are", c->file, by);
    h->score_gelu = true;
    h->score_mean = by && !strcmp(by, "mean");
    return TERN_OK;
}

/* ---- keys that nobody reads ------------------------------------------------------------------------ */

/* A key that is not known may change what the model computes: it is refused. prefix: "", or "rope." */
static tern_status check_object(const tn_config *c, const tn_arch *a, const json_t *o, const char *prefix) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        char name[96];
        bool whole = (size_t)snprintf(name, sizeof name, "%s%s", prefix, key) < sizeof name;
        TN_FAIL_IF(!whole || !tn_key_ok_hf(a, name, v), c->err, TERN_E_UNSUPPORTED,
                   "%s: '%.80s' is not supported for model type %s", c->file, key, a->hf);
    }
    return TERN_OK;
}

/* A scaling of another JSON type would count as none. */
static tern_status check_rope(const tn_config *c, const tn_arch *a, const json_t *o, const char *name) {
    const json_t *rope = json_object_get(o, name);
    if (!rope || json_is_null(rope)) return TERN_OK;
    TN_FAIL_IF(!json_is_object(rope), c->err, TERN_E_FORMAT, "%s: '%s' is not an object", c->file, name);
    static const char *const types[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const json_t *type = json_object_get(rope, types[i]);
        TN_FAIL_IF(type && !json_is_null(type) && !json_is_string(type), c->err, TERN_E_FORMAT,
                   "%s: '%s' of '%s' is not a string", c->file, types[i], name);
    }
    return check_object(c, a, rope, "rope.");
}

/* A value of another type would be read as if the key were not there. */
static tern_status check_types(const tn_config *c) {
    static const char *const words[] = {"hidden_act", "hidden_activation", "activation_function"},
                             *const flags[] = {"tie_word_embeddings",      "tie_embedding",
                                               "use_sliding_window",       "attention_k_eq_v",
                                               "use_double_wide_mlp",      "use_expert_bias",
                                               "norm_topk_prob",           "use_qk_norm",
                                               "use_parallel_residual",    "conv_bias",
                                               "block_auto_adjust_ff_dim", "mamba_proj_bias",
                                               "mamba_conv_bias",          "mamba_rms_norm"};
    const json_t *v;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        v = json_object_get(c->o, words[i]);
        TN_FAIL_IF(v && !json_is_null(v) && !json_is_string(v), c->err, TERN_E_FORMAT, "%s: '%s' is no word",
                   c->file, words[i]);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        v = json_object_get(c->o, flags[i]);
        TN_FAIL_IF(v && !json_is_null(v) && !json_is_boolean(v), c->err, TERN_E_FORMAT,
                   "%s: '%s' is neither true nor false", c->file, flags[i]);
    }
    v = json_object_get(c->o, "layer_types");
    TN_FAIL_IF(v && !json_is_null(v) && !json_is_array(v), c->err, TERN_E_FORMAT,
               "%s: 'layer_types' is no list", c->file);
    return TERN_OK;
}

static tern_status check_keys(const tn_config *c, const tn_arch *a) {
    static const char *const objects[] = {"rope_parameters", "rope_scaling"}, *const kinds[] = {
                                                                                  "full_attention",
                                                                                  "sliding_attention"};
    TN_TRY(check_object(c, a, c->o, ""));
    TN_TRY(check_types(c));
    for (int i = 0; i < 2; i++) {
        TN_TRY(check_rope(c, a, c->o, objects[i]));
        for (int k = 0; k < 2; k++) TN_TRY(check_rope(c, a, json_object_get(c->o, objects[i]), kinds[k]));
    }
    return TERN_OK;
}

/* MiniMax-M2: what its configuration says as its forerunners did, whose layers differed. */
static tern_status minimax_ok(const tn_config *c, const tn_arch *a) {
    const json_t *kinds = json_object_get(c->o, "attn_type_list"), *v;
    size_t i;
    if (!a->qk_norm_whole || !a->experts_sigmoid) return TERN_OK;
    json_array_foreach(kinds, i, v)
        TN_FAIL_IF(json_integer_value(v) != 1, c->err, TERN_E_UNSUPPORTED,
                   "%s: 'attn_type_list' is %d of layer %zu; attention alone is supported, 1", c->file,
                   (int)json_integer_value(v), i);
    static const char *const flags[] = {"use_qk_norm", "use_routing_bias"};
    for (i = 0; i < 2; i++)
        TN_FAIL_IF(json_is_false(json_object_get(c->o, flags[i])), c->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is false, which is not supported", c->file, flags[i]);
    return TERN_OK;
}

/* Llama 4 names the layers that have experts: those that follow from their step. */
static tern_status check_moe_layers(const tn_config *c, const tn_arch *a, const tn_hparams *h) {
    const json_t *named = json_object_get(c->o, "moe_layers"), *v;
    size_t i;
    if (!a->experts_before || !json_is_array(named)) return TERN_OK;
    int32_t n = 0;
    for (int32_t l = 0; l < h->n_layers; l++) n += tn_layer_has_experts(h, l);
    bool same = json_array_size(named) == (size_t)n;
    json_array_foreach(named, i, v) {
        const json_int_t l = json_integer_value(v);
        same = same && l >= 0 && l < h->n_layers && tn_layer_has_experts(h, (int32_t)l);
    }
    TN_FAIL_IF(!same, c->err, TERN_E_UNSUPPORTED,
               "%s: 'moe_layers' are not the last of every %d layers, which is not supported", c->file,
               h->experts_every ? h->experts_every : 1);
    return TERN_OK;
}

tern_status tn_arch_hparams_hf(const tn_arch *a, const json_t *o, const char *file, tn_hparams *h,
                               tern_error *err) {
    const json_t *text = json_object_get(o, "text_config"); /* of a model that sees and reads */
    bool tied = json_is_true(json_object_get(o, "tie_word_embeddings"));
    const json_t *vision = json_object_get(o, "vision_config");
    if ((a->delta || a->window_heads || a->sections) && json_is_object(text)) o = text;
    static const char *const layers[] = {"num_hidden_layers", "num_layers", NULL},
                             *const eps[] = {"layer_norm_eps", "norm_epsilon", "norm_eps", "rms_norm_eps",
                                             NULL},
                             *const rms_eps[] = {"rms_norm_eps", "layer_norm_epsilon", NULL};
    tn_config c = {.o = o, .file = file, .err = err};
    tn_arch_begin(a, h);
    const char *name = json_string_value(json_object_get(o, "_name_or_path"));
    if (name) snprintf(h->name, sizeof h->name, "%s", name);
    h->n_layers = tn_config_first_whole(&c, layers, true, 0);
    h->n_embd = tn_config_whole(&c, "hidden_size", true, 0);
    h->n_heads = tn_config_whole(&c, "num_attention_heads", !a->alone, 1);
    h->n_kv_heads = tn_config_whole(&c, "num_key_value_heads", false, h->n_heads);
    const bool ff_elsewhere = a->shared_expert || a->alone || (a->conv && json_object_get(o, "block_ff_dim"));
    h->n_ff = tn_config_same(&c, "intermediate_size", !ff_elsewhere, 0);
    h->n_vocab = tn_config_whole(&c, "vocab_size", true, 0);
    const int32_t ctx = tn_arch_is_kimi(a) ? tn_config_whole(&c, "model_max_length", false, 1 << 20)
                                           : 1 << 20; /* as converters */
    h->ctx_train = tn_config_whole(&c, "max_position_embeddings", !a->alone && !tn_arch_is_kimi(a), ctx);
    h->d_head = tn_config_whole(&c, "head_dim", false, h->n_heads > 0 ? h->n_embd / h->n_heads : 0);
    if (h->n_layers <= TN_MAX_LAYERS) tn_arch_alone(a, h);
    h->norm_eps = (float)tn_config_first(&c, a->norm == TN_NORM_LAYER ? eps : rms_eps, 1e-5);
    h->tied = json_object_get(o, "tie_word_embeddings") ? tn_config_is(&c, "tie_word_embeddings") : tied;
    if (a->encoder || a->modern) h->tied = true; /* what it could write with is not read */
    if (a->may_be_parallel) h->parallel_block = tn_config_is(&c, "use_parallel_residual");
    if (a->qk_norm_said) h->qk_norm = tn_config_is(&c, "use_qk_norm");
    h->attn_soft_cap = (float)tn_config_number(&c, o, "attn_logit_softcapping", false, 0);
    h->logit_soft_cap = (float)tn_config_number(&c, o, "final_logit_softcapping", false, 0);
    double q_scalar = tn_config_number(&c, o, "query_pre_attn_scalar", false, 0);
    if (q_scalar > 0) h->attn_scale = (float)(1 / sqrt(q_scalar));
    parse_scales(&c, a, h);
    parse_experts(&c, a, h);
    TN_TRY(c.st);
    TN_FAIL_IF(a->experts_flat && h->experts_every != 2, err, TERN_E_UNSUPPORTED,
               "%s: 'moe_every_n_layers' is %d, which is not supported: 2 is", file, h->experts_every);
    TN_FAIL_IF(a->gguf_only, err, TERN_E_UNSUPPORTED,
               "%s: model type %s is read from GGUF files only, not from folders: %s", file, a->hf,
               a->gguf_only);
    TN_FAIL_IF(h->n_layers < 1 || h->n_layers > TN_MAX_LAYERS, err, TERN_E_FORMAT,
               "%s: layers %d, want 1 to %d", file, h->n_layers, TN_MAX_LAYERS);
    h->n_next =
        tn_config_whole(&c, "mtp_num_hidden_layers", false, 0); /* whether they are there, the tensors tell */
    TN_TRY(c.st);
    TN_TRY(check_keys(&c, a));
    TN_TRY(minimax_ok(&c, a));
    TN_TRY(check_moe_layers(&c, a, h));
    bool ternary; /* the reader of weights asks again */
    TN_TRY(tn_arch_ternary_hf(a, o, file, &ternary, err));
    tn_packing_plan packing; /* and so it does of this */
    TN_TRY(tn_packing_hf(o, ternary, file, &packing, err));
    TN_TRY(parse_windows(&c, a, h));
    TN_TRY(parse_latent(&c, a, h));
    TN_TRY(parse_layers(&c, a, h));
    TN_TRY(parse_streams(&c, a, h));
    TN_TRY(parse_no_rope(&c, h));
    TN_TRY(parse_conv(&c, a, h));
    TN_TRY(parse_positions(&c, a, h));
    TN_TRY(parse_score(&c, a, h));
    TN_TRY(parse_delta(&c, a, h));
    TN_FAIL_IF(tn_config_is(&c, "use_sliding_window") &&
                   tn_config_whole(&c, "max_window_layers", false, 0) < h->n_layers,
               err, TERN_E_UNSUPPORTED, "%s: use_sliding_window on some layers only is not supported", file);
    TN_TRY(parse_act(&c, a, h));
    TN_TRY(tn_arch_rope_hf(&c, a, h));
    const size_t n_deep = json_array_size(json_object_get(vision, "deepstack_visual_indexes"));
    if (a->sections) h->n_deepstack = n_deep <= TN_MAX_DEEPSTACK ? (int32_t)n_deep : TN_MAX_DEEPSTACK + 1;
    TN_TRY(tn_arch_finish(a, file, h, err));
    return check_layer_types(&c, a, h);
}
