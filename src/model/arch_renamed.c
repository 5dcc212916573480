#include "model/arch_renamed.h"

#include "base/json.h"

#include <string.h>

typedef struct renamed {
    const char *from, *to;
    double otherwise; /* where neither is there; 0: nothing is said then */
} renamed;

static const renamed nomic[] = {
    {"n_embd", "hidden_size", 0},
    {"n_layer", "num_hidden_layers", 0},
    {"n_head", "num_attention_heads", 0},
    {"n_inner", "intermediate_size", 0},
    {"max_trained_positions", "max_position_embeddings", 2048},
    {"layer_norm_epsilon", "layer_norm_eps", 0},
    {"rotary_emb_base", "rope_theta", 10000},
    {"rotary_emb_fraction", "partial_rotary_factor", 0},
    {"activation_function", "hidden_act", 0},
    {"num_experts", "num_local_experts", 0},
    {"moe_top_k", "num_experts_per_tok", 0},
    {"moe_normalize_expert_weights", "norm_topk_prob", 0},
};
static const renamed modern[] = {
    {"norm_eps", "layer_norm_eps", 1e-5},
    {"local_attention", "sliding_window", 128},
    {"global_attn_every_n_layers", "sliding_window_pattern", 3},
    {"global_rope_theta", "rope_theta", 160000},
    {"local_rope_theta", "rope_local_base_freq", 0},
};
static const renamed jina_3[] = {{"rotary_emb_base", "rope_theta", 10000}};

static void rename_all(json_t **o, const renamed *all, size_t n) {
    for (size_t i = 0; *o && i < n; i++) {
        json_t *v = json_object_get(*o, all[i].from);
        const bool said = v && !json_is_null(v);
        if (said) tn_json_set(o, all[i].to, json_incref(v));
        else if (all[i].otherwise != 0 && !json_object_get(*o, all[i].to))
            tn_json_set(o, all[i].to,
                        all[i].otherwise == (double)(int)all[i].otherwise
                            ? tn_json_pack("i", (int)all[i].otherwise)
                            : tn_json_real(all[i].otherwise));
        if (*o) (void)json_object_del(*o, all[i].from);
    }
}

static void set_word(json_t **o, const char *key, const char *word) {
    if (*o) tn_json_set(o, key, tn_json_string(word, strlen(word)));
}

/* A model without experts may say how many it would have; its "swiglu" is SiLU of a gate. */
static void of_nomic(json_t **o) {
    const bool moe = json_number_value(json_object_get(*o, "moe_every_n_layers")) > 0;
    rename_all(o, nomic, sizeof nomic / sizeof *nomic);
    static const char *const of_experts[] = {"num_local_experts", "num_experts_per_tok", "norm_topk_prob"};
    for (size_t i = 0; *o && !moe && i < sizeof of_experts / sizeof *of_experts; i++)
        (void)json_object_del(*o, of_experts[i]);
    if (*o && tn_json_is_word(*o, "hidden_act", "swiglu")) set_word(o, "hidden_act", "silu");
    if (*o) (void)json_object_del(*o, "n_positions"); /* what the training did not reach */
}

/* The base of layers with a window is the model's where the configuration says null. Since transformers 5 an object for
 * each kind of layers says both. */
static void of_modern(json_t **o) {
    const json_t *local = json_object_get(*o, "local_rope_theta");
    const bool none = local && json_is_null(local), nested = json_object_get(*o, "rope_parameters");
    rename_all(o, modern, sizeof modern / sizeof *modern);
    if (nested && *o) (void)json_object_del(*o, "rope_theta");
    json_t *base = *o ? json_object_get(*o, "rope_theta") : NULL;
    if (none && base) tn_json_set(o, "rope_local_base_freq", json_incref(base));
}

/* Jina's second model is a "bert" by its word, its third an "xlm-roberta". Its second reranker has no word, but the class of
 * its configuration. */
static const char *jina_of(const json_t *o) {
    const json_t *map = json_object_get(o, "auto_map");
    const char *class = json_string_value(json_object_get(map, "AutoConfig"));
    const bool roberta = tn_json_is_word(o, "model_type", "xlm-roberta") || !json_object_get(o, "model_type");
    if (roberta && class && strstr(class, "XLMRobertaFlashConfig") &&
        tn_json_is_word(o, "position_embedding_type", "absolute"))
        return "xlm_roberta_flash";
    if (tn_json_is_word(o, "model_type", "bert") && tn_json_is_word(o, "position_embedding_type", "alibi"))
        return "jina_bert_v2"; /* or its other form: tn_folder_arch */
    if (tn_json_is_word(o, "model_type", "xlm-roberta") &&
        tn_json_is_word(o, "position_embedding_type", "rotary"))
        return "jina_bert_v3";
    return NULL;
}

tern_status tn_renamed_config(json_t **config, const char *file, tern_error *err) {
    const char *jina = jina_of(*config);
    const bool is_nomic = tn_json_is_word(*config, "model_type", "nomic_bert"),
               is_modern = tn_json_is_word(*config, "model_type", "modernbert");
    if (!jina && !is_nomic && !is_modern) return TERN_OK;
    json_t *o = tn_json_copy_flat(*config);
    if (o && is_nomic) of_nomic(&o);
    if (o && is_modern) of_modern(&o);
    if (o && jina && !strcmp(jina, "jina_bert_v3")) rename_all(&o, jina_3, 1);
    if (jina) set_word(&o, "model_type", jina);
    if (o && jina) (void)json_object_del(o, "position_embedding_type");
    TN_FAIL_IF(!o, err, TERN_E_MEMORY, "%s: no memory for its configuration", file);
    json_decref(*config);
    *config = o;
    return TERN_OK;
}
