/* Heads that draft for another model (EAGLE-3): one layer of Llama's, and what a folder's configuration says beside it. */
#include "model/arch_config.h"
#include "model/arch_impl.h"

#include "base/json.h"
#include "base/status.h"
#include "model/keys.h"

#include <string.h>

const tn_arch tn_arch_eagle3 = {.name = "eagle3",
                                .hf = "eagle3",
                                .gguf = "eagle3",
                                .act = TN_ACT_SILU,
                                .gated = true,
                                .head = true,
                                .gguf_permuted = true,
                                .hf_layers = "midlayer.",
                                .hf_names = {[TN_W_EMBD] = "embed_tokens.weight",
                                             [TN_W_OUT_NORM] = "norm.weight",
                                             [TN_W_NEXT_H_NORM] = "hidden_norm.weight",
                                             [TN_W_NEXT_PROJ] = "fc.weight",
                                             [TN_W_HEAD_IN_NORM] = "input_norm.weight"},
                                .gguf_names = {[TN_W_NEXT_H_NORM] = "attn_norm_2.weight",
                                               [TN_W_NEXT_PROJ] = "fc.weight",
                                               [TN_W_HEAD_IN_NORM] = "enc.output_norm.weight"}};

/* Keys that are read here, or that tell of training and of the head's model. */
static const char *const own_keys[] = {
    "draft_vocab_size",     "target_hidden_size",       "target_vocab_size",
    "norm_before_residual", "norm_before_fc",           "eagle_aux_hidden_state_layer_ids",
    "eagle_config",         "speculators_config",       "speculators_model_type",
    "speculators_version",  "transformer_layer_config", "has_no_defaults_at_init",
    "embed_requires_grad"};

static bool is_own(const char *key) {
    return tn_key_listed(key, own_keys, sizeof own_keys / sizeof *own_keys);
}

const tn_arch *tn_arch_of_head_gguf(const char *name, size_t n) {
    const tn_arch *const all[] = {&tn_arch_eagle3, &tn_arch_assistant, &tn_arch_dflash};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (n == strlen(all[i]->gguf) && !memcmp(name, all[i]->gguf, n)) return all[i];
    return NULL;
}

const tn_arch *tn_arch_of_head_hf(const json_t *config) {
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
               *type = json_string_value(json_object_get(config, "speculators_model_type"));
    if (tn_arch_is_assistant_hf(config)) return &tn_arch_assistant;
    if (tn_arch_is_dflash_hf(config)) return &tn_arch_dflash;
    const bool eagle = (type && !strcmp(type, "eagle3")) || (name && strstr(name, "Eagle3")) ||
                       (json_object_get(config, "draft_vocab_size") &&
                        json_integer_value(json_object_get(config, "num_hidden_layers")) == 1);
    return eagle ? &tn_arch_eagle3 : NULL;
}

/* Flags of NVIDIA's configurations, each with the value that EAGLE-3 has. */
static tern_status check_flags(const json_t *flags, const char *file, tern_error *err) {
    static const struct {
        const char *key;
        bool want;
    } known[] = {{"use_aux_hidden_state", true},
                 {"use_input_layernorm_in_first_layer", true},
                 {"use_last_layernorm", true},
                 {"use_mtp_layernorm", false}};
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)flags, key, v) {
        size_t i = 0, n = sizeof known / sizeof *known;
        while (i < n && strcmp(key, known[i].key)) i++;
        const bool ok = !strcmp(key, "eagle_aux_hidden_state_layer_ids") ||
                        (i < n && json_is_boolean(v) && json_is_true(v) == known[i].want);
        TN_FAIL_IF(!ok, err, TERN_E_UNSUPPORTED,
                   "%s: '%.60s' of 'eagle_config' may change what the head computes, and is not supported",
                   file, key);
    }
    return TERN_OK;
}

static tern_status read_layers(const json_t *ids, const char *file, tn_hparams *h, tern_error *err) {
    if (!ids || json_is_null(ids)) return TERN_OK;
    TN_FAIL_IF(tn_config_layers(ids, 0, h->head.from) != 3, err, TERN_E_UNSUPPORTED,
               "%s: 'eagle_aux_hidden_state_layer_ids' has %zu values; want 3 layers, the first above 0",
               file, json_array_size(ids));
    return TERN_OK;
}

static tern_status eagle_hf(const json_t *config, const char *file, tn_hparams *h, tern_error *err) {
    const json_t *nested = json_object_get(config, "transformer_layer_config"),
                 *flags = json_object_get(config, "eagle_config"),
                 *ids = json_object_get(config, "eagle_aux_hidden_state_layer_ids"), *v;
    const char *key;
    json_t *layer = tn_json_copy_flat(json_is_object(nested) ? nested : config);
    TN_FAIL_IF(!layer, err, TERN_E_MEMORY, "%s: no memory for its keys", file);
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++) json_object_del(layer, own_keys[i]);
    tern_status st = tn_arch_hparams_hf(&tn_arch_eagle3, layer, file, h, err);
    json_decref(layer);
    TN_TRY(st);
    json_object_foreach((json_t *)(uintptr_t)config, key, v) {
        TN_FAIL_IF(json_is_object(nested) && !is_own(key) && !tn_key_ok_hf(&tn_arch_eagle3, key, v), err,
                   TERN_E_UNSUPPORTED, "%s: '%.60s' may change what the head computes, and is not supported",
                   file, key);
    }
    TN_FAIL_IF(h->n_layers != 1, err, TERN_E_UNSUPPORTED, "%s: a head of %d layers; 1 is supported", file,
               h->n_layers);
    tn_config c = {.o = config, .file = file, .err = err};
    h->head.n_vocab = tn_config_whole(&c, "draft_vocab_size", false, h->n_vocab);
    h->head.n_target = tn_config_whole(&c, "target_hidden_size", false, h->n_embd);
    h->head.n_from = 3;
    h->head.norm_in = tn_config_is(&c, "norm_before_fc");
    h->head.norm_residual = tn_config_is(&c, "norm_before_residual");
    TN_TRY(c.st);
    TN_FAIL_IF(json_is_object(nested) && !json_is_boolean(json_object_get(config, "norm_before_residual")),
               err, TERN_E_UNSUPPORTED,
               "%s: 'norm_before_residual' is missing, which readers take in two ways", file);
    TN_TRY(check_flags(flags, file, err));
    return read_layers(ids ? ids : json_object_get(flags, "eagle_aux_hidden_state_layer_ids"), file, h, err);
}

tern_status tn_arch_head_hf(const tn_arch *a, const json_t *config, const char *file, tn_hparams *h,
                            tern_error *err) {
    if (a->dflash) return tn_arch_dflash_hf(config, file, h, err);
    return (a->assistant ? tn_arch_assistant_hf : eagle_hf)(config, file, h, err);
}
