/* Drafters of DFlash (dflash.h): layers of Qwen3's, and what a folder's configuration says beside them. */
#include "model/arch_config.h"
#include "model/arch_impl.h"

#include "base/json.h"
#include "base/status.h"
#include "model/keys.h"

#include <string.h>

const tn_arch tn_arch_dflash = {
    .name = "dflash",
    .hf = "qwen3",
    .gguf = "dflash",
    .act = TN_ACT_SILU,
    .gated = true,
    .qk_norm = true,
    .window = true,
    .window_any = true,
    .window_pattern = 1,
    .head = true,
    .dflash = true,
    .hf_layers = "layers.",
    .hf_names = {[TN_W_EMBD] = "embed_tokens.weight",
                 [TN_W_OUT_NORM] = "norm.weight",
                 [TN_W_NEXT_H_NORM] = "hidden_norm.weight",
                 [TN_W_NEXT_PROJ] = "fc.weight"},
    .gguf_names = {[TN_W_NEXT_H_NORM] = "enc.output_norm.weight", [TN_W_NEXT_PROJ] = "fc.weight"}};

/* Keys that are read here. Those of windows are, too: which layers have one, 'layer_types' tells. */
static const char *const own_keys[] = {
    "dflash_config", "block_size",         "mask_token_id",     "target_layer_ids",      "num_target_layers",
    "is_causal",     "use_sliding_window", "max_window_layers", "input_embedding_scale", "output_multiplier"};
/* Of them, and of all others, those that may also be in 'dflash_config', which is looked at first. */
static const char *const inner_keys[] = {
    "block_size", "mask_token_id",         "target_layer_ids",  "num_target_layers",      "causal",
    "is_causal",  "input_embedding_scale", "output_multiplier", "final_logit_softcapping"};

static const char *architecture(const json_t *config) {
    return json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
}

bool tn_arch_is_dflash_hf(const json_t *config) {
    const char *name = architecture(config),
               *type = json_string_value(json_object_get(config, "speculators_model_type"));
    return (type && !strcmp(type, "dflash")) ||
           (name && (strstr(name, "DFlash") || strstr(name, "DSpark"))) ||
           json_is_object(json_object_get(config, "dflash_config"));
}

/* The same idea in other forms. */
static tern_status check_form(const json_t *config, const char *file, tern_error *err) {
    const char *name = architecture(config), *type = json_string_value(json_object_get(config, "model_type"));
    TN_FAIL_IF(!name || strcmp(name, "DFlashDraftModel"), err, TERN_E_UNSUPPORTED,
               "%s: a drafter of architecture '%.60s' is not supported; DFlashDraftModel is", file,
               name ? name : "?");
    TN_FAIL_IF(!type || strcmp(type, tn_arch_dflash.hf), err, TERN_E_UNSUPPORTED,
               "%s: a DFlash drafter of model type '%.60s' is not supported; %s is", file, type ? type : "?",
               tn_arch_dflash.hf);
    const json_t *inner = json_object_get(config, "dflash_config"), *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)inner, key, v) {
        const bool known =
            json_is_null(v) || tn_key_listed(key, inner_keys, sizeof inner_keys / sizeof *inner_keys);
        TN_FAIL_IF(
            !known, err, TERN_E_UNSUPPORTED,
            "%s: '%.60s' of 'dflash_config' may change what the drafter computes, and is not supported", file,
            key);
    }
    return TERN_OK;
}

/* What is said of a key, in 'dflash_config' or beside it; NULL: nothing. */
static const json_t *said(const json_t *config, const char *key) {
    const json_t *v = json_object_get(json_object_get(config, "dflash_config"), key);
    if (!v || json_is_null(v)) v = json_object_get(config, key);
    return v && !json_is_null(v) ? v : NULL;
}

static tern_status whole(const json_t *config, const char *file, const char *key, int32_t fallback,
                         int32_t *out, tern_error *err) {
    const json_t *v = said(config, key);
    *out = fallback;
    if (!v && fallback >= 0) return TERN_OK;
    TN_FAIL_IF(!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX, err,
               TERN_E_FORMAT, "%s: '%s' is missing, or no whole number", file, key);
    *out = (int32_t)json_integer_value(v);
    return TERN_OK;
}

