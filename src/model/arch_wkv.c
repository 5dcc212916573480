/* Models of RWKV-7's memory and of Kimi's delta attention in a config.json: its sizes, and what of it is said in more than one way. */
#include "model/arch_impl.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* A whole number, or what stands in for one that is missing or null; -1: neither. */
static int32_t size_or(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    const json_int_t n = json_integer_value(v);
    if (!v || json_is_null(v)) return otherwise >= 1 && otherwise <= 1 << 18 ? (int32_t)otherwise : -1;
    return json_is_integer(v) && n > 0 && n <= 1 << 18 ? (int32_t)n : -1;
}

/* Ranks grow with the size of the model where they are not said, in steps of 32. */
static double rank_of(int32_t n_embd, double power, double by) {
    const double n = rint(pow(n_embd, power) * by / 32);
    return (n > 1 ? n : 1) * 32;
}

tern_status tn_arch_wkv_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err) {
    const int32_t e = h->n_embd > 0 && h->n_embd <= TN_MAX_WKV ? h->n_embd : 0,
                  each = size_or(o, "head_dim", 64), heads = size_or(o, "num_heads", each > 0 ? e / each : 0);
    const json_t *ratio = json_object_get(o, "hidden_ratio");
    if (!h->n_ff) h->n_ff = (int32_t)((json_is_number(ratio) ? fmin(json_number_value(ratio), 64) : 4) * e);
    h->norm_eps = (float)(json_is_number(json_object_get(o, "norm_eps"))
                              ? json_number_value(json_object_get(o, "norm_eps"))
                              : 1e-5);
    h->low.decay = size_or(o, "decay_low_rank_dim", rank_of(e, 0.5, 1.8));
    h->low.rate = size_or(o, "a_low_rank_dim", rank_of(e, 0.5, 1.8));
    h->low.value = size_or(o, "v_low_rank_dim", rank_of(e, 0.5, 1.3));
    h->low.gate = size_or(o, "gate_low_rank_dim", rank_of(e, 0.8, 0.6));
    tn_arch_wkv(h, heads, each);
    const double eps = (double)h->norm_eps * each;
    TN_FAIL_IF(fabs(eps - 64e-5) > 1e-8, err, TERN_E_UNSUPPORTED,
               "%s: 'head_dim' %d times 'norm_eps' %g, which the norms of heads add, is not 0.00064", file,
               each, (double)h->norm_eps);
    static const char *const flags[] = {"norm_first", "norm_bias"};
    for (int i = 0; i < 2; i++)
        TN_FAIL_IF(json_is_false(json_object_get(o, flags[i])), err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is false, which is not supported", file, flags[i]);
    const json_t *values = json_object_get(o, "value_dim"), *v;
    TN_FAIL_IF(json_is_array(values) && json_array_size(values) != (size_t)h->n_layers, err, TERN_E_FORMAT,
               "%s: 'value_dim' is not of %d layers", file, h->n_layers);
    for (int32_t i = 0; i < h->n_layers && values && !json_is_null(values); i++) {
        v = json_is_array(values) ? json_array_get(values, (size_t)i) : values;
        TN_FAIL_IF(json_integer_value(v) != h->n_embd, err, TERN_E_UNSUPPORTED,
                   "%s: 'value_dim' of layer %d is not %d, which is not supported", file, i, h->n_embd);
    }
    return TERN_OK;
}

void tn_arch_wkv(tn_hparams *h, int32_t n_heads, int32_t d) {
    h->conv_len = 2; /* a row, and the one before */
    h->delta =
        (tn_delta_net){.n_heads = n_heads, .n_key_heads = n_heads, .d_key = d, .d_value = d, .wkv = true};
}

void tn_arch_kda(tn_hparams *h, int32_t n_heads, int32_t d, double floor) {
    h->delta = (tn_delta_net){.n_heads = n_heads,
                              .n_key_heads = n_heads,
                              .d_key = d,
                              .d_value = d,
                              .kda = true,
                              .deepest = (float)-floor};
}

/* Is the layer among those that a list counts from 1? */
static bool listed(const json_t *list, int32_t layer) {
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v) if (json_integer_value(v) == layer + 1) return true;
    return false;
}

tern_status tn_arch_kda_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err) {
    const json_t *of = json_object_get(o, "linear_attn_config"),
                 *attend = json_object_get(of, "full_attn_layers"),
                 *recur = json_object_get(of, "kda_layers");
    const char *scores = json_string_value(json_object_get(o, "moe_router_activation_func"));
    bool any = false;
    h->conv_len = size_or(of, "short_conv_kernel_size", 4);
    tn_arch_kda(h, size_or(of, "num_heads", h->n_heads), size_or(of, "head_dim", 128), 0);
    for (int32_t i = 0; i < h->n_layers; i++) {
        const bool attends = listed(attend, i);
        TN_FAIL_IF(attends == listed(recur, i), err, TERN_E_FORMAT,
                   "%s: 'linear_attn_config' has layer %d in both 'full_attn_layers' and 'kda_layers', or in "
                   "neither",
                   file, i + 1);
        h->layer_kind[i] = attends ? TN_LAYER_ATTENDS : TN_LAYER_DELTA;
        any |= attends;
    }
    TN_FAIL_IF(!any, err, TERN_E_UNSUPPORTED, "%s: no layer attends", file);
    TN_FAIL_IF(!json_is_true(json_object_get(o, "mla_use_nope")), err, TERN_E_UNSUPPORTED,
               "%s: 'mla_use_nope' is not true, which is not supported", file);
    TN_FAIL_IF(scores && strcmp(scores, "sigmoid"), err, TERN_E_UNSUPPORTED,
               "%s: 'moe_router_activation_func' is '%.40s', which is not supported", file, scores);
    const json_t *norm = json_object_get(o, "moe_renormalize");
    if (json_is_boolean(norm)) h->experts_norm = json_is_true(norm);
    return TERN_OK;
}
