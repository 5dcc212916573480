/* A config.json from anywhere, read as each architecture: refused with a status, or hyperparameters in their
 * ranges. */
#include "base/json.h"
#include "model/arch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check(const tn_hparams *h) {
    int64_t rows, cols;
    bool ok = h->n_layers >= 1 && h->n_layers <= TN_MAX_LAYERS && h->n_heads >= 1 && h->n_kv_heads >= 1 &&
              h->n_heads % h->n_kv_heads == 0 && h->n_rot <= h->d_head && h->n_rot <= TN_MAX_ROT &&
              isfinite(h->attn_scale) && isfinite(h->rope_mscale);
    for (int i = 0; ok && i < h->n_rot / 2; i++)
        ok = isfinite(h->inv_freq[i]) && isfinite(h->inv_freq_long[i]);
    for (int i = 0; ok && i < tn_local_rot(h) / 2 && h->local_rope; i++) ok = isfinite(h->inv_freq_local[i]);
    for (int32_t l = 0; ok && l < h->n_layers; l++)
        ok = tn_layer_kv(h, l) >= 0 && tn_layer_kv(h, l) <= l && h->n_heads % tn_layer_kv_heads(h, l) == 0 &&
             tn_layer_d_head(h, l) <= 512 &&
             tn_layer_d_head(h, l) >= (tn_layer_rope_is_local(h, l) ? tn_local_rot(h) : h->n_rot);
    for (int r = 0; ok && r < TN_W_N_ROLES; r++) {
        bool of_experts = tn_role_of_experts((tn_role)r) || r == TN_W_ROUTER || r == TN_W_ROUTER_B ||
                          r == TN_W_EXPERTS_BIAS;
        if ((of_experts && !h->n_experts) || (tn_role_of_delta((tn_role)r) && !h->delta.n_heads) ||
            (tn_role_of_mamba((tn_role)r) && !h->delta.mamba))
            continue;
        if (r == TN_W_CONV && !h->conv_len) continue;
        if ((r == TN_W_HEAD_IN_NORM || r == TN_W_NEXT_BACK) && !tn_is_head(h)) continue;
        if (tn_role_of_ple((tn_role)r) && !h->n_ple) continue;
        if (tn_role_of_streams((tn_role)r) && !h->n_streams) continue;
        if (tn_role_of_text((tn_role)r) &&
            !tn_layer_may_have(h, r < TN_W_DENSE_1 ? 0 : h->n_layers - 1, (tn_role)r))
            continue;
        if (tn_role_of_beside((tn_role)r) && !h->experts_beside) continue;
        for (int32_t l = 0; ok && l < h->n_layers; l++) {
            bool some_have = tn_role_of_latent((tn_role)r) || tn_role_of_wkv((tn_role)r) ||
                             tn_role_of_kda((tn_role)r) || (tn_role_of_delta((tn_role)r) && h->delta.wkv);
            if (some_have && !tn_layer_may_have(h, l, (tn_role)r)) continue;
            tn_role_shape(h, l, (tn_role)r, &rows, &cols);
            ok = rows >= 1 && cols >= 1;
        }
    }
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const types[] = {"llama",
                                        "mistral",
                                        "qwen2",
                                        "qwen3",
                                        "gemma",
                                        "gemma2",
                                        "phi",
                                        "phi3",
                                        "phonelm",
                                        "gemma3_text",
                                        "smollm3",
                                        "olmo3",
                                        "exaone4",
                                        "hunyuan_v1_dense",
                                        "granite",
                                        "rwkv7",
                                        "kimi_linear",
                                        "bailing_moe_v3",
                                        "minicpm",
                                        "ministral3",
                                        "lfm2",
                                        "qwen3_moe",
                                        "olmoe",
                                        "granitemoe",
                                        "gpt_oss",
                                        "lfm2_moe",
                                        "qwen3_next",
                                        "qwen3_5_text",
                                        "qwen3_5_moe_text",
                                        "granitemoehybrid",
                                        "gemma4_text",
                                        "gemma3n_text",
                                        "falcon_h1",
                                        "bert",
                                        "xlm-roberta"};
    json_t *config = tn_json_parse((const char *)data, size, 0, NULL);
    if (!config) return 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (int experts = 0; experts < 2; experts++) {
            const tn_arch *a = tn_arch_variant(tn_arch_by_hf(types[i]), experts);
            tn_hparams h;
            tern_error err = {0};
            float by[TN_W_N_ROLES];
            bool ok = tn_arch_hparams_hf(a, config, "config.json", &h, &err) == TERN_OK;
            if (ok) check(&h);
            if (ok) ok = tn_arch_multipliers_hf(a, config, "config.json", by, &err) == TERN_OK;
            for (int r = 0; ok && r < TN_W_N_ROLES; r++)
                if (!(by[r] >= 0 && by[r] <= 1e6f)) abort();
            if (!ok && (!err.message[0] || !strstr(err.message, "config.json"))) abort();
        }
    }
    tn_hparams h;
    tern_error err = {0};
    const tn_arch *head = tn_arch_of_head_hf(config);
    if (head && tn_arch_head_hf(head, config, "config.json", &h, &err) != TERN_OK &&
        (!err.message[0] || !strstr(err.message, "config.json")))
        abort();
    json_decref(config);
    return 0;
}