/* What a layer leaves is what the next one is given. */
static tern_status read_layers(const json_t *config, const char *file, tn_hparams *h, tern_error *err) {
    h->head.n_from = tn_config_layers(said(config, "target_layer_ids"), 1, h->head.from);
    TN_FAIL_IF(!h->head.n_from, err, TERN_E_FORMAT,
               "%s: 'target_layer_ids' is missing, or no list of 1 to %d layers", file, TN_MAX_TAPS);
    return TERN_OK;
}

/* Which rows of a block see which, and what embeddings and logits are multiplied by. */
static tern_status read_rest(const json_t *config, const char *file, tn_hparams *h, tern_error *err) {
    const json_t *is = said(config, "is_causal"), *also = said(config, "causal"),
                 *scale = said(config, "input_embedding_scale"), *by = said(config, "output_multiplier");
    const json_t *causal = is ? is : also;
    TN_FAIL_IF((causal && !json_is_boolean(causal)) || (is && also && json_is_true(is) != json_is_true(also)),
               err, TERN_E_FORMAT, "%s: 'is_causal' is neither true nor false", file);
    if (causal) h->head.sight = json_is_true(causal) ? TN_SIGHT_BEFORE : TN_SIGHT_ALL;
    TN_FAIL_IF((scale && !json_is_number(scale)) || (by && !(json_number_value(by) == 1)), err,
               TERN_E_UNSUPPORTED, "%s: 'input_embedding_scale' is no number, or 'output_multiplier' not 1",
               file);
    if (scale) h->embd_scale = (float)json_number_value(scale);
    TN_FAIL_IF(!(h->embd_scale > 1e-6f && h->embd_scale < 1e6f), err, TERN_E_FORMAT,
               "%s: 'input_embedding_scale' is %g", file, (double)h->embd_scale);
    return TERN_OK;
}

tern_status tn_arch_dflash_hf(const json_t *config, const char *file, tn_hparams *h, tern_error *err) {
    TN_TRY(check_form(config, file, err));
    json_t *layers = tn_json_copy_flat(config);
    TN_FAIL_IF(!layers, err, TERN_E_MEMORY, "%s: no memory for its keys", file);
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++)
        (void)json_object_del(layers, own_keys[i]);
    tern_status st = tn_arch_hparams_hf(&tn_arch_dflash, layers, file, h, err);
    json_decref(layers);
    TN_TRY(st);
    bool windows = false;
    for (int32_t i = 0; i < h->n_layers; i++) windows = windows || tn_layer_window(h, i);
    TN_FAIL_IF(windows && json_is_false(json_object_get(config, "use_sliding_window")), err,
               TERN_E_UNSUPPORTED, "%s: 'layer_types' has windows, and 'use_sliding_window' is false", file);
    h->head.n_target = h->n_embd;
    TN_TRY(whole(config, file, "block_size", 16, &h->head.block, err));
    TN_TRY(whole(config, file, "mask_token_id", -1, &h->head.mask, err));
    TN_TRY(whole(config, file, "num_target_layers", 0, &h->head.n_of, err));
    TN_TRY(read_rest(config, file, h, err));
    TN_TRY(read_layers(config, file, h, err));
    return tn_arch_dflash_ok(file, h, err);
}

tern_status tn_arch_dflash_ok(const char *file, const tn_hparams *h, tern_error *err) {
    TN_FAIL_IF(h->head.block < 2 || h->head.block > TN_MAX_BLOCK, err, TERN_E_UNSUPPORTED,
               "%s: a block of %d rows; want 2 to %d", file, h->head.block, TN_MAX_BLOCK);
    TN_FAIL_IF(h->head.mask < 0 || h->head.mask >= h->n_vocab, err, TERN_E_FORMAT,
               "%s: the mask is token %d of %d", file, h->head.mask, h->n_vocab);
    for (int32_t i = 0; i < h->n_layers; i++)
        TN_FAIL_IF(tn_layer_window(h, i) && tn_layer_window(h, i) < h->head.block, err, TERN_E_UNSUPPORTED,
                   "%s: a window of %d tokens is smaller than a block of %d", file, tn_layer_window(h, i),
                   h->head.block);
    return TERN_OK;
}
