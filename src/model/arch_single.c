/* Models whose layers are one block each (Nemotron-H), in a config.json: letters say which block, or words. */
#include "model/arch_impl.h"

#include "base/status.h"

#include <string.h>

static int32_t size_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    const json_int_t n = json_integer_value(v);
    return json_is_integer(v) && n > 0 && n <= 1 << 18 ? (int32_t)n : 0;
}

/* Attention, a state space, or a block that feeds forward; '?': none that is known. */
static char letter_of(const json_t *o, size_t layer) {
    static const struct {
        const char *word;
        char letter;
    } words[] = {{"mamba", 'M'}, {"attention", '*'}, {"mlp", '-'}, {"moe", 'E'}};
    const char *pattern = json_string_value(json_object_get(o, "hybrid_override_pattern"));
    if (pattern) return strlen(pattern) > layer ? pattern[layer] : '?';
    const char *word = json_string_value(json_array_get(json_object_get(o, "layers_block_type"), layer));
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i].word)) return words[i].letter;
    return '?';
}

bool tn_arch_single_routes(const json_t *o) {
    for (size_t i = 0; letter_of(o, i) != '?'; i++)
        if (letter_of(o, i) == 'E') return true;
    return false;
}

static tern_status check_state_space(const json_t *o, const char *file, tern_error *err) {
    const json_t *bias = json_object_get(o, "use_conv_bias"), *steps = json_object_get(o, "time_step_limit");
    TN_FAIL_IF(json_is_false(bias) || json_is_true(json_object_get(o, "mamba_proj_bias")), err,
               TERN_E_UNSUPPORTED, "%s: want 'use_conv_bias' true and 'mamba_proj_bias' false", file);
    TN_FAIL_IF(json_number_value(json_array_get(steps, 0)) > 0, err, TERN_E_UNSUPPORTED,
               "%s: 'time_step_limit' is not supported", file);
    return TERN_OK;
}

tern_status tn_arch_single_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err) {
    const char feeds = h->n_experts ? 'E' : '-';
    h->conv_len = size_of(o, "conv_kernel");
    h->delta = (tn_delta_net){.n_heads = size_of(o, "mamba_num_heads"),
                              .n_key_heads = size_of(o, "n_groups"),
                              .d_key = size_of(o, "ssm_state_size"),
                              .d_value = size_of(o, "mamba_head_dim"),
                              .mamba = true};
    for (int32_t i = 0; i < h->n_layers; i++) {
        const char c = letter_of(o, (size_t)i);
        TN_FAIL_IF(c != 'M' && c != '*' && c != feeds, err, TERN_E_UNSUPPORTED,
                   "%s: layer %d is a block of kind '%c'; 'M', '*' and '%c' are supported here", file, i, c,
                   feeds);
        h->layer_kind[i] = c == 'M' ? TN_LAYER_DELTA : c == '*' ? TN_LAYER_ATTENDS : TN_LAYER_FEEDS;
    }
    return check_state_space(o, file, err);
}

void tn_arch_alone(const tn_arch *a, tn_hparams *h) {
    if (!a->alone) return;
    h->n_heads = h->n_kv_heads = 1;
    if (a->single) h->n_ff = 1;
    h->d_head = 4;
    for (int32_t i = 0; i < h->n_layers; i++) h->layer_kind[i] = TN_LAYER_DELTA;
}

tern_status tn_arch_alone_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err) {
    const json_t *heads = json_object_get(o, "num_heads");
    const char *act = json_string_value(json_object_get(o, "hidden_act"));
    const int32_t expand = heads                  ? 0
                           : size_of(o, "expand") ? size_of(o, "expand")
                                                  : 2,
                  each = size_of(o, "head_dim");
    h->conv_len = size_of(o, "conv_kernel") ? size_of(o, "conv_kernel") : 4;
    h->delta = (tn_delta_net){.n_heads = heads  ? size_of(o, "num_heads")
                                         : each ? expand * h->n_embd / each
                                                : 0,
                              .n_key_heads = size_of(o, "n_groups") ? size_of(o, "n_groups") : 1,
                              .d_key = size_of(o, "state_size") ? size_of(o, "state_size") : 128,
                              .d_value = each ? each : 64,
                              .mamba = true};
    TN_FAIL_IF(act && strcmp(act, "silu") && strcmp(act, "swish"), err, TERN_E_UNSUPPORTED,
               "%s: activation '%.40s' is not supported for this model type", file, act);
    return check_state_space(o, file, err);
}
