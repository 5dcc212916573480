/* Ling 3: which layers attend, what decays and gates are, and what clamps them. */
#include "model/arch_impl.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const hf_limits[] = {"expert_swiglu_limit_list", "share_expert_swiglu_limit_list"},
                         *const gguf_limits[] = {"bailingmoe3.swiglu_clamp_exp",
                                                 "bailingmoe3.swiglu_clamp_shexp"};

static tern_status limit_ok(const char *file, const char *key, int32_t layer, double v, tern_error *err) {
    TN_FAIL_IF(!(v >= 0 && v < TN_MAX_LIMIT), err, TERN_E_FORMAT,
               "%s: '%s' is no number from 0 on in layer %d", file, key, layer);
    return TERN_OK;
}

static float *limits_of(tn_hparams *h, int which) { return which ? h->shared_most : h->experts_most; }

/* A whole number from 1 to 2^18, or what stands in for one that is missing; -1: neither. */
static int32_t size_or(const json_t *o, const char *key, int32_t otherwise) {
    const json_t *v = json_object_get(o, key);
    const json_int_t n = json_integer_value(v);
    if (!v || json_is_null(v)) return otherwise;
    return json_is_integer(v) && n > 0 && n <= 1 << 18 ? (int32_t)n : -1;
}

/* Of every layer a number, and of those that guess further. */
static tern_status limits_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err) {
    for (int i = 0; i < 2; i++) {
        const json_t *list = json_object_get(o, hf_limits[i]);
        if (!list || json_is_null(list)) continue;
        TN_FAIL_IF(!json_is_array(list) || json_array_size(list) < (size_t)h->n_layers, err, TERN_E_FORMAT,
                   "%s: '%s' is no list of %d layers", file, hf_limits[i], h->n_layers);
        for (int32_t l = 0; l < h->n_layers; l++) {
            const json_t *v = json_array_get(list, (size_t)l);
            const double most = json_is_number(v) ? json_number_value(v) : json_is_null(v) ? 0 : -1;
            TN_TRY(limit_ok(file, hf_limits[i], l, most, err));
            limits_of(h, i)[l] = (float)most;
        }
    }
    return TERN_OK;
}

/* Ling 3: the last layer of every group attends, and those that are left over. */
tern_status tn_arch_ling_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err) {
    static const char *const flags[] = {"kda_safe_gate", "no_kda_lora", "moe_router_enable_expert_bias"};
    const int32_t group = size_or(o, "layer_group_size", 0);
    const json_t *floor = json_object_get(o, "kda_lower_bound"),
                 *gate = json_object_get(o, "gated_attention_proj_granularity_type");
    h->conv_len = size_or(o, "short_conv_kernel_size", 4);
    tn_arch_kda(h, h->n_heads, size_or(o, "head_dim", 128), json_number_value(floor));
    TN_FAIL_IF(group < 1, err, TERN_E_FORMAT,
               "%s: 'layer_group_size' is missing, or no whole number from 1 on", file);
    for (int32_t i = 0; i < h->n_layers; i++)
        h->layer_kind[i] =
            (i + 1) % group && i < h->n_layers / group * group ? TN_LAYER_DELTA : TN_LAYER_ATTENDS;
    for (int i = 0; i < 3; i++)
        TN_FAIL_IF(!json_is_true(json_object_get(o, flags[i])), err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is not true, which is not supported", file, flags[i]);
    TN_FAIL_IF(!(json_number_value(floor) < 0) || json_number_value(floor) < -TN_MAX_DEEPEST, err,
               TERN_E_UNSUPPORTED,
               "%s: 'kda_lower_bound' is not below 0, or below %d, which is not supported", file,
               -TN_MAX_DEEPEST);
    TN_FAIL_IF(!json_is_string(gate) || strcmp(json_string_value(gate), "head_wise"), err, TERN_E_UNSUPPORTED,
               "%s: 'gated_attention_proj_granularity_type' is not 'head_wise', which is not supported",
               file);
    return limits_hf(o, file, h, err);
}

/* A number for all layers, or a list as above. */
static tern_status limits_gguf(const tn_gguf *g, tn_hparams *h, tern_error *err) {
    for (int i = 0; i < 2; i++) {
        double v;
        const bool one = tn_gguf_f64(g, gguf_limits[i], &v);
        if (!tn_gguf_has(g, gguf_limits[i])) continue;
        TN_FAIL_IF(!one && tn_gguf_arr_n(g, gguf_limits[i]) < h->n_layers, err, TERN_E_FORMAT,
                   "%s: metadata key '%s' is no list of %d layers", tn_gguf_path(g), gguf_limits[i],
                   h->n_layers);
        for (int32_t l = 0; l < h->n_layers; l++) {
            if (!one && !tn_gguf_arr_f64(g, gguf_limits[i], l, &v)) v = -1;
            TN_TRY(limit_ok(tn_gguf_path(g), gguf_limits[i], l, v, err));
            limits_of(h, i)[l] = (float)v;
        }
    }
    return TERN_OK;
}

tern_status tn_arch_ling_gguf(const tn_gguf *g, int32_t d, tn_hparams *h, tern_error *err) {
    bool safe = true;
    double floor = 0;
    const bool bad =
        tn_gguf_has(g, "bailingmoe3.kda.safe_gate") && !tn_gguf_bool(g, "bailingmoe3.kda.safe_gate", &safe);
    (void)tn_gguf_f64(g, "bailingmoe3.kda.gate_lower_bound", &floor);
    TN_FAIL_IF(bad || !safe || !(floor < 0) || floor < -TN_MAX_DEEPEST, err, TERN_E_UNSUPPORTED,
               "%s: decays without a floor from %d to below 0 ('bailingmoe3.kda.safe_gate' and "
               "'bailingmoe3.kda.gate_lower_bound') are not supported",
               tn_gguf_path(g), -TN_MAX_DEEPEST);
    tn_arch_kda(h, h->n_heads, d, floor);
    return limits_gguf(g, h, err);
}
