/* Gemma 4's assistants (assistant.h): a few layers of Gemma 4's without keys and values, and what a folder's
 * configuration says beside them. */
#include "model/arch_config.h"
#include "model/arch_impl.h"
#include "model/arch_rows.h"

#include "base/json.h"
#include "base/status.h"
#include "model/keys.h"

#include <string.h>

const tn_arch tn_arch_assistant = {.name = "gemma4-assistant",
                                   .hf = "gemma4_assistant",
                                   .hf_also = "gemma4_unified_assistant",
                                   .gguf = "gemma4-assistant",
                                   LIKE_GEMMA4,
                                   .window_pattern = 4,
                                   .head = true,
                                   .assistant = true,
                                   .hf_names = {HF_NORMS_AROUND, [TN_W_NEXT_PROJ] = "pre_projection.weight"},
                                   .gguf_names = {[TN_W_NEXT_PROJ] = "nextn.pre_projection.weight"}};

/* Keys that are read here; those of centroids, by which other programs compute the logits of likely tokens
 * alone: all are computed here; and how many tokens another program drafts. */
static const char *const own_keys[] = {
    "text_config",         "backbone_hidden_size",        "num_centroids", "use_ordered_embeddings",
    "tie_word_embeddings", "centroid_intermediate_top_k", "block_size"};

static bool is_own(const char *key) {
    return tn_key_listed(key, own_keys, sizeof own_keys / sizeof *own_keys);
}

bool tn_arch_is_assistant_hf(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && (!strcmp(type, tn_arch_assistant.hf) || !strcmp(type, tn_arch_assistant.hf_also));
}

tern_status tn_arch_assistant_hf(const json_t *config, const char *file, tn_hparams *h, tern_error *err) {
    const json_t *nested = json_object_get(config, "text_config"), *v;
    const char *key;
    TN_FAIL_IF(!json_is_object(nested), err, TERN_E_FORMAT, "%s: 'text_config' is missing", file);
    json_object_foreach((json_t *)(uintptr_t)config, key, v)
        TN_FAIL_IF(!is_own(key) && !tn_key_ok_hf(&tn_arch_assistant, key, v), err, TERN_E_UNSUPPORTED,
                   "%s: '%.60s' may change what the assistant computes, and is not supported", file, key);
    json_t *text = tn_json_copy_flat(nested);
    TN_FAIL_IF(!text, err, TERN_E_MEMORY, "%s: no memory for its keys", file);
    (void)json_object_del(text, "use_bidirectional_attention"); /* of pictures, whose rows it never reads */
    tern_status st = tn_arch_hparams_hf(&tn_arch_assistant, text, file, h, err);
    json_decref(text);
    TN_TRY(st);
    tn_config c = {.o = config, .file = file, .err = err};
    h->head.n_target = tn_config_whole(&c, "backbone_hidden_size", true, 0);
    h->tied = !json_is_false(json_object_get(config, "tie_word_embeddings"));
    return c.st;
}
