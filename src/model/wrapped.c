#include "model/wrapped.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

/* Models whose text is another's, as it is; and whose it is where they do not say. */
static const struct {
    const char *model_type, *text;
} wrappers[] = {{"smolvlm", "llama"},       {"idefics3", "llama"},     {"gemma3", "gemma3_text"},
                {"lfm2_vl", "lfm2"},        {"lfm2-vl", "lfm2"},       {"internvl", "qwen2"},
                {"internvl_chat", "qwen2"}, {"mistral3", "ministral3"}};

/* What transformers' configurations take where a nested one says nothing: published folders leave these out. */
static const struct {
    const char *text, *values;
} defaults[] = {
    {"llama", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 11008, "
              "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"max_position_embeddings\": 2048, "
              "\"rms_norm_eps\": 1e-6}"},
    {"gemma3_text",
     "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216, "
     "\"num_hidden_layers\": 26, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256, "
     "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1e6, "
     "\"query_pre_attn_scalar\": 256, \"sliding_window\": 4096}"},
    {"lfm2", "{\"vocab_size\": 65536, \"hidden_size\": 2560, \"intermediate_size\": 12288, "
             "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
             "\"max_position_embeddings\": 128000, \"norm_eps\": 1e-5, \"rope_theta\": 1e6, "
             "\"conv_L_cache\": 3, \"block_auto_adjust_ff_dim\": true, \"block_multiple_of\": 256}"},
    {"qwen2", "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016, "
              "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 32, "
              "\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6}"},
    {"qwen3", "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016, "
              "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 32, "
              "\"head_dim\": 128, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-6}"}};

/* MiniCPM-V's versions, whose text stands beside what is said of pictures. */
static const struct {
    double version;
    const char *text;
} minicpmv[] = {{2.6, "qwen2"}, {4.0, "llama"}, {4.5, "qwen3"}};

/* What of it is said of pictures: the reader of the encoder looks at those that change something. */
static const char *const of_pictures[] = {"version",
                                          "query_num",
                                          "slice_config",
                                          "slice_mode",
                                          "image_size",
                                          "patch_size",
                                          "vision_config",
                                          "use_image_id",
                                          "drop_vision_last_layer",
                                          "batch_vision_input",
                                          "batch_3d_resampler",
                                          "vision_batch_size"};

static bool is_minicpmv(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && !strcmp(type, "minicpmv");
}

static tern_status text_of_minicpmv(const json_t *config, const char *file, json_t **out, tern_error *err) {
    const double version = json_number_value(json_object_get(config, "version"));
    const char *type = NULL;
    for (size_t i = 0; i < sizeof minicpmv / sizeof *minicpmv; i++)
        if (fabs(version - minicpmv[i].version) < 1e-3) type = minicpmv[i].text;
    TN_FAIL_IF(!json_is_number(json_object_get(config, "version")), err, TERN_E_FORMAT,
               "%s: 'version' of MiniCPM-V is missing, or no number", file);
    TN_FAIL_IF(!type, err, TERN_E_UNSUPPORTED,
               "%s: version %g of MiniCPM-V; 2.6, 4.0 and 4.5 are read from folders", file, version);
    *out = tn_json_copy_flat(config);
    for (size_t i = 0; *out && i < sizeof of_pictures / sizeof *of_pictures; i++)
        (void)json_object_del(*out, of_pictures[i]);
    if (*out) tn_json_set(out, "model_type", tn_json_string(type, strlen(type)));
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "%s: no memory for its configuration", file);
    return TERN_OK;
}

const json_t *tn_wrapped_text(const json_t *config) {
    const json_t *text = json_object_get(config, "text_config");
    if (!json_is_object(text)) text = json_object_get(config, "llm_config");
    return json_is_object(text) ? text : NULL;
}

static const char *text_of(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; type && i < sizeof wrappers / sizeof *wrappers; i++)
        if (!strcmp(wrappers[i].model_type, type)) return wrappers[i].text;
    return NULL;
}

/* Takes over what is there and nowhere says. */
static void fill(json_t **o, const char *values) {
    const char *key;
    json_t *v, *all = tn_json_parse(values, strlen(values), 0, NULL);
    if (!all) json_decref(*o), *o = NULL;
    json_object_foreach(all, key, v) {
        const json_t *said = *o ? json_object_get(*o, key) : NULL;
        if (*o && (!said || json_is_null(said))) tn_json_set(o, key, json_incref(v));
    }
    json_decref(all);
}

tern_status tn_wrapped_config(const json_t *config, const char *file, json_t **out, tern_error *err) {
    const char *type = text_of(config);
    const json_t *text = tn_wrapped_text(config);
    *out = NULL;
    if (is_minicpmv(config)) return text_of_minicpmv(config, file, out, err);
    if (!type) {
        *out = json_incref((json_t *)(uintptr_t)config);
        return TERN_OK;
    }
    TN_FAIL_IF(!text, err, TERN_E_FORMAT, "%s says nothing of the model's text ('text_config')", file);
    const json_t *said = json_object_get(text, "model_type");
    if (json_is_string(said)) type = json_string_value(said);
    json_t *o = tn_json_copy_flat(text);
    if (o && !said) tn_json_set(&o, "model_type", tn_json_string(type, strlen(type)));
    for (size_t i = 0; o && i < sizeof defaults / sizeof *defaults; i++)
        if (!strcmp(defaults[i].text, type)) fill(&o, defaults[i].values);
    TN_FAIL_IF(!o, err, TERN_E_MEMORY, "%s: no memory for its configuration", file);
    /* The two objects may not agree on it: whether there is an output layer, the tensors tell. */
    (void)json_object_del(o, "tie_word_embeddings");
    *out = o;
    return TERN_OK;
}
